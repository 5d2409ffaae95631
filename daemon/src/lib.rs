//! The daemon: jobs and their state, ingest hosting, workers.
//!
//! * [`job`]: job files, and what they mean.
//! * [`daemon`]: takes jobs in, runs them in turn, answers for them.
//! * `supervisor`: a job's life: preparing, attempts, resuming.
//! * `feed`: hosting ingest for a worker.
//! * [`worker`]: the process that trains; its protocol, its own side and the daemon's.
//! * `scoring`: evaluation and prediction with a checkpoint.
//! * [`export`]: a checkpoint's model for other programs.
//! * [`plan`]: what a job would do, without doing it.
//! * [`auto_batch`]: the largest batch that memory has room for.
//! * `runs`: the directories of a job's runs.
//! * [`state`]: what the daemon remembers of its jobs.
//! * [`service`]: the control API over the daemon.
//! * [`config`], [`server`], [`socket`]: `millstreamd`: its configuration, its life, its socket.

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
