//! Records of a file, and the formats that have them.
//!
//! A file of records is read from its start to its end. Every format yields its records as `tf.train.Example` messages,
//! so that columns are built from all of them in the same way ([`ExampleColumns`](crate::example::ExampleColumns)).

use std::io::{self, BufRead};

use crate::error::SourceError;
use crate::json_lines::JsonLineReader;
use crate::mds::MdsReader;
use crate::tfrecord::RecordReader;
use crate::webdataset::SampleReader;
use crate::{Content, FormatName};

/// The maximum length of a record. In TFRecord, a longer one is damage whose checksum happens to match.
pub const MAX_RECORD_BYTES: u64 = 256 << 20;

/// A format whose files are sequences of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// TFRecord files of `tf.train.Example`.
    TfRecord,
    /// One JSON object per line.
    JsonLines,
    /// Tar archives of samples.
    WebDataset,
    /// Shards of MosaicML Streaming.
    Mds,
}

/// A record, borrowed from the reader's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The record's data.
    pub data: &'a [u8],
    /// Its offset in the uncompressed stream.
    pub offset: u64,
    /// Record number, from 0.
    pub number: u64,
}

/// A damaged record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The record's offset in the uncompressed stream.
    pub offset: u64,
    /// Record number, from 0.
    pub record: u64,
    /// A description of the damage.
    pub message: String,
    /// Whether the rest of the file is unreadable.
    pub fatal: bool,
    /// Whether the input ends within the record.
    pub truncated: bool,
    /// Whether the record is intact as far as read, but longer than the reader permits.
    pub too_long: bool,
    /// The detected format of the file, if its first bytes are not a record.
    pub actual_format: Option<Content>,
}

/// Why the next record could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The record is damaged.
    Damage(Damage),
    /// The bytes could not be read: the error of the reader below [`Decompressed`](crate::compression::Decompressed).
    Source(io::Error),
}

/// Reads the records of a file of any of these formats.
pub enum AnyReader<R> {
    /// TFRecord.
    TfRecord(RecordReader<R>),
    /// JSON lines.
    JsonLines(JsonLineReader<R>),
    /// WebDataset.
    WebDataset(Box<SampleReader<R>>),
    /// MDS.
    Mds(Box<MdsReader<R>>),
}

impl RecordFormat {
    /// Whether a record can be found from the middle of an uncompressed file.
    pub fn is_divisible(self) -> bool {
        matches!(self, Self::TfRecord | Self::JsonLines)
    }

    /// How many copies of a record exist while it is decoded, the parsed one included.
    pub fn copies(self) -> u64 {
        match self {
            Self::TfRecord | Self::WebDataset => 2,
            Self::JsonLines | Self::Mds => 3,
        }
    }

    /// The memory for the index of a file of this size, if its records are not tiny.
    pub fn index_bytes(self, file_bytes: u64) -> u64 {
        match self {
            Self::TfRecord | Self::JsonLines | Self::WebDataset => 0,
            // An offset of 4 bytes for each sample of 64 bytes.
            Self::Mds => file_bytes / 16,
        }
    }

    /// The name of the format.
    pub fn name(self) -> FormatName {
        match self {
            Self::TfRecord => FormatName::TfRecord,
            Self::JsonLines => FormatName::JsonLines,
            Self::WebDataset => FormatName::WebDataset,
            Self::Mds => FormatName::Mds,
        }
    }
}

impl<R: BufRead> AnyReader<R> {
    /// Reads `input`, which must be uncompressed and at the start of a record. A record longer than `most_bytes` ends
    /// the reading before it is held.
    pub fn new(format: RecordFormat, input: R, most_bytes: u64) -> Self {
        match format {
            RecordFormat::TfRecord => Self::TfRecord(RecordReader::new(input).at_most(most_bytes)),
            RecordFormat::JsonLines => Self::JsonLines(JsonLineReader::new(input, most_bytes)),
            RecordFormat::WebDataset => Self::WebDataset(Box::new(SampleReader::new(input, most_bytes))),
            RecordFormat::Mds => Self::Mds(Box::new(MdsReader::new(input, most_bytes))),
        }
    }

    /// The input at its current position.
    pub fn input(&self) -> &R {
        match self {
            Self::TfRecord(reader) => reader.input(),
            Self::JsonLines(reader) => reader.input(),
            Self::WebDataset(reader) => reader.input(),
            Self::Mds(reader) => reader.input(),
        }
    }

    /// The next record; `None` at the end. After damage that is not fatal, the next call continues after the damaged
    /// record.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        match self {
            Self::TfRecord(reader) => reader.next_record(),
            Self::JsonLines(reader) => reader.next_record(),
            Self::WebDataset(reader) => reader.next_record(),
            Self::Mds(reader) => reader.next_record(),
        }
    }
}

impl ReadError {
    /// An error of the input or of its decompression, within the record `record`, which begins at `offset`.
    pub(crate) fn of(error: io::Error, record: u64, offset: u64) -> Self {
        match SourceError::unmark(error) {
            Ok(error) => Self::Source(error),
            Err(error) => Self::Damage(Damage {
                offset,
                record,
                message: error.to_string(),
                fatal: true,
                truncated: error.kind() == io::ErrorKind::UnexpectedEof,
                too_long: error.kind() == io::ErrorKind::FileTooLarge,
                actual_format: None,
            }),
        }
    }
}

/// The error of a record that is longer than permitted.
pub(crate) fn too_long(length: impl std::fmt::Display, most_bytes: u64) -> io::Error {
    let message = format!("a record of {length} bytes exceeds the limit of {most_bytes}");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

/// The bytes that are buffered; none at the end.
pub(crate) fn fill<R: BufRead>(input: &mut R) -> io::Result<&[u8]> {
    loop {
        match input.fill_buf() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    input.fill_buf()
}

/// Appends the next `bytes` bytes of `input` to `out`; fewer if the input ends. Returns the number of appended bytes. `out`
/// grows with the received bytes, so a corrupt length allocates nothing.
pub(crate) fn append<R: BufRead>(input: &mut R, out: &mut Vec<u8>, bytes: u64) -> io::Result<u64> {
    let mut rest = bytes;
    while rest > 0 {
        let buffer = fill(input)?;
        if buffer.is_empty() {
            break;
        }
        let amount = usize::try_from(rest).unwrap_or(usize::MAX).min(buffer.len());
        out.extend_from_slice(&buffer[..amount]);
        input.consume(amount);
        rest -= amount as u64;
    }
    Ok(bytes - rest)
}

/// The error of an input that ends within `what`.
pub(crate) fn ends_within(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the file ends within {what}"))
}

#[cfg(test)]
pub(crate) mod testing {
    #![allow(clippy::unwrap_used)]

    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float32Type, Int64Type};
    use arrow_schema::DataType;

    use super::*;
    use crate::example::ExampleColumns;

    /// The values of a record as texts, by name.
    pub(crate) type Row = Vec<(String, Vec<String>)>;

    /// The rows of a file, damaged ones as their messages. Fatal damage ends them, with `!` before the message.
    pub(crate) fn rows(
        format: RecordFormat,
        bytes: impl BufRead,
        most_bytes: u64,
    ) -> Vec<Result<Row, String>> {
        let mut reader = AnyReader::new(format, bytes, most_bytes);
        let mut rows = Vec::new();
        loop {
            match reader.next_record() {
                Ok(None) => return rows,
                Ok(Some(record)) => {
                    assert_eq!(record.number, rows.len() as u64);
                    rows.push(Ok(features(record.data)));
                }
                Err(ReadError::Damage(damage)) => {
                    assert_eq!(damage.record, rows.len() as u64);
                    rows.push(Err(format!("{}{}", if damage.fatal { "!" } else { "" }, damage.message)));
                    if damage.fatal {
                        return rows;
                    }
                }
                Err(ReadError::Source(error)) => panic!("{error}"),
            }
        }
    }

    fn features(record: &[u8]) -> Row {
        let mut columns = ExampleColumns::every();
        columns.push(record).unwrap();
        let batch = columns.finish();
        let values = batch.columns().iter().map(|column| {
            let Some(lists) = column.as_list_opt::<i32>() else { return Vec::new() };
            let values = lists.value(0);
            match values.data_type() {
                DataType::Int64 => {
                    values.as_primitive::<Int64Type>().values().iter().map(i64::to_string).collect()
                }
                DataType::Float32 => {
                    values.as_primitive::<Float32Type>().values().iter().map(f32::to_string).collect()
                }
                _ => {
                    let texts = values.as_binary::<i32>().iter().flatten();
                    texts.map(|text| text.escape_ascii().to_string()).collect()
                }
            }
        });
        batch.schema().fields().iter().map(|field| field.name().clone()).zip(values).collect()
    }

    /// A row with these values.
    pub(crate) fn row(values: &[(&str, &[&str])]) -> Result<Row, String> {
        let text = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Ok(values.iter().map(|(name, texts)| ((*name).to_owned(), text(texts))).collect())
    }
}
