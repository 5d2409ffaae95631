//! The one error type of ingest.
//!
//! Bad input is answered with an address: which file, where in it, which record, which column, and what
//! was expected there. So the variants are named for what a caller or a person does about them, and each
//! carries its address as fields. Records count from 0 in their file; offsets are bytes from the start of
//! the file as it reads once decompressed. A large TFRecord file is read in parts: there the path is followed
//! by where the part begins, and records count from it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use millstream_batch::RingError;

use crate::order::PositionError;

/// Why ingest cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path without wildcards names no file.
    #[error("{path}: no such file{}", relative_to(base))]
    NotFound {
        /// As the person wrote it.
        path: String,
        /// Where it starts, if it is relative.
        base: Option<PathBuf>,
    },
    /// A path with wildcards matches no file.
    #[error("{pattern}: no file matches{}", relative_to(base))]
    EmptyGlob {
        /// As the person wrote it.
        pattern: String,
        /// Where it starts, if it is relative.
        base: Option<PathBuf>,
    },
    /// A path or glob that cannot mean anything.
    #[error("{pattern}: {message}")]
    BadPattern {
        /// As the person wrote it.
        pattern: String,
        /// What is wrong with it.
        message: String,
    },
    /// An address in an unknown kind of storage.
    #[error("{address}: no kind of storage is called {scheme}://")]
    UnsupportedScheme {
        /// As the person wrote it.
        address: String,
        /// What stands before `://`.
        scheme: String,
    },
    /// The file is no longer the one that was listed.
    #[error("{path}: has changed since it was listed")]
    Changed {
        /// The file.
        path: String,
    },
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
    /// A file was cut where no record begins. Its records hold what looks like records.
    #[error(
        "{path}: a part of the file begins at byte {boundary}, within the record at byte {offset}: its records \
         seem to hold TFRecords; set data.split_bytes above the size of the file, so that it is read whole"
    )]
    Cut {
        /// The file.
        path: String,
        /// Where the record starts.
        offset: u64,
        /// Where the part does.
        boundary: u64,
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
    /// No record of the training data is positive: a wrong `label.positive`, most likely.
    #[error(
        "label `{column}` is never {} in {records} records{}",
        positive_value(positive),
        seen_values(seen)
    )]
    NeverPositive {
        /// The label's column.
        column: String,
        /// The value that means positive, where the job gives one; else any number above 0 does.
        positive: Option<String>,
        /// Records looked at.
        records: u64,
        /// The commonest of the values that were there instead.
        seen: Vec<String>,
    },
    /// More records were left out than the job allows; the last one is the source.
    #[error("more than {limit} bad records in one pass; the last: {last}")]
    TooManyBadRecords {
        /// The job's limit.
        limit: u64,
        /// What was wrong with the one too many.
        last: Box<Error>,
    },
    /// The job cannot run within its memory budget.
    #[error("{what} needs {needed_bytes} bytes, the memory budget is {budget_bytes}")]
    OverBudget {
        /// What needs it.
        what: String,
        /// How much.
        needed_bytes: u64,
        /// How much there is.
        budget_bytes: u64,
    },
    /// The storage service refused or failed.
    #[error("{path}: {source}")]
    Storage {
        /// The file or pattern.
        path: String,
        /// What the service said.
        source: Arc<object_store::Error>,
    },
    /// The storage service did not serve a read in time.
    #[error("{path}: gave up after {tries} tries in {seconds} s: {message}")]
    GaveUp {
        /// The file.
        path: String,
        /// Requests made.
        tries: u32,
        /// How long they took in all.
        seconds: u64,
        /// What was wrong with the last one.
        message: String,
    },
    /// The storage service lists objects, but not the same ones each time.
    #[error("{pattern}: the listing is faulty: {message}")]
    Listing {
        /// As the person wrote it.
        pattern: String,
        /// What does not fit.
        message: String,
    },
    /// A local file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// What was stored earlier, or given beside the data, does not fit together.
    #[error("{0}")]
    Invalid(String),
    /// The data holds no rows that could be used.
    #[error("the {stream} data holds no rows")]
    NoRows {
        /// `training` or `held-out`.
        stream: &'static str,
    },
    /// A position that cannot be resumed from.
    #[error(transparent)]
    Position(#[from] PositionError),
    /// A host that this one trains with could not go on, or is gone.
    #[error("host {host}: {message}")]
    Peer {
        /// The host, from 0.
        host: u32,
        /// What became of it.
        message: String,
    },
    /// A thread of ingest came to an unexpected end: a defect, not bad input.
    #[error("ingest ended unexpectedly: {0}")]
    Panicked(String),
    /// The ring to the worker failed.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The work was called off.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// Returns the [`Error`] within an [`io::Error`], if there is one, or else the [`io::Error`].
    pub(crate) fn from_io(error: io::Error) -> Result<Self, io::Error> {
        error.downcast::<Self>()
    }

    /// True where leaving out one record gets past it: what `on_bad_record = "skip"` may skip.
    pub fn is_bad_record(&self) -> bool {
        matches!(self, Self::Damage { .. } | Self::BadValue { .. })
    }

    pub(crate) fn missing_column<'a>(
        path: &str,
        column: &str,
        present: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        Self::MissingColumn {
            path: path.to_owned(),
            column: column.to_owned(),
            nearest: nearest(column, present),
        }
    }

    /// What a storage service said about `path`.
    pub(crate) fn storage(path: &str, source: object_store::Error) -> Self {
        match source {
            // The runtime has taken it down with itself.
            object_store::Error::JoinError { source } if source.is_cancelled() => Self::Cancelled,
            source => Self::Storage { path: path.to_owned(), source: Arc::new(source) },
        }
    }

    pub(crate) fn io(path: &std::path::Path, source: io::Error) -> Self {
        Self::Io { path: path.display().to_string(), source }
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

fn relative_to(base: &Option<PathBuf>) -> String {
    base.as_ref().map(|base| format!(" in {}", base.display())).unwrap_or_default()
}

fn positive_value(positive: &Option<String>) -> String {
    positive.as_ref().map_or_else(|| "above 0".to_owned(), |value| format!("`{value}`"))
}

fn seen_values(seen: &[String]) -> String {
    if seen.is_empty() { String::new() } else { format!("; it holds `{}`", seen.join("`, `")) }
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
