//! What happens to a leader, and what it asks for.

use super::super::{GenerationId, Note, Outcome, Reason, Shortage, Snapshot, ToLeader, ToMember};
use crate::HostName;

/// What happens to a leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A stream to a host is open. An earlier one is closed.
    Opened(HostName),
    /// The stream of a host has ended.
    Closed(HostName),
    /// A message from the open stream of a host.
    Message {
        /// The host.
        from: HostName,
        /// The epoch of the leader that it follows.
        epoch: u64,
        /// The message.
        message: ToLeader,
    },
    /// The checkpoint of [`Action::Commit`] is the newest one.
    Committed(Snapshot),
    /// It is not, and will not be by that attempt. The caller has made sure of that.
    NotCommitted(Snapshot),
    /// It is not, and no further attempt is possible. The workers know that, and save the step again, or a later one.
    GivenUp(Snapshot),
    /// The outcome of [`Action::Conclude`] is stored.
    Concluded,
    /// The daemon is about to exit: the lease is to be released at the next step boundary.
    Drain,
    /// The job is to fail, for this reason, at the next step boundary.
    Fail(Reason),
    /// A note for a host of a generation, or for all of them.
    Note {
        /// The generation.
        generation: GenerationId,
        /// The host; `None` for all.
        to: Option<HostName>,
        /// The note.
        note: Note,
    },
    /// The lease is lost, or was not renewed in time.
    LeaseLost,
    /// A deadline may have passed.
    Tick,
}

/// What a leader asks its daemon to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a message, with the leader's epoch.
    Send {
        /// The host.
        to: HostName,
        /// The message.
        message: ToMember,
    },
    /// Close the stream of a host. It may be opened again.
    Close(HostName),
    /// Make a checkpoint the newest one, on condition that the lease has the leader's epoch. The answer is
    /// [`Event::Committed`], [`Event::NotCommitted`], [`Event::GivenUp`] or [`Event::LeaseLost`].
    Commit(Snapshot),
    /// Store the job's outcome, on the same condition. The answer is [`Event::Concluded`] or [`Event::LeaseLost`].
    Conclude(Outcome),
    /// Show why no generation runs.
    Wait(Shortage),
    /// Take note of what a host of the current generation says.
    Note {
        /// The host.
        from: HostName,
        /// The generation.
        generation: GenerationId,
        /// The note.
        note: Note,
    },
    /// Release the lease.
    ReleaseLease,
}
