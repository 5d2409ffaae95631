//! Workers: the processes that train.
//!
//! * [`protocol`]: what a daemon and its worker say to each other.
//! * [`device`]: the GPU that a worker computes on.
//! * [`host`]: the daemon's side: starting, telling, and learning how it ended.
//! * [`process`]: the worker's side: what runs in the process; training, its checkpoints, the trial of its memory,
//!   its profiles and scoring each have a file of their own.
//! * [`tensorboard`]: what a training worker writes for TensorBoard.

pub mod device;
pub mod host;
pub mod process;
pub mod protocol;

mod keeper;
mod profiler;
mod score;
pub mod tensorboard;
mod train;
mod trial;

/// The first argument of a program that is started as a worker; its second is the daemon's process id.
pub const ARGUMENT: &str = "worker";
