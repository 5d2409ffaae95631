//! Writes a table row by row, to a file or a pipe: the scores of a model, and columns of the data beside them.
//!
//! The number of rows is not known in advance, and rows arrive more slowly than one thread can write them, so
//! there are no blocks, shards or threads here. Text formats buffer one write buffer, Parquet one row group.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression as ParquetCompression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use millstream_format::compression::{Compression, Compressor};

use super::passed::PassedColumn;

/// Rows per Parquet row group: about one MiB per column.
const GROUP_ROWS: usize = 1 << 18;

/// The format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// A header line of names, then one line per row.
    Csv,
    /// One JSON object per row, one per line.
    JsonLines,
    /// Non-null columns of f32 or text and columns of the data, compressed with Snappy.
    Parquet,
}

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// 32-bit floats.
    Numbers,
    /// Text.
    Texts,
    /// A column of the data. In Parquet, the first rows determine its type.
    Passed,
}

/// Consecutive cells of a column.
#[derive(Clone, Copy)]
pub enum Cells<'a> {
    /// Must be finite for JSON.
    Numbers(&'a [f32]),
    /// Any text.
    Texts(&'a [&'a str]),
    /// Values of the data.
    Passed(&'a PassedColumn),
}

/// A table under construction; complete only after [`TableWriter::finish`].
pub struct TableWriter<W: Write + Send>(Encoding<W>);

enum Encoding<W: Write + Send> {
    Lines(Lines<W>),
    Parquet(Parquet<W>),
}

struct Lines<W: Write + Send> {
    out: Box<Compressor<W>>,
    /// The text before each cell of a line, and the end of a line.
    before: Vec<String>,
    end: &'static str,
    is_json: bool,
}

/// A Parquet file.
enum Parquet<W: Write + Send> {
    /// Before the first rows, which determine the types.
    New(W, Vec<(String, CellKind)>),
    Open(Box<ArrowWriter<W>>, Arc<Schema>),
    /// After an error.
    Failed,
}

impl TableFormat {
    /// The format that a file name indicates by its extension, ignoring a compression suffix.
    pub fn by_name(name: &str) -> Option<Self> {
        let stem = match (Compression::from_name(name), name.rsplit_once('.')) {
            (Some(_), Some((stem, _))) => stem,
            _ => name,
        };
        match stem.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" | "json" => Some(Self::JsonLines),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

impl<W: Write + Send> TableWriter<W> {
    /// Starts a table with columns of the given names and types. `compression` applies to text formats only;
    /// Parquet has its own.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn new(
        out: W,
        format: TableFormat,
        compression: Compression,
        columns: &[(&str, CellKind)],
    ) -> io::Result<Self> {
        if format == TableFormat::Parquet {
            let columns = columns.iter().map(|&(name, kind)| (name.to_owned(), kind)).collect();
            return Ok(Self(Encoding::Parquet(Parquet::New(out, columns))));
        }
        let mut out = Box::new(Compressor::new(out, compression)?);
        let is_json = format == TableFormat::JsonLines;
        let before = |(place, (name, _)): (usize, &(&str, CellKind))| match (is_json, place) {
            (true, 0) => format!("{{{}: ", quoted_in_json(name)),
            (true, _) => format!(", {}: ", quoted_in_json(name)),
            (false, 0) => String::new(),
            (false, _) => ",".to_owned(),
        };
        let before = columns.iter().enumerate().map(before).collect();
        if !is_json {
            let names: Vec<_> = columns.iter().map(|(name, _)| quoted_in_csv(name)).collect();
            writeln!(out, "{}", names.join(","))?;
        }
        let end = if is_json { "}\n" } else { "\n" };
        Ok(Self(Encoding::Lines(Lines { out, before, end, is_json })))
    }

    /// Appends rows, given as the cells of each column.
    ///
    /// # Errors
    /// Writing to the output fails.
    ///
    /// # Panics
    /// If the number, types or lengths of the columns do not match the table or each other.
    pub fn write(&mut self, columns: &[Cells<'_>]) -> io::Result<()> {
        let rows = columns.first().map_or(0, |column| column.len());
        assert!(columns.iter().all(|column| column.len() == rows), "columns differ in length");
        match &mut self.0 {
            Encoding::Lines(lines) => (0..rows).try_for_each(|row| lines.write(columns, row)),
            Encoding::Parquet(parquet) => parquet.write(columns),
        }
    }

    /// Completes the table and returns the output.
    ///
    /// # Errors
    /// Writing the end of the table fails.
    pub fn finish(self) -> io::Result<W> {
        match self.0 {
            Encoding::Lines(lines) => lines.out.finish(),
            Encoding::Parquet(parquet) => parquet.finish(),
        }
    }
}

impl<W: Write + Send> Lines<W> {
    fn write(&mut self, columns: &[Cells<'_>], row: usize) -> io::Result<()> {
        let Self { out, before, end, is_json } = self;
        assert_eq!(before.len(), columns.len(), "number of columns");
        for (before, column) in before.iter().zip(columns) {
            match column {
                Cells::Numbers(numbers) => write!(out, "{before}{}", numbers[row])?,
                Cells::Texts(texts) if *is_json => write!(out, "{before}{}", quoted_in_json(texts[row]))?,
                Cells::Texts(texts) => write!(out, "{before}{}", quoted_in_csv(texts[row]))?,
                Cells::Passed(values) if *is_json => write!(out, "{before}{}", values.json(row))?,
                Cells::Passed(values) => {
                    let text = values.text(row).unwrap_or_default();
                    write!(out, "{before}{}", quoted_in_csv(&text))?;
                }
            }
        }
        out.write_all(end.as_bytes())
    }
}

impl<W: Write + Send> Parquet<W> {
    fn write(&mut self, columns: &[Cells<'_>]) -> io::Result<()> {
        let (mut out, schema) = std::mem::replace(self, Self::Failed).open(columns)?;
        let column = |(cells, field): (&Cells<'_>, &Arc<Field>)| -> io::Result<ArrayRef> {
            Ok(match cells {
                Cells::Numbers(numbers) => Arc::new(Float32Array::from(numbers.to_vec())),
                Cells::Texts(texts) => Arc::new(StringArray::from(texts.to_vec())),
                Cells::Passed(values) => values.array(field.data_type())?,
            })
        };
        let arrays = columns.iter().zip(schema.fields()).map(column).collect::<io::Result<_>>()?;
        let batch = RecordBatch::try_new(schema.clone(), arrays);
        out.write(&batch.expect("columns match the table")).map_err(io_error)?;
        *self = Self::Open(Box::new(out), schema);
        Ok(())
    }

    /// The writer, whose types are those of `first` if it is new.
    fn open(self, first: &[Cells<'_>]) -> io::Result<(ArrowWriter<W>, Arc<Schema>)> {
        let (out, columns) = match self {
            Self::Open(out, schema) => return Ok((*out, schema)),
            Self::New(out, columns) => (out, columns),
            Self::Failed => return Err(io::Error::other("an earlier write failed")),
        };
        let field = |(place, (name, kind)): (usize, &(String, CellKind))| match (kind, first.get(place)) {
            (CellKind::Numbers, _) => Field::new(name, DataType::Float32, false),
            (CellKind::Texts, _) => Field::new(name, DataType::Utf8, false),
            (CellKind::Passed, Some(Cells::Passed(values))) => Field::new(name, values.data_type(), true),
            (CellKind::Passed, _) => Field::new(name, DataType::Utf8, true),
        };
        let schema = Arc::new(Schema::new(columns.iter().enumerate().map(field).collect::<Vec<_>>()));
        // Scores are almost all distinct.
        let scores = columns.iter().filter(|(_, kind)| *kind == CellKind::Numbers);
        let properties = WriterProperties::builder()
            .set_compression(ParquetCompression::SNAPPY)
            .set_max_row_group_row_count(Some(GROUP_ROWS));
        let properties = scores.fold(properties, |properties, (name, _)| {
            properties.set_column_dictionary_enabled(ColumnPath::new(vec![name.clone()]), false)
        });
        let writer = ArrowWriter::try_new(out, schema.clone(), Some(properties.build())).map_err(io_error)?;
        Ok((writer, schema))
    }

    fn finish(self) -> io::Result<W> {
        self.open(&[])?.0.into_inner().map_err(io_error)
    }
}

impl Cells<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Texts(texts) => texts.len(),
            Self::Passed(values) => values.len(),
        }
    }
}

/// Quotes text where RFC 4180 requires it.
fn quoted_in_csv(text: &str) -> Cow<'_, str> {
    if text.contains(['"', ',', '\n', '\r']) {
        Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(text)
    }
}

fn quoted_in_json(text: &str) -> Cow<'_, str> {
    Cow::Owned(serde_json::Value::from(text).to_string())
}

/// The underlying I/O error, if there is one.
pub(super) fn io_error(error: ParquetError) -> io::Error {
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
    use millstream_format::compression::Decompressed;

    fn table(format: TableFormat, compression: Compression, rows: &[(f32, f32)]) -> Vec<u8> {
        let columns = [("a", CellKind::Numbers), ("b \"c\"", CellKind::Numbers), ("d", CellKind::Texts)];
        let mut writer = TableWriter::new(Vec::new(), format, compression, &columns).unwrap();
        for rows in rows.chunks(2) {
            let (a, b): (Vec<f32>, Vec<f32>) = rows.iter().copied().unzip();
            let d: Vec<&str> = a.iter().map(|&a| if a < 0.5 { "low, \"so\"" } else { "high" }).collect();
            writer.write(&[Cells::Numbers(&a), Cells::Numbers(&b), Cells::Texts(&d)]).unwrap();
        }
        writer.finish().unwrap()
    }

    const ROWS: [(f32, f32); 3] = [(0.5, 1.0), (1e-9, -2.0), (0.1, f32::MIN_POSITIVE)];

    const CSV: &str = "a,\"b \"\"c\"\"\",d\n0.5,1,high\n0.000000001,-2,\"low, \"\"so\"\"\"\n";

    #[test]
    fn text_formats_have_one_line_per_row() {
        let lines = table(TableFormat::JsonLines, Compression::None, &ROWS);
        let lines = String::from_utf8(lines).unwrap();
        let second = lines.lines().nth(1).unwrap();
        assert_eq!(second, r#"{"a": 0.000000001, "b \"c\"": -2, "d": "low, \"so\""}"#);
        for (line, row) in lines.lines().zip(ROWS) {
            let read: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!((read["a"].as_f64().unwrap() as f32, read["b \"c\""].as_f64().unwrap() as f32), row);
        }
        assert_eq!(lines.lines().count(), ROWS.len());

        let packed = table(TableFormat::Csv, Compression::Gzip, &ROWS[..2]);
        let (mut reader, found) = Decompressed::new(&packed[..]).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!((found, text.as_str()), (Compression::Gzip, CSV));
    }

    #[test]
    fn parquet_preserves_all_bits() {
        for rows in [&ROWS[..], &[]] {
            let file = Bytes::from(table(TableFormat::Parquet, Compression::None, rows));
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
            let mut found = Vec::new();
            for batch in reader {
                let batch = batch.unwrap();
                let column =
                    |name| batch.column_by_name(name).unwrap().as_primitive::<Float32Type>().values();
                let names = batch.column_by_name("d").unwrap().as_string::<i32>();
                let expected = column("a").iter().map(|&a| if a < 0.5 { "low, \"so\"" } else { "high" });
                assert!(names.iter().flatten().eq(expected));
                found.extend(column("a").iter().copied().zip(column("b \"c\"").iter().copied()));
            }
            assert_eq!(found, rows);
        }
    }

    #[test]
    fn the_name_determines_the_format() {
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
