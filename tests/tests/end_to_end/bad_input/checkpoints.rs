//! Scoring without a checkpoint, with a damaged one, and with unsuitable data.

use std::fs;
use std::path::PathBuf;

use super::fixture::{Case, Fixture, run_cases};

/// The last checkpoint: the job has ten steps, one epoch.
const CHECKPOINT: &str = "run/step-0000000010";
const EVAL: &[&str] = &["eval", "run/step-0000000010"];
const PREDICT: &[&str] = &["predict", "run/step-0000000010", "eval.parquet", "--output", "scores.csv"];
const EXPORT: &[&str] = &["export", "run/step-0000000010", "--output", "model.onnx"];
const NOTHING: fn(&Fixture) = |_| {};

#[test]
fn paths_that_are_not_checkpoints() {
    run_cases(
        Fixture::new,
        &[
            Case {
                name: "a path that does not exist",
                corrupt: NOTHING,
                arguments: &["eval", "run"],
                exit_code: 1,
                stderr: &["`run` is neither a job nor a checkpoint"],
            },
            Case {
                name: "an empty directory",
                corrupt: |fixture| fs::create_dir(fixture.path("run")).unwrap(),
                arguments: &["predict", "run", "eval.parquet"],
                exit_code: 1,
                stderr: &["/run has no checkpoint"],
            },
            Case {
                name: "a file",
                corrupt: NOTHING,
                arguments: &["eval", "eval.parquet"],
                exit_code: 1,
                stderr: &["`eval.parquet` is neither a job nor a checkpoint"],
            },
        ],
    );
}

#[test]
fn a_checkpoint_with_a_missing_part() {
    run_cases(
        trained,
        &[
            Case {
                name: "no manifest",
                corrupt: |fixture| fs::remove_file(part(fixture, "manifest.json")).unwrap(),
                arguments: &["eval", "run"],
                exit_code: 1,
                stderr: &["/run has no checkpoint"],
            },
            Case {
                name: "no manifest in an explicitly named checkpoint",
                corrupt: |fixture| fs::remove_file(part(fixture, "manifest.json")).unwrap(),
                arguments: EVAL,
                exit_code: 1,
                stderr: &["run/step-0000000010", "manifest.json"],
            },
            Case {
                name: "no model",
                corrupt: |fixture| fs::remove_file(part(fixture, "model.safetensors")).unwrap(),
                arguments: EVAL,
                exit_code: 1,
                stderr: &["/run/step-0000000010 is damaged: model.safetensors is missing"],
            },
            Case {
                name: "no analysis",
                corrupt: |fixture| fs::remove_file(part(fixture, "analysis.json")).unwrap(),
                arguments: PREDICT,
                exit_code: 1,
                stderr: &["/run/step-0000000010 is damaged: analysis.json is missing"],
            },
        ],
    );
}

#[test]
fn a_damaged_checkpoint() {
    run_cases(
        trained,
        &[
            Case {
                name: "a flipped bit in the model",
                corrupt: |fixture| flip(fixture, "model.safetensors"),
                arguments: EVAL,
                exit_code: 1,
                stderr: &["/run/step-0000000010 is damaged: model.safetensors has SHA-256"],
            },
            Case {
                name: "a flipped bit in the model, for predict",
                corrupt: |fixture| flip(fixture, "model.safetensors"),
                arguments: PREDICT,
                exit_code: 1,
                stderr: &["/run/step-0000000010 is damaged: model.safetensors has SHA-256"],
            },
            Case {
                name: "a flipped bit in the analysis",
                corrupt: |fixture| flip(fixture, "analysis.json"),
                arguments: EVAL,
                exit_code: 1,
                stderr: &["/run/step-0000000010 is damaged: analysis.json has SHA-256"],
            },
            Case {
                name: "a flipped bit in the model, for export",
                corrupt: |fixture| flip(fixture, "model.safetensors"),
                arguments: EXPORT,
                exit_code: 1,
                stderr: &["/run/step-0000000010 is damaged: model.safetensors has SHA-256"],
            },
            Case {
                name: "a flipped bit in the analysis, for export",
                corrupt: |fixture| flip(fixture, "analysis.json"),
                arguments: EXPORT,
                exit_code: 1,
                stderr: &["/run/step-0000000010 is damaged: analysis.json has SHA-256"],
            },
            Case {
                name: "a truncated model",
                corrupt: |fixture| {
                    let path = part(fixture, "model.safetensors");
                    let bytes = fs::read(&path).unwrap();
                    fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
                },
                arguments: EVAL,
                exit_code: 1,
                stderr: &["/run/step-0000000010 is damaged: model.safetensors has ", " bytes; "],
            },
            Case {
                name: "an invalid manifest",
                corrupt: |fixture| fs::write(part(fixture, "manifest.json"), "{}").unwrap(),
                arguments: EVAL,
                exit_code: 1,
                stderr: &["/run/step-0000000010 is damaged: manifest.json"],
            },
        ],
    );
}

#[test]
fn data_that_cannot_be_scored() {
    run_cases(
        trained,
        &[
            Case {
                name: "missing data",
                corrupt: NOTHING,
                arguments: &["predict", "run", "new.parquet", "--output", "scores.csv"],
                exit_code: 1,
                stderr: &["new.parquet: no such file"],
            },
            Case {
                name: "an absent column",
                corrupt: |fixture| {
                    fixture.train().without("color").write_parquet(&fixture.path("new.parquet"));
                },
                arguments: &["predict", "run", "new.parquet", "--output", "scores.csv"],
                exit_code: 1,
                stderr: &["new.parquet: no column `color`"],
            },
            Case {
                name: "an absent label",
                corrupt: |fixture| {
                    fixture.train().without("clicked").write_parquet(&fixture.path("new.parquet"));
                },
                arguments: &["eval", "run", "new.parquet"],
                exit_code: 1,
                stderr: &["new.parquet: no column `clicked`"],
            },
            Case {
                name: "an unwritable output",
                corrupt: NOTHING,
                arguments: &["predict", "run", "eval.parquet", "--output", "nowhere/scores.csv"],
                exit_code: 1,
                stderr: &["nowhere/scores.csv", "No such file or directory"],
            },
        ],
    );
}

/// A fixture in which the job has run.
fn trained() -> Fixture {
    let fixture = Fixture::new();
    let ended = fixture.shell().run(&["train", "job.toml", "--json"]).with_code(0);
    let checkpoint = PathBuf::from(ended.json()["checkpoint"].as_str().unwrap());
    fs::rename(checkpoint.parent().unwrap(), fixture.path("run")).unwrap();
    assert!(fixture.path(CHECKPOINT).join("manifest.json").exists());
    fixture
}

fn part(fixture: &Fixture, name: &str) -> PathBuf {
    fixture.path(CHECKPOINT).join(name)
}

/// Flips a bit in the middle of a part.
fn flip(fixture: &Fixture, name: &str) {
    let path = part(fixture, name);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}
