//! Embeddings pooled by their maximum, end to end: trained, killed and resumed to the same bits, evaluated, scored and
//! exported.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, ListArray};
use millstream_tests::programs::Daemon;
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::{Contents, draw};

const TAGS: u64 = 60;
const GROUPS: u64 = 12;
const LONGEST: u64 = 8;

const JOB: &str = r#"name = "maxima"
seed = 3
[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
batch_size = 64
epochs = 4
shuffle_rows = 4096
lanes = 2
[label]
column = "flagged"
[features]
tags = { kind = "identity", buckets = 60, multi = true, maximum = 8 }
[model]
kind = "wide_deep"
deep.features = ["tags"]
deep.embedding_dim = 8
deep.pooling = "max"
deep.hidden = [16]
deep.optimizer = { kind = "adam", learning_rate = 0.005 }
[training]
threads = 1
micro_batch_size = 48
embedding_precision = "bf16"
[checkpoint]
directory = "checkpoints"
every_steps = 50
keep = 100
"#;

/// Rows of tags, some of them without any and some with a tag twice. The label is whether a tag of one group is among
/// them, whatever the others are.
fn flags(rows: usize, seed: u64) -> Table {
    let mut state = seed;
    let rows =
        (0..rows).map(|_| (0..draw(&mut state, LONGEST + 1)).map(|_| draw(&mut state, TAGS)).collect());
    let rows: Vec<Vec<u64>> = rows.collect();
    let flagged = rows.iter().map(|tags| i64::from(tags.iter().any(|tag| tag % GROUPS == 0)));
    let flagged = Int64Array::from_iter_values(flagged);
    let tags = rows.iter().map(|tags| Some(tags.iter().map(|&tag| Some(tag.cast_signed()))));
    let tags = ListArray::from_iter_primitive::<Int64Type, _, _>(tags);
    Table::of(vec![("tags", Arc::new(tags) as ArrayRef), ("flagged", Arc::new(flagged))])
}

fn write(directory: &Path) {
    flags(12_000, 1).write_parquet(&directory.join("train.parquet"));
    flags(2_000, 2).write_parquet(&directory.join("eval.parquet"));
    fs::write(directory.join("job.toml"), JOB).unwrap();
}

#[test]
fn maxima_train_evaluate_score_and_export() {
    let scratch = tempfile::tempdir().unwrap();
    write(scratch.path());
    let shell = Shell::new(scratch.path());
    let outcome = shell.run(&["train", "job.toml", "--json"]).with_code(0).json();
    let auc = outcome["eval"]["auc"].as_f64().unwrap();
    assert!(auc > 0.99, "{outcome}");
    let run = format!("checkpoints/{}", outcome["job"].as_str().unwrap());
    assert_eq!(shell.run(&["eval", &run, "--json"]).with_code(0).json(), outcome["eval"]);
    let scores = shell.run(&["predict", &run]).with_code(0).stdout;
    assert_eq!(scores.lines().count(), 2_001);
    let exported = shell.run(&["export", &run, "--output", "model.onnx", "--json"]).with_code(0).json();
    let names = exported["inputs"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["tags"]);
}

#[test]
fn a_killed_worker_resumes_maxima_to_the_same_bits() {
    let scratch = tempfile::tempdir().unwrap();
    write(scratch.path());
    let daemon = Daemon::start(scratch.path());
    let file = scratch.path().join("job.toml");
    // Long enough to be killed in its middle.
    let line = ["submit", file.to_str().unwrap(), "--set", "data.epochs=60"];
    let submit = || daemon.json(&line)["id"].as_str().unwrap().to_owned();
    let undisturbed = daemon.succeeded(&submit());
    let second = submit();
    daemon.kill_worker_after(&second, &[120]);
    let resumed = daemon.succeeded(&second);
    assert!(resumed["attempts"].as_u64().unwrap() > 1, "{resumed:#}");
    let contents = |job: &serde_json::Value| {
        Contents::of(scratch.path().join(job["checkpoint"].as_str().unwrap())).without_job_description()
    };
    contents(&resumed).assert_same(&contents(&undisturbed));
    daemon.stop();
}
