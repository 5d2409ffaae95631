//! A Deep Interest Network, end to end: trained, killed and resumed to the same bits, evaluated, scored and exported.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, ListArray};
use millstream_tests::programs::{Daemon, children, kill, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::{Contents, draw};

const ITEMS: u64 = 60;
const GROUPS: u64 = 6;
const LONGEST: u64 = 6;

const JOB: &str = r#"name = "interests"
seed = 3
[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
batch_size = 64
epochs = 8
shuffle_rows = 4096
lanes = 2
[label]
column = "chosen"
[features]
item = { kind = "identity", buckets = 60 }
clicked = { kind = "identity", buckets = 60, multi = true, maximum = 5 }
[model]
kind = "din"
features = ["item", "clicked"]
sequences = [{ history = "clicked", target = "item" }]
attention.hidden = [16]
hidden = [16]
embedding_dim = 8
optimizer = { kind = "adam", learning_rate = 0.005 }
dropout = 0.1
[training]
threads = 1
micro_batch_size = 48
[checkpoint]
directory = "checkpoints"
every_steps = 50
keep = 100
"#;

/// Items and histories, of which some are empty and some longer than the job keeps. The label is whether the item's
/// group is in the history.
fn choices(rows: usize, seed: u64) -> Table {
    let mut state = seed;
    let rows = (0..rows).map(|_| {
        let length = draw(&mut state, LONGEST + 1);
        let history: Vec<u64> = (0..length).map(|_| draw(&mut state, ITEMS)).collect();
        let item = draw(&mut state, ITEMS);
        let chosen = history.iter().take(5).any(|other| other % GROUPS == item % GROUPS);
        (item.cast_signed(), history, i64::from(chosen))
    });
    let rows: Vec<(i64, Vec<u64>, i64)> = rows.collect();
    let column = |of: fn(&(i64, Vec<u64>, i64)) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(of)))
    };
    let histories = rows.iter().map(|row| Some(row.1.iter().map(|&id| Some(id.cast_signed()))));
    let histories = ListArray::from_iter_primitive::<Int64Type, _, _>(histories);
    Table::of(vec![
        ("item", column(|row| row.0)),
        ("clicked", Arc::new(histories)),
        ("chosen", column(|row| row.2)),
    ])
}

fn write(directory: &Path) {
    choices(12_000, 1).write_parquet(&directory.join("train.parquet"));
    choices(2_000, 2).write_parquet(&directory.join("eval.parquet"));
    fs::write(directory.join("job.toml"), JOB).unwrap();
}

#[test]
fn attention_trains_evaluates_scores_and_exports() {
    let scratch = tempfile::tempdir().unwrap();
    write(scratch.path());
    let shell = Shell::new(scratch.path());
    let outcome = shell.run(&["train", "job.toml", "--json"]).with_code(0).json();
    let auc = outcome["eval"]["auc"].as_f64().unwrap();
    assert!(auc > 0.95, "{outcome}");
    let run = format!("checkpoints/{}", outcome["job"].as_str().unwrap());
    assert_eq!(shell.run(&["eval", &run, "--json"]).with_code(0).json(), outcome["eval"]);
    let scores = shell.run(&["predict", &run]).with_code(0).stdout;
    assert_eq!(scores.lines().count(), 2_001);
    let exported = shell.run(&["export", &run, "--output", "model.onnx", "--json"]).with_code(0).json();
    let names = exported["inputs"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["item", "clicked"]);
}

#[test]
fn a_killed_worker_resumes_attention_to_the_same_bits() {
    let scratch = tempfile::tempdir().unwrap();
    write(scratch.path());
    let daemon = Daemon::start(scratch.path());
    let file = scratch.path().join("job.toml");
    // Long enough to be killed in its middle.
    let line = ["submit", file.to_str().unwrap(), "--set", "data.epochs=24"];
    let submit = || daemon.json(&line)["id"].as_str().unwrap().to_owned();
    let first = submit();
    let undisturbed = daemon.succeeded(&first);
    let second = submit();
    wait_until("the job has a checkpoint", || daemon.show(&second)["progress"]["step"].as_u64() > Some(120));
    let workers = children(daemon.pid());
    assert_eq!(workers.len(), 1);
    assert!(kill(workers[0]), "the worker runs");
    let resumed = daemon.succeeded(&second);
    let contents = |job: &serde_json::Value| {
        Contents::of(scratch.path().join(job["checkpoint"].as_str().unwrap())).without_job_description()
    };
    contents(&resumed).assert_same(&contents(&undisturbed));
    daemon.stop();
}
