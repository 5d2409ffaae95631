//! File formats, decoded from memory without I/O, and row filters.
//!
//! | content | module |
//! |---|---|
//! | the columns to read, and rows as they are in the data | [`Projection`], [`RawChunk`] |
//! | files of records, as `tf.train.Example` messages | [`record`], [`example`] |
//! | TFRecord | [`tfrecord`], [`boundary`] |
//! | JSON lines | [`json_lines`], [`boundary`] |
//! | WebDataset | [`webdataset`], [`sample_writer`] |
//! | MDS | [`mds`], [`mds_writer`] |
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
mod json;
pub mod json_lines;
pub mod mds;
pub mod mds_writer;
mod other_format;
pub mod parquet;
mod raw;
pub mod record;
pub mod rows;
pub mod sample_writer;
mod tar;
pub mod tfrecord;
pub mod type_name;
pub mod webdataset;
pub mod zstandard;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::compression::{Compression, Decompressed};
use crate::record::RecordFormat;

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
    /// A tar archive.
    Tar,
    /// JSON: objects, or an array of objects.
    Json,
    /// Other lines of text, such as CSV.
    Text,
    /// None of these.
    Unknown,
}

impl Content {
    /// Detects the format from a file's first bytes; 512 suffice.
    pub fn detect(start: &[u8]) -> Self {
        use std::io::Read;

        if tar::is_archive(start) {
            return Self::Tar;
        }
        let compression = Compression::detect(start);
        let mut plain = Vec::new();
        if let Ok((stream, _)) = Decompressed::new(start) {
            // `start` may end within a compressed stream; the bytes before that suffice.
            let _ = stream.take(tar::BLOCK_BYTES as u64).read_to_end(&mut plain);
        }
        if start.is_empty() {
            Self::Empty
        } else if tfrecord::is_header(&plain) || plain.is_empty() {
            // Too short to decompress: TFRecord is the format that is most often compressed as a whole.
            Self::TfRecord(compression)
        } else {
            Self::detect_non_tfrecord(&plain)
        }
    }

    /// Detects the format of uncompressed bytes that are not TFRecord.
    pub(crate) fn detect_non_tfrecord(start: &[u8]) -> Self {
        if start.starts_with(b"PAR1") {
            Self::Parquet
        } else if tar::is_archive(start) {
            Self::Tar
        } else if start.is_empty() || start.iter().any(|&byte| byte < 0x20 && !byte.is_ascii_whitespace()) {
            Self::Unknown
        } else if json_lines::is_json(start) {
            Self::Json
        } else {
            Self::Text
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Empty => "an empty file",
            Self::TfRecord(_) => "TFRecord",
            Self::Parquet => "Parquet",
            Self::Tar => "a tar archive",
            Self::Json => "JSON",
            Self::Text => "text",
            Self::Unknown => "an unknown format",
        })
    }
}

/// A format of training data, by its name in a job file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FormatName {
    /// TFRecord files of `tf.train.Example`, compressed or not.
    TfRecord,
    /// Parquet.
    Parquet,
    /// One JSON object per line, compressed or not.
    #[serde(rename = "jsonl")]
    JsonLines,
    /// Tar archives of samples, compressed or not.
    WebDataset,
    /// Shards of MosaicML Streaming, compressed or not.
    Mds,
}

impl FormatName {
    /// All formats with their names in a job file.
    pub const ALL: [(&'static str, Self); 5] = [
        ("tfrecord", Self::TfRecord),
        ("parquet", Self::Parquet),
        ("jsonl", Self::JsonLines),
        ("webdataset", Self::WebDataset),
        ("mds", Self::Mds),
    ];

    /// The names of all formats, for messages.
    pub const NAMES: &'static str = "TFRecord, Parquet, JSON lines, WebDataset or MDS";

    /// The format as one of files that are converted.
    pub fn file_format(self) -> FileFormat {
        match self {
            Self::TfRecord => FileFormat::TfRecord,
            Self::Parquet => FileFormat::Parquet,
            Self::JsonLines => FileFormat::JsonLines,
            Self::WebDataset => FileFormat::WebDataset,
            Self::Mds => FileFormat::Mds,
        }
    }

    /// The name, as people write it.
    pub fn name(self) -> &'static str {
        self.file_format().name()
    }

    /// The format that a file's name indicates, compressed or not.
    pub fn from_name(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next()?.to_ascii_lowercase();
        if name.contains("tfrecord") || name.ends_with(".tfr") {
            return Some(Self::TfRecord);
        }
        let name = match Compression::from_name(&name) {
            Some(_) if !name.ends_with(".tgz") => name.rsplit_once('.')?.0,
            _ => &name,
        };
        Some(match name.rsplit_once('.')?.1 {
            "parquet" | "pq" | "parq" => Self::Parquet,
            "jsonl" | "ndjson" | "json" => Self::JsonLines,
            "tar" | "tgz" => Self::WebDataset,
            "mds" => Self::Mds,
            _ => return None,
        })
    }
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
    /// Tar archives of samples.
    WebDataset,
    /// Shards of MosaicML Streaming.
    Mds,
    /// Images, one per file. Only tools read them.
    Images,
}

impl FileFormat {
    /// The name, as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "CSV",
            Self::JsonLines => "JSON lines",
            Self::Parquet => "Parquet",
            Self::TfRecord => "TFRecord",
            Self::WebDataset => "WebDataset",
            Self::Mds => "MDS",
            Self::Images => "images",
        }
    }

    /// The format that a file's name indicates, compressed or not.
    pub fn from_name(path: &str) -> Option<Self> {
        if let Some(format) = FormatName::from_name(path) {
            return Some(format.file_format());
        }
        let name = path.to_ascii_lowercase();
        if [".jpg", ".jpeg", ".png", ".webp"].iter().any(|end| name.ends_with(end)) {
            return Some(Self::Images);
        }
        let name = match Compression::from_name(&name) {
            Some(_) => name.rsplit_once('.')?.0,
            None => &name,
        };
        [".csv", ".tsv", ".tab", ".txt", ".data"].iter().any(|end| name.ends_with(end)).then_some(Self::Csv)
    }

    /// The format of its records, if its files are read as records.
    pub fn records(self) -> Option<RecordFormat> {
        match self {
            Self::TfRecord => Some(RecordFormat::TfRecord),
            Self::JsonLines => Some(RecordFormat::JsonLines),
            Self::WebDataset => Some(RecordFormat::WebDataset),
            Self::Mds => Some(RecordFormat::Mds),
            Self::Csv | Self::Parquet | Self::Images => None,
        }
    }

    /// Whether its files are lines of text.
    pub fn is_text(self) -> bool {
        matches!(self, Self::Csv | Self::JsonLines)
    }
}
