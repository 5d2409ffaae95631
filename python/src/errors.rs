//! Exceptions.

use millstream_feed::Error;
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    millstream,
    FeedError,
    PyRuntimeError,
    "A feed cannot be opened, or has ended early: the message has the address of what is wrong."
);
create_exception!(
    millstream,
    SpecError,
    PyValueError,
    "A feed is not valid: the message lists all problems."
);
create_exception!(
    millstream,
    RankLost,
    FeedError,
    "Another rank is gone. All ranks have to attach again, with the state of the batch that they trained last."
);

/// The exception for an error of a feed.
pub(crate) fn exception(error: Error) -> PyErr {
    match error {
        Error::Spec(error) => SpecError::new_err(error.to_string()),
        Error::RankLost { .. } => RankLost::new_err(error.to_string()),
        Error::System(error) => PyOSError::new_err(error.to_string()),
        error => FeedError::new_err(error.to_string()),
    }
}
