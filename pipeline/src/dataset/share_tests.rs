//! Shares of a dataset: both sides of a division together are the data, whatever its layout.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, StructArray,
};
use arrow_schema::{DataType, Field, Fields};
use millstream_format::ProjectedColumn;
use millstream_format::filter::{Share, Side};
use millstream_format::tfrecord::RecordWriter;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use tokio::runtime::Runtime;

use super::filter_tests::expanded;
use super::*;
use crate::spec::{LabelSpec, OnBadRecord};

pub(super) const ROWS: i64 = 20_000;
const USERS: i64 = 700;

pub(super) fn user(row: i64) -> i64 {
    row * row % USERS
}

fn write(path: &Path, columns: Vec<(&str, ArrayRef)>, group_rows: usize) {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, values)| (name, values, true)),
    )
    .unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

pub(super) fn number(value: impl Fn(i64) -> Option<i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter((0..ROWS).map(value)))
}

pub(super) fn rows_of_users(path: &Path, users: ArrayRef, group_rows: usize) {
    write(path, vec![("row", number(Some)), ("user", users)], group_rows);
}

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub(super) fn open(runtime: &Runtime, directory: &Path, name: &str) -> Dataset {
    runtime.block_on(Dataset::open(&[name.to_owned()], directory, None)).unwrap()
}

fn share(fraction: f64, column: Option<&str>, side: Side) -> RowFilter {
    let column = column.map(str::to_owned);
    RowFilter {
        conditions: Vec::new(),
        shares: vec![Share { held_out: 0.0..fraction, seed: 0, column, side }],
    }
}

/// The values of `row` in the rows that pass.
pub(super) fn read(runtime: &Runtime, dataset: &Dataset) -> Result<Vec<i64>, Error> {
    let projection = Projection {
        columns: vec![ProjectedColumn { name: "row".to_owned(), multi: false }],
        ..Projection::default()
    };
    dataset.check(&projection, Absent::Rejected, runtime.handle())?;
    let bad = BadRecords::new(OnBadRecord::Fail);
    let mut rows = Vec::new();
    for split in 0..dataset.splits().len() {
        let mut reader = dataset.read(split, &projection, &bad, runtime.handle())?;
        while let Some(chunk) = reader.next_chunk(777)? {
            let values = expanded(chunk.columns().column(0));
            rows.extend(values.as_primitive::<Int64Type>().values());
        }
    }
    Ok(rows)
}

/// The rows held out; the others are the rest.
fn held_out(runtime: &Runtime, dataset: &Dataset, fraction: f64, column: Option<&str>) -> BTreeSet<i64> {
    let side = |side| {
        let rows = read(runtime, &dataset.filtered(&share(fraction, column, side))).unwrap();
        assert!(rows.is_sorted(), "rows keep their order");
        rows.into_iter().collect::<BTreeSet<i64>>()
    };
    let (held_out, rest) = (side(Side::HeldOut), side(Side::Rest));
    assert!(held_out.is_disjoint(&rest));
    assert_eq!(held_out.union(&rest).count() as i64, ROWS);
    held_out
}

#[test]
fn rows_with_equal_values_are_on_one_side_in_every_layout() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    rows_of_users(&path("wide.parquet"), number(|row| Some(user(row))), 3_000);
    let narrow = Int32Array::from_iter_values((0..ROWS).map(|row| user(row) as i32));
    rows_of_users(&path("narrow.parquet"), Arc::new(narrow), 250);
    let texts: Vec<String> = (0..ROWS).map(|row| format!("user {}", user(row))).collect();
    rows_of_users(&path("text.parquet"), Arc::new(StringArray::from_iter_values(&texts)), 3_000);
    let keys: DictionaryArray<arrow_array::types::Int32Type> = texts.iter().map(String::as_str).collect();
    rows_of_users(&path("keys.parquet"), Arc::new(keys), 20_000);
    let mut records = RecordWriter::new(File::create(path("a.tfrecord")).unwrap());
    (0..ROWS).for_each(|row| records.write(&example(row, user(row))).unwrap());
    drop(records);

    let of = |name: &str| held_out(&runtime, &open(&runtime, directory.path(), name), 0.2, Some("user"));
    let numbers = of("wide.parquet");
    let mut sides: BTreeMap<i64, BTreeSet<bool>> = BTreeMap::new();
    for row in 0..ROWS {
        sides.entry(user(row)).or_default().insert(numbers.contains(&row));
    }
    assert!(sides.values().all(|sides| sides.len() == 1));
    let users = sides.values().filter(|sides| sides.contains(&true)).count();
    assert!((0.1..0.3).contains(&(users as f64 / sides.len() as f64)), "{users} of {} users", sides.len());
    assert_eq!(of("narrow.parquet"), numbers);
    assert_eq!(of("a.tfrecord"), numbers);
    assert_eq!(of("text.parquet"), of("keys.parquet"));
}

#[test]
fn rows_are_divided_by_their_number_in_the_file_without_a_column() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, group_rows| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        rows_of_users(&path, number(|_| None), group_rows);
    };
    write("a/x.parquet", 20_000);
    write("b/x.parquet", 1_100);
    write("a/y.parquet", 20_000);
    let of =
        |name: &str, fraction| held_out(&runtime, &open(&runtime, directory.path(), name), fraction, None);
    let tenth = of("a/x.parquet", 0.1);
    assert!(tenth.len().abs_diff(ROWS as usize / 10) < 200, "{}", tenth.len());
    assert_eq!(of("b/x.parquet", 0.1), tenth, "neither directories nor row groups matter");
    assert_ne!(of("a/y.parquet", 0.1), tenth);
    assert!(of("a/x.parquet", 0.2).is_superset(&tenth), "a larger share contains the smaller one");

    let dataset = open(&runtime, directory.path(), "a/x.parquet");
    let seeded = |seed| {
        let mut filter = share(0.1, None, Side::HeldOut);
        filter.shares[0].seed = seed;
        read(&runtime, &dataset.filtered(&filter)).unwrap()
    };
    assert!(seeded(0).iter().eq(&tenth));
    let common = seeded(1).into_iter().filter(|row| tenth.contains(row)).count();
    assert!(common < tenth.len() / 5, "{common} of {} rows in both divisions", tenth.len());
}

#[test]
fn rows_without_a_value_are_not_held_out_and_other_types_are_rejected() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    let reals = Float64Array::from_iter((0..ROWS).map(|row| {
        (row % 2 == 0).then_some(match row % 8 {
            0 => 0.0,
            2 => -0.0,
            4 => f64::NAN,
            _ => row as f64 / 3.0,
        })
    }));
    let fields = Fields::from(vec![Field::new("x", DataType::Int64, true)]);
    let parts = StructArray::new(fields, vec![number(Some)], None);
    let path = directory.path().join("a.parquet");
    write(&path, vec![("row", number(Some)), ("real", Arc::new(reals)), ("part", Arc::new(parts))], 7_000);
    let dataset = open(&runtime, directory.path(), "a.parquet");
    let held_out = held_out(&runtime, &dataset, 0.5, Some("real"));
    assert!(held_out.iter().all(|row| row % 2 == 0));
    assert_eq!(held_out.contains(&0), held_out.contains(&2), "both zeros are one value");
    let within = |from: i64| (from..ROWS).step_by(8).filter(|row| held_out.contains(row)).count();
    assert!([0, ROWS as usize / 8].contains(&within(4)), "all NaN are one value");
    assert!((1_000..1_500).contains(&within(6)), "{}", within(6));

    let error = read(&runtime, &dataset.filtered(&share(0.5, Some("part"), Side::Rest))).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("`part`") && text.contains("one number, text, date or time per row"), "{text}");
    let error = read(&runtime, &dataset.filtered(&share(0.5, Some("rael"), Side::Rest))).unwrap_err();
    assert_eq!(error.to_string(), "a.parquet: no column `rael`; did you mean `real`?");
}

#[test]
fn the_rows_of_a_share_are_estimated() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    rows_of_users(&directory.path().join("a.parquet"), number(Some), 7_000);
    let dataset = open(&runtime, directory.path(), "a.parquet");
    let rows = |filter: &RowFilter| dataset.filtered(filter).estimated_rows();
    assert_eq!(rows(&share(0.1, None, Side::HeldOut)), Some(2_000));
    assert_eq!(rows(&share(0.1, Some("user"), Side::Rest)), Some(18_000));
    let condition = Condition { column: "user".to_owned(), test: millstream_format::filter::Test::IsNotNull };
    assert_eq!(rows(&RowFilter { conditions: vec![condition], shares: Vec::new() }), None);
}

#[test]
fn negatives_are_sampled_and_positives_are_all_kept() {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let is_positive = |row: i64| row * 7 % 20 == 0;
    let texts = StringArray::from_iter((0..ROWS).map(|row| match row % 100 {
        99 => None,
        _ if is_positive(row) => Some("yes"),
        _ => Some("no"),
    }));
    write(&path("a.parquet"), vec![("row", number(Some)), ("y", Arc::new(texts))], 7_000);
    let numbers = number(|row| Some(i64::from(is_positive(row))));
    write(&path("b.parquet"), vec![("row", number(Some)), ("y", numbers)], 900);
    let sampled = |name: &str, positive: Option<&str>| {
        let dataset = open(&runtime, directory.path(), name);
        let label = LabelSpec::of("y", positive).first;
        let dataset = dataset.filtered(&RowFilter::default()).sampled(Negatives::new(&label, &[], 0.1));
        assert!(dataset.is_filtered() && dataset.rows().is_none());
        read(&runtime, &dataset).unwrap()
    };
    for rows in [sampled("a.parquet", Some("yes")), sampled("b.parquet", None)] {
        assert!(rows.is_sorted());
        let kept =
            |wanted: bool| rows.iter().filter(|&&row| is_positive(row) == wanted && row % 100 != 99).count();
        let of_all =
            |wanted: bool| (0..ROWS).filter(|&row| is_positive(row) == wanted && row % 100 != 99).count();
        assert_eq!(kept(true), of_all(true));
        let share = kept(false) as f64 / of_all(false) as f64;
        assert!((0.08..0.12).contains(&share), "{share} of the negative rows");
    }
    let unlabelled = sampled("a.parquet", Some("yes")).into_iter().filter(|row| row % 100 == 99).count();
    assert_eq!(unlabelled as i64, ROWS / 100, "rows without a label are left to the transform");
    assert_eq!(sampled("a.parquet", Some("yes")), sampled("a.parquet", Some("yes")));

    // Independent of the rows that are held out.
    let dataset = open(&runtime, directory.path(), "b.parquet").filtered(&share(0.5, None, Side::Rest));
    let all = read(&runtime, &dataset).unwrap().len() as f64;
    let label = LabelSpec::of("y", None).first;
    let half = read(&runtime, &dataset.sampled(Negatives::new(&label, &[], 0.5))).unwrap().len() as f64;
    assert!((0.48..0.57).contains(&(half / all)), "{half} of {all} rows");
}

/// An Example with `row` and `user`.
pub(super) fn example(row: i64, user: i64) -> Vec<u8> {
    let field = |tag: u32, payload: &[u8]| {
        let mut out = Vec::new();
        prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, &mut out);
        prost::encoding::encode_varint(payload.len() as u64, &mut out);
        [out.as_slice(), payload].concat()
    };
    let entry = |name: &str, value: i64| {
        let mut number = Vec::new();
        prost::encoding::encode_varint(value as u64, &mut number);
        let feature = field(3, &field(1, &number));
        field(1, &[field(1, name.as_bytes()), field(2, &feature)].concat())
    };
    field(1, &[entry("row", row), entry("user", user)].concat())
}
