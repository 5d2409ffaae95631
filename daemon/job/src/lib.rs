//! Job files, parsed and resolved.
//!
//! 1. The text is parsed into a tree whose values carry their positions ([`document`]). Overrides from the command
//!    line are applied to the tree.
//! 2. A [`section::Section`] reads each table. It knows the table's keys and reports all others.
//! 3. The result is a [`Job`] in which only the data itself remains to be checked, or a [`JobError`] that lists
//!    every problem.
//!
//! The only input besides the text are the files of terms that the job names.

#![forbid(unsafe_code)]

mod batch;
mod checkpoint;
mod data;
mod document;
mod error;
mod evaluation;
mod features;
mod filter;
mod groups;
mod job;
mod label;
mod loss;
mod model;
mod search;
mod section;
mod storage;
mod tensorboard;
mod training;
mod warm_start;
mod workers;

#[cfg(test)]
mod tests;

pub use batch::AutoBatchSpec;
pub use checkpoint::CheckpointSpec;
pub use error::{JobError, Problem, Warning};
pub use evaluation::EvaluationSpec;
pub use features::open_regular_file;
pub use job::Job;
pub use search::{Algorithm, Domain, HalvingSpec, ParameterSpec, ParameterValue, SearchSpec};
pub use section::parse_bytes;
pub use tensorboard::TensorBoardSpec;
pub use warm_start::WarmStartSpec;
pub use workers::{DeviceName, Devices, WorkersSpec};
