//! Writes small files of both formats.

#![allow(dead_code, reason = "each test includes this file, and not every test writes both formats")]

use std::fs::File;
use std::path::Path;

use arrow_array::RecordBatch;
use millstream_format::tfrecord::RecordWriter;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

/// Writes `rows` as Parquet, in row groups of `group_rows` rows.
pub(crate) fn write_parquet(path: &Path, rows: &RecordBatch, group_rows: usize) {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), rows.schema(), Some(properties)).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
}

/// Writes a TFRecord of `tf.train.Example`s, each from its features.
pub(crate) fn write_tfrecord(path: &Path, rows: impl IntoIterator<Item = Vec<Vec<u8>>>) {
    let mut writer = RecordWriter::new(File::create(path).unwrap());
    for features in rows {
        writer.write(&field(1, &features.concat())).unwrap();
    }
}

/// A feature with numbers.
pub(crate) fn floats(name: &str, values: &[f32]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    feature(name, &field(2, &field(1, &values)))
}

/// A feature with texts.
pub(crate) fn texts(name: &str, values: &[String]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|text| field(1, text.as_bytes())).collect();
    feature(name, &field(1, &values))
}

fn feature(name: &str, value: &[u8]) -> Vec<u8> {
    field(1, &[field(1, name.as_bytes()), field(2, value)].concat())
}

/// A length-delimited field of a protobuf message, of less than 16 KiB.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = match bytes.len() {
        short @ 0..128 => vec![short as u8],
        long => vec![long as u8 & 0x7f | 0x80, (long >> 7) as u8],
    };
    [&[number << 3 | 2], length.as_slice(), bytes].concat()
}
