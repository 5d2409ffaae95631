//! Reads Parquet files written by pyarrow and Polars, and compares every value: all codecs, encodings and types.
//!
//! `golden/parquet.py` writes the files and their values as text.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use millstream_format::{Error as FormatError, ProjectedColumn, Projection};
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::dataset::{Absent, Dataset};
use millstream_pipeline::spec::OnBadRecord;
use tokio::runtime::Runtime;

/// A value as the script writes it; bytes and text in hexadecimal.
fn text(array: &ArrayRef, row: usize) -> Option<String> {
    use DataType as T;
    if array.is_null(row) {
        return None;
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(match array.data_type() {
        T::Null => return None,
        T::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            return text(dictionary.values(), dictionary.normalized_keys()[row]);
        }
        T::Int32 => array.as_primitive::<Int32Type>().value(row).to_string(),
        T::Int64 => array.as_primitive::<Int64Type>().value(row).to_string(),
        T::UInt32 => array.as_primitive::<UInt32Type>().value(row).to_string(),
        T::UInt64 => array.as_primitive::<UInt64Type>().value(row).to_string(),
        T::Int8 => array.as_primitive::<Int8Type>().value(row).to_string(),
        T::Int16 => array.as_primitive::<Int16Type>().value(row).to_string(),
        T::UInt8 => array.as_primitive::<UInt8Type>().value(row).to_string(),
        T::UInt16 => array.as_primitive::<UInt16Type>().value(row).to_string(),
        T::Float16 => format!("{:?}", array.as_primitive::<Float16Type>().value(row).to_f32()),
        T::Float32 => format!("{:?}", array.as_primitive::<Float32Type>().value(row)),
        T::Float64 => format!("{:?}", array.as_primitive::<Float64Type>().value(row)),
        T::Boolean => array.as_boolean().value(row).to_string(),
        T::Binary => hex(array.as_binary::<i32>().value(row)),
        T::Utf8 => hex(array.as_string::<i32>().value(row).as_bytes()),
        T::FixedSizeBinary(_) => hex(array.as_fixed_size_binary().value(row)),
        T::Date32 => array.as_primitive::<Date32Type>().value(row).to_string(),
        // Polars has nanoseconds only.
        T::Time64(TimeUnit::Nanosecond) => {
            (array.as_primitive::<Time64NanosecondType>().value(row) / 1000).to_string()
        }
        T::Time64(_) => array.as_primitive::<Time64MicrosecondType>().value(row).to_string(),
        T::Timestamp(TimeUnit::Millisecond, _) => {
            array.as_primitive::<TimestampMillisecondType>().value(row).to_string()
        }
        T::Timestamp(TimeUnit::Microsecond, _) => {
            array.as_primitive::<TimestampMicrosecondType>().value(row).to_string()
        }
        T::Timestamp(TimeUnit::Nanosecond, _) => {
            array.as_primitive::<TimestampNanosecondType>().value(row).to_string()
        }
        T::Decimal128(..) => array.as_primitive::<Decimal128Type>().value_as_string(row),
        T::List(_) => {
            let values = array.as_list::<i32>().value(row);
            let value = |at| text(&values, at).unwrap_or_else(|| "null".to_owned());
            format!("[{}]", (0..values.len()).map(value).collect::<Vec<_>>().join(", "))
        }
        other => panic!("no text for {other}"),
    })
}

fn columns_of(path: &Path, runtime: &Runtime, names: &[&String]) -> BTreeMap<String, Vec<Option<String>>> {
    let patterns = [path.to_str().unwrap().to_owned()];
    let dataset = runtime.block_on(Dataset::open(&patterns, Path::new("."), None)).unwrap();
    let column = |name: &str| ProjectedColumn { name: name.to_owned(), multi: name.starts_with("list") };
    let mut columns = BTreeMap::new();
    for &name in names {
        // One at a time, because some files lack some columns.
        let projection = Projection { columns: vec![column(name)], ..Projection::default() };
        match dataset.check(&projection, Absent::Rejected, runtime.handle()) {
            Ok(()) => {}
            Err(millstream_pipeline::Error::Format(FormatError::MissingColumn { .. })) => continue,
            Err(error) => panic!("{error}"),
        }
        columns.insert(name.clone(), Vec::new());
    }
    let projection =
        Projection { columns: columns.keys().map(|name| column(name)).collect(), ..Projection::default() };
    let bad = BadRecords::new(OnBadRecord::Fail);
    for split in 0..dataset.splits().len() {
        let mut reader = dataset.read(split, &projection, &bad, runtime.handle()).unwrap();
        while let Some(chunk) = reader.next_chunk(7).unwrap() {
            for (values, array) in columns.values_mut().zip(chunk.columns().columns()) {
                values.extend((0..chunk.rows()).map(|row| text(array, row)));
            }
        }
    }
    columns
}

#[test]
fn values_of_files_from_other_writers_match() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet");
    let expected = std::fs::read_to_string(directory.join("values.json")).unwrap();
    let expected: BTreeMap<String, Vec<Option<String>>> = serde_json::from_str(&expected).unwrap();
    let names: Vec<&String> = expected.keys().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (mut files, mut compared) = (0, 0);
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "parquet") {
            continue;
        }
        let found = columns_of(&path, &runtime, &names);
        assert!(found.len() >= 2, "{}", path.display());
        for (name, values) in &found {
            assert_eq!(values, &expected[name], "{name} of {}", path.display());
        }
        files += 1;
        compared += found.len();
    }
    assert!(files >= 14 && compared >= 250, "{files} files, {compared} columns");
}
