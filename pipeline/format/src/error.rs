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
    #[error("{path}: column `{column}` holds {found}, expected {expected}")]
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
    use super::*;

    #[test]
    fn a_misspelt_column_names_the_nearest() {
        let error = Error::missing_column("a.parquet", "ocupation", ["age", "occupation", "education"]);
        assert_eq!(error.to_string(), "a.parquet: no column `ocupation`; did you mean `occupation`?");
        let error = Error::missing_column("a.parquet", "zzz", ["age"]);
        assert_eq!(error.to_string(), "a.parquet: no column `zzz`");
    }
}
