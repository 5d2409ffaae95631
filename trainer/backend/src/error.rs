//! Errors of batches, and of the creation and connection of backends.

use crate::collective::CollectiveError;
use crate::cuda::{DriverError, NcclError};
use crate::library::LibraryError;

/// A batch that does not match the schema of the buffer it is uploaded to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The batch was laid out for other features.
    #[error("the batch's schema differs from the model's")]
    WrongSchema,
    /// An id is not below its feature's cardinality.
    #[error(
        "feature `{feature}`, row {row} of the batch: id {id} is not below the cardinality {cardinality}"
    )]
    IdOutOfRange {
        /// The feature.
        feature: String,
        /// Row of the batch, from 0.
        row: usize,
        /// The id found.
        id: u32,
        /// Ids are below this.
        cardinality: u32,
    },
    /// Offsets of a multi-valued feature that do not start at 0, decrease, or exceed its maximum.
    #[error("feature `{feature}`, row {row} of the batch: the row's offsets {from}..{to} are invalid")]
    BadOffsets {
        /// The feature.
        feature: String,
        /// Row of the batch, from 0.
        row: usize,
        /// The start offset of the row's ids.
        from: u32,
        /// Their end offset.
        to: u32,
    },
}

/// Memory from which the device cannot copy directly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PinError(pub(crate) String);

/// A backend that cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The operating system refused a thread.
    #[error("cannot start thread {thread} of the CPU backend: {source}")]
    Thread {
        /// The thread's number.
        thread: usize,
        /// The operating system's error.
        source: std::io::Error,
    },
}

/// The devices of the ranks cannot be connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectDevicesError {
    /// This host lacks the library for it.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The library refuses: a retry would meet that again.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Another rank has ended or is late.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}
