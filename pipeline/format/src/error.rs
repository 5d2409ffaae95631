//! Errors of decoding files, and of evaluating filters on them.
//!
//! Each has an address: the file, where in it, which record, which column, and what was expected there. Records count
//! from 0 in their file; offsets are bytes of the decompressed file. The path may name a part of a file; then records
//! count from the start of the part.

use std::io;

/// Why a file could not be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not what was written.
    #[error("{path}: damaged at record {record}, byte {offset}: {message}")]
    Damage {
        /// The file.
        path: String,
        /// Where the record starts, in uncompressed bytes; in Parquet, where the row group starts.
        offset: u64,
        /// The record; in Parquet, the first row of the row group.
        record: u64,
        /// What does not fit.
        message: String,
    },
    /// The file is whole, but of another format than its name or the job says.
    #[error("{path}: expected {expected}, found {found}")]
    WrongFormat {
        /// The file.
        path: String,
        /// The format asked for.
        expected: String,
        /// What its bytes are.
        found: String,
    },
    /// The data has no such column.
    #[error("{path}: no column `{column}`{}", did_you_mean(nearest))]
    MissingColumn {
        /// The file looked at.
        path: String,
        /// The column asked for.
        column: String,
        /// The column there is whose name is most like it.
        nearest: Option<String>,
    },
    /// A column holds another type than its use needs.
    #[error("{path}: column `{column}` holds {found}, expected {expected}")]
    WrongType {
        /// The file.
        path: String,
        /// The column.
        column: String,
        /// What it holds.
        found: String,
        /// What its use needs.
        expected: String,
    },
    /// A value that cannot be used.
    #[error("{path}: record {record}, column `{column}`: {message}")]
    BadValue {
        /// The file.
        path: String,
        /// The record.
        record: u64,
        /// The column.
        column: String,
        /// What is wrong with it, and what was expected.
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
    /// The bytes to decode could not be read. The source is the error of the reader that they come from.
    #[error("{path}: {source}")]
    Source {
        /// The file.
        path: String,
        /// The error of the reader.
        source: io::Error,
    },
}

impl Error {
    /// Whether the next record may still be good: what `on_bad_record = "skip"` may skip.
    pub fn is_bad_record(&self) -> bool {
        matches!(self, Self::Damage { .. } | Self::BadValue { .. })
    }

    /// The error of a column that the file `path` lacks; its columns are `present`.
    pub fn missing_column<'a>(path: &str, column: &str, present: impl IntoIterator<Item = &'a str>) -> Self {
        Self::MissingColumn {
            path: path.to_owned(),
            column: column.to_owned(),
            nearest: nearest(column, present),
        }
    }
}

/// An error of the reader that a decoder reads from, within the [`io::Error`] of the decoder. It tells bytes that could
/// not be read from bytes that are damaged.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SourceError(io::Error);

impl SourceError {
    /// Marks an error of the reader, unless it is a call to try again.
    pub(crate) fn mark(error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::Interrupted => error,
            kind => io::Error::new(kind, Self(error)),
        }
    }

    /// The error of the reader, or else `error`, which is then one of the decoder.
    pub fn unmark(error: io::Error) -> Result<io::Error, io::Error> {
        error.downcast::<Self>().map(|marked| marked.0)
    }
}

/// The name most like `wanted`, if any is like it at all.
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
