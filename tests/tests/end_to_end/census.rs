//! The first command of the README, and the quality it promises.
//!
//! The thresholds for the shipped split are the means over five seeds, rounded down, of a Keras Wide & Deep model with
//! the same features (`bench/results/2026-11-21-census.md`). Those for the official split are published results.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use millstream_tests::shell::Shell;
use serde_json::Value;

const COLUMNS: &str = "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,\
                       race,sex,capital_gain,capital_loss,hours_per_week,native_country,income";

/// Trains the example job into `scratch` with additional arguments.
fn train(scratch: &Path, more: &[&str]) -> Value {
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/census/job.toml");
    let directory = format!("checkpoint.directory={}", scratch.join("checkpoints").display());
    let mut line = vec!["train", job.to_str().unwrap(), "--json", "--set", &directory];
    line.extend(more);
    Shell::new(scratch).run(&line).with_code(0).json()
}

fn assert_quality(report: &Value, auc: f64, accuracy: f64, examples: u64) {
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(report["eval"]["examples"], examples, "{report:#}");
    assert!(report["eval"]["auc"].as_f64().unwrap() >= auc, "{report:#}");
    assert!(report["eval"]["accuracy"].as_f64().unwrap() >= accuracy, "{report:#}");
}

#[test]
fn the_example_matches_the_quality_of_keras() {
    let scratch = tempfile::tempdir().unwrap();
    assert_quality(&train(scratch.path(), &[]), 0.9198, 0.862, 16_250);
}

/// Uses the original UCI files in `$MILLSTREAM_LAB_DATA/census`; without them, the test passes without checking.
#[test]
fn the_official_split_converted_from_csv_reaches_published_quality() {
    let Some(census) = std::env::var_os("MILLSTREAM_LAB_DATA").map(|lab| PathBuf::from(lab).join("census"))
    else {
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let convert = |from: &str, to: &str, more: &[&str]| {
        let from = census.join(from);
        let mut line =
            vec!["convert", from.to_str().unwrap(), to, "--input-format", "csv", "--columns", COLUMNS];
        line.extend(more);
        let converted = Shell::new(scratch.path()).run(&line).with_code(0);
        assert!(converted.stdout.contains(" rows to"), "{}", converted.stdout);
    };
    convert("adult.data", "train.parquet", &["--shards", "4"]);
    convert("adult.test", "test.parquet", &["--comment", "|", "--strip-suffix", "."]);
    let files = |key: &str, name: &str| format!("data.{key}=[\"{}\"]", scratch.path().join(name).display());
    let (train_files, eval_files) = (files("train", "train-*.parquet"), files("eval", "test.parquet"));
    let report = train(scratch.path(), &["--set", &train_files, "--set", &eval_files]);
    assert_quality(&report, 0.905, 0.850, 16_281);
}
