//! Another rank: how it is reached, and how its loss and its farewell are noticed.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::memory::Buffer;
use super::listener::ConnectError;
use super::worker::{Endpoint, InFlight, Progress, UcxError, Worker};
use super::{Kind, PATIENCE, Workers, tag};

/// Another rank.
pub(super) struct Peer {
    pub(super) rank: usize,
    pub(super) endpoint: Endpoint,
    pub(super) link: Link,
    /// Its last message, until it has arrived.
    pub(super) farewell: Option<InFlight<Buffer>>,
}

/// How a rank is reached, and how its loss is noticed.
pub(super) enum Link {
    /// Over shared memory. The descriptor is readable when the process has ended.
    Process(OwnedFd),
    /// Over TCP. UCX reports that the connection has failed.
    Network,
}

impl Peer {
    pub(super) fn new(
        worker: &Worker,
        rank: usize,
        endpoint: Endpoint,
        link: Link,
    ) -> Result<Self, ConnectError> {
        let farewell = worker.receive(Buffer::default(), tag(Kind::Farewell, rank, 0))?;
        Ok(Self { rank, endpoint, link, farewell: Some(farewell) })
    }

    /// Whether the process has ended, or is just about to: its memory disappears a moment before the kernel reports its end.
    /// Of a rank of another host, whether it has left in good order.
    pub(super) fn is_gone(&mut self, workers: &Workers) -> bool {
        let Link::Process(process) = &self.link else { return self.has_left(workers).unwrap_or(false) };
        let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut process = [PollFd::new(process, PollFlags::IN)];
        poll(&mut process, Some(&limit)).is_ok_and(|ready| ready > 0)
    }

    /// Whether the rank has said farewell.
    pub(super) fn has_left(&mut self, workers: &Workers) -> Result<bool, UcxError> {
        if let Some(farewell) = self.farewell.take() {
            match workers.of(&self.link).received(farewell)? {
                Progress::Open(farewell) => self.farewell = Some(farewell),
                Progress::Complete(_) => {}
            }
        }
        Ok(self.farewell.is_none())
    }

    /// Starts to say farewell to this rank. One of another host may have left before, and its connection is closed then.
    pub(super) fn say_farewell(&self, from: usize, workers: &Workers) -> Result<Option<Farewell>, UcxError> {
        let nothing = Arc::new(Buffer::default());
        let sent = workers.of(&self.link).send(&self.endpoint, nothing, tag(Kind::Farewell, from, 0));
        self.unless_closed(sent.map(Some))
    }

    /// What has happened to a farewell.
    pub(super) fn continue_farewell(
        &self,
        farewell: Farewell,
        workers: &Workers,
    ) -> Result<Option<Farewell>, UcxError> {
        match farewell {
            Progress::Open(message) => self.unless_closed(workers.of(&self.link).sent(message).map(Some)),
            Progress::Complete(()) => Ok(None),
        }
    }

    fn unless_closed<T>(&self, result: Result<Option<T>, UcxError>) -> Result<Option<T>, UcxError> {
        match self.link {
            Link::Network => Ok(result.unwrap_or(None)),
            Link::Process(_) => result,
        }
    }
}

/// A farewell on its way.
pub(super) type Farewell = Progress<Arc<Buffer>, ()>;
