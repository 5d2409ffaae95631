//! Parquet datasets: every type, damaged and partial files.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type};
use arrow_array::*;
use arrow_buffer::OffsetBuffer;
use arrow_schema::Field;
use millstream_format::filter::{Comparison, Condition, Literal, RowFilter, Test};
use millstream_format::parquet::{footer_range, row_groups_of};
use millstream_format::{Error as FormatError, ProjectedColumn};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use tokio::runtime::Runtime;

use super::*;
use crate::bad_records::BadRecords;
use crate::dataset::{Dataset, SplitPart};
use crate::spec::OnBadRecord;

/// One column of each supported type; the names of multi-valued ones start with `list`.
fn every_type() -> RecordBatch {
    let text = [Some("a"), None, Some(""), Some("zwölf"), Some("a")];
    let bytes: Vec<Option<&[u8]>> = vec![Some(b"\xff\x00"), None, Some(b""), Some(b"x"), Some(b"y")];
    let lists = |values: [Option<Vec<Option<i32>>>; 5]| values;
    let ints =
        lists([Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(4)]), Some(vec![Some(5); 3])]);
    let mut texts = builder::ListBuilder::new(builder::StringBuilder::new());
    for row in [Some(vec![Some("p"), Some("q")]), None, Some(vec![]), Some(vec![None]), Some(vec![Some("")])]
    {
        texts.append_option(row);
    }
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i8", Arc::new(Int8Array::from(vec![Some(-1), None, Some(2), Some(i8::MIN), Some(0)]))),
        ("i16", Arc::new(Int16Array::from(vec![Some(-1), None, Some(2), Some(i16::MIN), Some(0)]))),
        ("i32", Arc::new(Int32Array::from(vec![Some(-1), None, Some(2), Some(i32::MIN), Some(0)]))),
        ("i64", Arc::new(Int64Array::from(vec![Some(-1), None, Some(2), Some(i64::MIN), Some(0)]))),
        ("u8", Arc::new(UInt8Array::from(vec![Some(1), None, Some(2), Some(u8::MAX), Some(0)]))),
        ("u16", Arc::new(UInt16Array::from(vec![Some(1), None, Some(2), Some(u16::MAX), Some(0)]))),
        ("u32", Arc::new(UInt32Array::from(vec![Some(1), None, Some(2), Some(u32::MAX), Some(0)]))),
        ("u64", Arc::new(UInt64Array::from(vec![Some(1), None, Some(2), Some(u64::MAX), Some(0)]))),
        (
            "f32",
            Arc::new(Float32Array::from(vec![Some(0.5), None, Some(-0.0), Some(f32::INFINITY), Some(1.0)])),
        ),
        ("f64", Arc::new(Float64Array::from(vec![Some(0.1), None, Some(-0.0), Some(f64::MAX), Some(1.0)]))),
        ("bool", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true), Some(true)]))),
        ("utf8", Arc::new(StringArray::from(text.to_vec()))),
        ("large_utf8", Arc::new(LargeStringArray::from(text.to_vec()))),
        ("utf8_view", Arc::new(StringViewArray::from(text.to_vec()))),
        ("binary", Arc::new(BinaryArray::from(bytes.clone()))),
        ("large_binary", Arc::new(LargeBinaryArray::from(bytes.clone()))),
        ("binary_view", Arc::new(BinaryViewArray::from_iter(bytes))),
        ("dictionary", Arc::new(text.into_iter().collect::<DictionaryArray<Int32Type>>())),
        ("null", Arc::new(NullArray::new(5))),
        ("list_int", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(ints.clone()))),
        ("list_large", Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(ints))),
        ("list_text", Arc::new(texts.finish())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .unwrap()
}

/// Converts an array to a canonical representation: without dictionaries, text as bytes, short integers as 32 bits,
/// 32-bit offsets.
fn canonical(array: &ArrayRef) -> ArrayRef {
    use arrow_schema::DataType::*;
    if let Some(dictionary) = array.as_any_dictionary_opt() {
        return canonical(&arrow_select::take::take(dictionary.values(), dictionary.keys(), None).unwrap());
    }
    fn short<T: ArrowPrimitiveType<Native: Into<i32>>>(array: &ArrayRef) -> ArrayRef {
        Arc::new(array.as_primitive::<T>().iter().map(|v| v.map(Into::into)).collect::<Int32Array>())
    }
    fn list(lists: impl Iterator<Item = Option<ArrayRef>>) -> ArrayRef {
        let lists: Vec<Option<ArrayRef>> = lists.map(|list| list.map(|list| canonical(&list))).collect();
        let parts: Vec<&dyn Array> = lists.iter().flatten().map(|list| list.as_ref()).collect();
        let lengths = lists.iter().map(|list| list.as_ref().map_or(0, |list| list.len()));
        let values: ArrayRef = match parts.is_empty() {
            true => Arc::new(NullArray::new(0)),
            false => arrow_select::concat::concat(&parts).unwrap(),
        };
        let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        let nulls = lists.iter().map(Option::is_some).collect::<Vec<bool>>();
        Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), values, Some(nulls.into())))
    }
    match array.data_type() {
        Int8 => short::<Int8Type>(array),
        Int16 => short::<Int16Type>(array),
        UInt8 => short::<UInt8Type>(array),
        UInt16 => short::<UInt16Type>(array),
        Utf8 => Arc::new(BinaryArray::from(array.as_string::<i32>().clone())),
        LargeUtf8 => {
            Arc::new(array.as_string::<i64>().iter().map(|v| v.map(str::as_bytes)).collect::<BinaryArray>())
        }
        Utf8View => {
            Arc::new(array.as_string_view().iter().map(|v| v.map(str::as_bytes)).collect::<BinaryArray>())
        }
        LargeBinary => Arc::new(array.as_binary::<i64>().iter().collect::<BinaryArray>()),
        BinaryView => Arc::new(array.as_binary_view().iter().collect::<BinaryArray>()),
        List(_) => list(array.as_list::<i32>().iter()),
        LargeList(_) => list(array.as_list::<i64>().iter()),
        _ => array.clone(),
    }
}

fn write(path: &Path, batch: &RecordBatch, group_rows: usize, compression: Compression) {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group_rows))
        .set_compression(compression)
        .build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

fn projection(names: &[&str]) -> Projection {
    let column = |name: &&str| ProjectedColumn { name: (*name).to_owned(), multi: name.starts_with("list") };
    Projection { columns: names.iter().map(column).collect(), ..Projection::default() }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn open(runtime: &Runtime, dir: &Path) -> Result<Dataset, Error> {
    runtime.block_on(Dataset::open(&["a.parquet".to_owned()], dir, None))
}

/// Reads all chunks, each with the number of its first record.
fn read(
    runtime: &Runtime,
    dataset: &Dataset,
    projection: &Projection,
    policy: OnBadRecord,
) -> Result<Vec<(u64, RecordBatch)>, Error> {
    let bad = BadRecords::new(policy);
    let mut chunks = Vec::new();
    for split in 0..dataset.splits().len() {
        let mut reader = dataset.read(split, projection, &bad, runtime.handle())?;
        while let Some(chunk) = reader.next_chunk(2)? {
            assert!((1..=2).contains(&chunk.rows()));
            chunks.push((chunk.record(0), chunk.columns().clone()));
        }
    }
    Ok(chunks)
}

#[test]
fn all_supported_types_round_trip() {
    let batch = every_type();
    let schema = batch.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).rev().collect();
    assert_eq!(names.len(), 22);
    let runtime = runtime();
    let zstd = Compression::ZSTD(ZstdLevel::default());
    for (group_rows, compression) in [(5, Compression::UNCOMPRESSED), (3, Compression::SNAPPY), (1, zstd)] {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("a.parquet"), &batch, group_rows, compression);
        let dataset = open(&runtime, dir.path()).unwrap();
        assert_eq!(dataset.rows(), Some(5));
        assert_eq!(dataset.splits().len(), 5usize.div_ceil(group_rows));
        dataset.check(&projection(&names), Absent::Rejected, runtime.handle()).unwrap();
        let mut dictionaries = [0; 2];
        for numbers_as_values in [false, true] {
            let projection = Projection { numbers_as_values, ..projection(&names) };
            let mut row = 0;
            for (first, chunk) in read(&runtime, &dataset, &projection, OnBadRecord::Fail).unwrap() {
                assert_eq!(first, row as u64);
                for (column, name) in names.iter().enumerate() {
                    let expected = batch.column_by_name(name).unwrap().slice(row, chunk.num_rows());
                    assert_eq!(&canonical(chunk.column(column)), &canonical(&expected), "{name} at {row}");
                }
                dictionaries[usize::from(numbers_as_values)] += number_dictionaries(&chunk);
                row += chunk.num_rows();
            }
            assert_eq!(row, 5);
        }
        assert!(dictionaries[0] > 0);
        assert_eq!(dictionaries[1], 0);
    }
}

/// The columns, or elements of lists, that are keys of a dictionary of numbers.
fn number_dictionaries(chunk: &RecordBatch) -> usize {
    let has_keys = |column: &&ArrayRef| {
        let leaf = column
            .as_list_opt::<i32>()
            .map_or_else(|| Arc::clone(column), |lists| Arc::clone(lists.values()));
        leaf.as_any_dictionary_opt().is_some_and(|keys| keys.values().data_type().is_primitive())
    };
    chunk.columns().iter().filter(has_keys).count()
}

#[test]
fn filtered_rows_have_numbers_as_values_too() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let numbers = |factor: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((0..100).map(|n| n % 10 * factor)))
    };
    let batch = RecordBatch::try_from_iter([("n", numbers(1)), ("m", numbers(7))]).unwrap();
    write(&dir.path().join("a.parquet"), &batch, 100, Compression::SNAPPY);
    let test = Test::Compare { op: Comparison::GreaterOrEqual, value: Literal::Whole(9) };
    let filter =
        RowFilter { conditions: vec![Condition { column: "n".to_owned(), test }], shares: Vec::new() };
    let dataset = open(&runtime, dir.path()).unwrap().filtered(&filter);
    let projection = Projection { numbers_as_values: true, ..projection(&["m"]) };
    let chunks = read(&runtime, &dataset, &projection, OnBadRecord::Fail).unwrap();
    let read =
        chunks.iter().flat_map(|(_, chunk)| chunk.column(0).as_primitive::<Int64Type>().values().to_vec());
    assert_eq!(read.collect::<Vec<_>>(), [63; 10]);
}

#[test]
fn reading_can_start_inside_a_row_group() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    write(&dir.path().join("a.parquet"), &batch, 40, Compression::SNAPPY);
    let dataset = open(&runtime, dir.path()).unwrap();
    assert_eq!(dataset.splits()[1].part, SplitPart::RowGroup(1));
    assert_eq!((dataset.splits()[1].first_record, dataset.splits()[1].rows), (40, Some(40)));
    for from in [0, 40, 41, 79, 80, 99] {
        let bad = BadRecords::new(OnBadRecord::Fail);
        let mut reader = dataset.read(1, &projection(&["n"]), &bad, runtime.handle()).unwrap();
        reader.skip_to(from);
        let mut expected = from.max(40);
        while let Some(chunk) = reader.next_chunk(7).unwrap() {
            let values = canonical(chunk.columns().column(0));
            let values = values.as_any().downcast_ref::<Int64Array>().unwrap();
            for row in 0..chunk.rows() {
                assert_eq!((values.value(row), chunk.record(row)), (expected as i64, expected));
                expected += 1;
            }
        }
        assert_eq!(expected, from.max(80));
    }
}

#[test]
fn unusable_columns_are_rejected_before_reading() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let spans: ArrayRef = Arc::new(IntervalYearMonthArray::from(vec![1; 5]));
    let mut columns: Vec<(String, ArrayRef)> = vec![("span".to_owned(), spans)];
    let batch = every_type();
    columns.extend(
        (0..2).map(|column| (batch.schema().field(column).name().clone(), batch.column(column).clone())),
    );
    columns.push(("tags".to_owned(), batch.column_by_name("list_int").unwrap().clone()));
    write(
        &dir.path().join("a.parquet"),
        &RecordBatch::try_from_iter(columns).unwrap(),
        5,
        Compression::SNAPPY,
    );
    let dataset = open(&runtime, dir.path()).unwrap();
    let error = |name| {
        dataset.check(&projection(&[name]), Absent::Rejected, runtime.handle()).unwrap_err().to_string()
    };
    assert_eq!(error("spans"), "a.parquet: no column `spans`; did you mean `span`?");
    assert_eq!(
        error("span"),
        "a.parquet: column `span` has type interval (days, milliseconds), expected numbers, text, dates, times, or lists \
         of them"
    );
    assert!(error("tags").ends_with("expected one value per row"), "{}", error("tags"));

    // A single-valued column can serve a multi-valued feature.
    let one = Projection {
        columns: vec![ProjectedColumn { name: "i8".to_owned(), multi: true }],
        ..Projection::default()
    };
    let chunks = read(&runtime, &dataset, &one, OnBadRecord::Fail).unwrap();
    let list = chunks[0].1.column(0).as_any().downcast_ref::<ListArray>().unwrap();
    assert_eq!((list.value_length(0), list.is_null(1)), (1, true));
}

#[test]
fn truncated_files_and_other_formats_are_detected() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    write(&path, &every_type(), 5, Compression::SNAPPY);
    let whole = std::fs::read(&path).unwrap();
    for cut in (4..whole.len()).step_by(7).chain([whole.len() - 1]) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let error = open(&runtime, dir.path()).unwrap_err();
        assert!(matches!(error, Error::Format(FormatError::Damage { .. })), "cut at {cut}: {error}");
    }
    std::fs::write(&path, "age,sex\n39,Male\n").unwrap();
    let error = open(&runtime, dir.path()).unwrap_err().to_string();
    assert_eq!(error, "a.parquet: expected Parquet, found text");
}

/// Parquet checksums are optional, so a changed byte may go undetected as another value; it must never cause a panic or
/// additional rows.
#[test]
fn damaged_files_never_panic() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let batch = every_type();
    let all: Vec<String> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    write(&path, &batch, 3, Compression::UNCOMPRESSED);
    let whole = std::fs::read(&path).unwrap();
    let (mut errors, mut skipped) = (0, 0);
    for step in 0..1500usize {
        let mut bytes = whole.clone();
        let bit = step * 7919 % (whole.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &bytes).unwrap();
        let Ok(dataset) = open(&runtime, dir.path()) else {
            errors += 1;
            continue;
        };
        errors += u32::from(read(&runtime, &dataset, &projection(&all), OnBadRecord::Fail).is_err());
        if let Ok((rows, lost)) = read_skipping(&runtime, &dataset, &projection(&all), 10) {
            assert_eq!(Some(rows + lost), dataset.rows(), "each row is delivered or counted, bit {bit}");
            skipped += u32::from(rows < 5);
        }
    }
    assert!(errors > 100 && skipped > 10, "{errors} {skipped}");
}

#[test]
fn all_rows_of_a_damaged_row_group_are_counted() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..5000));
    let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    write(&path, &batch, 4000, Compression::UNCOMPRESSED);
    let mut bytes = std::fs::read(&path).unwrap();
    // The header of the first page.
    bytes[4..12].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let dataset = open(&runtime, dir.path()).unwrap();
    let read = |limit| read_skipping(&runtime, &dataset, &projection(&["n"]), limit);
    assert_eq!(read(4000).unwrap(), (1000, 4000));
    let error = read(3999).unwrap_err().to_string();
    assert!(error.starts_with("more than 3999 bad records in one pass; the last: a.parquet"), "{error}");
    assert!(error.ends_with("the rest of the row group is lost, 4000 rows"), "{error}");
}

#[test]
fn the_metadata_of_all_files_fits_the_budget() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    for file in 0..20 {
        write(&dir.path().join(format!("{file}.parquet")), &every_type(), 1, Compression::UNCOMPRESSED);
    }
    let objects = runtime.block_on(storage::list(&["*.parquet".to_owned()], dir.path())).unwrap();
    let open = |budget| runtime.block_on(Dataset::of_within(objects.clone(), None, budget));
    let bytes = open(u64::MAX).unwrap().metadata_bytes();
    assert_eq!(open(bytes).unwrap().splits().len(), 100);
    let error = open(bytes - 1).unwrap_err().to_string();
    assert!(error.starts_with("the metadata of 20 Parquet files"), "{error}");
    // Files are opened side by side, so that the sum at the error varies.
    let error = open(bytes / 2).unwrap_err();
    assert!(matches!(error, Error::OverBudget { needed_bytes, .. } if needed_bytes > bytes / 2), "{error}");
}

/// The numbers of rows read, and of rows counted as bad.
fn read_skipping(
    runtime: &Runtime,
    dataset: &Dataset,
    projection: &Projection,
    limit: u64,
) -> Result<(u64, u64), Error> {
    let bad = BadRecords::new(OnBadRecord::Skip { limit });
    let mut rows = 0;
    for split in 0..dataset.splits().len() {
        let mut reader = dataset.read(split, projection, &bad, runtime.handle())?;
        while let Some(chunk) = reader.next_chunk(2)? {
            rows += chunk.rows() as u64;
        }
    }
    Ok((rows, bad.skipped()))
}

fn open_all(runtime: &Runtime, dir: &Path) -> Dataset {
    runtime.block_on(Dataset::open(&["*.parquet".to_owned()], dir, None)).unwrap()
}

#[test]
fn files_may_differ_in_layout() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, columns: Vec<(&str, ArrayRef)>| {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        write(&dir.path().join(name), &batch, 10, Compression::SNAPPY);
    };
    let text: DictionaryArray<Int32Type> = ["x", "y"].into_iter().collect();
    file("a.parquet", vec![("n", Arc::new(Int32Array::from(vec![1, 2]))), ("t", Arc::new(text))]);
    file(
        "b.parquet",
        vec![
            ("more", Arc::new(BooleanArray::from(vec![true, false]))),
            ("t", Arc::new(StringArray::from(vec!["z", "x"]))),
            ("n", Arc::new(Int64Array::from(vec![3, 4]))),
        ],
    );
    let dataset = open_all(&runtime, dir.path());
    let wanted = projection(&["n", "t", "more"]);
    dataset.check(&wanted, Absent::Rejected, runtime.handle()).unwrap();
    let chunks = read(&runtime, &dataset, &wanted, OnBadRecord::Fail).unwrap();
    assert_eq!(canonical(chunks[0].1.column(0)).as_primitive::<Int32Type>().values(), &[1, 2]);
    assert_eq!(canonical(chunks[1].1.column(0)).as_primitive::<Int64Type>().values(), &[3, 4]);
    let texts = canonical(chunks[0].1.column(1));
    assert_eq!(texts.as_binary::<i32>().iter().flatten().collect::<Vec<_>>(), [b"x", b"y"]);
    assert_eq!((chunks[0].1.column(2).logical_null_count(), chunks[1].1.column(2).null_count()), (2, 0));

    file("c.parquet", vec![("t", Arc::new(Int64Array::from(vec![5])))]);
    let error = open_all(&runtime, dir.path())
        .check(&wanted, Absent::Rejected, runtime.handle())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "c.parquet: column `t` has type 64-bit integer, expected text or bytes, as in a.parquet"
    );
}

#[test]
fn struct_fields_are_addressed_by_path() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let leaf: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3), Some(4)]));
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, true, false, false]));
    let field = |name: &str, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
    // The outer struct is absent in row 2, the inner one in row 3.
    let inner = StructArray::new(
        vec![field("c", &leaf), field("flag", &flags)].into(),
        vec![leaf, flags],
        Some(vec![true, true, true, false].into()),
    );
    let inner: ArrayRef = Arc::new(inner);
    let outer = StructArray::new(
        vec![field("b", &inner)].into(),
        vec![inner],
        Some(vec![true, true, false, true].into()),
    );
    let pointed: ArrayRef = Arc::new(Int64Array::from(vec![7; 4]));
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("a", Arc::new(outer) as ArrayRef, true),
        ("x.y", pointed, false),
    ]);
    write(&dir.path().join("a.parquet"), &batch.unwrap(), 10, Compression::SNAPPY);
    let dataset = open(&runtime, dir.path()).unwrap();
    let wanted = projection(&["a.b.c", "x.y", "a.b.flag"]);
    dataset.check(&wanted, Absent::Rejected, runtime.handle()).unwrap();
    let chunks = read(&runtime, &dataset, &wanted, OnBadRecord::Fail).unwrap();
    let column = |column: usize| {
        let parts: Vec<ArrayRef> = chunks.iter().map(|(_, chunk)| canonical(chunk.column(column))).collect();
        arrow_select::concat::concat(&parts.iter().map(|part| part.as_ref()).collect::<Vec<_>>()).unwrap()
    };
    let numbers: Vec<Option<i64>> = column(0).as_primitive::<Int64Type>().iter().collect();
    assert_eq!(numbers, [Some(1), None, None, None]);
    assert_eq!(column(1).as_primitive::<Int64Type>().values(), &[7; 4]);
    let flags: Vec<Option<bool>> = column(2).as_boolean().iter().collect();
    assert_eq!(flags, [Some(true), Some(true), None, None]);

    let error = |name| {
        dataset.check(&projection(&[name]), Absent::Rejected, runtime.handle()).unwrap_err().to_string()
    };
    assert!(error("a.b").ends_with("name a field of the struct as `column.field`"), "{}", error("a.b"));
    assert_eq!(error("a.b.d"), "a.parquet: no column `a.b.d`; did you mean `a.b.c`?");
}

/// The property of the fuzz target: arbitrary bytes are row groups within the file or an error.
#[test]
fn damaged_footers_are_row_groups_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    write(&path, &every_type(), 3, Compression::SNAPPY);
    let whole = std::fs::read(&path).unwrap();
    let range = footer_range("a.parquet", whole.len() as u64, &whole).unwrap().unwrap();
    let footer = &whole[range.start as usize..range.end as usize];
    let groups = row_groups_of(footer, whole.len() as u64).unwrap();
    assert_eq!(
        groups.iter().map(|group| (group.first_row, group.rows)).collect::<Vec<_>>(),
        [(0, 3), (3, 2)]
    );
    assert!(row_groups_of(footer, 100).is_err(), "columns beyond the file");
    let mut errors = 0;
    for step in 0..3000usize {
        let mut bytes = footer.to_vec();
        let bit = step * 7919 % (footer.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        match row_groups_of(&bytes, whole.len() as u64) {
            Err(_) => errors += 1,
            Ok(groups) => assert!(groups.iter().all(|group| group.offset <= whole.len() as u64)),
        }
    }
    assert!(errors > 100, "{errors}");
}
