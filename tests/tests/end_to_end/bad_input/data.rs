//! Intact files with unsuitable columns or values, and jobs that exceed their limits.

use std::fs;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray, StructArray};

use super::fixture::{Case, Fixture, ROWS, run_cases};

const TRAIN: &[&str] = &["train", "job.toml"];
const NOTHING: fn(&Fixture) = |_| {};

#[test]
fn unsuitable_columns() {
    run_cases(
        Fixture::new,
        &[
            Case {
                name: "an absent column",
                corrupt: |fixture| {
                    fixture
                        .edit("{ kind = \"vocabulary\" }", "{ kind = \"vocabulary\", column = \"colour\" }");
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: no column `colour`", "did you mean `color`?"],
            },
            Case {
                name: "an absent column of the held-out data",
                corrupt: |fixture| fixture.train().without("x").write_parquet(&fixture.path("eval.parquet")),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["eval.parquet: no column `x`"],
            },
            Case {
                name: "an absent label",
                corrupt: |fixture| fixture.edit("column = \"clicked\"", "column = \"klicked\""),
                arguments: &["check", "job.toml"],
                exit_code: 1,
                stderr: &["train.parquet: no column `klicked`", "did you mean `clicked`?"],
            },
            Case {
                name: "text for a number",
                corrupt: |fixture| {
                    let words = StringArray::from(vec!["two"; ROWS]);
                    fixture.train().with("x", words).write_parquet(&fixture.path("train.parquet"));
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: record 0, column `x`: expected a number, found `two`"],
            },
            Case {
                name: "structs for a number",
                corrupt: |fixture| {
                    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![3; ROWS]));
                    let structs = StructArray::try_from(vec![("a", numbers)]).unwrap();
                    fixture.train().with("x", structs).write_parquet(&fixture.path("train.parquet"));
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: column `x` has type ", "expected "],
            },
            Case {
                name: "an absent feature of a TFRecord file",
                corrupt: |fixture| {
                    fixture.train().without("color").write_tfrecord(&fixture.path("train.tfrecord"));
                    fixture.edit("[\"train.parquet\"]", "[\"train.tfrecord\"]");
                    fixture.edit("eval = [\"eval.parquet\"]\n", "");
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.tfrecord: no column `color`"],
            },
        ],
    );
}

#[test]
fn unusable_values() {
    run_cases(
        Fixture::new,
        &[
            Case {
                name: "a label that is never positive",
                corrupt: |fixture| {
                    let labels = Int64Array::from(vec![0; ROWS]);
                    fixture.train().with("clicked", labels).write_parquet(&fixture.path("train.parquet"));
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["label `clicked` is never above 0 in 300 records", "it holds `0`"],
            },
            Case {
                name: "a misspelled positive value",
                corrupt: |fixture| {
                    fixture.edit("column = \"clicked\"", "column = \"clicked\"\npositive = \"yes\"");
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["label `clicked` is never `yes` in 300 records", "it holds `1`, `0`"],
            },
            Case {
                name: "a label outside 0 to 1",
                corrupt: |fixture| {
                    let labels =
                        Int64Array::from_iter_values((0..ROWS as i64).map(|row| row % 2 + row / 250));
                    fixture.train().with("clicked", labels).write_parquet(&fixture.path("train.parquet"));
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: record 251, column `clicked`", "2", "from 0 to 1"],
            },
            Case {
                name: "NaN for a number",
                corrupt: |fixture| with_x(fixture, 123, Some(f64::NAN)),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: record 123, column `x`", "NaN"],
            },
            Case {
                name: "an infinite number",
                corrupt: |fixture| with_x(fixture, 299, Some(f64::INFINITY)),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: record 299, column `x`", "inf"],
            },
            Case {
                name: "a missing number without a configured replacement",
                corrupt: |fixture| with_x(fixture, 7, None),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: record 7, column `x`: a value is missing", "`missing = \"mean\"`"],
            },
            Case {
                name: "NaN in a feature without learned statistics",
                corrupt: |fixture| {
                    with_x(fixture, 123, Some(f64::NAN));
                    fixture.edit(
                    "x = { kind = \"numeric\", normalize = \"zscore\" }\ncolor = { kind = \"vocabulary\" }",
                    "x = { kind = \"numeric\" }\ncolor = { kind = \"hashed\", buckets = 10 }",
                );
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["train.parquet: record 123, column `x`", "NaN"],
            },
        ],
    );
}

#[test]
fn exceeded_limits_and_unusable_directories() {
    run_cases(
        Fixture::new,
        &[
            Case {
                name: "a batch beyond the memory budget",
                corrupt: |fixture| {
                    fixture.edit("batch_size = 32", "batch_size = 100_000\nmemory_budget = \"1MiB\"");
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["batch_size = 100000", "memory budget is 1.0 MiB", "lower", "raise memory_budget"],
            },
            Case {
                name: "a batch beyond the memory budget, for check",
                corrupt: |fixture| {
                    fixture.edit("batch_size = 32", "batch_size = 100_000\nmemory_budget = \"1MiB\"");
                },
                arguments: &["check", "job.toml"],
                exit_code: 1,
                stderr: &["batch_size = 100000", "memory budget is 1.0 MiB"],
            },
            Case {
                name: "a batch beyond the memory budget, before the data is read",
                corrupt: |fixture| {
                    fixture.edit("batch_size = 32", "batch_size = 100_000\nmemory_budget = \"1MiB\"");
                    with_x(fixture, 0, Some(f64::NAN));
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["batch_size = 100000", "memory budget is 1.0 MiB"],
            },
            Case {
                name: "an absent column of the held-out data, before the training data is read",
                corrupt: |fixture| {
                    fixture.train().without("x").write_parquet(&fixture.path("eval.parquet"));
                    with_x(fixture, 0, Some(f64::NAN));
                },
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["eval.parquet: no column `x`"],
            },
            Case {
                name: "a file at the path of the checkpoint directory",
                corrupt: |fixture| fs::write(fixture.path("checkpoints"), "").unwrap(),
                arguments: TRAIN,
                exit_code: 1,
                stderr: &["checkpoint directory /", "/checkpoints", "exists"],
            },
            Case {
                name: "a table beyond the host's memory",
                corrupt: enlarge,
                arguments: TRAIN,
                exit_code: 1,
                stderr: &[
                    "the job needs",
                    "and this host has",
                    "`deep.embedding.color`, 2000000001 x 64",
                    "use fewer ids",
                ],
            },
            Case {
                name: "a file above the checkpoint directory",
                corrupt: |fixture| fs::write(fixture.path("runs"), "").unwrap(),
                arguments: &["train", "job.toml", "--set", "checkpoint.directory=runs/a"],
                exit_code: 1,
                stderr: &["checkpoint directory /", "/runs/a", "Not a directory"],
            },
            Case {
                name: "nothing to resume",
                corrupt: NOTHING,
                arguments: &["train", "job.toml", "--resume"],
                exit_code: 1,
                stderr: &["no unfinished run of this job in /", "/checkpoints"],
            },
        ],
    );
}

#[test]
fn check_shows_the_plan_of_a_job_beyond_the_hosts_memory_and_fails() {
    let fixture = Fixture::new();
    enlarge(&fixture);
    let checked = fixture.shell().run(&["check", "job.toml"]);
    assert_eq!(checked.code(), 1, "{}", checked.stderr);
    assert!(checked.stdout.contains("worker memory") && checked.stdout.contains("host memory, at least"));
    for words in
        ["the job needs", "and this host has", "`deep.embedding.color`, 2000000001 x 64", "use fewer ids"]
    {
        assert!(checked.stderr.contains(words), "{words}: {}", checked.stderr);
    }
}

/// Makes the embedding table larger than any host's memory.
fn enlarge(fixture: &Fixture) {
    fixture
        .edit("color = { kind = \"vocabulary\" }", "color = { kind = \"hashed\", buckets = 2_000_000_000 }");
    fixture.edit("deep.embedding_dim = 2", "deep.embedding_dim = 64");
}

/// Writes the training data with `x` replaced in one record.
fn with_x(fixture: &Fixture, record: usize, value: Option<f64>) {
    let mut x = fixture.train().x();
    x[record] = value;
    fixture.train().with("x", Float64Array::from(x)).write_parquet(&fixture.path("train.parquet"));
}
