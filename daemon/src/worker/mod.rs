//! Workers: the processes that train.
//!
//! * [`protocol`]: the messages between a daemon and its workers.
//! * [`device`]: the GPU that a worker computes on, and the survey of a host's GPUs.
//! * [`host`]: the daemon's side: spawning a worker, exchanging messages, and interpreting its exit.
//! * [`process`]: the worker's side. Training, checkpoints, the memory rehearsal, profiling and scoring each have
//!   a file.
//! * [`tensorboard`]: TensorBoard event files, written by a training worker.

pub mod device;
pub mod host;
pub mod process;
pub mod protocol;

mod checkpoints;
mod profiler;
mod rehearsal;
mod score;
pub mod tensorboard;
mod train;

/// The first argument of a program started as a worker. The second is the daemon's process id.
pub const ARGUMENT: &str = "worker";
