//! Errors of listing, reading and writing objects. Each names the path or pattern concerned, without the secrets in it.
//!
//! An error whose text includes that of its cause has no source, because reports append the sources' texts.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::redact;

/// The reason that an object could not be listed, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path without wildcards names no file.
    #[error("{}: no such file{}", redact(path), relative_to(base))]
    NotFound {
        /// The path as the user wrote it.
        path: String,
        /// The base directory, if the path is relative.
        base: Option<PathBuf>,
    },
    /// A path with wildcards matches no file.
    #[error("{}: no file matches{}", redact(pattern), relative_to(base))]
    EmptyGlob {
        /// The pattern as the user wrote it.
        pattern: String,
        /// The base directory, if the pattern is relative.
        base: Option<PathBuf>,
    },
    /// An invalid path or glob.
    #[error("{}: {message}", redact(pattern))]
    BadPattern {
        /// The pattern as the user wrote it.
        pattern: String,
        /// The problem.
        message: String,
    },
    /// An address with an unsupported scheme.
    #[error("{}: unsupported storage scheme {scheme}://", redact(address))]
    UnsupportedScheme {
        /// The address as the user wrote it.
        address: String,
        /// The scheme, before `://`.
        scheme: String,
    },
    /// The file has changed since it was listed.
    #[error("{}: has changed since it was listed", redact(path))]
    Changed {
        /// The file.
        path: String,
    },
    /// A file of a dataset has changed or is missing.
    #[error(
        "{}: has changed since {dataset} was registered; restore it, or register the files again",
        redact(path)
    )]
    ChangedInDataset {
        /// The file.
        path: String,
        /// The version of the dataset.
        dataset: String,
    },
    /// A dataset is named, but no catalog.
    #[error("no catalog of datasets: set `storage.catalog`, or the variable MILLSTREAM_CATALOG")]
    NoCatalog,
    /// The storage service rejected the request or failed.
    #[error("{}: {error}", redact(path))]
    Storage {
        /// The file or pattern.
        path: String,
        /// The error of the service.
        error: ServiceError,
    },
    /// The storage service did not serve a read before the deadline.
    #[error("{}: failed after {tries} attempts in {seconds} s: {}", redact(path), redact(message))]
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
    #[error("{}: inconsistent listing: {message}", redact(pattern))]
    Listing {
        /// The pattern as the user wrote it.
        pattern: String,
        /// The inconsistency.
        message: String,
    },
    /// A listing has more objects than a dataset may have.
    #[error(
        "{}: more than {limit} were listed to find the matches; use a longer path before the first wildcard, or fewer \
         and larger files",
        redact(pattern)
    )]
    TooManyObjects {
        /// The pattern as the user wrote it.
        pattern: String,
        /// The limit, with its unit.
        limit: String,
    },
    /// A read is larger than the memory.
    #[error("{}: no memory for a read of {bytes} bytes", redact(path))]
    NoMemory {
        /// The file.
        path: String,
        /// The size of the read.
        bytes: u64,
    },
    /// A stored listing is incomplete or corrupted.
    #[error("the frozen listing is damaged")]
    DamagedListing,
    /// A local file or directory could not be read or written.
    #[error("{}: {error}", redact(path))]
    File {
        /// The file or directory.
        path: String,
        /// The error of the operating system.
        error: io::Error,
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
            source => Self::Storage { path: path.to_owned(), error: ServiceError(Arc::new(source)) },
        }
    }

    /// Whether the service or the system refuses access.
    pub fn is_denied(&self) -> bool {
        use object_store::Error as E;
        match self {
            Self::File { error, .. } => error.kind() == io::ErrorKind::PermissionDenied,
            Self::Storage { error, .. } => {
                matches!(*error.0, E::PermissionDenied { .. } | E::Unauthenticated { .. })
                    || error.has_any(&[
                        "401 Unauthorized",
                        "403 Forbidden",
                        "Permission denied (os error 13)",
                    ])
            }
            _ => false,
        }
    }

    /// Whether there is no such object, file or bucket.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::NotFound { .. } | Self::EmptyGlob { .. } => true,
            Self::Storage { error, .. } => {
                matches!(*error.0, object_store::Error::NotFound { .. }) || error.has_any(&["404 Not Found"])
            }
            _ => false,
        }
    }

    /// An operating system error that concerns a local file or directory.
    pub fn file(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.display().to_string(), error }
    }
}

/// An error of a storage service. Its text contains the address of the request, from which secrets are removed; it has
/// no source, because that would still contain them.
#[derive(Clone)]
pub struct ServiceError(pub(crate) Arc<object_store::Error>);

impl ServiceError {
    /// Whether the text has one of `signs`: listings report their status as text only.
    fn has_any(&self, signs: &[&str]) -> bool {
        let text = self.0.to_string();
        signs.iter().any(|sign| text.contains(sign))
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(&redact(&text))?;
        f.write_str(advice(&text))
    }
}

/// What to do about an error of a storage service whose text does not say it.
fn advice(text: &str) -> &'static str {
    const ADVICE: [(&str, &str); 2] = [
        (
            "http://169.254.169.254",
            "; the environment has no credentials, such as AWS_ACCESS_KEY_ID, so the metadata server of the VM was asked \
             for them",
        ),
        ("Account must be specified", "; set AZURE_STORAGE_ACCOUNT_NAME"),
    ];
    ADVICE.iter().find(|(sign, _)| text.contains(sign)).map_or("", |(_, advice)| advice)
}

impl fmt::Debug for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&format!("{:?}", self.0)))
    }
}

impl std::error::Error for ServiceError {}

fn relative_to(base: &Option<PathBuf>) -> String {
    base.as_ref().map(|base| format!(" in {}", base.display())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_errors_appear_once_and_say_what_to_do() {
        let generic = |text: &str| object_store::Error::Generic { store: "S3", source: text.into() };
        let error = Error::storage("s3://a/b", generic("PUT http://169.254.169.254/latest/api/token: 403"));
        let text = error.to_string();
        assert!(text.starts_with("s3://a/b: ") && text.ends_with("was asked for them"), "{text}");
        // Reports append the texts of sources.
        assert!(std::error::Error::source(&error).is_none());
        let plain = Error::storage("s3://a/b", generic("404 Not Found")).to_string();
        assert!(plain.ends_with("404 Not Found"), "{plain}");
    }
}
