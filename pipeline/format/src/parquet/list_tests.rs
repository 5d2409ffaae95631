#![allow(clippy::unwrap_used)]

//! Compares list columns with the `parquet` crate's decoding of the same bytes.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{BinaryArray, Int64Array, ListArray, RecordBatch, StringArray, StructArray};
use arrow_buffer::BooleanBuffer;
use arrow_schema::{DataType, Fields};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use proptest::prelude::*;

use super::super::fetched::FetchedFile;
use super::super::guard::guarded;
use super::super::leaf::delivered_type;
use super::super::page::Pages;
use super::*;

/// A row: absent, or values of which some are absent.
type Row = Option<Vec<Option<u64>>>;

#[derive(Clone, Debug)]
struct Written {
    rows: Vec<Row>,
    /// Whether lists and their elements may be absent.
    optional: bool,
    dictionary: bool,
    dictionary_bytes: usize,
    page_rows: usize,
    second_version: bool,
}

fn written() -> impl Strategy<Value = Written> {
    let value = prop_oneof![4 => (0_u64..40).prop_map(Some), 1 => Just(None)];
    let row = prop_oneof![
        1 => Just(None),
        6 => proptest::collection::vec(value.clone(), 0..6).prop_map(Some),
        1 => proptest::collection::vec(value, 0..300).prop_map(Some),
        1 => proptest::collection::vec((0_u64..40).prop_map(Some), 0..600).prop_map(Some),
        // In longer runs of levels than are read at a time.
        1 => (0_u64..40, 0..6_000_usize).prop_map(|(value, count)| Some(vec![Some(value); count])),
        1 => (proptest::collection::vec((0_u64..40).prop_map(Some), 0..300), 0..300_usize).prop_map(|(mut row, at)| {
            // Absent in one place only.
            row.get_mut(at).into_iter().for_each(|value| *value = None);
            Some(row)
        }),
    ];
    let sizes = (prop_oneof![Just(1_usize << 20), 1_usize..600], 1_usize..90);
    (proptest::collection::vec(row, 1..400), any::<(bool, bool, bool)>(), sizes).prop_map(
        |(mut rows, (optional, dictionary, second_version), (dictionary_bytes, page_rows))| {
            if !optional {
                rows.iter_mut().for_each(|row| {
                    let values = row.take().unwrap_or_default();
                    *row = Some(values.into_iter().map(|value| value.or(Some(7))).collect());
                });
            }
            Written { rows, optional, dictionary, dictionary_bytes, page_rows, second_version }
        },
    )
}

/// Lists of numbers, lists of text, and the former as the field of a struct that is absent in every fifth row.
fn table(written: &Written) -> RecordBatch {
    let values = || written.rows.iter().flatten().flatten();
    let text = |value: u64| "x".repeat((value % 17) as usize) + &value.to_string();
    let numbers: ArrayRef = Arc::new(values().map(|v| v.map(|v| v as i64 - 3)).collect::<Int64Array>());
    let texts: ArrayRef = Arc::new(values().map(|v| v.map(text)).collect::<StringArray>());
    let lists = |values: ArrayRef| -> ArrayRef {
        let offsets =
            OffsetBuffer::from_lengths(written.rows.iter().map(|row| row.as_ref().map_or(0, Vec::len)));
        let nulls = written.optional.then(|| written.rows.iter().map(Option::is_some).collect());
        let item = Arc::new(Field::new("element", values.data_type().clone(), written.optional));
        Arc::new(ListArray::new(item, offsets, values, nulls))
    };
    let within = lists(Arc::clone(&numbers));
    let field = Field::new("within", within.data_type().clone(), written.optional);
    let there = BooleanBuffer::collect_bool(written.rows.len(), |row| row % 5 > 0);
    let nested = StructArray::new(Fields::from(vec![field]), vec![within], Some(NullBuffer::new(there)));
    RecordBatch::try_from_iter_with_nullable([
        ("numbers", lists(numbers), written.optional),
        ("texts", lists(texts), written.optional),
        ("nested", Arc::new(nested) as ArrayRef, true),
    ])
    .unwrap()
}

fn file(written: &Written, table: &RecordBatch) -> Bytes {
    let version =
        if written.second_version { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 };
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_encoding(Encoding::PLAIN)
        .set_dictionary_enabled(written.dictionary)
        .set_dictionary_page_size_limit(written.dictionary_bytes)
        .set_data_page_row_count_limit(written.page_rows)
        .set_write_batch_size(written.page_rows.min(16))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_compression(Compression::SNAPPY)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), table.schema(), Some(properties)).unwrap();
    writer.write(table).unwrap();
    writer.into_inner().unwrap().into()
}

fn reader(
    source: &Arc<FetchedFile>,
    metadata: &ParquetMetaData,
    leaf: usize,
    (batch_bytes, memory): (usize, u64),
    numbers_as_values: bool,
) -> ListColumn {
    let column = metadata.row_group(0).column(leaf);
    let data_type = if leaf == 1 { DataType::Utf8 } else { DataType::Int64 };
    let meter = Meter::new(memory);
    let pages = Pages::new(source, column, metadata.row_group(0).num_rows() as usize, None, &meter).unwrap();
    let delivered = delivered_type(column, &data_type).unwrap();
    let leaf = Leaf::new(pages, column, delivered, numbers_as_values).unwrap();
    let element = column.column_descr().repeated_ancestor_def_level() as u32;
    ListColumn::new(leaf, element, 3, batch_bytes, &meter)
}

/// The rows of an array of lists, values as text.
fn rows(array: &dyn Array) -> Vec<Option<Vec<Option<String>>>> {
    let value = |values: &ArrayRef| -> Vec<Option<String>> {
        let values = match values.as_any_dictionary_opt() {
            Some(keys) => arrow_select::take::take(keys.values(), keys.keys(), None).unwrap(),
            None => Arc::clone(values),
        };
        match values.data_type() {
            DataType::Int64 => {
                values.as_primitive::<Int64Type>().iter().map(|v| v.map(|v| v.to_string())).collect()
            }
            DataType::Utf8 => values.as_string::<i32>().iter().map(|v| v.map(str::to_owned)).collect(),
            _ => {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let bytes: &BinaryArray = values.as_binary();
                bytes.iter().map(|v| v.map(text)).collect()
            }
        }
    };
    array.as_list::<i32>().iter().map(|list| list.map(|list| value(&list))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn lists_match_the_reference(
        written in written(),
        skip in 0_usize..400,
        steps in proptest::collection::vec(1_usize..90, 1..6),
        batch_bytes in prop_oneof![Just(1_usize << 20), 1_usize..3000],
        numbers_as_values: bool,
    ) {
        let table = table(&written);
        let bytes = file(&written, &table);
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let reference = ParquetRecordBatchReaderBuilder::try_new_with_options(bytes.clone(), options).unwrap();
        let metadata = Arc::clone(reference.metadata());
        let batch = reference.with_batch_size(written.rows.len()).build().unwrap().next().unwrap().unwrap();
        let nested = batch.column(2).as_struct();
        let within = super::super::plan::descend(batch.column(2), &["within".to_owned()]).unwrap();
        prop_assert_eq!(nested.len(), within.len());
        let expected = [batch.column(0), batch.column(1), &within];

        let source = Arc::new(FetchedFile::new(vec![(0, bytes)]));
        for (leaf, expected) in expected.iter().enumerate() {
            let expected = rows(expected);
            let skip = skip.min(expected.len());
            let mut lists = reader(&source, &metadata, leaf, (batch_bytes, 1 << 30), numbers_as_values);
            lists.skip(skip).unwrap();
            let mut row = skip;
            for &step in steps.iter().cycle() {
                if row == expected.len() { break }
                let step = step.min(expected.len() - row);
                let read = lists.read(step).unwrap();
                let has_keys = read.as_list::<i32>().values().as_any_dictionary_opt().is_some();
                prop_assert!(!(has_keys && numbers_as_values && leaf != 1));
                let read = rows(&read);
                prop_assert!((1..=step).contains(&read.len()));
                prop_assert_eq!(&read[..], &expected[row..row + read.len()]);
                row += read.len();
            }
            prop_assert!(lists.read(1).is_err(), "all rows were read");
        }
    }

    #[test]
    fn damaged_pages_are_lists_or_an_error(
        written in written(),
        damage: Vec<(usize, u8)>,
        numbers_as_values: bool,
    ) {
        let mut bytes = file(&written, &table(&written)).to_vec();
        let metadata = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes.clone())).unwrap();
        let metadata = Arc::clone(metadata.metadata());
        let chunks = metadata.row_group(0).columns().iter().map(|column| column.byte_range());
        let end = chunks.map(|(at, size)| at + size).max().unwrap() as usize;
        for (at, with) in damage {
            bytes[at % end] ^= with;
        }
        let source = Arc::new(FetchedFile::new(vec![(0, bytes.into())]));
        for leaf in 0..3 {
            let mut lists = reader(&source, &metadata, leaf, (1 << 16, 1 << 26), numbers_as_values);
            while let Ok(read) = guarded(|| lists.read(100)) {
                prop_assert!((1..=100).contains(&read.len()));
            }
        }
    }
}

/// A column whose only row has 40 million absent elements, in a few bytes.
#[test]
fn a_row_that_exceeds_the_memory_is_an_error_with_its_column() {
    let values = Arc::new(Int64Array::new_null(40_000_000));
    let item = Arc::new(Field::new("element", DataType::Int64, true));
    let offsets = OffsetBuffer::from_lengths([values.len()]);
    let column: ArrayRef = Arc::new(ListArray::new(item, offsets, values, None));
    let table = RecordBatch::try_from_iter([("numbers", column)]).unwrap();
    let written = Written {
        rows: Vec::new(),
        optional: true,
        dictionary: false,
        dictionary_bytes: 1,
        page_rows: 1 << 20,
        second_version: false,
    };
    let bytes = file(&written, &table);
    assert!(bytes.len() < 1 << 20, "{} bytes", bytes.len());
    let metadata = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap();
    let source = Arc::new(FetchedFile::new(vec![(0, bytes)]));
    let mut lists = reader(&source, metadata.metadata(), 0, (1 << 16, 16 << 20), false);
    let error = lists.read(1).unwrap_err().to_string();
    assert!(error.contains("a row of column `numbers.list.element` needs"), "{error}");
}
