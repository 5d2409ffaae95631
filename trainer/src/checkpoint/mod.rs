//! Checkpoints: model, optimizer state and position in the data, whole or absent.
//!
//! A checkpoint is a directory (or, in an object store, a prefix) of parts:
//!
//! ```text
//! step-0000000500/model.safetensors        what predicting needs
//!                 optimizer.safetensors    what going on training needs, too
//!                 job.toml, ...            parts the caller gives, carried as they are
//!                 manifest.json            written last: it lists the parts with sizes and SHA-256
//! ```
//!
//! The manifest is the commit. It is put in one atomic operation after every part is durable, and when
//! a checkpoint is removed it goes first. So whatever instant a writer dies at, a step either has its
//! manifest, and then all of its parts, or it is no checkpoint and the next writer removes what is left.
//! Sizes and hashes find what the medium did to a checkpoint afterwards.
//!
//! One job has one writer at a time, and any number of readers. Nothing in a checkpoint depends on time,
//! host or job id: equal training gives equal bytes.
//!
//! * [`store`]: committing, listing, loading, keeping the newest.
//! * [`manifest`]: what a checkpoint says of itself.
//! * [`tensors`]: a model as safetensors files.
//! * [`writer`]: committing beside training.

pub mod manifest;
pub mod store;
pub mod tensors;
pub mod writer;

mod part;
mod wait;

#[cfg(test)]
pub(crate) mod faults;

pub use manifest::{Manifest, PartEntry, Snapshot, TrainingProgress};
pub use store::{Checkpoint, CheckpointScope, CheckpointStore, OnDamage};
pub use tensors::{Element, ModelCopy};
pub use wait::BlockOn;
#[cfg(test)]
pub(crate) use wait::park_until_done;
pub use writer::{CheckpointWriter, ExtraPart};

/// The part with the model's parameters.
pub const MODEL_PART: &str = "model.safetensors";
/// The part with the optimizer's state.
pub const OPTIMIZER_PART: &str = "optimizer.safetensors";
/// What commits a checkpoint.
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
    /// A part is not what was committed.
    #[error("checkpoint {path} is damaged: {part} {message}")]
    Damaged {
        /// The checkpoint.
        path: String,
        /// The part.
        part: String,
        /// What is wrong with it.
        message: String,
    },
    /// Written by another version of this program.
    #[error("checkpoint {path} has format {found}; this program reads format {known}")]
    Format {
        /// The checkpoint.
        path: String,
        /// Its format.
        found: u32,
        /// The format read here.
        known: u32,
    },
    /// A part's name cannot be a file's, or is taken.
    #[error("{name:?} cannot name a part of a checkpoint: {message}")]
    PartName {
        /// The name.
        name: String,
        /// What is wrong with it.
        message: &'static str,
    },
    /// Storage failed.
    #[error("checkpoint storage, {path}: {source}")]
    Storage {
        /// What was read or written.
        path: String,
        /// How it failed.
        source: std::io::Error,
    },
}
