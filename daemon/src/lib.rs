//! The daemon: jobs and their state, ingest hosting, supervision of workers.
//!
//! * [`daemon`]: accepts jobs, schedules them and answers queries.
//! * `queue`: the jobs that have not ended.
//! * `scheduler`: which of them run when.
//! * `supervisor`: the life of a job: preparation, attempts, retries.
//! * `search`: hyper-parameter search: what to try next, and what to stop.
//! * `feed`: hosting ingest for a worker.
//! * `feed_socket`: the socket to which trainers of other programs attach.
//! * `worker`: spawning a worker, exchanging messages, and interpreting its exit.
//! * [`survey`]: surveying the host's GPUs in a worker.
//! * `scoring`: evaluation and prediction with a checkpoint.
//! * [`export`]: exporting a checkpoint's model to other programs.
//! * [`plan`]: planning a job without running it.
//! * [`sources`]: the weights of mixed training data.
//! * [`auto_batch`]: the largest batch size that fits in memory.
//! * [`cgroup`]: the limits of control groups, and one for each worker.
//! * `runs`: run directories.
//! * [`lineage`]: what a model came from.
//! * [`continuation`]: going on with the training of an earlier run.
//! * [`state`]: the daemon's persistent state.
//! * [`service`]: the control API over the daemon; `standard_services`: health and reflection of gRPC.
//! * [`config`], [`server`], [`socket`]: the configuration, life cycle and socket of `millstreamd`.
//! * `peers`: the daemons of other hosts.
//! * [`ranks`]: what each of several workers of a job gets of the host.
//! * [`access`]: checking that the requesting user may use the files of a request.
//! * `roles`: what each user of the socket may do.
//! * `audit`: records of who changed what.
//! * `connections`, `requests`: limits on what clients of the socket can hold.
//! * [`snapshot`]: the daemon's state at a moment.
//! * [`metrics`]: the snapshot as Prometheus metrics, and the address that serves them.
//! * [`traces`]: the life of jobs as OpenTelemetry traces.
//! * `http`: a bounded HTTP server.
//! * `web`: the web page.

#![forbid(unsafe_code)]

pub mod access;
mod actor;
pub mod arguments;
mod audit;
pub mod auto_batch;
pub mod cgroup;
pub mod config;
mod connections;
pub mod continuation;
pub mod copies;
pub mod daemon;
mod datasets;
pub mod devices;
pub mod export;
mod feed;
mod feed_socket;
mod gpus;
mod http;
pub mod journal;
pub mod lineage;
pub mod memory;
pub mod messages;
pub mod metrics;
mod notices;
mod objects;
mod outcomes;
mod own_access;
mod peers;
pub mod plan;
mod priority;
mod queue;
pub mod ranks;
mod requests;
mod roles;
mod runs;
mod scheduler;
mod scoring;
mod search;
pub mod server;
pub mod service;
mod service_manager;
pub mod snapshot;
pub mod socket;
pub mod sources;
mod standard_services;
pub mod state;
mod supervisor;
pub mod survey;
pub mod traces;
mod turns;
pub mod warm_start;
mod web;
mod worker;
