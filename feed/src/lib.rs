//! Feeds: batches for the trainers of other programs.
//!
//! A *feed* is data, its order and the typed columns of its batches ([`spec`]), without a model. A *host* ([`host`]) reads
//! it for the ranks of one program: the processes that train one model together on this machine. Each rank attaches over
//! a Unix socket ([`client`]) and receives a ring ([`millstream_batch::ring`]) with its part of every batch. So the data
//! is fetched and decoded once, and batches are not copied on their way.
//!
//! ```text
//! rank                                         host
//!   Attach: feed, run, rank, world, state --->   waits until all ranks of the run have attached
//!         <-------------------------------       Attached, the ring's descriptors
//!   ring   ================================      batches
//!   Evaluate, of all ranks -------------->
//!         <-------------------------------       EvalRing, the descriptors of another ring; or EvalFailed
//!         <-------------------------------       Failed or Lost, if the feed ends early
//! ```
//!
//! [`protocol`] defines the messages. A rank that dies ends the feed of all ranks of its run, because they wait for each
//! other anyway; when they are restarted, they attach again with the [`state`] of the batch that each had trained last.
//!
//! A host is a process of the program, or the daemon, which serves all programs of a machine: [`access`] decides what each may
//! read.
//!
//! If the ranks are on several machines, each host reads all data and delivers the rows of its ranks; or it reads a shard, and
//! exchanges with the other hosts how many rows that has ([`machines`]):
//!
//! ```text
//! rank                                         host                              host of another machine
//!   Attach, with shard ------------------->
//!         <-------------------------------       Attached, with meeting
//!   the ranks exchange the meetings
//!   Meet: all machines ------------------->      <------ handshake, updates -------->
//! ```
//!
//! Nothing has a name: memory, rings and sockets end with the processes that hold them.

#![forbid(unsafe_code)]

pub mod access;
pub mod client;
mod death;
mod error;
pub mod host;
pub mod machines;
pub mod opened;
pub mod protocol;
pub mod spec;
pub mod state;

#[cfg(test)]
mod tests;

pub use error::{Error, HostKind};
