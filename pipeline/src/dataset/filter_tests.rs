//! Compares filters over files with a reference over the rows that the files were generated from.

#![allow(clippy::unwrap_used)]

use std::cmp::Ordering;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::*;
use millstream_format::filter::{Comparison, Condition, Literal, RowFilter, Test};
use millstream_format::{ProjectedColumn, Projection};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::bad_records::BadRecords;
use crate::dataset::{Absent, Dataset};
use crate::error::Error;
use crate::spec::OnBadRecord;

/// The columns of a row that conditions refer to.
#[derive(Clone, Debug)]
struct Row {
    whole: Option<i64>,
    real: Option<f64>,
    text: Option<String>,
    day: Option<i32>,
    small: u32,
}

const DAYS: [(&str, i32); 4] =
    [("2026-11-20", 20_777), ("2026-11-21", 20_778), ("2026-11-22", 20_779), ("2027-01-01", 20_819)];

fn rows() -> impl Strategy<Value = Vec<Row>> {
    // Sometimes sorted, like data by day, so that statistics rule something out.
    let row =
        (0i64..12, 0u8..14, 0u8..12, 0usize..5, 0u32..9).prop_map(|(whole, real, text, day, small)| Row {
            whole: (whole < 11).then_some(whole - 3),
            real: match real {
                12 => None,
                13 => Some(f64::NAN),
                real => Some(f64::from(real) / 2.0),
            },
            text: (text < 11).then(|| format!("{}{text}", "t".repeat(usize::from(text % 3)))),
            day: DAYS.get(day).map(|day| day.1),
            small: u32::MAX - 4 + small.min(4),
        });
    (proptest::collection::vec(row, 1..60), any::<bool>()).prop_map(|(mut rows, sorted)| {
        if sorted {
            rows.sort_by_key(|row| (row.whole, row.day));
        }
        rows
    })
}

fn conditions() -> impl Strategy<Value = Vec<Condition>> {
    let op = prop_oneof![
        Just(Comparison::Equal),
        Just(Comparison::NotEqual),
        Just(Comparison::Less),
        Just(Comparison::LessOrEqual),
        Just(Comparison::Greater),
        Just(Comparison::GreaterOrEqual),
    ];
    let number = prop_oneof![
        (-4i64..10).prop_map(Literal::Whole),
        (-8i32..16).prop_map(|half| Literal::Number(f64::from(half) / 2.0)),
    ];
    let text =
        (0u8..12).prop_map(|text| Literal::Text(format!("{}{text}", "t".repeat(usize::from(text % 3)))));
    let day = (0usize..4).prop_map(|day| Literal::Text(DAYS[day].0.to_owned()));
    let value = prop_oneof![
        number.clone().prop_map(|value| ("whole", value)),
        number.prop_map(|value| ("real", value)),
        text.prop_map(|value| ("text", value)),
        day.prop_map(|value| ("day", value)),
        (0u32..6).prop_map(|small| ("small", Literal::Whole((u32::MAX - small).into()))),
    ];
    let condition = (value, op, 0u8..6).prop_map(|((column, value), op, kind)| {
        let test = match kind {
            0 => Test::IsNull,
            1 => Test::IsNotNull,
            2 => Test::OneOf { values: vec![value.clone(), value] },
            _ => Test::Compare { op, value },
        };
        Condition { column: column.to_owned(), test }
    });
    proptest::collection::vec(condition, 1..4)
}

/// The reference: evaluates one condition on one row.
fn passes(row: &Row, Condition { column, test }: &Condition) -> bool {
    let day = |day: i32| DAYS.iter().find(|known| known.1 == day).unwrap().0.to_owned();
    let compare = |value: &Literal| -> Option<Option<Ordering>> {
        let number = |value: &Literal| match value {
            Literal::Whole(value) => *value as f64,
            Literal::Number(value) => *value,
            _ => unreachable!(),
        };
        match (column.as_str(), value) {
            ("whole", value) => row.whole.map(|held| (held as f64).partial_cmp(&number(value))),
            ("real", value) => row.real.map(|held| held.partial_cmp(&number(value))),
            ("small", value) => Some(f64::from(row.small).partial_cmp(&number(value))),
            ("text", Literal::Text(text)) => row.text.as_ref().map(|held| Some(held.cmp(text))),
            // Dates with four-digit years sort like their text.
            ("day", Literal::Text(text)) => row.day.map(|held| Some(day(held).cmp(text))),
            _ => unreachable!(),
        }
    };
    let absent = match column.as_str() {
        "whole" => row.whole.is_none(),
        "real" => row.real.is_none(),
        "text" => row.text.is_none(),
        "day" => row.day.is_none(),
        _ => false,
    };
    match test {
        Test::IsNull => absent,
        Test::IsNotNull => !absent,
        Test::OneOf { values } => values.iter().any(|value| compare(value) == Some(Some(Ordering::Equal))),
        Test::Compare { op, value } => compare(value).is_some_and(|ordering| match op {
            Comparison::Equal => ordering == Some(Ordering::Equal),
            Comparison::NotEqual => ordering != Some(Ordering::Equal),
            Comparison::Less => ordering == Some(Ordering::Less),
            Comparison::LessOrEqual => matches!(ordering, Some(Ordering::Less | Ordering::Equal)),
            Comparison::Greater => ordering == Some(Ordering::Greater),
            Comparison::GreaterOrEqual => matches!(ordering, Some(Ordering::Greater | Ordering::Equal)),
        }),
    }
}

/// The layout of a generated file.
#[derive(Clone, Copy, Debug)]
struct FileLayout {
    group_rows: usize,
    page_rows: usize,
    statistics: EnabledStatistics,
    dictionaries: bool,
}

fn write(path: &Path, rows: &[Row], layout: FileLayout) {
    let mut tags = ListBuilder::new(Int64Builder::new());
    for id in 0..rows.len() as i64 {
        tags.append_value((0..id % 3).map(|nth| Some(id + nth)));
    }
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "id",
            Arc::new(
                (0..rows.len() as i64).collect::<Vec<_>>().into_iter().map(Some).collect::<Int64Array>(),
            ),
        ),
        ("whole", Arc::new(rows.iter().map(|row| row.whole).collect::<Int64Array>())),
        ("real", Arc::new(rows.iter().map(|row| row.real).collect::<Float64Array>())),
        ("text", Arc::new(rows.iter().map(|row| row.text.as_deref()).collect::<StringArray>())),
        ("day", Arc::new(rows.iter().map(|row| row.day).collect::<Date32Array>())),
        ("small", Arc::new(rows.iter().map(|row| Some(row.small)).collect::<UInt32Array>())),
        ("tags", Arc::new(tags.finish())),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, column)| (name, column, true)),
    );
    let batch = batch.unwrap();
    let FileLayout { group_rows, page_rows, statistics, dictionaries } = layout;
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group_rows))
        .set_data_page_row_count_limit(page_rows)
        .set_write_batch_size(page_rows)
        .set_statistics_enabled(statistics)
        .set_dictionary_enabled(dictionaries)
        .build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn open(runtime: &Runtime, directory: &Path, conditions: &[Condition]) -> Dataset {
    let dataset = runtime.block_on(Dataset::open(&["a.parquet".to_owned()], directory, None)).unwrap();
    dataset.filtered(&RowFilter { conditions: conditions.to_vec(), shares: Vec::new() })
}

/// The values, without a dictionary.
pub(super) fn expanded(values: &ArrayRef) -> ArrayRef {
    match values.as_any_dictionary_opt() {
        Some(keys) => arrow_select::take::take(keys.values(), keys.keys(), None).unwrap(),
        None => Arc::clone(values),
    }
}

/// The numbers of the rows read, checked against the column `id`.
fn read(runtime: &Runtime, dataset: &Dataset, column: &str) -> Result<Vec<u64>, Error> {
    let multi = column == "tags";
    let columns = [("id", false), (column, multi)];
    let columns = columns.map(|(name, multi)| ProjectedColumn { name: name.to_owned(), multi });
    let projection = Projection { columns: columns.to_vec(), ..Projection::default() };
    dataset.check(&projection, Absent::Rejected, runtime.handle())?;
    let bad = BadRecords::new(OnBadRecord::Fail);
    let mut numbers = Vec::new();
    for split in 0..dataset.splits().len() {
        let mut reader = dataset.read(split, &projection, &bad, runtime.handle())?;
        while let Some(chunk) = reader.next_chunk(5)? {
            assert!((1..=5).contains(&chunk.rows()));
            assert_eq!(chunk.columns().num_columns(), 2);
            let ids = expanded(chunk.columns().column(0));
            for (row, id) in ids.as_primitive::<Int64Type>().values().iter().enumerate() {
                assert_eq!(chunk.record(row), *id as u64);
                if multi {
                    let tags = expanded(&chunk.columns().column(1).as_list::<i32>().value(row));
                    let tags = tags.as_primitive::<Int64Type>().values();
                    assert!(tags.iter().copied().eq((0..id % 3).map(|nth| id + nth)));
                }
                numbers.push(*id as u64);
            }
        }
    }
    Ok(numbers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn filters_match_the_reference_with_and_without_statistics(
        rows in rows(),
        conditions in conditions(),
        group_rows in 1usize..70,
        page_rows in 1usize..20,
        dictionaries: bool,
        column in 0usize..6,
    ) {
        let runtime = runtime();
        let directory = tempfile::tempdir().unwrap();
        let column = ["whole", "real", "text", "day", "small", "tags"][column];
        let expected: Vec<u64> = (0..rows.len())
            .filter(|&row| conditions.iter().all(|condition| passes(&rows[row], condition)))
            .map(|row| row as u64)
            .collect();
        for statistics in [EnabledStatistics::None, EnabledStatistics::Chunk, EnabledStatistics::Page] {
            let layout = FileLayout { group_rows, page_rows, statistics, dictionaries };
            write(&directory.path().join("a.parquet"), &rows, layout);
            let dataset = open(&runtime, directory.path(), &conditions);
            prop_assert_eq!(dataset.rows(), None);
            prop_assert_eq!(read(&runtime, &dataset, column).unwrap(), expected.clone());
        }
    }
}

#[test]
fn statistics_rule_out_row_groups() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    let row = |n: i64| Row { whole: Some(n), real: None, text: Some(n.to_string()), day: None, small: 0 };
    let layout = FileLayout {
        group_rows: 10,
        page_rows: 10,
        statistics: EnabledStatistics::Chunk,
        dictionaries: true,
    };
    write(&directory.path().join("a.parquet"), &(0..100).map(row).collect::<Vec<_>>(), layout);
    let condition =
        |column: &str, op, value| Condition { column: column.to_owned(), test: Test::Compare { op, value } };
    let ruled_out =
        |conditions: &[Condition]| open(&runtime, directory.path(), conditions).ruled_out_splits();
    assert_eq!(ruled_out(&[]), 0);
    let from_95 = condition("whole", Comparison::GreaterOrEqual, Literal::Whole(95));
    assert_eq!(ruled_out(std::slice::from_ref(&from_95)), 9);
    let in_text = Condition {
        column: "text".to_owned(),
        test: Test::OneOf { values: vec![Literal::Text("42".to_owned()), Literal::Text("77".to_owned())] },
    };
    // Group 0 has the texts 0 to 9, so both literals are within its bounds.
    assert_eq!(ruled_out(std::slice::from_ref(&in_text)), 7);
    assert_eq!(ruled_out(&[Condition { column: "real".to_owned(), test: Test::IsNotNull }]), 10);
    assert_eq!(ruled_out(&[Condition { column: "whole".to_owned(), test: Test::IsNull }]), 10);
    let dataset = open(&runtime, directory.path(), &[from_95]);
    assert_eq!(read(&runtime, &dataset, "whole").unwrap(), [95, 96, 97, 98, 99]);
}

#[test]
fn page_indexes_avoid_fetching_pages() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    // Pages of half a megabyte of text, in one row group.
    let row = |n: i64| {
        let text = Some(n.to_string().repeat(1024 / n.to_string().len()));
        Row { whole: Some(n / 512), real: None, text, day: None, small: 0 }
    };
    let layout = FileLayout {
        group_rows: 8192,
        page_rows: 512,
        statistics: EnabledStatistics::Page,
        dictionaries: false,
    };
    write(&directory.path().join("a.parquet"), &(0..8192).map(row).collect::<Vec<_>>(), layout);
    let condition = |value: i64| Condition {
        column: "whole".to_owned(),
        test: Test::OneOf { values: vec![Literal::Whole(value), Literal::Whole(value + 8)] },
    };
    let fetched = |dataset: &Dataset| {
        let column = ProjectedColumn { name: "text".to_owned(), multi: false };
        let projection = Projection { columns: vec![column], ..Projection::default() };
        let bad = BadRecords::new(OnBadRecord::Fail);
        let mut reader = dataset.read(0, &projection, &bad, runtime.handle()).unwrap();
        let mut rows = 0;
        while let Some(chunk) = reader.next_chunk(1000).unwrap() {
            rows += chunk.rows();
        }
        (rows, reader.fetched_bytes())
    };
    let (rows, whole) = fetched(&open(&runtime, directory.path(), &[]));
    assert_eq!(rows, 8192);
    let (rows, some) = fetched(&open(&runtime, directory.path(), &[condition(3)]));
    assert_eq!(rows, 1024);
    // Two of sixteen pages, plus the small columns.
    assert!(some < whole / 5, "{some} of {whole}");
    let expected: Vec<u64> = (1536..2048).chain(5632..6144).collect();
    for column in ["text", "tags"] {
        assert_eq!(
            read(&runtime, &open(&runtime, directory.path(), &[condition(3)]), column).unwrap(),
            expected
        );
    }
}

#[test]
fn filters_of_the_wrong_type_are_rejected() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    let row = Row { whole: Some(1), real: None, text: None, day: None, small: 0 };
    let layout = FileLayout {
        group_rows: 10,
        page_rows: 10,
        statistics: EnabledStatistics::Chunk,
        dictionaries: true,
    };
    write(&directory.path().join("a.parquet"), &[row], layout);
    let error = |column: &str, value: Literal| {
        let test = Test::Compare { op: Comparison::Less, value };
        let condition = Condition { column: column.to_owned(), test };
        read(&runtime, &open(&runtime, directory.path(), &[condition]), "whole").unwrap_err().to_string()
    };
    assert_eq!(
        error("text", Literal::Whole(3)),
        "a.parquet: column `text` has type text, expected numbers, to match the filter"
    );
    assert!(error("day", Literal::Text("21.11.2026".to_owned())).contains("expected text, or dates"));
    assert_eq!(error("hole", Literal::Whole(3)), "a.parquet: no column `hole`; did you mean `whole`?");
}
