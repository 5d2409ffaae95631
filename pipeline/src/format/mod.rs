//! What files hold: a closed set of formats, decoded without any I/O of their own.

pub(crate) mod boundary;
pub(crate) mod cells;
pub mod compression;
pub mod csv;
pub mod example;
pub mod inflate;
pub mod parquet;
pub mod tfrecord;
pub mod zstandard;

use std::fmt;

use serde::Serialize;

use crate::format::compression::{Compression, Decompressed};
use crate::spec::FormatName;

/// What a file's first bytes say it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No bytes at all.
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
    /// Tells by a file's first bytes: a few hundred are enough.
    pub fn of(start: &[u8]) -> Self {
        use std::io::Read;

        let compression = Compression::of(start);
        let mut plain = Vec::new();
        if let Ok((stream, _)) = Decompressed::new(start) {
            // `start` may end within a compressed stream; what comes before that is enough.
            let _ = stream.take(64).read_to_end(&mut plain);
        }
        if start.is_empty() {
            Self::Empty
        } else if tfrecord::is_header(&plain) || plain.is_empty() {
            // Too short a part to decompress: of these formats only TFRecord is compressed as a whole.
            Self::TfRecord(compression)
        } else {
            Self::other_than_tfrecord(&plain)
        }
    }

    /// Tells by the first bytes of what is, uncompressed, no TFRecord.
    pub(crate) fn other_than_tfrecord(start: &[u8]) -> Self {
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

/// A format that files can be converted from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// Separated fields, one record a line.
    Csv,
    /// Parquet.
    Parquet,
    /// TFRecord files of `tf.train.Example`.
    TfRecord,
}

impl FileFormat {
    /// What a file's name says, compressed or not.
    pub fn by_name(path: &str) -> Option<Self> {
        let name = path.to_ascii_lowercase();
        let name = match Compression::by_name(&name) {
            Some(_) => name.rsplit_once('.').map_or(&*name, |(name, _)| name),
            None => &name,
        };
        match format_by_name(name) {
            Some(FormatName::TfRecord) => Some(Self::TfRecord),
            Some(FormatName::Parquet) => Some(Self::Parquet),
            None => {
                [".csv", ".tsv", ".txt", ".data"].iter().any(|end| name.ends_with(end)).then_some(Self::Csv)
            }
        }
    }
}

/// What a file's name says it is.
pub fn format_by_name(path: &str) -> Option<FormatName> {
    let name = path.rsplit('/').next()?.to_ascii_lowercase();
    if name.contains("tfrecord") || name.ends_with(".tfr") {
        return Some(FormatName::TfRecord);
    }
    [".parquet", ".pq", ".parq"].iter().any(|end| name.ends_with(end)).then_some(FormatName::Parquet)
}
