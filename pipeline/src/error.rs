//! The error type of ingest: errors of reading and decoding, and errors of ingest itself.
//!
//! An error about bad input has an address: the file, the offset or record, the column, and the expected content. A
//! large TFRecord file is read in parts; the path is then followed by the start of the part, and records are numbered
//! from there.

use std::io;

use millstream_batch::{Count, RingError, Size};

use crate::order::PositionError;

/// The reason that ingest failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Objects could not be listed, read or written.
    #[error(transparent)]
    Io(millstream_io::Error),
    /// A file could not be decoded.
    #[error(transparent)]
    Format(millstream_format::Error),
    /// A file was cut at an offset where no record begins, because its records contain data that looks like records.
    #[error(
        "{path}: a part of the file begins at byte {boundary}, within the record at byte {offset}: its records \
         seem to hold TFRecords; set data.split_bytes above the size of the file, so that it is read whole"
    )]
    Cut {
        /// The file.
        path: String,
        /// The offset at which the record starts.
        offset: u64,
        /// The offset at which the part starts.
        boundary: u64,
    },
    /// The files have more splits than a dataset may have.
    #[error("{path}: more than {limit} splits up to this file{advice}")]
    TooManySplits {
        /// The file that exceeds the limit.
        path: String,
        /// The maximum number of splits of a dataset.
        limit: usize,
        /// The size that makes so many splits, and what to change.
        advice: String,
    },
    /// No record of the training data is positive, most likely because `label.positive` is wrong.
    #[error(
        "label `{column}` is never {} in {}{}",
        positive_value(positive),
        Count(*records, "record"),
        seen_values(seen)
    )]
    NeverPositive {
        /// The label's column.
        column: String,
        /// The positive value, if the job configures one; otherwise any number above 0 is positive.
        positive: Option<String>,
        /// Records examined.
        records: u64,
        /// The most frequent values found instead.
        seen: Vec<String>,
    },
    /// More records were skipped than the job allows. The source is the last one.
    #[error("more than {limit} bad records in one pass; the last: {last}")]
    TooManyBadRecords {
        /// The job's limit.
        limit: u64,
        /// The error of the record that exceeded the limit.
        last: Box<Error>,
    },
    /// The job does not fit its memory budget.
    #[error("{what} needs {}, the memory budget is {}", Size(*needed_bytes), Size(*budget_bytes))]
    OverBudget {
        /// What needs the memory.
        what: String,
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes available.
        budget_bytes: u64,
    },
    /// Stored state, or files given with the data, are invalid or inconsistent.
    #[error("{0}")]
    Invalid(String),
    /// The data contains no usable rows.
    #[error("the {stream} data holds no rows")]
    NoRows {
        /// `training` or `held-out`.
        stream: &'static str,
    },
    /// No record meets the filter. Without it there may be rows.
    #[error("the {stream} data holds no rows that meet the filter")]
    NothingMeetsFilter {
        /// `training` or `held-out`.
        stream: &'static str,
    },
    /// The job skips bad records, and nothing else was found that meets its filter, if it has one.
    #[error(
        "the {stream} data holds no usable rows{}: {} skipped; the last: {last}",
        if *has_filter { " that meet the filter" } else { "" },
        Count(*records, "bad record")
    )]
    NothingUsable {
        /// `training` or `held-out`.
        stream: &'static str,
        /// Whether there is a filter.
        has_filter: bool,
        /// Records skipped.
        records: u64,
        /// The error of the last one.
        last: Box<Error>,
    },
    /// The position cannot be resumed from.
    #[error(transparent)]
    Position(#[from] PositionError),
    /// Another host of the job failed or is gone.
    #[error("host {host}: {message}")]
    Peer {
        /// The host, from 0.
        host: u32,
        /// The reason.
        message: String,
    },
    /// An ingest thread ended unexpectedly: a bug, not bad input.
    #[error("ingest ended unexpectedly: {0}")]
    Panicked(String),
    /// The ring to the worker failed.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Ingest was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// Whether skipping one record avoids the error, so that `on_bad_record = "skip"` applies.
    pub fn is_bad_record(&self) -> bool {
        matches!(self, Self::Format(error) if error.is_bad_record())
    }

    /// The error of data without rows. Of the bad records that were skipped, it takes the number and the error of the last one.
    pub(crate) fn of_no_rows(
        stream: &'static str,
        (records, last): (u64, Option<Self>),
        has_filter: bool,
    ) -> Self {
        match last {
            Some(last) => Self::NothingUsable { stream, has_filter, records, last: Box::new(last) },
            None if has_filter => Self::NothingMeetsFilter { stream },
            None => Self::NoRows { stream },
        }
    }

    /// Adds a note to the description of damage.
    pub(crate) fn noting(mut self, note: &str) -> Self {
        if let Self::Format(millstream_format::Error::Damage { message, .. }) = &mut self {
            message.push_str("; ");
            message.push_str(note);
        }
        self
    }

    /// Converts an I/O error from the reader that decodes `path`.
    pub(crate) fn of_source(path: &str, error: io::Error) -> Self {
        match error.downcast::<millstream_io::Error>() {
            Ok(error) => error.into(),
            Err(error) => Self::Io(millstream_io::Error::File { path: path.to_owned(), error }),
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
