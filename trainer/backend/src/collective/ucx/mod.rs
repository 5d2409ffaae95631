//! The transport between processes of one or several hosts, over UCX (`libucp.so.0`), which is opened at run time.
//!
//! # Messages
//!
//! Each exchange sends every other rank a head, and the data behind it if it does not fit into the head's message:
//!
//! ```text
//! head   label        16 bytes: Label::encode
//!        size         u64, bytes of data
//!        data         if at most MOST_INLINE bytes
//! data   size bytes   if more
//! ```
//!
//! Both are tagged messages; the tag names the sender, the exchange and which of the two it is. A message waits in UCX until
//! its receiver asks for it, so a rank may run ahead.
//!
//! # Reducers
//!
//! Reducers are numbered after the ranks, and exchange data with these only. Such an exchange sends a head and data as above in each
//! direction: first to the reducer, then back. It has its own count, so a reducer takes no part in exchanges among ranks.
//!
//! # Two workers of UCX
//!
//! Ranks of one host communicate over shared memory, those of different hosts over TCP. Each kind has a separate context and
//! worker of UCX: with one for both, UCX also sends large messages of one host over TCP, and failures need different care. The
//! address of a rank says on which host it runs ([`HostId`]). Without a network there is only shared memory, and all ranks
//! run on one host.
//!
//! UCX listens on the addresses of the given interfaces only, and uses no other transport, no RDMA device either. It has no
//! authentication and no encryption. Connections that do not begin with its magic number of 64 bits are closed and do no harm.
//! But anyone who sends that number can end the rank: UCX aborts on damaged messages. So the network must admit only the hosts
//! of the job.
//!
//! # Dead ranks of this host
//!
//! Ranks share memory segments, which stay valid whatever happens to the other process. A message to or from a dead rank then
//! stays open, without an error. So each rank holds a descriptor of every other process, which becomes readable when that
//! process ends: a death is noticed within milliseconds.
//!
//! A rank that leaves in good order says farewell. A process that has ended without one is dead for all exchanges under way,
//! even for those that it completed: a killed sender may have reserved a place in the receiver's queue, where all messages of
//! other ranks then wait behind it.
//!
//! UCX 1.13 has faster transports and its own error handling, which cannot be used within a host. With copies from the memory
//! of another process (CMA), a rank that is killed in the middle of one aborts the other rank. Endpoints with error handling
//! need TCP, and are slower for large messages (`bench/results/2026-11-27-collective.md`).
//!
//! # Lost ranks of other hosts
//!
//! Endpoints have UCX's error handling. What UCX 1.13 does:
//!
//! | the other rank | this rank |
//! |---|---|
//! | is killed | an error within milliseconds, "Endpoint timeout" or "Connection reset": the kernel closes the connections |
//! | is stopped | nothing: its kernel keeps the connections. The exchange ends at its deadline |
//! | is on a host whose link is down | an error after about 20 s if it only waits to receive (TCP's keepalive), else the deadline |
//! | does not answer from the start | the deadline; before UCX 1.12, connecting blocks until the kernel gives up, two minutes |
//!
//! A connection that has failed without a farewell is an error of every exchange under way, as a dead process is.
//!
//! With error handling, UCX must copy what it sends (`ZCOPY_THRESH=inf`). Otherwise a rank that is killed while UCX sends from
//! the caller's memory aborts the other rank, in several of a hundred cases: an assertion of UCX fails, because it completes a
//! request twice. Copies of 64 KiB are no slower; the default of 8 KiB would halve the rate of large messages.
//! Messages are sent at once (`RNDV_THRESH=inf`): with UCX's rendezvous, links of 1 Gbit/s carry half as much. A rank that runs
//! ahead therefore fills memory of the receiver, by at most its data of one exchange.

mod address;
mod exchange;
mod listener;
mod parameters;
mod peer;
mod reducer;
mod worker;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use self::address::HostId;
use self::exchange::{Exchange, Flow, Terms};
pub use self::listener::{ConnectError, HostListener};
use self::peer::{Link, Peer};
pub(in crate::collective) use self::reducer::Contributions;
pub use self::reducer::HostReducer;
pub use self::worker::{OpenUcxError, UcxError};
use self::worker::{Transports, Worker};
use super::error::CollectiveError;
use super::interface::check_interface;
use super::memory::Buffer;
use super::recorder::Recorder;
use super::transport::{Deadline, Group, Label, Receive, Transport};
use crate::library::Libraries;

/// How long a rank waits for what must happen at once: for the end of a process whose memory is gone, and for its own
/// farewell.
const PATIENCE: Duration = Duration::from_secs(1);

/// The workers of UCX of a rank.
struct Workers {
    /// For ranks of the same host.
    local: Worker,
    /// For ranks of other hosts.
    network: Option<Worker>,
}

impl Workers {
    fn open(libraries: &Libraries, network: Option<&str>) -> Result<Self, OpenUcxError> {
        let local = Worker::open(libraries, Transports::SharedMemory)?;
        let Some(interfaces) = network else { return Ok(Self { local, network: None }) };
        interfaces.split(',').try_for_each(check_interface)?;
        let network = Some(Worker::open(libraries, Transports::Tcp(interfaces))?);
        Ok(Self { local, network })
    }

    fn all(&self) -> impl Iterator<Item = &Worker> {
        std::iter::once(&self.local).chain(&self.network)
    }

    /// The worker for a rank with this link.
    fn of(&self, link: &Link) -> &Worker {
        match (link, &self.network) {
            (Link::Network, Some(network)) => network,
            (Link::Process(_) | Link::Network, _) => &self.local,
        }
    }

    /// Why the connection to a rank has failed, if it has.
    fn failure(&self, peer: &Peer) -> Option<UcxError> {
        self.of(&peer.link).failure(&peer.endpoint)
    }

    /// Advances all messages. Returns whether anything has happened.
    fn progress(&self) -> bool {
        let network = self.network.as_ref().is_some_and(Worker::progress);
        self.local.progress() || network
    }

    /// Prepares all for sleep, as [`Worker::arm`] does.
    fn arm(&self) -> Result<bool, UcxError> {
        self.all().try_fold(true, |is_idle, worker| Ok(worker.arm()? && is_idle))
    }

    fn abandon(&mut self) {
        self.local.abandon();
        self.network.iter_mut().for_each(Worker::abandon);
    }
}

/// A rank that is a process.
pub struct Host {
    rank: usize,
    ranks: usize,
    /// By rank, then the reducers; none where there is no connection, as to itself.
    peers: Vec<Option<Peer>>,
    /// Counts exchanges among ranks, for their tags.
    exchanges: u64,
    /// Counts those of ranks with reducers.
    reductions: u64,
    /// Whether an exchange has failed.
    is_broken: bool,
    workers: Workers,
}

impl Host {
    /// Runs an exchange, the `number`th, with those of `with`.
    fn run(
        &mut self,
        (terms, flow): (Terms, Flow),
        (with, number): (Range<usize>, u64),
        parts: Vec<Arc<Buffer>>,
        receive: Receive<'_>,
        recorder: Option<&Recorder>,
    ) -> Result<(Terms, Vec<Buffer>), CollectiveError> {
        let (terms, rank, workers) = (Cell::new(terms), self.rank, &self.workers);
        let exchange = Exchange { terms, flow, with, rank, number, workers, recorder };
        let received = exchange.run(&mut self.peers, parts, receive);
        let terms = exchange.terms.get();
        self.is_broken |= received.is_err();
        Ok((terms, received?))
    }

    /// Says farewell to all ranks, and gives up the messages that are still expected. After an error, or if a rank does not
    /// take the farewell, messages stay open, and the workers are leaked.
    fn leave(&mut self) -> Result<(), UcxError> {
        let deadline = Deadline::after(PATIENCE);
        let workers = &self.workers;
        let mut sending = Vec::new();
        for peer in self.peers.iter().flatten() {
            sending.push((peer, peer.say_farewell(self.rank, workers)?));
        }
        for (peer, mut farewell) in sending {
            while let Some(message) = farewell
                && !deadline.left().is_zero()
            {
                workers.progress();
                farewell = peer.continue_farewell(message, workers)?;
            }
        }
        if let Some(network) = &workers.network {
            network.flush(deadline);
        }
        for peer in self.peers.iter_mut().flatten() {
            if let Some(farewell) = &peer.farewell {
                workers.of(&peer.link).cancel(farewell);
            }
            // The cancelled message ends with an error.
            while matches!(peer.has_left(workers), Ok(false)) && !deadline.left().is_zero() {
                workers.progress();
            }
        }
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Without a farewell, other ranks take this one for dead when its process ends.
        if self.is_broken || self.leave().is_err() {
            self.workers.abandon();
        }
    }
}

impl Transport for Host {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn reducers(&self) -> usize {
        self.peers.len() - self.ranks
    }

    fn exchange(
        &mut self,
        (label, group): (Label, Group),
        parts: Vec<Arc<Buffer>>,
        receive: Receive<'_>,
        deadline: Deadline,
        recorder: Option<&Recorder>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        let (with, count) = match group {
            Group::Ranks => (0..self.ranks, &mut self.exchanges),
            Group::Reducers => (self.ranks..self.peers.len(), &mut self.reductions),
        };
        *count += 1;
        let number = *count;
        let terms = Terms { label, deadline, is_open: false };
        self.run((terms, Flow::Both), (with, number), parts, receive, recorder).map(|(_, received)| received)
    }
}

/// The messages of a rank.
#[derive(Clone, Copy)]
enum Kind {
    Head = 0,
    Data = 1,
    Farewell = 2,
}

/// The tag of a message: 2 bits kind, 14 bits sender, 48 bits number of the exchange.
fn tag(kind: Kind, sender: usize, exchange: u64) -> u64 {
    (kind as u64) << 62 | (sender as u64) << 48 | (exchange & ((1 << 48) - 1))
}

#[cfg(test)]
mod tests;
