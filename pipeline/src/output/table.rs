//! Columns of floats, written as they come, to a file or into a pipe: the scores of a model.
//!
//! How many rows there will be is not known, and they come slower than one thread writes them; so there are no
//! blocks here, no shards and no threads. What is held of text is the writer's buffer, of Parquet one row group.

use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression as ParquetCompression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use crate::format::compression::{Compression, Compressor};

/// Rows of a Parquet row group: a MiB or so for each column.
const GROUP_ROWS: usize = 1 << 18;

/// What a table is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// A line of names, then a line of numbers for each row.
    Csv,
    /// An object for each row, one a line.
    JsonLines,
    /// Columns of 32-bit floats, none absent; compressed with Snappy.
    Parquet,
}

/// A table in the making; whole only after [`TableWriter::finish`].
pub struct TableWriter<W: Write + Send>(Encoding<W>);

enum Encoding<W: Write + Send> {
    /// Text before the first number of a line, between numbers, and after the last.
    Lines {
        out: Box<Compressor<W>>,
        before: Vec<String>,
        end: &'static str,
    },
    Parquet {
        out: Box<ArrowWriter<W>>,
        schema: Arc<Schema>,
    },
}

impl TableFormat {
    /// What a file's name says, by its extension, or the one before that of a compression.
    pub fn by_name(name: &str) -> Option<Self> {
        let stem = match (Compression::by_name(name), name.rsplit_once('.')) {
            (Some(_), Some((stem, _))) => stem,
            _ => name,
        };
        match stem.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

impl<W: Write + Send> TableWriter<W> {
    /// A table with columns of these names; text is compressed, Parquet has a way of its own.
    ///
    /// # Errors
    /// When `out` refuses its beginning.
    pub fn new(out: W, format: TableFormat, compression: Compression, columns: &[&str]) -> io::Result<Self> {
        Ok(Self(match format {
            TableFormat::Csv => {
                let mut out = Box::new(Compressor::new(out, compression)?);
                writeln!(out, "{}", columns.join(","))?;
                let before = columns.iter().enumerate().map(|(place, _)| if place == 0 { "" } else { "," });
                Encoding::Lines { out, before: before.map(str::to_owned).collect(), end: "\n" }
            }
            TableFormat::JsonLines => {
                let key = |(place, name): (usize, &&str)| {
                    let open = if place == 0 { "{" } else { ", " };
                    format!("{open}{}: ", serde_json::Value::from(*name))
                };
                let before = columns.iter().enumerate().map(key).collect();
                Encoding::Lines { out: Box::new(Compressor::new(out, compression)?), before, end: "}\n" }
            }
            TableFormat::Parquet => {
                let field = |name: &&str| Field::new(*name, DataType::Float32, false);
                let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
                // Hardly a score comes twice.
                let properties = WriterProperties::builder()
                    .set_compression(ParquetCompression::SNAPPY)
                    .set_dictionary_enabled(false)
                    .set_max_row_group_row_count(Some(GROUP_ROWS))
                    .build();
                let writer = ArrowWriter::try_new(out, schema.clone(), Some(properties)).map_err(io_error)?;
                Encoding::Parquet { out: Box::new(writer), schema }
            }
        }))
    }

    /// Adds rows: each column's numbers, all as many. In JSON they must be finite.
    ///
    /// # Errors
    /// When the output refuses them.
    ///
    /// # Panics
    /// When there are more columns or fewer than the table has, or they are not of one length.
    pub fn write(&mut self, columns: &[&[f32]]) -> io::Result<()> {
        let rows = columns.first().map_or(0, |column| column.len());
        assert!(columns.iter().all(|column| column.len() == rows), "columns of one length");
        match &mut self.0 {
            Encoding::Lines { out, before, end } => {
                assert_eq!(before.len(), columns.len(), "columns");
                for row in 0..rows {
                    for (before, column) in before.iter().zip(columns) {
                        write!(out, "{before}{}", column[row])?;
                    }
                    out.write_all(end.as_bytes())?;
                }
                Ok(())
            }
            Encoding::Parquet { out, schema } => {
                let column = |column: &&[f32]| Arc::new(Float32Array::from(column.to_vec())) as ArrayRef;
                let batch = RecordBatch::try_new(schema.clone(), columns.iter().map(column).collect());
                out.write(&batch.expect("as many columns as the table has")).map_err(io_error)
            }
        }
    }

    /// Completes the table, and gives the output back.
    ///
    /// # Errors
    /// When it refuses the table's end.
    pub fn finish(self) -> io::Result<W> {
        match self.0 {
            Encoding::Lines { out, .. } => out.finish(),
            Encoding::Parquet { out, .. } => out.into_inner().map_err(io_error),
        }
    }
}

/// What the output said, if it was the output.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => {
            source.downcast::<io::Error>().map_or_else(io::Error::other, |source| *source)
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Read;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Float32Type;
    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;
    use crate::format::compression::Decompressed;

    fn table(format: TableFormat, compression: Compression, rows: &[(f32, f32)]) -> Vec<u8> {
        let mut writer = TableWriter::new(Vec::new(), format, compression, &["a", "b \"c\""]).unwrap();
        for rows in rows.chunks(2) {
            let (a, b): (Vec<f32>, Vec<f32>) = rows.iter().copied().unzip();
            writer.write(&[&a, &b]).unwrap();
        }
        writer.finish().unwrap()
    }

    const ROWS: [(f32, f32); 3] = [(0.5, 1.0), (1e-9, -2.0), (0.1, f32::MIN_POSITIVE)];

    #[test]
    fn text_has_a_line_for_each_row() {
        let lines = table(TableFormat::JsonLines, Compression::None, &ROWS);
        let lines = String::from_utf8(lines).unwrap();
        let second = lines.lines().nth(1).unwrap();
        assert_eq!(second, r#"{"a": 0.000000001, "b \"c\"": -2}"#);
        for (line, row) in lines.lines().zip(ROWS) {
            let read: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!((read["a"].as_f64().unwrap() as f32, read["b \"c\""].as_f64().unwrap() as f32), row);
        }
        assert_eq!(lines.lines().count(), ROWS.len());

        let packed = table(TableFormat::Csv, Compression::Gzip, &ROWS[..1]);
        let (mut reader, found) = Decompressed::new(&packed[..]).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!((found, text.as_str()), (Compression::Gzip, "a,b \"c\"\n0.5,1\n"));
    }

    #[test]
    fn parquet_holds_the_same_bits() {
        for rows in [&ROWS[..], &[]] {
            let file = Bytes::from(table(TableFormat::Parquet, Compression::None, rows));
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
            let mut found = Vec::new();
            for batch in reader {
                let batch = batch.unwrap();
                let column =
                    |name| batch.column_by_name(name).unwrap().as_primitive::<Float32Type>().values();
                found.extend(column("a").iter().copied().zip(column("b \"c\"").iter().copied()));
            }
            assert_eq!(found, rows);
        }
    }

    #[test]
    fn a_format_goes_by_the_name() {
        for (name, format) in [
            ("a.csv", Some(TableFormat::Csv)),
            ("a.b/c.JSONL.gz", Some(TableFormat::JsonLines)),
            ("a.ndjson", Some(TableFormat::JsonLines)),
            ("a.parquet", Some(TableFormat::Parquet)),
            ("csv", None),
            ("a.txt", None),
            ("a.gz", None),
        ] {
            assert_eq!(TableFormat::by_name(name), format, "{name}");
        }
    }
}
