//! The generation of a leader: which hosts have joined, saved, finished and ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Address, Assignment, GenerationId, Reason, Role, Snapshot, Start, ToMember};
use crate::HostName;

/// The most checkpoints that are being written; a later one replaces the oldest.
const MAX_SAVING: usize = 8;

/// A generation of workers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Generation {
    pub(super) id: GenerationId,
    pub(super) assignment: Assignment,
    pub(super) stage: Stage,
    /// When the stage has taken too long.
    pub(super) deadline: Option<Duration>,
    /// The highest step that a host reported.
    pub(super) step: u64,
    pub(super) blame: Blame,
    joined: BTreeMap<HostName, Joined>,
    /// The hosts that have written their parts of a checkpoint, by its step.
    saved: BTreeMap<u64, BTreeSet<HostName>>,
    at_end: BTreeMap<HostName, u64>,
    /// The hosts whose workers have exited, and those that are gone.
    ended: BTreeSet<HostName>,
}

/// Who is to blame for the end of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Blame {
    /// It has not failed.
    None,
    /// A host whose worker died, or that is gone.
    Known,
    /// A worker reported that it lost another one, for this reason. The host of that one may be gone: that shows within
    /// [`super::SILENCE`].
    Unknown(Reason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Proposed: hosts start workers.
    Joining,
    /// Begun.
    Running,
    /// Ends after a common step.
    Stopping,
    /// Ends now.
    Killing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Joined {
    holds: Option<Snapshot>,
    addresses: Vec<Address>,
}

impl Generation {
    pub(super) fn new(id: GenerationId, assignment: Assignment, deadline: Duration) -> Self {
        Self {
            id,
            assignment,
            stage: Stage::Joining,
            deadline: Some(deadline),
            step: 0,
            blame: Blame::None,
            joined: BTreeMap::new(),
            saved: BTreeMap::new(),
            at_end: BTreeMap::new(),
            ended: BTreeSet::new(),
        }
    }

    pub(super) fn has(&self, host: &HostName) -> bool {
        self.assignment.contains_key(host)
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = &HostName> {
        self.assignment.keys()
    }

    /// The hosts that train.
    fn training(&self) -> impl Iterator<Item = &HostName> {
        self.assignment.iter().filter(|(_, ranks)| ranks.role == Role::Train).map(|(host, _)| host)
    }

    /// A host has joined. Returns whether it reports as many addresses as it has ranks.
    pub(super) fn join(&mut self, host: HostName, holds: Option<Snapshot>, addresses: Vec<Address>) -> bool {
        let is_complete =
            self.assignment.get(&host).is_some_and(|ranks| ranks.count as usize == addresses.len());
        if is_complete {
            self.joined.insert(host, Joined { holds, addresses });
        }
        is_complete
    }

    /// The hosts that have not joined.
    pub(super) fn missing(&self) -> Vec<HostName> {
        self.hosts().filter(|host| !self.joined.contains_key(*host)).cloned().collect()
    }

    /// The newest model that a joined host holds whole, unless the newest checkpoint is newer or of another branch.
    pub(super) fn start(&self, checkpoint: Option<Snapshot>) -> Start {
        let images = self.training().filter_map(|host| self.joined.get(host)?.holds);
        let newest = images
            .filter(|image| image.contains(checkpoint))
            .max_by_key(|image| (image.step, image.generation));
        match (newest, checkpoint) {
            (Some(image), _) => Start::Image(image),
            (None, Some(checkpoint)) => Start::Checkpoint(checkpoint),
            (None, None) => Start::Scratch,
        }
    }

    /// The message that starts the workers. Holders of the image send it in turn.
    pub(super) fn begin(&mut self, checkpoint: Option<Snapshot>) -> ToMember {
        let start = self.start(checkpoint);
        self.step = start.step();
        let mut senders = BTreeMap::new();
        if let Start::Image(image) = start {
            let holds =
                |host: &&HostName| self.joined.get(*host).is_some_and(|host| host.holds == Some(image));
            let (holders, others): (Vec<_>, Vec<_>) = self.training().partition(holds);
            let pairs = others.into_iter().zip(holders.into_iter().cycle());
            senders = pairs.map(|(to, from)| (to.clone(), from.clone())).collect();
        }
        let mut hosts: Vec<_> = self.assignment.iter().collect();
        hosts.sort_by_key(|(_, ranks)| ranks.first);
        let joined = hosts.into_iter().filter_map(|(host, _)| self.joined.get(host));
        let addresses = joined.flat_map(|host| host.addresses.iter().cloned()).collect();
        ToMember::Begin { generation: self.id, start, senders, addresses }
    }

    pub(super) fn save(&mut self, host: HostName, step: u64) {
        self.saved.entry(step).or_default().insert(host);
        while self.saved.len() > MAX_SAVING {
            self.saved.pop_first();
        }
    }

    /// A checkpoint cannot be committed. Hosts save its step again, or a later one.
    pub(super) fn forget_attempt(&mut self, checkpoint: Snapshot) {
        if checkpoint.generation == self.id {
            self.saved.remove(&checkpoint.step);
        }
    }

    /// The newest step whose parts all hosts that train have written, after that of `checkpoint`.
    pub(super) fn committable(&self, checkpoint: Option<Snapshot>) -> Option<u64> {
        let newer =
            self.saved.iter().rev().filter(|(step, _)| checkpoint.is_none_or(|old| **step > old.step));
        let mut whole = newer.filter(|(_, hosts)| hosts.len() == self.training().count());
        whole.next().map(|(step, _)| *step)
    }

    pub(super) fn reach_end(&mut self, host: HostName, step: u64) {
        self.at_end.insert(host, step);
    }

    /// Whether this host has trained on all its rows.
    pub(super) fn has_reached_end(&self, host: &HostName) -> bool {
        self.at_end.contains_key(host)
    }

    /// Whether a host has trained on all its rows.
    pub(super) fn nears_end(&self) -> bool {
        !self.at_end.is_empty()
    }

    /// Whether all hosts that train have trained on all rows, and the checkpoint after the last step is committed.
    pub(super) fn is_finished(&self, checkpoint: Option<Snapshot>) -> bool {
        let committed = checkpoint.map_or(0, |checkpoint| checkpoint.step);
        self.at_end.len() == self.training().count() && self.at_end.values().all(|step| *step <= committed)
    }

    /// The workers of a host are gone.
    pub(super) fn end(&mut self, host: HostName) {
        self.ended.insert(host);
    }

    /// The hosts whose workers may run.
    pub(super) fn alive(&self) -> Vec<HostName> {
        self.hosts().filter(|host| !self.ended.contains(*host)).cloned().collect()
    }
}
