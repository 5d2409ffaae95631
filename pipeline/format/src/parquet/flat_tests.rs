#![allow(clippy::unwrap_used)]

//! Compares flat columns with the `parquet` crate's decoding of the same bytes.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int16Type, Int32Type, UInt8Type, UInt16Type, UInt32Type};
use arrow_array::*;
use arrow_schema::DataType;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use proptest::prelude::*;

use super::super::fetched::FetchedFile;
use super::super::leaf::delivered_type;
use super::super::meter::Meter;
use super::super::page::Pages;
use super::*;

/// A reader of a column that has `rows` rows.
fn flat(
    source: &Arc<FetchedFile>,
    column: &ColumnChunkMetaData,
    rows: usize,
    data_type: &DataType,
    numbers_as_values: bool,
) -> FlatColumn {
    let delivered = delivered_type(column, data_type).unwrap();
    let pages = Pages::new(source, column, rows, None, &Meter::new(u64::MAX)).unwrap();
    FlatColumn::new(Leaf::new(pages, column, delivered, numbers_as_values).unwrap(), 1 << 20)
}

/// The values without dictionaries, text as bytes, short integers as 32 bits: the representations in which the two
/// decoders may differ.
fn canonical(array: &ArrayRef) -> ArrayRef {
    if let Some(dictionary) = array.as_any_dictionary_opt() {
        return canonical(&arrow_select::take::take(dictionary.values(), dictionary.keys(), None).unwrap());
    }
    fn short<T: ArrowPrimitiveType<Native: Into<i32>>>(array: &ArrayRef) -> ArrayRef {
        Arc::new(array.as_primitive::<T>().iter().map(|value| value.map(Into::into)).collect::<Int32Array>())
    }
    match array.data_type() {
        DataType::Int8 => short::<Int8Type>(array),
        DataType::Int16 => short::<Int16Type>(array),
        DataType::UInt8 => short::<UInt8Type>(array),
        DataType::UInt16 => short::<UInt16Type>(array),
        DataType::Utf8 => Arc::new(BinaryArray::from(array.as_string::<i32>().clone())),
        _ => array.clone(),
    }
}

/// Parameters of a generated file.
#[derive(Clone, Debug)]
struct Written {
    rows: usize,
    /// Number of distinct values.
    values: u64,
    /// Absent rows out of 16; `None` makes the columns required.
    absent: Option<u64>,
    /// Length of runs of equal presence.
    run: usize,
    dictionary: bool,
    dictionary_bytes: usize,
    page_rows: usize,
    second_version: bool,
    seed: u64,
}

fn written() -> impl Strategy<Value = Written> {
    let absent = prop_oneof![Just(None), (0u64..=16).prop_map(Some)];
    let values = prop_oneof![Just(1u64), 2u64..20, 20u64..3000];
    let sizes = (1usize..4000, prop_oneof![Just(1usize), 2usize..90], 1usize..900);
    let dictionary = (any::<bool>(), prop_oneof![Just(1usize << 20), 1usize..4000]);
    (sizes, values, absent, dictionary, any::<bool>(), any::<u64>()).prop_map(
        |((rows, run, page_rows), values, absent, (dictionary, dictionary_bytes), second_version, seed)| {
            Written {
                rows,
                values,
                absent,
                run,
                dictionary,
                dictionary_bytes,
                page_rows,
                second_version,
                seed,
            }
        },
    )
}

fn table(written: &Written) -> RecordBatch {
    let mut state = written.seed | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut drawn: Vec<Option<u64>> = Vec::with_capacity(written.rows);
    while drawn.len() < written.rows {
        let absent = written.absent.is_some_and(|share| next() % 16 < share);
        for _ in 0..written.run.min(written.rows - drawn.len()) {
            drawn.push((!absent).then(|| next() % written.values));
        }
    }
    let text = |value: u64| "x".repeat((value % 23) as usize) + &value.to_string();
    let drawn = || drawn.iter().copied();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i32", Arc::new(drawn().map(|v| v.map(|v| v as i32 - 7)).collect::<Int32Array>())),
        ("i64", Arc::new(drawn().map(|v| v.map(|v| (v << 40) as i64 - 7)).collect::<Int64Array>())),
        ("f32", Arc::new(drawn().map(|v| v.map(|v| v as f32 / 3.0)).collect::<Float32Array>())),
        ("f64", Arc::new(drawn().map(|v| v.map(|v| v as f64 / 3.0)).collect::<Float64Array>())),
        ("text", Arc::new(drawn().map(|v| v.map(text)).collect::<StringArray>())),
        ("bytes", Arc::new(drawn().map(|v| v.map(|v| text(v).into_bytes())).collect::<BinaryArray>())),
        ("i8", Arc::new(drawn().map(|v| v.map(|v| v as i8)).collect::<Int8Array>())),
        ("u16", Arc::new(drawn().map(|v| v.map(|v| v as u16)).collect::<UInt16Array>())),
        ("u32", Arc::new(drawn().map(|v| v.map(|v| u32::MAX - v as u32)).collect::<UInt32Array>())),
        ("u64", Arc::new(drawn().map(|v| v.map(|v| u64::MAX - v)).collect::<UInt64Array>())),
        ("date", Arc::new(drawn().map(|v| v.map(|v| v as i32)).collect::<Date32Array>())),
        ("time", Arc::new(drawn().map(|v| v.map(|v| v as i64)).collect::<TimestampMicrosecondArray>())),
    ];
    let nullable = written.absent.is_some();
    RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, column)| (name, column, nullable)),
    )
    .unwrap()
}

fn file(written: &Written, table: &RecordBatch) -> Bytes {
    let version =
        if written.second_version { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 };
    // `FlatColumn` does not support the encodings of version 2.
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_encoding(Encoding::PLAIN)
        .set_dictionary_enabled(written.dictionary)
        .set_dictionary_page_size_limit(written.dictionary_bytes)
        .set_data_page_row_count_limit(written.page_rows)
        .set_write_batch_size(written.page_rows.min(64))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_compression(Compression::SNAPPY)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), table.schema(), Some(properties)).unwrap();
    writer.write(table).unwrap();
    writer.into_inner().unwrap().into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn flat_columns_match_the_reference(
        written in written(),
        skip in 0usize..4000,
        steps in proptest::collection::vec(1usize..1500, 1..6),
        numbers_as_values: bool,
    ) {
        let table = table(&written);
        let bytes = file(&written, &table);
        let skip = skip.min(written.rows);
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let reference =
            ParquetRecordBatchReaderBuilder::try_new_with_options(bytes.clone(), options).unwrap();
        let metadata = reference.metadata().clone();
        let schema = reference.schema().clone();
        let batch = reference.with_batch_size(written.rows).build().unwrap().next().unwrap().unwrap();

        let source = Arc::new(FetchedFile::new(vec![(0, bytes)]));
        for (leaf, expected) in batch.columns().iter().enumerate() {
            let column = metadata.row_group(0).column(leaf);
            let data_type = schema.field(leaf).data_type();
            let is_text = matches!(data_type, DataType::Utf8 | DataType::Binary);
            let mut flat = flat(&source, column, written.rows, data_type, numbers_as_values);
            flat.skip(skip).unwrap();
            let mut row = skip;
            for &step in steps.iter().cycle() {
                if row == written.rows { break }
                let step = step.min(written.rows - row);
                let read = flat.read(step).unwrap();
                prop_assert!((1..=step).contains(&read.len()));
                prop_assert!(is_text || !numbers_as_values || read.as_any_dictionary_opt().is_none());
                prop_assert_eq!(&canonical(&read), &canonical(&expected.slice(row, read.len())));
                row += read.len();
            }
            prop_assert!(flat.read(1).is_err(), "all rows were read");
        }
    }

    #[test]
    fn damaged_pages_are_values_or_an_error(
        written in written(),
        damage: Vec<(usize, u8)>,
        numbers_as_values: bool,
    ) {
        let table = table(&written);
        let bytes = file(&written, &table);
        let reference = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap();
        let metadata = reference.metadata().clone();
        let mut bytes = bytes.to_vec();
        let end = metadata.row_group(0).columns().iter().map(|column| column.byte_range()).map(|(at, size)| at + size);
        let end = end.max().unwrap() as usize;
        for (at, with) in damage {
            bytes[at % end] ^= with;
        }
        let source = Arc::new(FetchedFile::new(vec![(0, bytes.into())]));
        for (leaf, data_type) in [(0, DataType::Int32), (4, DataType::Utf8)] {
            let column = metadata.row_group(0).column(leaf);
            let mut flat = flat(&source, column, written.rows, &data_type, numbers_as_values);
            let mut rows = 0;
            while rows < written.rows {
                let Ok(read) = super::super::guard::guarded(|| flat.read(written.rows - rows)) else { break };
                prop_assert!(!read.is_empty());
                rows += read.len();
            }
            prop_assert!(rows <= written.rows);
        }
    }
}

#[test]
fn batches_share_the_dictionary() {
    let keys: Int32Array = (0..5000).map(|row| row % 10).collect();
    let batch = RecordBatch::try_from_iter([("n", Arc::new(keys) as ArrayRef)]).unwrap();
    let written = Written {
        rows: 5000,
        values: 10,
        absent: None,
        run: 1,
        dictionary: true,
        dictionary_bytes: 1 << 20,
        page_rows: 700,
        second_version: false,
        seed: 1,
    };
    let bytes = file(&written, &batch);
    let reference = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap();
    let column = reference.metadata().row_group(0).column(0);
    let source = Arc::new(FetchedFile::new(vec![(0, bytes)]));
    let mut flat = flat(&source, column, 5000, &DataType::Int32, false);
    let first = flat.read(2048).unwrap();
    let second = flat.read(2048).unwrap();
    let dictionary = |array: &ArrayRef| {
        let array = array.as_any().downcast_ref::<DictionaryArray<UInt32Type>>().unwrap();
        Arc::clone(array.values())
    };
    assert!(Arc::ptr_eq(&dictionary(&first), &dictionary(&second)));
    assert_eq!(dictionary(&first).as_any().downcast_ref::<PrimitiveArray<Int32Type>>().unwrap().len(), 10);
}
