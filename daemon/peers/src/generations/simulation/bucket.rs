//! The bucket: the lease, the newest checkpoint and the outcome, changed by compare-and-swap.

use std::collections::VecDeque;
use std::time::Duration;

use super::training::Model;
use super::{Outcome, Snapshot};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    pub(super) lease: Lease,
    pub(super) checkpoint: Option<(Snapshot, Model)>,
    pub(super) outcome: Option<Outcome>,
    /// Requests of hosts, in the order in which they were sent.
    pub(super) requests: VecDeque<Request>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) epoch: u64,
    pub(super) holder: Option<usize>,
    pub(super) renewals: u64,
}

/// A conditional write in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) due: Duration,
    pub(super) host: usize,
    pub(super) epoch: u64,
    pub(super) write: Write,
    /// Set once the bucket has handled it: whether it was accepted. The answer follows.
    pub(super) answer: Option<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Write {
    Commit(Snapshot),
    Conclude(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Done,
    Failed,
    Deposed,
}
