//! Scoring with what is no checkpoint, with a damaged one, and of data that cannot be scored.

use std::fs;
use std::path::PathBuf;

use super::place::{Case, Place, try_all};

/// Steps of the job: ten batches, one epoch.
const CHECKPOINT: &str = "run/step-0000000010";
const EVAL: &[&str] = &["eval", "run/step-0000000010"];
const PREDICT: &[&str] = &["predict", "run/step-0000000010", "eval.parquet", "--output", "scores.csv"];
const EXPORT: &[&str] = &["export", "run/step-0000000010", "--output", "model.onnx"];
const NOTHING: fn(&Place) = |_| {};

#[test]
fn what_is_no_checkpoint() {
    try_all(
        Place::new,
        &[
            Case {
                what: "nothing there",
                spoil: NOTHING,
                line: &["eval", "run"],
                code: 1,
                says: &["`run` is neither a job nor a checkpoint"],
            },
            Case {
                what: "an empty directory",
                spoil: |place| fs::create_dir(place.path("run")).unwrap(),
                line: &["predict", "run", "eval.parquet"],
                code: 1,
                says: &["/run holds no checkpoint"],
            },
            Case {
                what: "a file",
                spoil: NOTHING,
                line: &["eval", "eval.parquet"],
                code: 1,
                says: &["`eval.parquet` is neither a job nor a checkpoint"],
            },
        ],
    );
}

#[test]
fn a_checkpoint_without_one_of_its_parts() {
    try_all(
        trained,
        &[
            Case {
                what: "no manifest",
                spoil: |place| fs::remove_file(part(place, "manifest.json")).unwrap(),
                line: &["eval", "run"],
                code: 1,
                says: &["/run holds no checkpoint"],
            },
            Case {
                what: "no manifest where a checkpoint is named",
                spoil: |place| fs::remove_file(part(place, "manifest.json")).unwrap(),
                line: EVAL,
                code: 1,
                says: &["run/step-0000000010", "manifest.json"],
            },
            Case {
                what: "no model",
                spoil: |place| fs::remove_file(part(place, "model.safetensors")).unwrap(),
                line: EVAL,
                code: 1,
                says: &["/run/step-0000000010 is damaged: model.safetensors is missing"],
            },
            Case {
                what: "no analysis",
                spoil: |place| fs::remove_file(part(place, "analysis.json")).unwrap(),
                line: PREDICT,
                code: 1,
                says: &["/run/step-0000000010 is damaged: analysis.json is missing"],
            },
        ],
    );
}

#[test]
fn a_damaged_checkpoint() {
    try_all(
        trained,
        &[
            Case {
                what: "a flipped bit in the model",
                spoil: |place| flip(place, "model.safetensors"),
                line: EVAL,
                code: 1,
                says: &["/run/step-0000000010 is damaged: model.safetensors has SHA-256"],
            },
            Case {
                what: "a flipped bit in the model, for predict",
                spoil: |place| flip(place, "model.safetensors"),
                line: PREDICT,
                code: 1,
                says: &["/run/step-0000000010 is damaged: model.safetensors has SHA-256"],
            },
            Case {
                what: "a flipped bit in what was learned",
                spoil: |place| flip(place, "analysis.json"),
                line: EVAL,
                code: 1,
                says: &["/run/step-0000000010 is damaged: analysis.json has SHA-256"],
            },
            Case {
                what: "a flipped bit in the model, for export",
                spoil: |place| flip(place, "model.safetensors"),
                line: EXPORT,
                code: 1,
                says: &["/run/step-0000000010 is damaged: model.safetensors has SHA-256"],
            },
            Case {
                what: "a flipped bit in what was learned, for export",
                spoil: |place| flip(place, "analysis.json"),
                line: EXPORT,
                code: 1,
                says: &["/run/step-0000000010 is damaged: analysis.json has SHA-256"],
            },
            Case {
                what: "a cut model",
                spoil: |place| {
                    let path = part(place, "model.safetensors");
                    let bytes = fs::read(&path).unwrap();
                    fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
                },
                line: EVAL,
                code: 1,
                says: &["/run/step-0000000010 is damaged: model.safetensors has ", " bytes; "],
            },
            Case {
                what: "a manifest that is none",
                spoil: |place| fs::write(part(place, "manifest.json"), "{}").unwrap(),
                line: EVAL,
                code: 1,
                says: &["/run/step-0000000010 is damaged: manifest.json"],
            },
        ],
    );
}

#[test]
fn data_that_cannot_be_scored() {
    try_all(
        trained,
        &[
            Case {
                what: "missing data",
                spoil: NOTHING,
                line: &["predict", "run", "new.parquet", "--output", "scores.csv"],
                code: 1,
                says: &["new.parquet: no such file"],
            },
            Case {
                what: "an absent column",
                spoil: |place| place.train().without("color").write_parquet(&place.path("new.parquet")),
                line: &["predict", "run", "new.parquet", "--output", "scores.csv"],
                code: 1,
                says: &["new.parquet: no column `color`"],
            },
            Case {
                what: "no label to compare with",
                spoil: |place| place.train().without("clicked").write_parquet(&place.path("new.parquet")),
                line: &["eval", "run", "new.parquet"],
                code: 1,
                says: &["new.parquet: no column `clicked`"],
            },
            Case {
                what: "a place that cannot be written to",
                spoil: NOTHING,
                line: &["predict", "run", "eval.parquet", "--output", "nowhere/scores.csv"],
                code: 1,
                says: &["nowhere/scores.csv", "No such file or directory"],
            },
        ],
    );
}

/// A place where the job has run.
fn trained() -> Place {
    let place = Place::new();
    let ended = place.shell().run(&["train", "job.toml", "--json"]).with_code(0);
    let checkpoint = PathBuf::from(ended.json()["checkpoint"].as_str().unwrap());
    fs::rename(checkpoint.parent().unwrap(), place.path("run")).unwrap();
    assert!(place.path(CHECKPOINT).join("manifest.json").exists());
    place
}

fn part(place: &Place, name: &str) -> PathBuf {
    place.path(CHECKPOINT).join(name)
}

/// Flips a bit in the middle of a part.
fn flip(place: &Place, name: &str) {
    let path = part(place, name);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}
