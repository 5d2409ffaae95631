//! Errors of decoding files and of evaluating filters.
//!
//! Each error has an address: the file, the record or offset, the column, and the expected content. Records count from
//! 0 within their file; offsets are in bytes of the decompressed file. The path may name a part of a file; records then
//! count from the start of the part.

use std::io;

/// The reason that a file could not be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are corrupted or truncated.
    #[error("{path}: damaged at record {record}, byte {offset}: {message}")]
    Damage {
        /// The file.
        path: String,
        /// The start of the record, in uncompressed bytes; in Parquet, the start of the row group.
        offset: u64,
        /// The record number; in Parquet, the first row of the row group.
        record: u64,
        /// A description of the damage.
        message: String,
    },
    /// Decoding would need more memory than it may use.
    #[error(
        "{path}: too large at record {record}, byte {offset}: {message}; write smaller pages or row groups, or raise the job's \
         memory_budget"
    )]
    TooLarge {
        /// The file.
        path: String,
        /// The start of the record, in uncompressed bytes; in Parquet, the start of the row group.
        offset: u64,
        /// The record number; in Parquet, the first row of the row group.
        record: u64,
        /// What needs how many bytes, and how many there are.
        message: String,
    },
    /// The file is intact, but has another format than its name or the job specifies.
    #[error("{path}: expected {expected}, found {found}")]
    WrongFormat {
        /// The file.
        path: String,
        /// The expected format.
        expected: String,
        /// The detected format.
        found: String,
    },
    /// The data lacks a column.
    #[error("{path}: no column `{column}`{}", did_you_mean(nearest))]
    MissingColumn {
        /// The file examined.
        path: String,
        /// The requested column.
        column: String,
        /// The existing column with the most similar name.
        nearest: Option<String>,
    },
    /// A column's type does not suit its use.
    #[error("{path}: column `{column}` has type {found}, expected {expected}")]
    WrongType {
        /// The file.
        path: String,
        /// The column.
        column: String,
        /// The type found.
        found: String,
        /// The types that its use accepts.
        expected: String,
    },
    /// An unusable value.
    #[error("{path}: record {record}, column `{column}`: {message}")]
    BadValue {
        /// The file.
        path: String,
        /// The record.
        record: u64,
        /// The column.
        column: String,
        /// The problem, and the expected value.
        message: String,
    },
    /// The file does not match the options it is read with.
    #[error("{path}: {message}")]
    Mismatch {
        /// The file.
        path: String,
        /// The mismatch.
        message: String,
    },
    /// The input could not be read. The source is the error of the underlying reader.
    #[error("{path}: {source}")]
    Source {
        /// The file.
        path: String,
        /// The error of the underlying reader.
        source: io::Error,
    },
}

impl Error {
    /// Whether the next record may be intact, so that `on_bad_record = "skip"` applies.
    pub fn is_bad_record(&self) -> bool {
        matches!(self, Self::Damage { .. } | Self::BadValue { .. })
    }

    /// The error for a column that the file `path` lacks; the file's columns are `present`.
    pub fn missing_column<'a>(path: &str, column: &str, present: impl IntoIterator<Item = &'a str>) -> Self {
        Self::MissingColumn {
            path: path.to_owned(),
            column: column.to_owned(),
            nearest: nearest(column, present),
        }
    }
}

/// An error of the underlying reader, wrapped in the [`io::Error`] of a decoder. It distinguishes input that could not
/// be read from input that is damaged.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SourceError(io::Error);

impl SourceError {
    /// Marks an error of the underlying reader, except `Interrupted`.
    pub(crate) fn mark(error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::Interrupted => error,
            kind => io::Error::new(kind, Self(error)),
        }
    }

    /// The same error again, because [`io::Error`] is not `Clone`: kind, text and mark.
    pub(crate) fn repeat(error: &io::Error) -> io::Error {
        let again = io::Error::new(error.kind(), error.to_string());
        let is_marked = error.get_ref().is_some_and(|inner| inner.is::<Self>());
        if is_marked { Self::mark(again) } else { again }
    }

    /// Returns the error of the underlying reader, or `Err(error)` if it is an error of the decoder.
    pub fn unmark(error: io::Error) -> Result<io::Error, io::Error> {
        error.downcast::<Self>().map(|marked| marked.0)
    }
}

/// The most similar name to `wanted`, if any is similar.
pub(crate) fn nearest<'a>(wanted: &str, present: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let likeness = |name: &str| strsim::jaro_winkler(&wanted.to_lowercase(), &name.to_lowercase());
    present
        .into_iter()
        .map(|name| (likeness(name), name))
        .filter(|&(score, _)| score > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)))
        .map(|(_, name)| name.to_owned())
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{BufRead, Cursor, Read, Write};

    use super::*;
    use crate::compression::{Compression, Compressor, Decompressed};

    #[test]
    fn a_misspelt_column_names_the_nearest() {
        let error = Error::missing_column("a.parquet", "ocupation", ["age", "occupation", "education"]);
        assert_eq!(error.to_string(), "a.parquet: no column `ocupation`; did you mean `occupation`?");
        let error = Error::missing_column("a.parquet", "zzz", ["age"]);
        assert_eq!(error.to_string(), "a.parquet: no column `zzz`");
    }

    /// A reader that always fails.
    struct Fails;

    impl Read for Fails {
        fn read(&mut self, _out: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
        }
    }

    impl BufRead for Fails {
        fn fill_buf(&mut self) -> io::Result<&[u8]> {
            Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
        }

        fn consume(&mut self, _amount: usize) {}
    }

    #[test]
    fn a_failed_read_is_not_taken_for_damage_even_if_repeated() {
        for compression in [Compression::None, Compression::Gzip, Compression::Zlib, Compression::Zstd] {
            let mut compressor = Compressor::new(Vec::new(), compression).unwrap();
            let bytes: Vec<u8> =
                (0..100_000_u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
            compressor.write_all(&bytes).unwrap();
            let mut start = compressor.finish().unwrap();
            start.truncate(start.len() / 2);
            let (mut stream, found) = Decompressed::new(Cursor::new(start).chain(Fails)).unwrap();
            assert_eq!(found, compression);
            for _ in 0..2 {
                let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
                assert_eq!(SourceError::unmark(error).unwrap().to_string(), "no answer", "{compression:?}");
            }
        }
    }
}
