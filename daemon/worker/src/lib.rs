//! The worker: the process that trains or scores one model.
//!
//! A daemon spawns one worker per attempt at a job, from its own executable. The worker receives its assignment in one
//! message, reads batches from a ring in shared memory, and reports over a socket. It knows no job files and no
//! input formats.
//!
//! * [`protocol`]: the messages between a daemon and its workers.
//! * `process`: the life of the process.
//! * `link`: the worker's end of the socket.
//! * [`objects`]: objects in a bucket, which it reads and writes by way of the daemon.
//! * [`locks`]: locks of run directories, and who holds a lock.
//! * `device`: the device that it computes on.
//! * `train`, `checkpoints`, `rehearsal`, `profiler`: a worker that trains.
//! * `ranks`, `leader`, `parts`: a worker among several, what the first of them does for all, and the files of checkpoints
//!   that each writes.
//! * `score`: a worker that scores.
//! * [`survey`]: a worker that reports the host's GPUs.
//! * [`gpus`]: a worker that reads how busy they are.
//! * [`tensorboard`]: TensorBoard event files, written by a worker that trains.

#![forbid(unsafe_code)]

mod checkpoints;
mod device;
pub mod gpus;
mod leader;
mod link;
pub mod locks;
pub mod objects;
mod parts;
mod process;
mod profiler;
pub mod protocol;
mod ranks;
mod rehearsal;
mod rings;
mod score;
pub mod survey;
pub mod tensorboard;
mod train;

pub use device::{LIBRARIES_VARIABLE, UCX_LIBRARIES_VARIABLE};
pub use process::main;

/// The first argument of a program started as a worker. The second is the daemon's process id.
pub const ARGUMENT: &str = "worker";

/// Checks that workers can exchange data with those of other hosts over the network interface `name`: it is up and has an IP
/// address.
///
/// # Errors
/// Why not.
pub fn check_interface(name: &str) -> Result<(), String> {
    millstream_backend::collective::check_interface(name).map_err(|error| error.to_string())
}
