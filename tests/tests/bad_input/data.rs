//! Whole files whose columns or values are not what the job needs, and jobs that do not fit.

use std::fs;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray, StructArray};

use super::place::{Case, Place, ROWS, try_all};

const TRAIN: &[&str] = &["train", "job.toml"];
const NOTHING: fn(&Place) = |_| {};

#[test]
fn columns_that_are_not_what_the_job_needs() {
    try_all(
        Place::new,
        &[
            Case {
                what: "an absent column",
                spoil: |place| {
                    place.edit("{ kind = \"vocabulary\" }", "{ kind = \"vocabulary\", column = \"colour\" }");
                },
                line: TRAIN,
                code: 1,
                says: &["train.parquet: no column `colour`", "did you mean `color`?"],
            },
            Case {
                what: "an absent column of the held-out data",
                spoil: |place| place.train().without("x").write_parquet(&place.path("eval.parquet")),
                line: TRAIN,
                code: 1,
                says: &["eval.parquet: no column `x`"],
            },
            Case {
                what: "an absent label",
                spoil: |place| place.edit("column = \"clicked\"", "column = \"klicked\""),
                line: &["check", "job.toml"],
                code: 1,
                says: &["train.parquet: no column `klicked`", "did you mean `clicked`?"],
            },
            Case {
                what: "text for a number",
                spoil: |place| {
                    let words = StringArray::from(vec!["two"; ROWS]);
                    place.train().with("x", words).write_parquet(&place.path("train.parquet"));
                },
                line: TRAIN,
                code: 1,
                says: &["train.parquet: record 0, column `x`: expected a number, found `two`"],
            },
            Case {
                what: "structs for a number",
                spoil: |place| {
                    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![3; ROWS]));
                    let structs = StructArray::try_from(vec![("a", numbers)]).unwrap();
                    place.train().with("x", structs).write_parquet(&place.path("train.parquet"));
                },
                line: TRAIN,
                code: 1,
                says: &["train.parquet: column `x` holds ", "expected "],
            },
            Case {
                what: "an absent feature of a TFRecord file",
                spoil: |place| {
                    place.train().without("color").write_tfrecord(&place.path("train.tfrecord"));
                    place.edit("[\"train.parquet\"]", "[\"train.tfrecord\"]");
                    place.edit("eval = [\"eval.parquet\"]\n", "");
                },
                line: TRAIN,
                code: 1,
                says: &["train.tfrecord: no column `color`"],
            },
        ],
    );
}

#[test]
fn values_that_cannot_be_used() {
    try_all(
        Place::new,
        &[
            Case {
                what: "a label that is never positive",
                spoil: |place| {
                    let labels = Int64Array::from(vec![0; ROWS]);
                    place.train().with("clicked", labels).write_parquet(&place.path("train.parquet"));
                },
                line: TRAIN,
                code: 1,
                says: &["label `clicked` is never above 0 in 300 records", "it holds `0`"],
            },
            Case {
                what: "a misspelt positive value",
                spoil: |place| place.edit("column = \"clicked\"", "column = \"clicked\"\npositive = \"yes\""),
                line: TRAIN,
                code: 1,
                says: &["label `clicked` is never `yes` in 300 records", "it holds `1`, `0`"],
            },
            Case {
                what: "a label that is no number from 0 to 1",
                spoil: |place| {
                    let labels =
                        Int64Array::from_iter_values((0..ROWS as i64).map(|row| row % 2 + row / 250));
                    place.train().with("clicked", labels).write_parquet(&place.path("train.parquet"));
                },
                line: TRAIN,
                code: 1,
                says: &["train.parquet: record 251, column `clicked`", "2", "from 0 to 1"],
            },
            Case {
                what: "NaN for a number",
                spoil: |place| with_x(place, 123, Some(f64::NAN)),
                line: TRAIN,
                code: 1,
                says: &["train.parquet: record 123, column `x`", "NaN"],
            },
            Case {
                what: "an infinite number",
                spoil: |place| with_x(place, 299, Some(f64::INFINITY)),
                line: TRAIN,
                code: 1,
                says: &["train.parquet: record 299, column `x`", "inf"],
            },
            Case {
                what: "a missing number, which nothing says what to do with",
                spoil: |place| with_x(place, 7, None),
                line: TRAIN,
                code: 1,
                says: &["train.parquet: record 7, column `x`: a value is missing", "`missing = \"mean\"`"],
            },
            Case {
                what: "NaN in a feature that learns nothing",
                spoil: |place| {
                    with_x(place, 123, Some(f64::NAN));
                    place.edit(
                    "x = { kind = \"numeric\", normalize = \"zscore\" }\ncolor = { kind = \"vocabulary\" }",
                    "x = { kind = \"numeric\" }\ncolor = { kind = \"hashed\", buckets = 10 }",
                );
                },
                line: TRAIN,
                code: 1,
                says: &["train.parquet: record 123, column `x`", "NaN"],
            },
        ],
    );
}

#[test]
fn what_does_not_fit() {
    try_all(
        Place::new,
        &[
            Case {
                what: "a batch beyond the memory budget",
                spoil: |place| {
                    place.edit("batch_size = 32", "batch_size = 100_000\nmemory_budget = \"1MiB\"");
                },
                line: TRAIN,
                code: 1,
                says: &["batch_size = 100000", "memory budget is 1048576", "lower", "raise memory_budget"],
            },
            Case {
                what: "a batch beyond the memory budget, for check",
                spoil: |place| {
                    place.edit("batch_size = 32", "batch_size = 100_000\nmemory_budget = \"1MiB\"");
                },
                line: &["check", "job.toml"],
                code: 1,
                says: &["batch_size = 100000", "memory budget is 1048576"],
            },
            Case {
                what: "a batch beyond the memory budget, before the data is read",
                spoil: |place| {
                    place.edit("batch_size = 32", "batch_size = 100_000\nmemory_budget = \"1MiB\"");
                    with_x(place, 0, Some(f64::NAN));
                },
                line: TRAIN,
                code: 1,
                says: &["batch_size = 100000", "memory budget is 1048576"],
            },
            Case {
                what: "an absent column of the held-out data, before the training data is read",
                spoil: |place| {
                    place.train().without("x").write_parquet(&place.path("eval.parquet"));
                    with_x(place, 0, Some(f64::NAN));
                },
                line: TRAIN,
                code: 1,
                says: &["eval.parquet: no column `x`"],
            },
            Case {
                what: "a file in place of the checkpoint directory",
                spoil: |place| fs::write(place.path("checkpoints"), "").unwrap(),
                line: TRAIN,
                code: 1,
                says: &["checkpoint directory /", "/checkpoints", "exists"],
            },
            Case {
                what: "a file above the checkpoint directory",
                spoil: |place| fs::write(place.path("runs"), "").unwrap(),
                line: &["train", "job.toml", "--set", "checkpoint.directory=runs/a"],
                code: 1,
                says: &["checkpoint directory /", "/runs/a", "Not a directory"],
            },
            Case {
                what: "nothing to resume",
                spoil: NOTHING,
                line: &["train", "job.toml", "--resume"],
                code: 1,
                says: &["no unfinished run of this job in /", "/checkpoints"],
            },
        ],
    );
}

/// Writes the training data with another `x` in one record.
fn with_x(place: &Place, record: usize, value: Option<f64>) {
    let mut x = place.train().x();
    x[record] = value;
    place.train().with("x", Float64Array::from(x)).write_parquet(&place.path("train.parquet"));
}
