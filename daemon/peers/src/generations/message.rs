//! The messages between a leader and the members, and what they name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::tries::Tries;
use crate::HostName;

/// Why something failed, cut to [`Reason::MAX_BYTES`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reason(Arc<str>);

/// The address of a rank's worker, opaque here.
pub type Address = Arc<[u8]>;

/// What daemons tell each other about the workers of a generation, opaque here.
pub type Note = Arc<[u8]>;

/// A generation of workers. Ids never repeat: an epoch has one leader, which counts its generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationId {
    /// The term of the leader's lease.
    pub epoch: u64,
    /// The number within the epoch, from 1.
    pub number: u64,
}

/// A complete model: an image in memory or a committed checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snapshot {
    /// The steps of the model.
    pub step: u64,
    /// The generation that trained the last of them.
    pub generation: GenerationId,
}

/// Where a generation starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// With initial weights.
    Scratch,
    /// From the newest committed checkpoint.
    Checkpoint(Snapshot),
    /// From an image that at least one host holds.
    Image(Snapshot),
}

/// What the workers of a host do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Train: they are ranks.
    #[default]
    Train,
    /// Add gradients for the ranks: they are reducers, without rows or a model.
    Reduce,
}

/// What a host can run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offer {
    /// What its workers would do.
    pub role: Role,
    /// The most of them; a draining host offers none.
    pub count: u32,
}

/// The consecutive ranks of a host, or the consecutive numbers of its reducers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ranks {
    /// Which of both.
    pub role: Role,
    /// The lowest.
    pub first: u32,
    /// How many, at least 1.
    pub count: u32,
}

/// The ranks of each host of a generation. Together they are `0..world`, and the numbers of reducers follow.
pub type Assignment = BTreeMap<HostName, Ranks>;

/// The number of ranks and the number of reducers.
pub fn size(assignment: &Assignment) -> (u32, u32) {
    let count = |role| assignment.values().filter(|ranks| ranks.role == role).map(|ranks| ranks.count).sum();
    (count(Role::Train), count(Role::Reduce))
}

/// When a generation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// Workers are killed.
    Now,
    /// All workers save the model after the same step, this one or a later one on which they agree, and exit.
    AfterStep(u64),
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// All rows are trained on, and the last checkpoint is committed.
    Finished,
    /// The retry budget is spent. The reason is that of the last failure.
    Failed(Reason),
}

/// A message of a leader. Each travels with the leader's epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ToMember {
    /// The first message of a stream: the sender leads.
    Lead,
    /// Replies to [`ToLeader::Hello`] and [`ToLeader::Beat`] with their time.
    Answer {
        /// As received: the member's clock.
        sent: Duration,
    },
    /// Asks for workers.
    Propose {
        /// Their generation.
        generation: GenerationId,
        /// The ranks of all hosts.
        assignment: Assignment,
        /// For the next leader.
        tries: Tries,
    },
    /// Starts the workers: all hosts have joined.
    Begin {
        /// Their generation.
        generation: GenerationId,
        /// The model to start from.
        start: Start,
        /// For each host without the image of the start: the host that sends it.
        senders: BTreeMap<HostName, HostName>,
        /// The addresses of all workers, by rank, then those of reducers.
        addresses: Vec<Address>,
    },
    /// Ends a generation.
    End {
        /// The generation.
        generation: GenerationId,
        /// When.
        when: When,
        /// Why, for users; `None` if the job has ended.
        why: Option<Reason>,
    },
    /// The job has ended.
    Over {
        /// How.
        outcome: Outcome,
    },
    /// Passes the daemon a note about its workers.
    Note {
        /// Their generation.
        generation: GenerationId,
        /// What.
        note: Note,
    },
}

/// A message of a member. Each travels with the epoch of the leader that the member follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ToLeader {
    /// Replies to [`ToMember::Lead`]: the sender follows.
    Hello {
        /// The time by the sender's clock.
        sent: Duration,
        /// What it can run.
        offer: Offer,
        /// The newest image that it holds whole.
        holds: Option<Snapshot>,
        /// The failures that it knows of.
        tries: Tries,
    },
    /// Replies to [`ToMember::Lead`]: the sender follows the leader of a later epoch, which is the message's.
    Deposed,
    /// Changes what the sender can run. A draining host offers none.
    Offer {
        /// What it can run now.
        offer: Offer,
    },
    /// The workers of a proposed generation wait for its start.
    Joined {
        /// Their generation.
        generation: GenerationId,
        /// The newest image that the host holds whole.
        holds: Option<Snapshot>,
        /// The addresses of its workers, by rank.
        addresses: Vec<Address>,
    },
    /// A worker of a proposed generation could not start.
    Refused {
        /// The generation.
        generation: GenerationId,
        /// Why.
        why: Reason,
    },
    /// A sign of life, every second.
    Beat {
        /// The time by the sender's clock.
        sent: Duration,
        /// The last step of its workers, if they train.
        step: Option<(GenerationId, u64)>,
        /// The newest image that it holds whole.
        holds: Option<Snapshot>,
    },
    /// A worker died.
    Lost {
        /// Its generation.
        generation: GenerationId,
        /// Why.
        why: Reason,
        /// Whether it died because it lost a worker of another host.
        is_of_peer: bool,
    },
    /// The workers of the host have written their parts of a checkpoint.
    Saved {
        /// Their generation.
        generation: GenerationId,
        /// The step of the checkpoint.
        step: u64,
    },
    /// The workers of the host have trained on all rows, and have saved the model.
    AtEnd {
        /// Their generation.
        generation: GenerationId,
        /// The last step.
        step: u64,
    },
    /// Passes the leader's daemon a note about the workers of the host.
    Note {
        /// Their generation.
        generation: GenerationId,
        /// What.
        note: Note,
    },
    /// All workers of the host have exited.
    Ended {
        /// Their generation.
        generation: GenerationId,
        /// The newest image that the host holds whole.
        holds: Option<Snapshot>,
    },
}

impl Snapshot {
    /// Whether this model contains all of `checkpoint`, the newest committed one.
    ///
    /// An image of an earlier generation is another branch of history, even if its step is higher: steps after the one at
    /// which it branched off are in the checkpoint already. A later generation started from the checkpoint or from a model
    /// that contains it.
    pub fn contains(&self, checkpoint: Option<Snapshot>) -> bool {
        checkpoint
            .is_none_or(|checkpoint| self.generation >= checkpoint.generation && self.step >= checkpoint.step)
    }
}

impl Start {
    /// The steps of the model.
    pub fn step(&self) -> u64 {
        match self {
            Self::Scratch => 0,
            Self::Checkpoint(snapshot) | Self::Image(snapshot) => snapshot.step,
        }
    }
}

impl ToLeader {
    /// The generation that it is about.
    pub(super) fn generation(&self) -> Option<GenerationId> {
        match self {
            Self::Hello { .. } | Self::Deposed | Self::Offer { .. } | Self::Beat { .. } => None,
            Self::Joined { generation, .. }
            | Self::Refused { generation, .. }
            | Self::Lost { generation, .. }
            | Self::Saved { generation, .. }
            | Self::AtEnd { generation, .. }
            | Self::Note { generation, .. }
            | Self::Ended { generation, .. } => Some(*generation),
        }
    }
}

impl Reason {
    /// The most bytes of a reason.
    pub const MAX_BYTES: usize = 1024;

    /// The reason `text`.
    pub fn new(text: &str) -> Self {
        Self(text[..text.floor_char_boundary(Self::MAX_BYTES)].into())
    }
}

impl fmt::Display for GenerationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.number)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}
