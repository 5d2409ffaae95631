//! `on_bad_record = "skip"`: bad records are skipped, counted and reported, up to a limit.

use std::fs;

use arrow_array::Float64Array;
use millstream_tests::tfrecord::{HEADER_BYTES, offsets};
use serde_json::Value;

use super::fixture::{Fixture, ROWS};

const BAD: [usize; 3] = [5, 100, 299];

#[test]
fn bad_values_are_skipped_counted_and_reported() {
    let fixture = with_bad_values();
    let ended = train(&fixture, &["data.on_bad_record=skip", "data.epochs=2"]);
    let outcome = ended.with_code(0).json();
    assert_eq!(outcome["state"], "succeeded");
    assert_eq!(outcome["examples"], 2 * (ROWS - BAD.len()));
    assert_eq!(outcome["skipped_records"], 2 * BAD.len());

    let ended = fixture.shell().run(&["train", "job.toml", "--set", "data.on_bad_record=skip"]).with_code(0);
    let line = ended.stdout.lines().find(|line| line.contains("skipped records"));
    assert!(line.is_some_and(|line| line.ends_with(" 3")), "{}", ended.stdout);
}

#[test]
fn more_bad_values_than_the_limit_fail_the_job() {
    let fixture = with_bad_values();
    let limit = |limit: usize| {
        train(&fixture, &["data.on_bad_record=skip", &format!("data.max_bad_records={limit}")])
    };
    let _ = limit(3).with_code(0);
    let before = fixture.shell().files();
    let ended = limit(2).with_code(1);
    let wanted = "more than 2 bad records in one pass; the last: train.parquet: record ";
    assert!(ended.stderr.contains(wanted), "{}", ended.stderr);
    assert_eq!(ended.json()["state"], "failed");
    assert_eq!(fixture.shell().files(), before);
}

#[test]
fn data_of_nothing_but_bad_values_is_an_error_with_the_last() {
    let fixture = Fixture::new();
    let x = Float64Array::from(vec![f64::NAN; ROWS]);
    fixture.train().with("x", x).write_parquet(&fixture.path("train.parquet"));
    let ended = train(&fixture, &["data.on_bad_record=skip", "data.max_bad_records=1000"]).with_code(1);
    let wanted =
        "the training data holds no usable rows: 300 bad records skipped; the last: train.parquet: record ";
    assert!(ended.stderr.contains(wanted), "{}", ended.stderr);
}

#[test]
fn damaged_records_are_skipped_counted_and_reported() {
    let fixture = Fixture::new();
    let path = fixture.path("train.tfrecord");
    fixture.train().write_tfrecord(&path);
    let mut bytes = fs::read(&path).unwrap();
    let offsets = offsets(&bytes);
    for record in BAD {
        bytes[offsets[record] + HEADER_BYTES + 3] ^= 0x40;
    }
    fs::write(path, bytes).unwrap();
    let outcome =
        train(&fixture, &["data.on_bad_record=skip", "data.train=[\"train.tfrecord\"]", "data.eval=[]"]);
    let outcome = outcome.with_code(0).json();
    assert_eq!(outcome["examples"], ROWS - BAD.len());
    assert_eq!(outcome["skipped_records"], BAD.len());
    assert_eq!(outcome["eval"], Value::Null);
}

fn with_bad_values() -> Fixture {
    let fixture = Fixture::new();
    let mut x = fixture.train().x();
    x[BAD[0]] = Some(f64::NAN);
    x[BAD[1]] = None;
    x[BAD[2]] = Some(f64::NEG_INFINITY);
    fixture.train().with("x", Float64Array::from(x)).write_parquet(&fixture.path("train.parquet"));
    fixture
}

fn train(fixture: &Fixture, set: &[&str]) -> millstream_tests::shell::Completed {
    let mut line = vec!["train", "job.toml", "--json"];
    line.extend(set.iter().flat_map(|set| ["--set", set]));
    fixture.shell().run(&line)
}
