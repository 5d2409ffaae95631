//! Job files, parsed and resolved.
//!
//! A file is read section by section, as [`millstream_document`] describes. The result is a [`Job`] in which only the data
//! itself remains to be checked, or an error that lists every problem.
//!
//! The only input besides the text are the files of terms that the job names.

#![forbid(unsafe_code)]

mod batch;
mod checkpoint;
mod evaluation;
mod features;
mod groups;
mod job;
mod label;
mod loss;
mod model;
mod search;
mod tensorboard;
mod training;
mod warm_start;
mod workers;

#[cfg(test)]
mod tests;

pub use batch::AutoBatchSpec;
pub use checkpoint::CheckpointSpec;
pub use evaluation::EvaluationSpec;
pub use features::open_regular_file;
pub use job::Job;
pub use search::{Algorithm, Domain, HalvingSpec, ParameterSpec, ParameterValue, SearchSpec};
pub use tensorboard::TensorBoardSpec;
pub use warm_start::WarmStartSpec;
pub use workers::{DeviceName, Devices, WorkersSpec};
