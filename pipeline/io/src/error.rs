//! Errors of listing, reading and writing objects. Each names the path or pattern concerned.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The reason that an object could not be listed, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path without wildcards names no file.
    #[error("{path}: no such file{}", relative_to(base))]
    NotFound {
        /// The path as the user wrote it.
        path: String,
        /// The base directory, if the path is relative.
        base: Option<PathBuf>,
    },
    /// A path with wildcards matches no file.
    #[error("{pattern}: no file matches{}", relative_to(base))]
    EmptyGlob {
        /// The pattern as the user wrote it.
        pattern: String,
        /// The base directory, if the pattern is relative.
        base: Option<PathBuf>,
    },
    /// An invalid path or glob.
    #[error("{pattern}: {message}")]
    BadPattern {
        /// The pattern as the user wrote it.
        pattern: String,
        /// The problem.
        message: String,
    },
    /// An address with an unsupported scheme.
    #[error("{address}: unsupported storage scheme {scheme}://")]
    UnsupportedScheme {
        /// The address as the user wrote it.
        address: String,
        /// The scheme, before `://`.
        scheme: String,
    },
    /// The file has changed since it was listed.
    #[error("{path}: has changed since it was listed")]
    Changed {
        /// The file.
        path: String,
    },
    /// The storage service rejected the request or failed.
    #[error("{path}: {source}")]
    Storage {
        /// The file or pattern.
        path: String,
        /// The error of the service.
        source: Arc<object_store::Error>,
    },
    /// The storage service did not serve a read before the deadline.
    #[error("{path}: failed after {tries} attempts in {seconds} s: {message}")]
    GaveUp {
        /// The file.
        path: String,
        /// The number of attempts.
        tries: u32,
        /// The total duration of the attempts.
        seconds: u64,
        /// The error of the last attempt.
        message: String,
    },
    /// The storage service returned inconsistent listings.
    #[error("{pattern}: inconsistent listing: {message}")]
    Listing {
        /// The pattern as the user wrote it.
        pattern: String,
        /// The inconsistency.
        message: String,
    },
    /// A stored listing is incomplete or corrupted.
    #[error("the frozen listing is damaged")]
    DamagedListing,
    /// A local file or directory could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file or directory.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A runtime task panicked: a bug, not bad input.
    #[error("a read ended unexpectedly: {0}")]
    Panicked(String),
    /// The read was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// An error of the storage service that concerns `path`.
    pub(crate) fn storage(path: &str, source: object_store::Error) -> Self {
        match source {
            // The runtime was shut down.
            object_store::Error::JoinError { source } if source.is_cancelled() => Self::Cancelled,
            source => Self::Storage { path: path.to_owned(), source: Arc::new(source) },
        }
    }

    /// An operating system error that concerns a local file or directory.
    pub fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.display().to_string(), source }
    }
}

fn relative_to(base: &Option<PathBuf>) -> String {
    base.as_ref().map(|base| format!(" in {}", base.display())).unwrap_or_default()
}
