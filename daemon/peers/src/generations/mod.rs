//! Generations over several hosts: which workers train together, from which step, and which checkpoints count.
//!
//! A *generation* is a set of fresh workers on one or more hosts. When one of them is lost, all are killed, and the next
//! generation starts from an image in memory or from a checkpoint. Nothing is repaired.
//!
//! Two state machines agree on generations. Each host has a [`member`], which runs workers. The daemon that holds the lease of the
//! job's run has a [`leader`] besides; the term of the lease is the leader's *epoch*. Both machines are pure: a method takes
//! the time and an event, and returns actions for the daemon. They have no clocks, threads, I/O or random numbers. Times are of the
//! host's monotonic clock, and clocks of two hosts are never compared.
//!
//! Hosts offer either ranks, which train, or reducers, which add gradients for the ranks ([`Role`]). Reducers have no rows and no model:
//! they save nothing, never reach an end, and the fewest and the most ranks of a job do not count them. A rank alone has none. When
//! one is lost, the generation ends all the same.
//!
//! # Messages
//!
//! A leader opens a stream to each host that discovery finds, its own included. A stream delivers messages in order until it
//! breaks; then those in flight are lost, and the next stream starts from the beginning. Every message carries the epoch.
//!
//! ```text
//! leader -> member   Lead                                        a member with a later epoch answers Deposed
//! member -> leader   Hello{offer, holds, tries}                  each Hello and Beat is answered with its time
//! leader -> members  Propose{generation, assignment, tries}      members start workers
//! member -> leader   Joined{holds, addresses} | Refused{why}
//! leader -> members  Begin{start, senders, addresses}            members restore the start and train
//! member -> leader   Beat{step, holds} every second; Saved{step}, AtEnd{step}
//! member -> leader   Lost{why} | Offer{offer}                    a draining host offers none
//! both                Note                                    of the daemons about running workers: not of interest here
//! leader -> members  End{now | after a step}
//! member -> leader   Ended{holds}                                all workers of the host have exited
//! leader -> members  Over{outcome}                               the job has ended
//! ```
//!
//! # Invariants
//!
//! 1. An epoch has one leader: the lease is taken by compare-and-swap. Members ignore messages of earlier epochs, and switch to a
//!    leader of a later one.
//! 2. Ranks of a generation exchange data only with ranks of that generation. Its id `(epoch, number)` never repeats, and its
//!    addresses are new. A host starts workers after its earlier ones have exited.
//! 3. A row is in the model if and only if it lies before the model's position. The committed history has each step once, and each
//!    checkpoint extends the one before it.
//! 4. A commit needs the parts of all hosts of the current generation, and the lease at the leader's epoch. No generation begins
//!    while a commit is in flight.
//! 5. A generation starts from the newest image that one of its hosts holds whole and that contains the newest checkpoint, else
//!    from that checkpoint. An image of an earlier generation than the checkpoint's is of another branch of history
//!    ([`Snapshot::contains`]).
//! 6. No rank outlives its generation by more than [`SILENCE`].
//! 7. While hosts with at least [`Limits::min`] ranks are connected, a generation runs or starts.
//!
//! # What the daemon guarantees
//!
//! * It reads the newest checkpoint after it has taken the lease, and creates the leader with it. A checkpoint records its
//!   generation.
//! * It reports [`leader::Event::LeaseLost`] when another daemon has the lease, and also when it could not renew the lease for so
//!   long that another one may take it.
//! * It answers each commit, once it is certain. A request whose response is lost is uncertain until the run is read again.
//! * It takes the lease only if [`member::Member::may_lead`], and stores a job's outcome under the same condition as a commit.
//! * Workers stop together: a step's control word carries the request, and all heed it after the same step. They save no
//!   image before all of them have restored the start.
//!
//! # Time limits
//!
//! | limit | what ends |
//! |---|---|
//! | [`SILENCE`] | a host without beats is lost; a member without answers kills its workers |
//! | [`JOIN_TIMEOUT`] | a proposal; hosts that have not joined are left out of the next ones for a time |
//! | [`END_TIMEOUT`] | the wait for killed workers; the hosts are lost |
//! | [`BOUNDARY_TIMEOUT`] | the wait for a common step and its checkpoint; the workers are killed |
//!
//! A member counts from the moment at which it *sent* the beat that was answered last, so a message that was in flight for long
//! prolongs nothing.

mod generation;
mod hosts;
pub mod leader;
pub mod member;
mod message;
mod tries;

#[cfg(test)]
mod leader_tests;
#[cfg(test)]
mod member_tests;
#[cfg(test)]
mod simulation;

use std::time::Duration;

pub use hosts::{Limits, MAX_HOSTS, Shortage};
pub use message::{
    Address, Assignment, GenerationId, Note, Offer, Outcome, Ranks, Reason, Role, Snapshot, Start, ToLeader,
    ToMember, When, size,
};
pub use tries::{MAX_FAILURES, Tries};

/// The interval between a member's beats.
pub const BEAT: Duration = Duration::from_secs(1);

/// How long a leader and a member respect each other's silence.
pub const SILENCE: Duration = Duration::from_secs(5);

/// How long hosts may take to start the workers of a proposed generation.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(20);

/// How long hosts may take to kill their workers.
pub const END_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a generation may take to reach a common step, save the model and commit it.
pub const BOUNDARY_TIMEOUT: Duration = Duration::from_mins(2);

/// How long a leader waits for more hosts before its first generation, and how long a host has to be connected before it
/// ends a running generation to join.
pub const SETTLE: Duration = Duration::from_secs(2);

/// The time between a failed commit and the next one.
const COMMIT_RETRY: Duration = Duration::from_secs(1);
