//! Errors of listing, reading and writing objects. Each names the path or pattern that it is about.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why an object could not be listed, read or written.
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
    /// A stored listing is not whole.
    #[error("the frozen listing is damaged")]
    DamagedListing,
    /// A file or directory of the local machine could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file or directory.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A task of the runtime panicked: a defect, not bad input.
    #[error("a read ended unexpectedly: {0}")]
    Panicked(String),
    /// The read was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// An error of the storage service about `path`.
    pub(crate) fn storage(path: &str, source: object_store::Error) -> Self {
        match source {
            // The runtime was shut down.
            object_store::Error::JoinError { source } if source.is_cancelled() => Self::Cancelled,
            source => Self::Storage { path: path.to_owned(), source: Arc::new(source) },
        }
    }

    /// An error of the operating system about a local file or directory.
    pub fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.display().to_string(), source }
    }
}

fn relative_to(base: &Option<PathBuf>) -> String {
    base.as_ref().map(|base| format!(" in {}", base.display())).unwrap_or_default()
}
