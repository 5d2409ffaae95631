//! Multi-class jobs, from `check` to `export`.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray};
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use millstream_tests::tiny_job::draw;
use serde_json::Value;
use tempfile::TempDir;

const TRAIN: usize = 8_000;
const EVAL: usize = 2_000;
/// As in a job file; a comma requires quotes in CSV.
const CLASSES: [&str; 4] = ["mild", "sweet, ripe", "sour", "bitter"];
const TITLE: &str = "score_mild,\"score_sweet, ripe\",score_sour,score_bitter,class";

const JOB: &str = r#"name = "tastes"
seed = 3

[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
batch_size = 64
epochs = 3
shuffle_rows = 2048
lanes = 1

[label]
column = "taste"
classes = ["mild", "sweet, ripe", "sour", "bitter"]

[features]
x = { kind = "numeric", normalize = "zscore" }
color = { kind = "vocabulary" }

[model]
kind = "mlp"
features = ["x", "color"]
embedding_dim = 4
hidden = [16]
optimizer = { kind = "adagrad", learning_rate = 0.1 }

[training]
threads = 1

[checkpoint]
directory = "checkpoints"
"#;

/// The class of each row, and a table of the rows. The class follows from the other columns, except for a random one
/// in ten; it is included as text and as a number.
fn rows(count: usize, seed: u64) -> (Vec<usize>, Table) {
    let mut state = seed;
    let (mut x, mut color, mut class) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        let (number, name) = (draw(&mut state, 1_000) as f64 / 100.0, draw(&mut state, 12));
        let expected = if name < 5 { 0 } else { 1 + usize::from(number > 5.0) + usize::from(name == 11) };
        class.push(if draw(&mut state, 10) == 0 { draw(&mut state, 4) as usize } else { expected });
        x.push(number);
        color.push(format!("color {name}"));
    }
    let tastes = StringArray::from_iter_values(class.iter().map(|&class| CLASSES[class]));
    let numbers = Int64Array::from_iter_values(class.iter().map(|&class| class as i64));
    let columns: Vec<(&'static str, ArrayRef)> = vec![
        ("x", Arc::new(Float64Array::from(x))),
        ("color", Arc::new(StringArray::from(color))),
        ("taste", Arc::new(tastes)),
        ("number", Arc::new(numbers)),
    ];
    (class, Table::of(columns))
}

/// A directory with the data and the job, and the classes of the held-out rows.
fn scratch() -> (TempDir, Shell, Vec<usize>) {
    let directory = tempfile::tempdir().unwrap();
    rows(TRAIN, 1).1.write_parquet(&directory.path().join("train.parquet"));
    let (classes, eval) = rows(EVAL, 2);
    eval.write_parquet(&directory.path().join("eval.parquet"));
    fs::write(directory.path().join("job.toml"), JOB).unwrap();
    let shell = Shell::new(directory.path());
    (directory, shell, classes)
}

fn train(shell: &Shell, more: &[&str]) -> Value {
    let outcome = shell.run(&[&["train", "job.toml", "--json"], more].concat()).with_code(0).json();
    assert_eq!(outcome["state"], "succeeded", "{outcome:#}");
    outcome
}

fn run_of(outcome: &Value) -> String {
    format!("checkpoints/{}", outcome["job"].as_str().unwrap())
}

/// The share of the most frequent class.
fn majority(classes: &[usize]) -> f64 {
    let count = |class| classes.iter().filter(|&&other| other == class).count();
    (0..CLASSES.len()).map(count).max().unwrap() as f64 / classes.len() as f64
}

fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap()
}

#[test]
fn classes_are_learned_reported_and_predicted_by_name() {
    let (directory, shell, classes) = scratch();
    let more = ["--set", "training.loss.label_smoothing=0.02", "--set", "checkpoint.keep_best=true"];
    let curves = ["--set", "tensorboard.directory=\"events\"", "--history", "curves.svg"];
    let outcome = train(&shell, &[&more[..], &curves].concat());
    let eval = &outcome["eval"];
    let keys: BTreeSet<&str> = eval.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["accuracy", "examples", "log_loss", "normalized_entropy"]));
    let number = |name: &str| eval[name].as_f64().unwrap();
    assert!(number("accuracy") > 0.85 && majority(&classes) < 0.5, "{eval:#}, {}", majority(&classes));
    assert!(number("normalized_entropy") < 0.7, "{eval:#}");
    assert!(read(directory.path(), "curves.svg").contains("held-out accuracy"));
    assert!(directory.path().join("events").read_dir().unwrap().next().is_some());

    let run = run_of(&outcome);
    assert_eq!(shell.run(&["eval", &run, "--json"]).with_code(0).json(), *eval);
    let best = shell.run(&["eval", &run, "--best", "--json"]).with_code(0).json();
    assert!(best["log_loss"].as_f64().unwrap() <= number("log_loss"), "the best by log loss: {best:#}");

    let written = shell.run(&["predict", &run]).with_code(0).stdout;
    let (title, lines) = written.split_once('\n').unwrap();
    assert_eq!(title, TITLE);
    assert_eq!(lines.lines().count(), EVAL);
    let mut correct = 0;
    for (line, class) in lines.lines().zip(&classes) {
        let parts: Vec<&str> = line.splitn(5, ',').collect();
        let scores: Vec<f64> = parts[..4].iter().map(|score| score.parse().unwrap()).collect();
        assert!((scores.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{line}");
        let best = (0..4).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap();
        assert_eq!(parts[4].trim_matches('"'), CLASSES[best]);
        correct += usize::from(best == *class);
    }
    assert!((correct as f64 / EVAL as f64 - number("accuracy")).abs() < 1e-9);

    let line = shell.run(&["predict", &run, "--format", "jsonl"]).with_code(0).stdout;
    let first: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert!(first["score_sweet, ripe"].is_f64() && CLASSES.contains(&first["class"].as_str().unwrap()));
    let _ = shell.run(&["predict", &run, "--output", "scores.parquet"]).with_code(0);
    let table = shell.run(&["inspect", "scores.parquet"]).with_code(0).stdout;
    assert!(table.contains("score_bitter") && table.contains("class"), "{table}");

    let exported = shell.run(&["export", &run, "--output", "model.onnx", "--json"]).with_code(0).json();
    let outputs = exported["outputs"].as_array().unwrap();
    let shapes = outputs.iter().map(|port| (port["name"].as_str().unwrap(), port["shape"].to_string()));
    let wanted = [("score", "[\"rows\",4]"), ("logit", "[\"rows\",4]")];
    assert_eq!(shapes.collect::<Vec<_>>(), wanted.map(|(name, shape)| (name, shape.to_owned())));
}

#[test]
fn integer_classes_train_with_micro_batches_and_reduced_precision() {
    let (_directory, shell, classes) = scratch();
    let numbers = ["--set", "label.column=\"number\"", "--set", "label.classes=4"];
    let weights = ["--set", "training.loss.class_weights=[1, 1, 2, 2]"];
    let ways: [&[&str]; 4] = [
        &["--set", "training.micro_batch_size=24"],
        &["--set", "training.precision=\"bf16\"", "--set", "model.kind=\"dcn_v2\""],
        &["--set", "training.precision=\"fp16\""],
        // Text instead of integers.
        &["--set", "label.classes=[\"0\", \"1\", \"2\", \"3\"]"],
    ];
    for way in ways {
        let outcome = train(&shell, &[&numbers[..], &weights, way].concat());
        let accuracy = outcome["eval"]["accuracy"].as_f64().unwrap();
        assert!(accuracy > majority(&classes) + 0.3, "{way:?}: {accuracy}");
        let written = shell.run(&["predict", &run_of(&outcome)]).with_code(0).stdout;
        assert!(written.starts_with("score_0,score_1,score_2,score_3,class\n"), "{written}");
    }
}

#[test]
fn a_value_outside_the_classes_is_a_bad_record() {
    let (_directory, shell, _) = scratch();
    let three = ["--set", "label.classes=[\"mild\", \"sour\", \"bitter\"]"];
    let failed = shell.run(&[&["train", "job.toml"], &three[..]].concat()).with_code(1);
    let expected = "column `taste`: expected one of the label's classes, found `sweet, ripe`";
    assert!(
        failed.stderr.contains("train.parquet: record ") && failed.stderr.contains(expected),
        "{failed:?}"
    );

    let skip = ["--set", "data.on_bad_record=\"skip\"", "--set", "data.max_bad_records=8000"];
    let outcome = train(&shell, &[&three[..], &skip].concat());
    assert!(outcome["eval"]["examples"].as_u64().unwrap() < EVAL as u64, "{outcome:#}");
}

#[test]
fn a_warm_start_requires_the_same_classes_in_the_same_order() {
    let (_directory, shell, classes) = scratch();
    let run = run_of(&train(&shell, &[]));
    let from = format!("warm_start.checkpoint=\"{run}\"");
    let same = train(&shell, &["--set", &from, "--set", "data.epochs=1"]);
    assert!(same["eval"]["accuracy"].as_f64().unwrap() > majority(&classes) + 0.3, "{same:#}");
    let reordered = "label.classes=[\"bitter\", \"sour\", \"mild\", \"sweet, ripe\"]";
    let rejected = shell.run(&["train", "job.toml", "--set", &from, "--set", reordered]).with_code(1);
    let expected = "its classes differ from the job's, or their order does";
    assert!(
        rejected.stderr.contains("`warm_start.checkpoint`") && rejected.stderr.contains(expected),
        "{rejected:?}"
    );
    // With more classes, the output layer starts from scratch.
    let more = ["--set", "label.column=\"number\"", "--set", "label.classes=5"];
    let outcome = train(&shell, &[&["--set", &from, "--set", "data.epochs=1"], &more[..]].concat());
    assert!(outcome["eval"]["accuracy"].as_f64().unwrap() > majority(&classes), "{outcome:#}");
}
