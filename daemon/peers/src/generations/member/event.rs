//! What happens to a member, and what it asks for.

use std::collections::BTreeMap;

use super::super::{
    Address, Assignment, GenerationId, Note, Offer, Outcome, Reason, Start, ToLeader, ToMember, When,
};
use crate::HostName;

/// What happens to a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A message of a leader.
    Message {
        /// Its host.
        from: HostName,
        /// Its epoch.
        epoch: u64,
        /// The message.
        message: ToMember,
    },
    /// The stream of a leader has ended.
    Closed(HostName),
    /// Something happened to the workers.
    Workers(GenerationId, WorkerEvent),
    /// What the daemon can run from now on.
    Offer(Offer),
    /// The daemon is about to exit: the host leaves at the next step boundary.
    Drain,
    /// The bucket says that the job has ended.
    Over(Outcome),
    /// A deadline may have passed.
    Tick,
}

/// What happens to the workers of a host in a generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WorkerEvent {
    /// All are started. The addresses are by rank.
    Ready(Vec<Address>),
    /// A step is done.
    Step(u64),
    /// An image of the model after this step is whole.
    Imaged(u64),
    /// All have written their parts of the checkpoint of this step.
    Saved(u64),
    /// All rows are trained on; this is the last step, which is saved.
    AtEnd(u64),
    /// The leader's daemon is to know this.
    Note(Note),
    /// One died, or could not start.
    Died(Reason),
    /// One lost its connection to a worker of another host.
    PeerLost(Reason),
    /// All have exited. If none was killed or died, they have stopped after the common step.
    Gone,
}

/// What a member asks its daemon to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a message to the leader on this host, with its epoch.
    Send {
        /// The host.
        to: HostName,
        /// The epoch.
        epoch: u64,
        /// The message.
        message: ToLeader,
    },
    /// Close the stream of a leader.
    Close(HostName),
    /// Start the workers of the host. No other ones exist.
    Spawn {
        /// Their generation.
        generation: GenerationId,
        /// The ranks of all hosts.
        assignment: Assignment,
    },
    /// Let them train.
    Start {
        /// Their generation.
        generation: GenerationId,
        /// The model to start from.
        start: Start,
        /// For each host without its image: the host that sends it.
        senders: BTreeMap<HostName, HostName>,
        /// The addresses of all workers, by rank.
        addresses: Vec<Address>,
    },
    /// Let them save the model and exit after a common step, this one or a later one.
    StopAfter(GenerationId, u64),
    /// They are about to stop or to be killed, for this reason.
    Explain(GenerationId, When, Reason),
    /// Kill them.
    Kill(GenerationId),
    /// Take note of what the leader's daemon says about them.
    Note(GenerationId, Note),
    /// The job has ended.
    Over(Outcome),
}
