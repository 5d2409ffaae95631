//! File formats, decoded from memory without I/O, and row filters.
//!
//! | content | module |
//! |---|---|
//! | the columns to read, and rows as they are in the data | [`Projection`], [`RawChunk`] |
//! | TFRecord files of `tf.train.Example` | [`tfrecord`], [`boundary`], [`example`] |
//! | Parquet | [`parquet`] |
//! | CSV | [`csv`] |
//! | compressed streams | [`compression`], [`inflate`], [`zstandard`] |
//! | conditions that rows must meet | [`filter`] |
//! | columns as few types | [`cells`], [`integers`] |
//! | rows of columns in messages | [`rows`] |
//! | names of column types in messages | [`type_name`] |

#![forbid(unsafe_code)]

pub mod boundary;
pub mod cells;
pub mod compression;
pub mod csv;
mod error;
pub mod example;
pub mod filter;
pub mod inflate;
pub mod integers;
pub mod parquet;
mod raw;
pub mod rows;
pub mod tfrecord;
pub mod type_name;
pub mod zstandard;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::compression::{Compression, Decompressed};

pub use error::{Error, SourceError};
pub use raw::{ProjectedColumn, Projection, RawChunk};

/// A file's format, detected from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// An empty file.
    Empty,
    /// TFRecord.
    TfRecord(Compression),
    /// Parquet.
    Parquet,
    /// Lines of text, such as CSV.
    Text,
    /// None of these.
    Unknown,
}

impl Content {
    /// Detects the format from a file's first bytes; a few hundred suffice.
    pub fn detect(start: &[u8]) -> Self {
        use std::io::Read;

        let compression = Compression::detect(start);
        let mut plain = Vec::new();
        if let Ok((stream, _)) = Decompressed::new(start) {
            // `start` may end within a compressed stream; the bytes before that suffice.
            let _ = stream.take(64).read_to_end(&mut plain);
        }
        if start.is_empty() {
            Self::Empty
        } else if tfrecord::is_header(&plain) || plain.is_empty() {
            // Too short to decompress: of these formats only TFRecord is compressed as a whole.
            Self::TfRecord(compression)
        } else {
            Self::detect_non_tfrecord(&plain)
        }
    }

    /// Detects the format of uncompressed bytes that are not TFRecord.
    pub(crate) fn detect_non_tfrecord(start: &[u8]) -> Self {
        if start.starts_with(b"PAR1") {
            Self::Parquet
        } else if !start.is_empty() && start.iter().all(|&byte| byte >= 0x20 || byte.is_ascii_whitespace()) {
            Self::Text
        } else {
            Self::Unknown
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Empty => "an empty file",
            Self::TfRecord(_) => "TFRecord",
            Self::Parquet => "Parquet",
            Self::Text => "text",
            Self::Unknown => "neither TFRecord nor Parquet",
        })
    }
}

/// A format by its name in a job file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FormatName {
    /// TFRecord files of `tf.train.Example`, compressed or not.
    TfRecord,
    /// Parquet.
    Parquet,
}

/// A file format for conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// Delimiter-separated fields, one record per line.
    Csv,
    /// One JSON object per line.
    #[serde(rename = "jsonl")]
    JsonLines,
    /// Parquet.
    Parquet,
    /// TFRecord files of `tf.train.Example`.
    TfRecord,
}

impl FileFormat {
    /// The name, as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "CSV",
            Self::JsonLines => "JSON lines",
            Self::Parquet => "Parquet",
            Self::TfRecord => "TFRecord",
        }
    }

    /// The format that a file's name indicates, compressed or not.
    pub fn from_name(path: &str) -> Option<Self> {
        let name = path.to_ascii_lowercase();
        let name = match Compression::from_name(&name) {
            Some(_) => name.rsplit_once('.').map_or(&*name, |(name, _)| name),
            None => &name,
        };
        match format_from_name(name) {
            Some(FormatName::TfRecord) => Some(Self::TfRecord),
            Some(FormatName::Parquet) => Some(Self::Parquet),
            None => {
                let ends_in = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
                if ends_in(&[".jsonl", ".ndjson", ".json"]) {
                    Some(Self::JsonLines)
                } else {
                    ends_in(&[".csv", ".tsv", ".tab", ".txt", ".data"]).then_some(Self::Csv)
                }
            }
        }
    }
}

/// The input format that a file's name indicates.
pub fn format_from_name(path: &str) -> Option<FormatName> {
    let name = path.rsplit('/').next()?.to_ascii_lowercase();
    if name.contains("tfrecord") || name.ends_with(".tfr") {
        return Some(FormatName::TfRecord);
    }
    [".parquet", ".pq", ".parq"].iter().any(|end| name.ends_with(end)).then_some(FormatName::Parquet)
}
