//! A two-tower model learns planted preferences, end to end.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array};
use millstream_tests::programs::Daemon;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::draw;
use serde_json::Value;

/// Each user likes all items of one taste equally: those with `item % TASTES == user % TASTES`.
const TASTES: u64 = 8;
const USERS: u64 = 240;
const ITEMS: u64 = 160;
const BATCH: u32 = 64;

const JOB: &str = r#"name = "tastes"
seed = 3
[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
batch_size = 64
epochs = 6
shuffle_rows = 8192
lanes = 4
[label]
column = "chosen"
[features]
user = { kind = "identity", buckets = 240 }
item = { kind = "identity", buckets = 160 }
[model]
kind = "two_tower"
dim = 8
item_id = "item"
[model.query]
features = ["user"]
hidden = [16]
[model.item]
features = ["item"]
hidden = [16]
[training]
threads = 1
[checkpoint]
every_steps = 100
"#;

/// Pairs of a user and an item. The item is one that the user likes, or, with `of_any_taste`, any item in half of the
/// rows.
fn choices(rows: usize, seed: u64, of_any_taste: bool) -> Table {
    let mut state = seed;
    let rows = (0..rows).map(|_| {
        let (user, item) = (draw(&mut state, USERS), draw(&mut state, ITEMS));
        let is_any = of_any_taste && draw(&mut state, 2) == 0;
        let item = if is_any { item } else { item - item % TASTES + user % TASTES };
        (user.cast_signed(), item.cast_signed(), i64::from(user % TASTES == item % TASTES))
    });
    let rows: Vec<(i64, i64, i64)> = rows.collect();
    let column = |of: fn(&(i64, i64, i64)) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(of)))
    };
    Table::of(vec![
        ("user", column(|row| row.0)),
        ("item", column(|row| row.1)),
        ("chosen", column(|row| row.2)),
    ])
}

/// The minimum loss: the expected cross-entropy of a choice among the batch's items of the user's taste. These are its
/// own item and those of other rows, whose number is binomial, excluding duplicates of its own item.
fn planted_loss() -> f64 {
    let share = (1.0 / TASTES as f64) * (1.0 - TASTES as f64 / ITEMS as f64);
    let others = BATCH - 1;
    let mut probability = (1.0 - share).powi(others.cast_signed());
    (0..=others)
        .map(|rivals| {
            let term = probability * f64::from(1 + rivals).ln();
            probability *= f64::from(others - rivals) / f64::from(rivals + 1) * share / (1.0 - share);
            term
        })
        .sum()
}

fn trained(directory: &Path, daemon: &Daemon, set: &[&str]) -> (Value, Value) {
    choices(24_000, 1, false).write_parquet(&directory.join("train.parquet"));
    choices(4_000, 2, true).write_parquet(&directory.join("eval.parquet"));
    let file = directory.join("job.toml");
    fs::write(&file, JOB).unwrap();
    let set = set.iter().flat_map(|set| ["--set", *set]);
    let line: Vec<&str> = ["submit", file.to_str().unwrap()].into_iter().chain(set).collect();
    let submitted = daemon.json(&line);
    let id = submitted["id"].as_str().unwrap();
    (daemon.succeeded(id), daemon.json(&["history", id]))
}

#[test]
fn planted_preferences_are_learned_from_pairs() {
    let scratch = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(scratch.path());
    let (_, history) = trained(scratch.path(), &daemon, &["model.loss=bpr"]);
    let auc = history["evaluations"].as_array().unwrap().last().unwrap()["metrics"]["auc"].as_f64().unwrap();
    assert!(auc > 0.99, "{auc}");
    daemon.stop();
}

#[test]
fn planted_preferences_are_learned() {
    let scratch = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(scratch.path());
    let (job, history) = trained(scratch.path(), &daemon, &["model.loss=softmax"]);
    let points = history["points"].as_array().unwrap();
    // The mean loss since the previous point, which in a short run is the first step: initially ln 64, about 4.2.
    let last = points.last().unwrap()["loss"].as_f64().unwrap();
    let planted = planted_loss();
    assert!((last - planted).abs() < 0.1, "{last}, planted {planted}");
    let evaluations = history["evaluations"].as_array().unwrap();
    let metrics = &evaluations.last().unwrap()["metrics"];
    let auc = metrics["auc"].as_f64().unwrap();
    assert!(auc > 0.99, "{auc}");
    assert_eq!(metrics.get("log_loss"), None, "scores are not probabilities");

    let id = job["id"].as_str().unwrap();
    // A missing value has an id, too.
    for (part, numbers) in [("query", 241 * 8 + 9 * 16 + 17 * 8), ("item", 161 * 8 + 9 * 16 + 17 * 8)] {
        for format in ["onnx", "safetensors"] {
            let output = scratch.path().join(format!("{part}.{format}"));
            let report = daemon.json(&["export", id, "--part", part, "--output", output.to_str().unwrap()]);
            assert_eq!(
                (&report["part"], &report["parameters"]),
                (&part.into(), &numbers.into()),
                "{report:#}"
            );
            assert!(fs::metadata(&output).unwrap().len() > 4 * numbers);
        }
    }
    daemon.stop();
}

/// Each worker has the queries of its rows, which choose among the items of both.
#[test]
fn two_workers_learn_as_one() {
    let scratch = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(scratch.path());
    for loss in ["model.loss=softmax", "model.loss=bpr"] {
        let [one, two] = ["workers.per_host=1", "workers.per_host=2"].map(|workers| {
            let (_, history) = trained(scratch.path(), &daemon, &[loss, workers]);
            let last = |key: &str| history[key].as_array().unwrap().last().unwrap().clone();
            let auc = last("evaluations")["metrics"]["auc"].as_f64().unwrap();
            [last("points")["loss"].as_f64().unwrap(), auc]
        });
        // The steps of a point differ between runs. Among the items of one worker there would be half as many rivals, and the loss
        // would be smaller by more than 0.5.
        assert!((one[0] - two[0]).abs() < 0.1, "{loss}: {one:?} and {two:?}");
        assert!((one[1] - two[1]).abs() < 1e-3, "{loss}: {one:?} and {two:?}");
    }
    daemon.stop();
}
