//! End-to-end, conformance and fault tests of the built binaries.
//!
//! * [`bucket`]: buckets that commands write to.
//! * [`etcd`]: etcd clusters.
//! * [`programs`]: the binaries as a user or a service manager runs them.
//! * [`shell`]: commands as typed into a shell, and the files they leave behind.
//! * [`small_disk`]: file systems that become full.
//! * [`table`]: small data sets, valid or corrupted; [`tfrecord`] writes some of them.
//! * [`terminal`]: commands in a terminal.
//! * [`tiny_job`]: a job that takes a few seconds, with its data.

#![forbid(unsafe_code)]

pub mod bucket;
pub mod etcd;
pub mod programs;
pub mod shell;
pub mod site;
pub mod small_disk;
pub mod table;
pub mod terminal;
pub mod tfrecord;
pub mod tiny_job;
