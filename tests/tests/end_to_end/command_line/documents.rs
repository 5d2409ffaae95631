//! `--json`: exactly one document on standard output, with the keys that scripts rely on.

use std::fs;
use std::path::PathBuf;

use millstream_tests::shell::Shell;
use millstream_tests::table::Table;
use serde_json::Value;
use tempfile::TempDir;

/// Rows of examples/census.
const TRAIN_ROWS: u64 = 32_592;
const EVAL_ROWS: u64 = 16_250;

#[test]
fn train_reports_its_outcome() {
    let (directory, shell) = scratch();
    let runs = format!("checkpoint.directory={}", directory.path().join("runs").display());
    let line = ["train", &census(), "--set", "data.epochs=1", "--set", &runs, "--json"];
    let outcome = shell.run(&line).with_code(0).json();
    assert_keys(
        &outcome,
        &[
            "job",
            "state",
            "steps",
            "examples",
            "examples_per_second",
            "input_wait_fraction",
            "skipped_records",
            "eval",
            "checkpoint",
            "best_checkpoint",
            "reason",
        ],
    );
    assert_eq!(outcome["state"], "succeeded");
    assert_eq!(outcome["steps"], TRAIN_ROWS.div_ceil(256));
    assert_eq!(outcome["examples"], TRAIN_ROWS);
    assert!(outcome["examples_per_second"].as_f64().unwrap() > 0.0);
    assert!((0.0..=1.0).contains(&outcome["input_wait_fraction"].as_f64().unwrap()));
    assert!(PathBuf::from(outcome["checkpoint"].as_str().unwrap()).join("manifest.json").exists());
    assert_eq!(outcome["reason"], Value::Null);
    let eval = &outcome["eval"];
    let promised = ["auc", "log_loss", "accuracy", "examples"];
    let more = ["auc_error", "pr_auc", "pr_auc_error", "normalized_entropy", "calibration", "rmse"];
    // No group AUC: the rows have no groups.
    assert_keys(eval, &[&promised[..], &more].concat());
    assert_eq!(eval["examples"], EVAL_ROWS);
    for exact in ["auc_error", "pr_auc_error"] {
        assert_eq!(eval[exact], 0.0, "{eval}");
    }
    assert!((0.5..1.5).contains(&eval["calibration"].as_f64().unwrap()), "{eval}");
    assert!((0.0..1.0).contains(&eval["normalized_entropy"].as_f64().unwrap()), "{eval}");
    assert!(eval["auc"].as_f64().unwrap() > 0.85, "{eval}");
}

#[test]
fn check_reports_the_plan() {
    let (_directory, shell) = scratch();
    let plan = shell.run(&["check", &census(), "--json"]).with_code(0).json();
    assert_keys(
        &plan,
        &[
            "name",
            "seed",
            "data",
            "features",
            "batch",
            "auto_batch",
            "rows_per_epoch",
            "steps_per_epoch",
            "steps_are_estimated",
            "memory_problem",
            "gpu_problem",
            "epochs",
            "precision",
            "embedding_precision",
            "device",
            "workers",
            "host",
            "learning_rates",
            "parameters",
            "memory",
            "continuation",
            "warm_start",
        ],
    );
    assert_eq!(plan["name"], "census-wide-deep");
    assert_eq!(plan["warm_start"], Value::Null);
    assert_eq!(plan["auto_batch"], Value::Null);
    assert_eq!(plan["learning_rates"]["factor"], Value::Null);
    assert_eq!(plan["data"]["train"]["files"], 4);
    assert_eq!(plan["data"]["train"]["rows"], TRAIN_ROWS);
    assert_eq!(plan["data"]["eval"]["rows"], EVAL_ROWS);
    assert_eq!(plan["steps_per_epoch"], TRAIN_ROWS.div_ceil(256));
    assert!(plan["parameters"]["total"].as_u64().unwrap() > 10_000);
    let memory = &plan["memory"];
    let bytes = |key: &str| memory[key].as_u64().unwrap();
    assert!(bytes("ring_bytes") + bytes("pool_bytes") + bytes("reading_bytes") <= bytes("budget_bytes"));
}

#[test]
fn bench_ingest_reports_rates_and_stages() {
    let (_directory, shell) = scratch();
    let line = ["bench", "ingest", &census(), "--epochs", "2", "--json"];
    let measured = shell.run(&line).with_code(0).json();
    let keys = ["rows", "bytes", "seconds", "rows_per_second", "stages"];
    let more = ["first_batch_seconds", "planning_seconds", "planned_bytes", "explanation"];
    assert_keys(&measured, &[&keys[..], &more].concat());
    assert_eq!(measured["rows"], 2 * TRAIN_ROWS);
    let explained = ["resources", "in_flight_bytes", "recent", "whole", "cache", "truncated_rows"];
    assert_keys(&measured["explanation"], &explained);
    assert!(measured["bytes"].as_u64().unwrap() > 0);
    let (rows, seconds) = (measured["rows"].as_f64().unwrap(), measured["seconds"].as_f64().unwrap());
    let rate = measured["rows_per_second"].as_f64().unwrap();
    assert!((rate * seconds / rows - 1.0).abs() < 1e-6, "{measured}");
    assert_keys(&measured["stages"], &["fetch", "decode", "transform", "shuffle", "pack", "images", "ring"]);
}

#[test]
fn inspect_reports_each_file_and_fails_on_damage() {
    let (directory, shell) = scratch();
    let table = Table::clicks(40, 1);
    table.write_parquet(&directory.path().join("a.parquet"));
    table.write_tfrecord(&directory.path().join("b.tfrecord"));
    let whole = shell.run(&["inspect", "a.parquet", "b.tfrecord", "--json"]).with_code(0).json();
    for (file, format) in whole.as_array().unwrap().iter().zip(["parquet", "tfrecord"]) {
        let known = ["path", "format", "compression", "records", "columns", "error"];
        assert!(known.iter().all(|key| file.get(key).is_some()), "{file:#}");
        assert_eq!(
            (&file["format"], &file["records"], &file["error"]),
            (&format.into(), &40.into(), &Value::Null)
        );
        let columns = file["columns"].as_array().unwrap();
        let mut names: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["clicked", "color", "x"]);
        assert!(columns.iter().all(|column| column["type"].is_string()), "{file:#}");
    }

    let path = directory.path().join("b.tfrecord");
    let mut bytes = fs::read(&path).unwrap();
    let at = millstream_tests::tfrecord::offsets(&bytes)[9];
    bytes[at + 20] ^= 1;
    fs::write(path, bytes).unwrap();
    let files = shell.run(&["inspect", "b.tfrecord", "a.parquet", "--json"]).with_code(1).json();
    let error_of = |path: &str| {
        let file = files.as_array().unwrap().iter().find(|file| file["path"] == path);
        file.unwrap()["error"].clone()
    };
    let error = error_of("b.tfrecord");
    assert_eq!((&error["record"], &error["offset"]), (&9.into(), &at.into()), "{error}");
    assert!(error["message"].as_str().unwrap().contains("checksum"), "{error}");
    assert_eq!(error_of("a.parquet"), Value::Null);
    let ended = shell.run(&["inspect", "b.tfrecord"]).with_code(1);
    assert!((ended.stdout + &ended.stderr).contains("record 9"));
}

#[test]
fn a_failure_prints_a_single_document_too() {
    let (directory, shell) = scratch();
    fs::write(directory.path().join("job.toml"), "name = \"x\"\nsed = 3\n").unwrap();
    for (line, code, says) in [
        (&["check", "job.toml", "--json"][..], 2, "job.toml:2:1: error: unknown key `sed`"),
        (&["train", "job.toml", "--json"], 2, "did you mean `seed`?"),
        (&["list", "--json"], 1, "no daemon listens on"),
        (&["eval", "nothing", "--json"], 1, "neither a job nor a checkpoint"),
        (&["predict", "nothing", "--json"], 2, "--output"),
    ] {
        let ended = shell.run(line).with_code(code);
        let document = ended.json();
        let message = document["error"]["message"].as_str().unwrap();
        assert!(message.contains(says) && ended.stderr.contains(says), "{line:?}: {message}");
    }
}

/// An empty directory and a shell in it.
fn scratch() -> (TempDir, Shell) {
    let directory = tempfile::tempdir().unwrap();
    let shell = Shell::new(directory.path());
    (directory, shell)
}

fn census() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/census/job.toml").to_owned()
}

fn assert_keys(document: &Value, wanted: &[&str]) {
    let mut wanted = wanted.to_vec();
    wanted.sort_unstable();
    let found: Vec<_> = document.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(found, wanted, "{document:#}");
}
