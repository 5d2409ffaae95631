//! Splits of registered datasets: each row is in exactly one, whatever the format, the layout and the order of the files.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use millstream_format::tfrecord::RecordWriter;
use millstream_io::storage::{Division, Rule};
use parquet::arrow::ArrowWriter;

use super::share_tests::{ROWS, example, number, open, read, rows_of_users, runtime, user};
use super::*;
use crate::spec::{DataSpec, Purpose, ValidationSpec};

fn division(rule: Rule) -> Division {
    let names = ["train", "validation", "test"].map(str::to_owned);
    Division::new(rule, names.to_vec()).unwrap()
}

fn by_hash(column: Option<&str>) -> Division {
    let percents = vec![70.0, 20.0, 10.0];
    division(Rule::Hash { column: column.map(str::to_owned), seed: 5, percents })
}

/// The rows of each split.
fn splits(dataset: &Dataset, division: &Division) -> BTreeMap<String, BTreeSet<i64>> {
    let runtime = runtime();
    let rows = |portion| read(&runtime, &dataset.filtered(&rows_of(&portion))).unwrap();
    let mut splits = BTreeMap::new();
    let mut all = 0;
    for (name, portion) in division.names().zip(division.portions()) {
        let found = rows(portion);
        all += found.len() as i64;
        assert!(!found.is_empty(), "{name}");
        splits.insert(name.to_owned(), found.into_iter().collect::<BTreeSet<i64>>());
    }
    assert_eq!(all, ROWS, "each row is in one split only");
    assert_eq!(
        splits.values().flatten().collect::<BTreeSet<_>>().len() as i64,
        ROWS,
        "each row is in a split"
    );
    splits
}

#[test]
fn each_row_is_in_one_split_whatever_the_format_and_the_layout() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    rows_of_users(&path("a.parquet"), number(|row| Some(user(row))), 3_000);
    rows_of_users(&path("b.parquet"), number(|row| Some(user(row))), 170);
    let mut records = RecordWriter::new(File::create(path("a.tfrecord")).unwrap());
    (0..ROWS).for_each(|row| records.write(&example(row, user(row))).unwrap());
    drop(records);
    let bounds = vec!["100".to_owned(), "450".to_owned()];
    for division in [by_hash(Some("user")), division(Rule::Order { column: "user".to_owned(), bounds })] {
        let wanted = splits(&open(&runtime, directory.path(), "a.parquet"), &division);
        for name in ["b.parquet", "a.tfrecord"] {
            assert_eq!(splits(&open(&runtime, directory.path(), name), &division), wanted, "{name}");
        }
        let parts = open(&runtime, directory.path(), "a.tfrecord").cut_at(FEWEST_SPLIT_BYTES).unwrap();
        assert!(parts.splits().len() > 3);
        assert_eq!(splits(&parts, &division), wanted, "in parts");
    }
}

#[test]
fn rows_keep_their_split_in_any_order_of_the_files() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    // Each file has every second row.
    for (file, name) in ["x.parquet", "y.parquet"].into_iter().enumerate() {
        let batch = RecordBatch::try_from_iter([("row", half(file as i64))]).unwrap();
        let mut writer =
            ArrowWriter::try_new(File::create(directory.path().join(name)).unwrap(), batch.schema(), None)
                .unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
    let objects = open(&runtime, directory.path(), "*.parquet").objects().to_vec();
    let of = |objects: Vec<Object>| {
        let dataset = runtime.block_on(Dataset::of(objects, None)).unwrap();
        by_hash(None)
            .portions()
            .iter()
            .map(|portion| {
                let rows = read(&runtime, &dataset.filtered(&rows_of(portion))).unwrap();
                rows.into_iter().collect::<BTreeSet<i64>>()
            })
            .collect::<Vec<_>>()
    };
    let usual = of(objects.clone());
    assert_eq!(usual.iter().map(BTreeSet::len).sum::<usize>() as i64, ROWS);
    assert_eq!(of(objects.into_iter().rev().collect()), usual);
}

/// The rows of one of two files.
fn half(file: i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values((0..ROWS / 2).map(|row| 2 * row + file)))
}

#[test]
fn a_split_and_a_held_out_share_of_the_same_hashes_are_the_same_rows_and_filters_add_up() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    rows_of_users(&directory.path().join("a.parquet"), number(|row| Some(user(row))), 3_000);
    let dataset = open(&runtime, directory.path(), "a.parquet");
    let validation = by_hash(Some("user")).portion("validation").unwrap();
    let spec = DataSpec {
        validation: Some(ValidationSpec { fraction: 0.2, column: Some("user".to_owned()), seed: 5 }),
        ..DataSpec::default()
    };
    let explicit = read(&runtime, &dataset.filtered(&spec.rows(Purpose::Evaluation))).unwrap();
    let split = dataset.filtered(&rows_of(&validation));
    assert_eq!(read(&runtime, &split).unwrap(), explicit);
    assert_eq!(split.estimated_rows(), Some(ROWS as u64 / 5));

    // A share of other hashes within a split.
    let validation = ValidationSpec { fraction: 0.5, column: Some("user".to_owned()), seed: 0 };
    let spec = DataSpec { validation: Some(validation), ..DataSpec::default() };
    let side = |purpose| split.filtered(&spec.rows(purpose));
    assert_eq!(side(Purpose::Training).estimated_rows(), Some(ROWS as u64 / 10));
    let [rest, held_out] =
        [Purpose::Training, Purpose::Evaluation].map(|purpose| read(&runtime, &side(purpose)).unwrap());
    assert!(!rest.is_empty() && !held_out.is_empty());
    let both: BTreeSet<i64> = rest.iter().chain(&held_out).copied().collect();
    assert_eq!(both.len(), rest.len() + held_out.len());
    assert_eq!(both, explicit.into_iter().collect());
}
