//! The daemon: jobs and their state, ingest hosting, workers.
//!
//! * [`job`]: job files, parsed and resolved.
//! * [`daemon`]: accepts jobs, schedules them and answers queries.
//! * `supervisor`: the life of a job: preparation, attempts, retries.
//! * `feed`: hosting ingest for a worker.
//! * [`worker`]: the process that trains: protocol, worker side and daemon side.
//! * `scoring`: evaluation and prediction with a checkpoint.
//! * [`export`]: exporting a checkpoint's model to other programs.
//! * [`plan`]: planning a job without running it.
//! * [`auto_batch`]: the largest batch size that fits in memory.
//! * `runs`: run directories.
//! * [`state`]: the daemon's persistent state.
//! * [`service`]: the control API over the daemon.
//! * [`config`], [`server`], [`socket`]: the configuration, life cycle and socket of `millstreamd`.

#![forbid(unsafe_code)]

pub mod auto_batch;
pub mod config;
pub mod daemon;
pub mod export;
mod feed;
pub mod job;
pub mod plan;
mod runs;
mod scoring;
pub mod server;
pub mod service;
pub mod socket;
pub mod state;
mod supervisor;
pub mod warm_start;
pub mod worker;

/// Ingest, for the command line's tools that work on files without a job.
pub use millstream_pipeline as pipeline;
/// What spans are, for who reads a profile.
pub use millstream_trace as trace;
/// Training's own words, for who describes a job.
pub use millstream_trainer as trainer;
