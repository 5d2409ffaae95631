//! Communication between the workers of one job.
//!
//! A world is a number of ranks, each with a [`Communicator`]: a thread that runs collective operations in order, while
//! its caller computes. Operations ([`operations`]) are built on one primitive, the unequal all-to-all of
//! [`Transport::exchange`], so a transport is little code:
//!
//! - [`Alone`]: one rank; nothing is copied.
//! - [`Local`]: threads of one process, for tests.
//! - [`Host`]: processes of one or several hosts, over UCX ([`ucx`]). It may have reducers ([`Reducer`]), which add for the ranks.
//!
//! # Invariants
//!
//! 1. Ranks never get the data of another operation: each message carries its [`Label`], and different ones are an error
//!    that names both.
//! 2. An operation ends by its deadline, whatever happens to other ranks, with data or with an error that names the ranks
//!    at fault.
//! 3. Nothing is repaired. After an error a communicator is of no use, and a world that has lost a rank ends.
//! 4. Sums have the same bits on all ranks and in every run.
//!
//! A flight recorder ([`Recorder`]) keeps the last operations in memory that outlives the process. From the records of all
//! ranks follows which one the others wait for ([`OpenOperation`]).

mod communicator;
mod diagnosis;
mod error;
mod interface;
mod local;
mod memory;
mod operations;
mod recorder;
mod reducer;
mod transport;
mod ucx;
mod wire;

pub use communicator::{Communicator, Ticket, UseOfTime};
pub use diagnosis::{OpenOnRank, OpenOperation, RankState};
pub use error::{Absent, CollectiveError};
pub use interface::{InterfaceError, check_interface};
pub use local::{Alone, Local};
pub use memory::{Buffer, Element, Format, Pool};
pub use operations::{Operations, Summand};
pub use recorder::{FlightRecord, RecordError, RecordedOperation, Recorder};
pub use reducer::Reducer;
pub use transport::{Deadline, Group, Label, Operation, Receive, Round, Transport};
pub use ucx::{ConnectError, Host, HostId, HostListener, HostReducer, OpenUcxError, UcxError};
