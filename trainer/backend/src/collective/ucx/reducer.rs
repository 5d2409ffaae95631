//! The side of a reducer.

use std::sync::Arc;
use std::time::Duration;

use super::Host;
use super::exchange::{Flow, Terms};
use crate::collective::error::CollectiveError;
use crate::collective::memory::{Buffer, Pool};
use crate::collective::recorder::Recorder;
use crate::collective::transport::{Deadline, Label, Operation, Receive, Round};

/// A reducer that is a process: ranks send it numbers of their sums, and it answers all of them.
pub struct HostReducer(Host);

/// What all ranks have sent of a sum.
pub(in crate::collective) struct Contributions {
    pub(in crate::collective) label: Label,
    /// The time limit of the sum, which has begun.
    pub(in crate::collective) deadline: Deadline,
    /// By rank.
    pub(in crate::collective) numbers: Vec<Buffer>,
}

impl HostReducer {
    pub(super) fn new(host: Host) -> Self {
        Self(host)
    }

    /// The number of this reducer: those of ranks come first.
    pub fn number(&self) -> usize {
        self.0.rank
    }

    /// Waits for the next sum, and for the numbers of all ranks from when the first rank has sent its own on, for `limit`; `None` once
    /// all ranks have left. Begins the operation in `recorder`.
    ///
    /// # Errors
    /// As of every exchange.
    pub(in crate::collective) fn receive(
        &mut self,
        limit: Duration,
        pool: &mut Pool,
        recorder: Option<&Recorder>,
    ) -> Result<Option<Contributions>, CollectiveError> {
        let Self(host) = self;
        host.reductions += 1;
        let label = Label { operation: Operation::NextSum, number: host.reductions - 1, round: Round::Only };
        let terms = Terms { label, deadline: Deadline::after(limit), is_open: true };
        let with = (0..host.ranks, host.reductions);
        let (terms, numbers) =
            host.run((terms, Flow::Receive), with, Vec::new(), Receive::Any(pool), recorder)?;
        let Terms { label, deadline, is_open } = terms;
        Ok((!is_open).then_some(Contributions { label, deadline, numbers }))
    }

    /// Sends all ranks the sum of what was received last.
    ///
    /// # Errors
    /// As of every exchange.
    pub(in crate::collective) fn answer(
        &mut self,
        (label, deadline): (Label, Deadline),
        sum: Buffer,
        recorder: Option<&Recorder>,
    ) -> Result<(), CollectiveError> {
        let Self(host) = self;
        let terms = Terms { label, deadline, is_open: false };
        let sum = Arc::new(sum);
        let (with, parts) = ((0..host.ranks, host.reductions), vec![sum; host.ranks]);
        let mut nothing = Pool::default();
        host.run((terms, Flow::Send), with, parts, Receive::Any(&mut nothing), recorder).map(drop)
    }
}
