//! Files depend only on the seed, and hold the rows that the planted model generated.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef};
use millstream_format::cells::Cells;
use millstream_format::{ProjectedColumn, Projection};
use millstream_io::storage::Stores;
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::spec::OnBadRecord;
use tokio::runtime::Runtime;

use super::*;

fn generate(output: &Path, change: impl FnOnce(&mut Generator)) -> Result<Generated, Error> {
    let mut generator =
        Generator { rows: 5000, output: output.to_str().unwrap().to_owned(), ..Generator::default() };
    generator.options.shards = Some(3);
    change(&mut generator);
    run(&generator, &Progress::default())
}

fn run(generator: &Generator, progress: &Progress) -> Result<Generated, Error> {
    let runtime = Runtime::new().unwrap();
    let here = Destination { stores: Stores::default(), runtime: runtime.handle().clone() };
    generator.run(&here, progress)
}

/// The files of a directory, by name.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// All rows of the given columns, read from files.
fn read(directory: &Path, pattern: &str, columns: &[String]) -> Vec<Vec<ArrayRef>> {
    let runtime = Runtime::new().unwrap();
    let dataset = runtime.block_on(Dataset::open(&[pattern.to_owned()], directory, None)).unwrap();
    let projected = |name: &String| ProjectedColumn { name: name.clone(), multi: false };
    let projection = Projection { columns: columns.iter().map(projected).collect(), ..Projection::default() };
    let bad = BadRecords::new(OnBadRecord::Fail);
    let mut chunks = Vec::new();
    for split in 0..dataset.splits().len() {
        let mut reader = dataset.read(split, &projection, &bad, runtime.handle()).unwrap();
        while let Some(chunk) = reader.next_chunk(700).unwrap() {
            chunks.push(chunk.columns().columns().to_vec());
        }
    }
    chunks
}

fn as_text(column: &ArrayRef, row: usize) -> Option<String> {
    if column.is_null(row) || column.data_type().is_null() {
        return None;
    }
    if let Some(dictionary) = column.as_any_dictionary_opt() {
        return as_text(dictionary.values(), dictionary.normalized_keys()[row]);
    }
    Some(match Cells::of(column).unwrap() {
        Cells::Int(numbers) => numbers.value(row).to_string(),
        Cells::Float(numbers) => numbers.value(row).to_string(),
        Cells::Double(numbers) => numbers.value(row).to_string(),
        Cells::Bytes(texts) => String::from_utf8_lossy(texts.value(row)).into_owned(),
        Cells::List(..) | Cells::Absent => panic!("one value per row"),
    })
}

#[test]
fn files_do_not_depend_on_threads() {
    for name in ["a.tfrecord", "a.tfrecord.zst", "a.parquet"] {
        let (one, four) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let with_one = generate(&one.path().join(name), |generator| generator.options.threads = 1).unwrap();
        let with_four = generate(&four.path().join(name), |generator| generator.options.threads = 4).unwrap();
        assert_eq!(with_one.best, with_four.best);
        let files = contents(one.path());
        assert_eq!(files.len(), 3);
        assert_eq!(files.values().map(|bytes| bytes.len() as u64).sum::<u64>(), with_one.bytes);
        assert_eq!(files, contents(four.path()), "{name}");
    }
}

#[test]
fn every_format_holds_the_generated_rows() {
    let directory = tempfile::tempdir().unwrap();
    let columns = Generator::columns();
    for (name, pattern) in [("a.tfrecord.gz", "*.gz"), ("a.parquet", "*.parquet")] {
        for ids in [IdForm::Hex, IdForm::Integer] {
            let generated = generate(&directory.path().join(name), |generator| generator.ids = ids).unwrap();
            assert_eq!(generated.files.len(), 3);
            let made = Clicks::new(1, 100_000, ids).rows(0, 5000);
            let chunks = read(directory.path(), pattern, &columns);
            let mut row = 0;
            for chunk in &chunks {
                for at in 0..chunk[0].len() {
                    for (found, expected) in chunk.iter().zip(&made.columns) {
                        assert_eq!(as_text(found, at), as_text(expected, row), "row {row} of {name}");
                    }
                    row += 1;
                }
            }
            assert_eq!(row, 5000);
            assert_eq!(
                generated.best.positives,
                made.clicked.iter().filter(|&&clicked| clicked).count() as u64
            );
        }
    }
}

#[test]
fn a_row_does_not_depend_on_where_generation_starts() {
    let clicks = Clicks::new(3, 1000, IdForm::Integer);
    let (all, tail) = (clicks.rows(0, 100), clicks.rows(60, 40));
    assert_eq!(all.points[60..], tail.points);
    for (all, tail) in all.columns.iter().zip(&tail.columns) {
        assert_eq!(&all.slice(60, 40), tail);
    }
    assert_ne!(all.points, Clicks::new(4, 1000, IdForm::Integer).rows(0, 100).points);
}

#[test]
fn the_planted_model_is_learnable_but_noisy() {
    for seed in 0..4 {
        let clicks = Clicks::new(seed, 100_000, IdForm::Hex);
        let mut tally = Tally::new();
        for chunk in 0..10 {
            let rows = clicks.rows(chunk * 2000, 2000);
            rows.points.iter().zip(&rows.clicked).for_each(|(&point, &clicked)| tally.add(point, clicked));
        }
        let best = tally.best();
        assert!((0.75..0.85).contains(&best.expected_auc), "{best:?}");
        assert!((best.auc - best.expected_auc).abs() < 0.015, "{best:?}");
        assert!((0.15..0.40).contains(&(best.positives as f64 / 20_000.0)), "{best:?}");
    }
}

#[test]
fn columns_resemble_a_click_log() {
    let rows = Clicks::new(1, 100_000, IdForm::Integer).rows(0, 20_000);
    let names = Generator::columns();
    assert_eq!((names.len(), rows.columns.len()), (40, 40));
    let column = |name: &str| rows.columns[names.iter().position(|column| column == name).unwrap()].clone();
    let missing = |name: &str| column(name).null_count() as f64 / 20_000.0;
    assert!(
        (missing("i1") - 0.45).abs() < 0.02 && missing("i2") == 0.0 && (missing("c22") - 0.76).abs() < 0.02
    );
    let values =
        |name: &str| -> Vec<i64> { column(name).as_primitive::<Int64Type>().iter().flatten().collect() };
    assert!(values("i5").iter().all(|&count| (0..10_000_000).contains(&count)));
    let mut counts: BTreeMap<i64, u32> = BTreeMap::new();
    values("c3").iter().for_each(|&id| *counts.entry(id).or_default() += 1);
    let mut counts: Vec<u32> = counts.into_values().collect();
    counts.sort_unstable_by_key(|&count| std::cmp::Reverse(count));
    assert!(counts.len() > 3000 && counts[0] > 10 * counts[20], "a few frequent ids and a long tail");
    let distinct = |name: &str| values(name).into_iter().collect::<std::collections::BTreeSet<_>>().len();
    assert_eq!((distinct("c9"), distinct("c6")), (3, 24));
}

#[test]
fn a_cancelled_run_leaves_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("a.tfrecord").to_str().unwrap().to_owned();
    let mut generator = Generator { rows: u64::MAX / 4, output, ..Generator::default() };
    generator.options.shards = Some(8);
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let made = scope.spawn(|| run(&generator, &progress));
        while progress.done().rows < 40_000 {
            std::thread::yield_now();
        }
        assert!(!contents(directory.path()).is_empty());
        progress.cancel();
        assert!(matches!(made.join().unwrap(), Err(Error::Cancelled)));
    });
    assert!(contents(directory.path()).is_empty());
}

#[test]
fn zero_rows_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    assert!(generate(&directory.path().join("a.parquet"), |generator| generator.rows = 0).is_err());
    assert!(generate(&directory.path().join("a.unknown"), |_| {}).is_err());
    assert!(contents(directory.path()).is_empty());
}
