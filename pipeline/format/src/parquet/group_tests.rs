#![allow(clippy::unwrap_used)]

//! Files that expand to far more than they are: each is an error that names the column, or is read in small batches.

use arrow_array::builder::{MapBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, GzipLevel};
use parquet::file::metadata::{ParquetMetaDataBuilder, ParquetMetaDataWriter};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};

use super::super::{TAIL_BYTES, footer_range};
use super::*;
use crate::{ProjectedColumn, Projection};

const MIB: u64 = 1 << 20;

fn written(columns: Vec<(&str, ArrayRef)>, properties: WriterPropertiesBuilder) -> Bytes {
    let table = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), table.schema(), Some(properties.build())).unwrap();
    writer.write(&table).unwrap();
    writer.into_inner().unwrap().into()
}

/// Settings with which all values of a column are in one page.
fn one_page() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_data_page_size_limit(1 << 30)
        .set_data_page_row_count_limit(1 << 30)
        .set_compression(Compression::SNAPPY)
}

fn open(bytes: &Bytes) -> ParquetFile {
    let size = bytes.len() as u64;
    let tail = bytes.slice(bytes.len().saturating_sub(TAIL_BYTES as usize)..);
    let range = footer_range("a.parquet", size, &tail).unwrap().unwrap();
    let footer = bytes.slice(range.start as usize..range.end as usize);
    ParquetFile::new("a.parquet".into(), size, range.start, &footer).unwrap()
}

/// Reads all rows within `extra` bytes more than planned; returns their number and the bytes of the largest batch.
fn read(bytes: &Bytes, plan: &Plan, extra: u64) -> Result<(usize, usize), Error> {
    let file = open(bytes);
    let limit = file.decoding_bytes(0, plan) + extra;
    let fetched = vec![(0, bytes.clone())];
    let mut reader = file.decode(0, plan.clone(), fetched, WantedRows::default(), limit)?;
    let (mut rows, mut largest) = (0, 0);
    while let Some((batch, _)) = reader.next_rows(usize::MAX)? {
        rows += batch.num_rows();
        largest = largest.max(batch.get_array_memory_size());
    }
    Ok((rows, largest))
}

fn plan(bytes: &Bytes, column: &str) -> Plan {
    let column = ProjectedColumn { name: column.to_owned(), multi: false };
    open(bytes).plan(&Projection { columns: vec![column], ..Projection::default() }).unwrap()
}

fn refused(result: Result<(usize, usize), Error>) -> String {
    match result {
        Err(error @ Error::TooLarge { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn numbers_of_a_dictionary_are_values_if_so_planned_and_count_as_such() {
    const ROWS: usize = 1 << 20;
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![7; ROWS]));
    let bytes = written(vec![("n", numbers)], one_page());
    assert!(bytes.len() < 1 << 16);
    let keys = plan(&bytes, "n");
    let column = ProjectedColumn { name: "n".to_owned(), multi: false };
    let projection = Projection { columns: vec![column], numbers_as_values: true };
    let values = open(&bytes).plan(&projection).unwrap();
    let first = |plan: &Plan| {
        let fetched = vec![(0, bytes.clone())];
        let mut reader =
            open(&bytes).decode(0, plan.clone(), fetched, WantedRows::default(), u64::MAX).unwrap();
        reader.next_rows(usize::MAX).unwrap().unwrap().0
    };
    assert!(first(&keys).column(0).as_any_dictionary_opt().is_some());
    let batch = first(&values);
    assert!(batch.column(0).as_primitive::<Int64Type>().values().iter().all(|&value| value == 7));
    // A page of few bytes does not expand to a large batch.
    let (rows, largest) = read(&bytes, &values, MIB).unwrap();
    assert_eq!(rows, ROWS);
    assert!(largest < 3 << 13, "{largest}");
    let file = open(&bytes);
    let column = file.footer.plain.metadata().row_group(0).column(0);
    assert!(decoded_bytes(column, false) < 1 << 16);
    assert_eq!(decoded_bytes(column, true), 8 * ROWS as u64);
}

#[test]
fn a_page_larger_than_the_memory_is_an_error_with_its_column() {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![7; 1 << 20]));
    let bytes = written(vec![("n", numbers)], one_page().set_dictionary_enabled(false));
    assert!(bytes.len() < 1 << 20);
    for plan in [plan(&bytes, "n"), Plan::All] {
        let error = refused(read(&bytes, &plan, 0));
        assert!(
            error.starts_with(
                "a.parquet: too large at record 0, byte 4: a page of column `n` needs 8388608 bytes"
            ),
            "{error}"
        );
    }
    assert_eq!(read(&bytes, &plan(&bytes, "n"), 8 * MIB).unwrap().0, 1 << 20);
}

#[test]
fn a_page_that_inflates_beyond_its_stated_size_is_damage() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(100); 200_000]));
    let gzip =
        one_page().set_compression(Compression::GZIP(GzipLevel::default())).set_dictionary_enabled(false);
    let bytes = written(vec![("t", texts)], gzip);
    // The header of the only page: its type, then its decompressed size as a varint of four bytes.
    let mut lying = bytes.to_vec();
    assert_eq!(lying[4..7], [0x15, 0x00, 0x15]);
    lying[7..11].copy_from_slice(&[0xd0, 0x8f, 0x80, 0x00]);
    let error = read(&lying.into(), &Plan::All, 64 * MIB).unwrap_err().to_string();
    assert!(error.contains("a page decompresses to more than its 1000 bytes"), "{error}");
}

#[test]
fn texts_of_a_dictionary_do_not_expand_beyond_the_memory() {
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    let text = "x".repeat(20_000);
    for row in 0..10_000 {
        map.keys().append_value(format!("{}", row % 3));
        map.values().append_value(&text);
        map.append(true).unwrap();
    }
    let bytes = written(vec![("m", Arc::new(map.finish()))], one_page());
    assert!(bytes.len() < 100_000, "{} bytes", bytes.len());
    let error = refused(read(&bytes, &Plan::All, 64 * MIB));
    assert!(error.contains("a decoded page of column `m.entries.value` needs 200"), "{error}");
}

#[test]
fn repeated_prefixes_do_not_expand_beyond_the_memory() {
    let prefix = "x".repeat(20_000);
    let texts = |rows: usize| -> ArrayRef {
        Arc::new((0..rows).map(|row| Some(format!("{prefix}{row}"))).collect::<StringArray>())
    };
    let delta = || one_page().set_dictionary_enabled(false).set_encoding(Encoding::DELTA_BYTE_ARRAY);
    let bytes = written(vec![("t", texts(5_000))], delta());
    assert!(bytes.len() < 100_000, "{} bytes", bytes.len());
    for plan in [plan(&bytes, "t"), Plan::All] {
        let error = refused(read(&bytes, &plan, 32 * MIB));
        assert!(error.contains("a decoded page of column `t` needs 100"), "{error}");
    }
    let few = written(vec![("t", texts(100))], delta());
    assert_eq!(read(&few, &Plan::All, 32 * MIB).unwrap().0, 100);
}

#[test]
fn batches_stay_small_though_the_footer_understates_the_column() {
    let texts: ArrayRef =
        Arc::new((0..20_000).map(|row| Some("x".repeat(row % 3_000))).collect::<StringArray>());
    let properties =
        WriterProperties::builder().set_compression(Compression::SNAPPY).set_dictionary_enabled(false);
    let bytes = written(vec![("t", texts)], properties);
    let metadata = open(&bytes).footer.plain.metadata().as_ref().clone();
    let group = metadata.row_group(0).clone();
    let column = group.column(0).clone().into_builder().set_total_uncompressed_size(1).build().unwrap();
    let group = group.into_builder().set_column_metadata(vec![column]).build().unwrap();
    let metadata = ParquetMetaDataBuilder::new_from_metadata(metadata).set_row_groups(vec![group]).build();
    // A file with the same pages and another footer.
    let tail = bytes.slice(bytes.len() - 8..);
    let footer_bytes = u32::from_le_bytes(*tail.first_chunk().unwrap()) as usize;
    let mut lying = bytes[..bytes.len() - 8 - footer_bytes].to_vec();
    ParquetMetaDataWriter::new(&mut lying, &metadata).finish().unwrap();
    let lying = Bytes::from(lying);
    let (rows, largest) = read(&lying, &plan(&lying, "t"), 3 * MIB).unwrap();
    assert_eq!(rows, 20_000);
    // At most one page more than the least batch, twice for the growth of buffers.
    assert!(largest < 5 << 20, "{largest} bytes");
}
