//! The error type of ingest: those of reading and decoding, and its own.
//!
//! An error about bad input has an address: which file, where in it, which record, which column, and what was expected
//! there. A large TFRecord file is read in parts: then the path is followed by the start of the part, and records count
//! from there.

use std::io;

use millstream_batch::RingError;

use crate::order::PositionError;

/// Why ingest cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Objects could not be listed, read or written.
    #[error(transparent)]
    Io(millstream_io::Error),
    /// A file could not be decoded.
    #[error(transparent)]
    Format(millstream_format::Error),
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
    /// Whether skipping one record gets past the error: what `on_bad_record = "skip"` may skip.
    pub fn is_bad_record(&self) -> bool {
        matches!(self, Self::Format(error) if error.is_bad_record())
    }

    /// The error of the reader that a decoder of `path` reads from.
    pub(crate) fn of_source(path: &str, error: io::Error) -> Self {
        match error.downcast::<millstream_io::Error>() {
            Ok(error) => error.into(),
            Err(source) => Self::Io(millstream_io::Error::File { path: path.to_owned(), source }),
        }
    }
}

impl From<millstream_io::Error> for Error {
    fn from(error: millstream_io::Error) -> Self {
        match error {
            millstream_io::Error::Cancelled => Self::Cancelled,
            error => Self::Io(error),
        }
    }
}

impl From<millstream_format::Error> for Error {
    fn from(error: millstream_format::Error) -> Self {
        match error {
            millstream_format::Error::Source { path, source } => Self::of_source(&path, source),
            error => Self::Format(error),
        }
    }
}

fn positive_value(positive: &Option<String>) -> String {
    positive.as_ref().map_or_else(|| "above 0".to_owned(), |value| format!("`{value}`"))
}

fn seen_values(seen: &[String]) -> String {
    if seen.is_empty() { String::new() } else { format!("; it holds `{}`", seen.join("`, `")) }
}
