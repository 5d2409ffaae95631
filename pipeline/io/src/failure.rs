//! Failed requests.

use std::sync::Arc;

use crate::{Error, ServiceError};

/// Why a request failed, for all readers that wait for its bytes.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The object changed since it was listed.
    Changed,
    /// A permanent error of the service.
    Storage(Arc<object_store::Error>),
    /// The deadline has passed.
    GaveUp { tries: u32, seconds: u64, message: String },
}

impl Failure {
    /// The error of reading the object `path`.
    pub(crate) fn into_error(self, path: &str) -> Error {
        let path = path.to_owned();
        match self {
            Self::Changed => Error::Changed { path },
            // The runtime was shut down.
            Self::Storage(source) if is_cancelled(&source) => Error::Cancelled,
            Self::Storage(source) => Error::Storage { path, error: ServiceError(source) },
            Self::GaveUp { tries, seconds, message } => Error::GaveUp { path, tries, seconds, message },
        }
    }
}

fn is_cancelled(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::JoinError { source } if source.is_cancelled())
}
