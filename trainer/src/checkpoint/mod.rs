//! Checkpoints: model, optimizer state and position in the data. A checkpoint is either complete or absent.
//!
//! A checkpoint is a directory (or, in an object store, a prefix) of parts:
//!
//! ```text
//! step-0000000500/model.safetensors        the parameters, for predicting; several files if they are large
//!                 optimizer.safetensors    the optimizer state, needed to resume training; likewise
//!                 job.toml, ...            additional parts from the caller, stored unchanged
//!                 manifest.json            written last: lists the parts with sizes and SHA-256
//! ```
//!
//! Writing the manifest commits the checkpoint. It is written in one atomic operation after all parts are
//! durable, and it is deleted first when a checkpoint is removed. So at whatever instant a writer dies, a
//! step either has a manifest and all of its parts, or it is not a checkpoint and the next writer removes the
//! leftovers. Sizes and hashes detect later corruption of the medium.
//!
//! A job has one writer at a time (see [`store`] for several in succession) and any number of readers. If several
//! processes train the model, the writer lets the
//! others write some of the parts, and commits. A checkpoint does not depend on time, host, job id or writers:
//! equal training gives equal bytes.
//!
//! * [`store`]: committing, listing and loading checkpoints, and keeping the newest.
//! * [`manifest`]: the manifest of a checkpoint.
//! * [`tensors`]: a model as safetensors files, [divided](files) if it is large.
//! * [`image`]: a step in memory that outlives the process.
//! * [`writer`]: writing checkpoints in the background.

pub mod image;
pub mod manifest;
pub mod store;
pub mod tensors;
pub mod writer;

mod files;
mod part;
mod wait;

#[cfg(test)]
pub(crate) mod faults;

pub use image::{Image, ImageShare};
pub use manifest::{Manifest, PartEntry, Snapshot, TrainingProgress};
pub use store::{Checkpoint, CheckpointScope, CheckpointStore, Committed, OtherWriters};
pub use tensors::{Element, ModelCopy};
pub use wait::BlockOn;
pub use writer::{CheckpointWriter, ExtraPart, PartsOfRank};

/// The part with the model's parameters, if they are in one file.
pub const MODEL_PART: &str = "model.safetensors";
/// The part with the optimizer's state, if it is in one file.
pub const OPTIMIZER_PART: &str = "optimizer.safetensors";
/// The part whose presence commits a checkpoint.
pub const MANIFEST: &str = "manifest.json";

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// There is no committed checkpoint of this name.
    #[error("{path} is not a checkpoint: it has no {MANIFEST}")]
    Absent {
        /// The checkpoint.
        path: String,
    },
    /// A part differs from what was committed.
    #[error("checkpoint {path} is damaged: {part} {message}")]
    Damaged {
        /// The checkpoint.
        path: String,
        /// The part.
        part: String,
        /// What is wrong with it.
        message: String,
    },
    /// The checkpoint has an unsupported format version.
    #[error("checkpoint {path} has format {found}; this program reads format {known}")]
    Format {
        /// The checkpoint.
        path: String,
        /// Its format version.
        found: u32,
        /// The supported format version.
        known: u32,
    },
    /// A part's name is not a valid file name, or is taken.
    #[error("{name:?} cannot name a part of a checkpoint: {message}")]
    PartName {
        /// The name.
        name: String,
        /// What is wrong with it.
        message: &'static str,
    },
    /// Storage failed.
    #[error("checkpoint storage, {path}: {error}")]
    Storage {
        /// The object that was read or written.
        path: String,
        /// The error.
        error: std::io::Error,
    },
}
