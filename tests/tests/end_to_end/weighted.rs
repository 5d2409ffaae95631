//! Weighted values end to end, from files of several formats to scores: weights are learned from, cached and exported, and
//! rows with invalid weights are bad records.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, Int64Array};
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::draw;
use serde_json::Value;
use tempfile::TempDir;

const ROWS: usize = 4_000;
const EVAL_ROWS: usize = 2_000;
const TAGS: u64 = 12;

const JOB: &str = r#"name = "weighted"
seed = 3

[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
batch_size = 64
epochs = 4
shuffle_rows = 0
lanes = 1

[label]
column = "clicked"

[features.tags]
kind = "vocabulary"
multi = true
maximum = 4
weights = "tag_weights"

[model]
kind = "wide_deep"
wide.features = ["tags"]
deep.features = ["tags"]
deep.embedding_dim = 4
deep.hidden = [8]

[training]
threads = 1
"#;

/// A row: its tags with their weights, and its label.
#[derive(Clone)]
struct Row {
    tags: Vec<String>,
    weights: Vec<f64>,
    clicked: i64,
}

/// Rows whose label follows from the weights: half of the tags vote for it and half against it, each with its weight.
fn rows(count: usize, seed: u64) -> Vec<Row> {
    let mut state = seed;
    let mut draw = |below| draw(&mut state, below);
    let row = |_| {
        let tags: Vec<u64> = (0..draw(5)).map(|_| draw(TAGS)).collect();
        let weights: Vec<f64> = tags.iter().map(|_| [0.125, 0.25, 1.0, 8.0][draw(4) as usize]).collect();
        let votes =
            tags.iter().zip(&weights).map(|(tag, weight)| if tag % 2 == 0 { *weight } else { -weight });
        let clicked = i64::from(votes.sum::<f64>() + draw(3) as f64 / 10.0 > 0.15);
        Row { tags: tags.iter().map(|tag| format!("tag {tag}")).collect(), weights, clicked }
    };
    (0..count).map(row).collect()
}

fn table(rows: &[Row]) -> Table {
    let mut tags = ListBuilder::new(StringBuilder::new());
    let (mut weights, mut ones) =
        (ListBuilder::new(Float64Builder::new()), ListBuilder::new(Float64Builder::new()));
    for row in rows {
        tags.append_value(row.tags.iter().map(Some));
        weights.append_value(row.weights.iter().copied().map(Some));
        ones.append_value(vec![Some(1.0); row.tags.len()]);
    }
    let clicked = Int64Array::from_iter_values(rows.iter().map(|row| row.clicked));
    Table::of(vec![
        ("tags", Arc::new(tags.finish()) as ArrayRef),
        ("tag_weights", Arc::new(weights.finish())),
        ("ones", Arc::new(ones.finish())),
        ("clicked", Arc::new(clicked)),
    ])
}

/// A directory with the job and its data in three formats.
fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    for (name, count, seed) in [("train", ROWS, 1), ("eval", EVAL_ROWS, 2)] {
        let table = table(&rows(count, seed));
        table.write_parquet(&place.path().join(format!("{name}.parquet")));
        table.write_tfrecord(&place.path().join(format!("{name}.tfrecord")));
        let files = [format!("{name}.parquet"), format!("{name}.jsonl")];
        drop(Shell::new(place.path()).run(&["convert", &files[0], &files[1]]).with_code(0));
    }
    fs::write(place.path().join("job.toml"), JOB).unwrap();
    place
}

/// Trains the job with additional settings. Returns the outcome, and the scores of the held-out rows.
fn train(place: &Path, set: &[&str]) -> (Value, Vec<f64>) {
    let shell = Shell::new(place);
    let mut line = vec!["train", "job.toml", "--json"];
    line.extend(set.iter().flat_map(|set| ["--set", set]));
    let outcome = shell.run(&line).with_code(0).json();
    let run = format!("checkpoints/{}", outcome["job"].as_str().unwrap());
    let scores = shell.run(&["predict", &run]).with_code(0).stdout;
    (outcome, scores.lines().skip(1).map(|score| score.parse().unwrap()).collect())
}

fn auc(outcome: &Value) -> f64 {
    outcome["eval"]["auc"].as_f64().unwrap()
}

const OF_TFRECORD: [&str; 2] = ["data.train=[\"train.tfrecord\"]", "data.eval=[\"eval.tfrecord\"]"];
const OF_JSON_LINES: [&str; 2] = ["data.train=[\"train.jsonl\"]", "data.eval=[\"eval.jsonl\"]"];

#[test]
fn weights_are_used_by_every_pooling() {
    let place = place();
    for pooling in ["sum", "mean", "sqrtn"] {
        let pooling = format!("model.deep.pooling={pooling}");
        let (with, scores) = train(place.path(), &[&pooling]);
        assert_eq!(scores.len(), EVAL_ROWS);
        assert!(auc(&with) > 0.95, "{pooling}: {with:#}");
        let (without, _) = train(place.path(), &[&pooling, "features.tags.weights=ones"]);
        assert!(auc(&without) < auc(&with) - 0.05, "{pooling}: {without:#}");
    }
}

#[test]
fn maxima_of_weighted_values_are_refused() {
    let place = place();
    let refused =
        Shell::new(place.path()).run(&["check", "job.toml", "--set", "model.deep.pooling=max"]).with_code(2);
    let expected =
        "job.toml:15:11: error: feature `tags` has `weights`, which `pooling = \"max\"` does not use";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
}

#[test]
fn all_formats_and_the_cache_give_the_same_model() {
    let place = place();
    let (plain, scores) = train(place.path(), &[]);
    for set in
        [&OF_TFRECORD[..], &OF_JSON_LINES, &["data.cache={ directory = \"cache\", max_bytes = 100_000_000 }"]]
    {
        // On the second run, the cache is complete.
        for _ in 0..2 {
            let (again, same) = train(place.path(), set);
            assert_eq!((&again["eval"], &same), (&plain["eval"], &scores), "{set:?}");
        }
    }
    assert!(fs::read_dir(place.path().join("cache")).unwrap().count() > 0);
}

#[test]
fn weights_of_one_are_equivalent_to_no_weights() {
    let place = place();
    let (_, ones) = train(place.path(), &["features.tags.weights=ones"]);
    let text = JOB.replace("weights = \"tag_weights\"\n", "");
    assert_ne!(text, JOB);
    fs::write(place.path().join("job.toml"), text).unwrap();
    let (_, none) = train(place.path(), &[]);
    for (one, none) in ones.iter().zip(&none) {
        assert!((one - none).abs() < 1e-4, "{one} {none}");
    }
}

#[test]
fn check_reports_weights_and_exported_models_take_them() {
    let place = place();
    let shell = Shell::new(place.path());
    let report = shell.run(&["check", "job.toml", "--json"]).with_code(0).json();
    assert_eq!(report["features"][0]["weights"], "tag_weights");
    let table = shell.run(&["check", "job.toml"]).with_code(0).stdout;
    assert!(table.contains("tags by tag_weights"), "{table}");
    let (outcome, _) = train(place.path(), &["data.epochs=1"]);
    let run = format!("checkpoints/{}", outcome["job"].as_str().unwrap());
    let exported = shell.run(&["export", &run, "--output", "model.onnx", "--json"]).with_code(0).json();
    let inputs = exported["inputs"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap());
    assert_eq!(inputs.collect::<Vec<_>>(), ["tags", "tags_weights"]);
}

#[test]
fn rows_with_invalid_weights_are_bad_records_with_an_address() {
    let place = place();
    let shell = Shell::new(place.path());
    let mut corrupted = rows(ROWS, 1);
    let row = (1200..).find(|&row| corrupted[row].tags.len() == 2).unwrap();
    corrupted[row].weights.push(1.0);
    let other = (3000..).find(|&row| corrupted[row].tags.len() > 2).unwrap();
    corrupted[other].weights[1] = f64::INFINITY;
    table(&corrupted).write_parquet(&place.path().join("train.parquet"));
    table(&corrupted).write_tfrecord(&place.path().join("train.tfrecord"));
    for (set, file) in [(&[][..], "train.parquet"), (&OF_TFRECORD[..], "train.tfrecord")] {
        let line = |policy| {
            let mut line = vec!["train", "job.toml", "--json", "--set", policy];
            line.extend(set.iter().flat_map(|set| ["--set", set]));
            line
        };
        let failed = shell.run(&line("data.on_bad_record=fail")).with_code(1).stderr;
        let expected = format!(
            "{file}: record {row}, column `tag_weights`: expected one weight per value of column `tags` (2), found 3"
        );
        assert!(failed.contains(&expected), "{failed}");
        let outcome = shell.run(&line("data.on_bad_record=skip")).with_code(0).json();
        assert_eq!(outcome["skipped_records"], 4 * 2, "in each epoch");
        assert_eq!(outcome["examples"], 4 * (ROWS - 2));
    }
    // A column that does not exist is an error in any case.
    let rejected =
        shell.run(&["train", "job.toml", "--set", "features.tags.weights=tag_wieghts"]).with_code(1);
    assert!(rejected.stderr.contains("tag_wieghts"), "{}", rejected.stderr);
}
