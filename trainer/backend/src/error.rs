//! Why a batch is refused.

/// A batch that does not fit the schema it is uploaded for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Laid out for other features.
    #[error("the batch was laid out by another schema than the model's")]
    WrongSchema,
    /// An id that its feature cannot have.
    #[error(
        "feature `{feature}`, row {row} of the batch: id {id} is not below the cardinality {cardinality}"
    )]
    IdOutOfRange {
        /// The feature.
        feature: String,
        /// Row of the batch, from 0.
        row: usize,
        /// What was found.
        id: u32,
        /// Ids are below this.
        cardinality: u32,
    },
    /// Offsets of a multi-valued feature that do not start at 0, decrease, or pass its maximum.
    #[error("feature `{feature}`, row {row} of the batch: offsets {from}..{to} hold no row of it")]
    BadOffsets {
        /// The feature.
        feature: String,
        /// Row of the batch, from 0.
        row: usize,
        /// Where the row's ids start.
        from: u32,
        /// Where they end.
        to: u32,
    },
}

/// Memory that a device does not copy from by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PinError(pub(crate) String);

/// A backend that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The operating system refused a thread.
    #[error("cannot start thread {thread} of the CPU backend: {source}")]
    Thread {
        /// Its number.
        thread: usize,
        /// Why.
        source: std::io::Error,
    },
}
