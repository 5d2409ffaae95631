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
//!
mod address;
mod exchange;
mod parameters;
mod reducer;
mod worker;

use std::cell::Cell;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub use self::address::HostId;
use self::address::RankAddress;
use self::exchange::{Exchange, Flow, Terms};
pub(in crate::collective) use self::reducer::Contributions;
pub use self::reducer::HostReducer;
use self::worker::{Endpoint, InFlight, Progress, Transports, Worker};
pub use self::worker::{OpenUcxError, UcxError};
use super::error::CollectiveError;
use super::interface::check_interface;
use super::memory::{Buffer, Pool};
use super::recorder::Recorder;
use super::transport::{Deadline, Group, Label, Operation, Receive, Round, Transport};
use crate::library::Libraries;

/// Ranks beyond this do not fit the tag.
const MOST_RANKS: usize = 1 << 14;
/// How long a rank waits for what must happen at once: for the end of a process whose memory is gone, and for its own
/// farewell.
const PATIENCE: Duration = Duration::from_secs(1);

/// A process that is ready to be a rank: it has an address, which the others need before they connect.
pub struct HostListener {
    host: HostId,
    workers: Workers,
    address: Vec<u8>,
}

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

/// Why a world of processes cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// UCX cannot be used.
    #[error(transparent)]
    Ucx(#[from] OpenUcxError),
    /// A rank's address is none.
    #[error("rank {rank}: its address is damaged ({bytes} bytes)")]
    Address {
        /// The rank.
        rank: usize,
        /// The size of its address.
        bytes: usize,
    },
    /// A rank does not exist.
    #[error("rank {rank}: there are {ranks} addresses, and there can be at most 16384")]
    Rank {
        /// The rank.
        rank: usize,
        /// The number of addresses.
        ranks: usize,
    },
    /// A rank runs on another host, and has no network interface.
    #[error("rank {rank}: it runs on another host and has no address on the network; all ranks must use one")]
    NoNetwork {
        /// The rank.
        rank: usize,
    },
    /// A rank's process cannot be observed.
    #[error(
        "rank {rank}: process {process} cannot be observed: {source}; without a network, all ranks must run on one host"
    )]
    Process {
        /// The rank.
        rank: usize,
        /// Its process.
        process: u32,
        /// The system's message.
        source: io::Error,
    },
    /// An address cannot be written to, or read from, the directory where ranks meet.
    #[error("{}: the addresses of ranks cannot be exchanged: {source}", directory.display())]
    Meet {
        /// The directory.
        directory: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// The first exchange failed.
    #[error(transparent)]
    Exchange(#[from] CollectiveError),
}

impl From<UcxError> for ConnectError {
    fn from(error: UcxError) -> Self {
        Self::Ucx(error.into())
    }
}

impl HostListener {
    /// Opens UCX, for ranks of this host, and with network interfaces (names, separated by commas) also for ranks of other hosts
    /// that these reach. The traffic between hosts is neither encrypted nor authenticated.
    ///
    /// # Errors
    /// If the library is missing, too old, or refuses to start, with a message that names the package to install; or if an
    /// interface does not exist, is down or has no address.
    pub fn open(libraries: &Libraries, network: Option<&str>) -> Result<Self, OpenUcxError> {
        let host = match network {
            Some(_) => HostId::of_this_host().map_err(OpenUcxError::Host)?,
            None => HostId::ANY,
        };
        Self::open_as(libraries, network, host)
    }

    /// As [`HostListener::open`], but as if on the host `host`: tests and measurements stand for several hosts on one.
    ///
    /// # Errors
    /// As there.
    pub fn open_as(libraries: &Libraries, network: Option<&str>, host: HostId) -> Result<Self, OpenUcxError> {
        let workers = Workers::open(libraries, network)?;
        let local = workers.local.address()?;
        let reached = workers.network.as_ref().map(Worker::address).transpose()?.unwrap_or_default();
        let address = RankAddress::of_this_process(host, &local, &reached).encode();
        Ok(Self { host, workers, address })
    }

    /// The address for [`HostListener::connect`] in the other processes.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// Becomes rank `rank` of a world with these addresses: of all ranks, then of `reducers` reducers. Returns when all have
    /// connected.
    ///
    /// # Errors
    /// If an address is damaged, a process of this host has ended, a rank runs on another host and there is no network between
    /// them, or a rank has not connected within `limit`.
    pub fn connect(
        self,
        rank: usize,
        (addresses, reducers): (&[Vec<u8>], usize),
        limit: Duration,
    ) -> Result<Host, ConnectError> {
        let ranks = addresses.len().saturating_sub(reducers);
        if rank >= ranks {
            return Err(ConnectError::Rank { rank, ranks });
        }
        self.connect_with((rank, ranks), addresses, limit, |peer| peer != rank)
    }

    /// Becomes a reducer of such a world: the one with address `number`.
    ///
    /// # Errors
    /// As of [`HostListener::connect`].
    pub fn connect_reducer(
        self,
        number: usize,
        (addresses, reducers): (&[Vec<u8>], usize),
        limit: Duration,
    ) -> Result<HostReducer, ConnectError> {
        let ranks = addresses.len().saturating_sub(reducers);
        if !(ranks..addresses.len()).contains(&number) {
            return Err(ConnectError::Rank { rank: number, ranks: addresses.len() });
        }
        self.connect_with((number, ranks), addresses, limit, |peer| peer < ranks).map(HostReducer::new)
    }

    /// Connects to those that `is_peer` accepts.
    fn connect_with(
        mut self,
        (rank, ranks): (usize, usize),
        addresses: &[Vec<u8>],
        limit: Duration,
        is_peer: impl Fn(usize) -> bool,
    ) -> Result<Host, ConnectError> {
        if addresses.len() > MOST_RANKS {
            return Err(ConnectError::Rank { rank, ranks: addresses.len() });
        }
        let connect =
            |(peer, address): (usize, &Vec<u8>)| is_peer(peer).then(|| self.reach(peer, address)).transpose();
        let peers = addresses.iter().enumerate().map(connect).collect::<Result<Vec<_>, _>>()?;
        // A world of one host closes its ports.
        if !peers.iter().flatten().any(|peer| matches!(peer.link, Link::Network)) {
            self.workers.network = None;
        }
        let all = peers.len();
        let mut host =
            Host { rank, ranks, peers, exchanges: 1, reductions: 1, is_broken: false, workers: self.workers };
        let label = Label { operation: Operation::Connect, number: 0, round: Round::Only };
        let terms = Terms { label, deadline: Deadline::after(limit), is_open: false };
        let (parts, mut pool) = (vec![Arc::default(); all], Pool::default());
        host.run((terms, Flow::Both), (0..all, 1), parts, Receive::Any(&mut pool), None)?;
        Ok(host)
    }

    /// Connects to rank `rank` with this address.
    fn reach(&self, rank: usize, address: &[u8]) -> Result<Peer, ConnectError> {
        let bytes = address.len();
        let address = RankAddress::decode(address).ok_or(ConnectError::Address { rank, bytes })?;
        match &self.workers.network {
            Some(network) if address.host != self.host => {
                if address.network.is_empty() {
                    return Err(ConnectError::NoNetwork { rank });
                }
                let endpoint = network.connect_observed(address.network)?;
                Peer::new(network, rank, endpoint, Link::Network)
            }
            Some(_) | None => {
                let process = observe(rank, address.process)?;
                let local = &self.workers.local;
                Peer::new(local, rank, local.connect(address.local)?, Link::Process(process))
            }
        }
    }
}

/// A descriptor of the process of a rank, readable when the process has ended.
fn observe(rank: usize, process: u32) -> Result<OwnedFd, ConnectError> {
    let opened = Pid::from_raw(process.cast_signed())
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
    opened.map_err(|error| ConnectError::Process { rank, process, source: error.into() })
}

/// Interval between checks for the addresses of other ranks.
const MEET_INTERVAL: Duration = Duration::from_millis(1);

impl HostListener {
    /// As [`HostListener::connect`], for processes without a daemon that hands out addresses: measurements. Each rank writes its
    /// address to a file of `directory`, which is empty before, and reads those of the others.
    ///
    /// # Errors
    /// As there; or if an address cannot be written or read.
    pub fn meet(
        self,
        directory: &Path,
        rank: usize,
        ranks: usize,
        limit: Duration,
    ) -> Result<Host, ConnectError> {
        let deadline = Deadline::after(limit);
        let file = |rank: usize| directory.join(format!("rank-{rank}"));
        let unfinished = directory.join(format!("unfinished-{rank}"));
        let error = |source| ConnectError::Meet { directory: directory.to_owned(), source };
        fs::write(&unfinished, self.address()).map_err(error)?;
        fs::rename(&unfinished, file(rank)).map_err(error)?;
        let read = |rank| loop {
            match fs::read(file(rank)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !deadline.left().is_zero() => {
                    std::thread::sleep(MEET_INTERVAL);
                }
                result => return result.map_err(error),
            }
        };
        let addresses = (0..ranks).map(read).collect::<Result<Vec<_>, _>>()?;
        self.connect(rank, (&addresses, 0), limit)
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

/// Another rank.
struct Peer {
    rank: usize,
    endpoint: Endpoint,
    link: Link,
    /// Its last message, until it has arrived.
    farewell: Option<InFlight<Buffer>>,
}

/// How a rank is reached, and how its loss is noticed.
enum Link {
    /// Over shared memory. The descriptor is readable when the process has ended.
    Process(OwnedFd),
    /// Over TCP. UCX reports that the connection has failed.
    Network,
}

impl Peer {
    fn new(worker: &Worker, rank: usize, endpoint: Endpoint, link: Link) -> Result<Self, ConnectError> {
        let farewell = worker.receive(Buffer::default(), tag(Kind::Farewell, rank, 0))?;
        Ok(Self { rank, endpoint, link, farewell: Some(farewell) })
    }

    /// Whether the process has ended, or is just about to: its memory disappears a moment before the kernel reports its end.
    /// Of a rank of another host, whether it has left in good order.
    fn is_gone(&mut self, workers: &Workers) -> bool {
        let Link::Process(process) = &self.link else { return self.has_left(workers).unwrap_or(false) };
        let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut process = [PollFd::new(process, PollFlags::IN)];
        poll(&mut process, Some(&limit)).is_ok_and(|ready| ready > 0)
    }

    /// Whether the rank has said farewell.
    fn has_left(&mut self, workers: &Workers) -> Result<bool, UcxError> {
        if let Some(farewell) = self.farewell.take() {
            match workers.of(&self.link).received(farewell)? {
                Progress::Open(farewell) => self.farewell = Some(farewell),
                Progress::Complete(_) => {}
            }
        }
        Ok(self.farewell.is_none())
    }

    /// Starts to say farewell to this rank. One of another host may have left before, and its connection is closed then.
    fn say_farewell(&self, from: usize, workers: &Workers) -> Result<Option<Farewell>, UcxError> {
        let nothing = Arc::new(Buffer::default());
        let sent = workers.of(&self.link).send(&self.endpoint, nothing, tag(Kind::Farewell, from, 0));
        self.unless_closed(sent.map(Some))
    }

    /// What has happened to a farewell.
    fn continue_farewell(&self, farewell: Farewell, workers: &Workers) -> Result<Option<Farewell>, UcxError> {
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
type Farewell = Progress<Arc<Buffer>, ()>;

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
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;
    use std::net::TcpStream;
    use std::process::Command;
    use std::thread;

    use super::*;

    /// A library that has only the function for its version.
    fn library_of_version(folder: &Path, minor: u32) {
        let source = folder.join("ucp.c");
        let text = format!(
            "void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release) {{ *major = 1; *minor = {minor}; }}"
        );
        fs::write(&source, text).unwrap();
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let compiled = Command::new(compiler)
            .args(["-shared", "-fPIC", "-o"])
            .arg(folder.join("libucp.so.0"))
            .arg(source)
            .status();
        assert!(compiled.unwrap().success());
    }

    fn problem(folder: &Path) -> String {
        match HostListener::open(&Libraries::of(folder), None) {
            Ok(_) => panic!("the library cannot be used"),
            Err(error) => error.to_string(),
        }
    }

    const REMEDY: &str =
        "for jobs with several workers install package libucx0 (deb) or ucx (rpm), 1.10 or later";

    #[test]
    fn a_missing_or_old_library_is_reported_with_its_package() {
        let folder = tempfile::tempdir().unwrap();
        let missing = problem(folder.path());
        assert!(
            missing.contains("is not on this host (looked for libucp.so.0)") && missing.contains(REMEDY),
            "{missing}"
        );
        library_of_version(folder.path(), 9);
        let old = problem(folder.path());
        assert!(
            old.contains("is of version 1.9, and Millstream needs 1.10 or later") && old.contains(REMEDY),
            "{old}"
        );
    }

    #[test]
    fn a_missing_function_is_reported_by_name() {
        let folder = tempfile::tempdir().unwrap();
        library_of_version(folder.path(), 13);
        let problem = problem(folder.path());
        assert!(
            problem.contains("has no function ucs_status_string") && problem.contains(REMEDY),
            "{problem}"
        );
    }

    /// UCX must be installed to run the tests, as `tests/run` does.
    fn listener() -> HostListener {
        HostListener::open(&Libraries::default(), None).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_world_of_one_process_connects() {
        let listener = listener();
        let addresses = vec![listener.address().to_vec()];
        let host = listener.connect(0, (&addresses, 0), Duration::from_secs(10)).unwrap();
        assert_eq!((host.rank(), host.ranks()), (0, 1));
    }

    #[test]
    fn wrong_addresses_are_refused() {
        let own = listener().address().to_vec();
        // No process has this number: it exceeds the kernel's limit.
        let gone = [&(1_u32 << 30).to_le_bytes(), &own[4..]].concat();
        for (rank, other, message) in [
            (0, own[..4].to_vec(), "rank 1: its address is damaged (4 bytes)"),
            (0, gone, "rank 1: process 1073741824 cannot be observed: No such process"),
            (2, own.clone(), "rank 2: there are 2 addresses"),
        ] {
            let addresses = [own.clone(), other];
            let Err(error) = listener().connect(rank, (&addresses, 0), Duration::from_secs(10)) else {
                panic!("connected");
            };
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }

    fn on_host(number: u64) -> HostListener {
        HostListener::open_as(&Libraries::default(), Some("lo"), HostId::imagined(number)).unwrap()
    }

    #[test]
    fn an_address_without_a_network_is_refused_on_another_host() {
        let own = on_host(1);
        let other = HostListener::open_as(&Libraries::default(), None, HostId::imagined(2)).unwrap();
        let addresses = [own.address().to_vec(), other.address().to_vec()];
        let Err(error) = own.connect(0, (&addresses, 0), Duration::from_secs(10)) else {
            panic!("connected")
        };
        assert!(error.to_string().starts_with("rank 1: it runs on another host"), "{error}");
    }

    #[test]
    fn an_interface_that_does_not_exist_is_an_error() {
        let Err(error) = HostListener::open(&Libraries::default(), Some("lo,no-such")) else {
            panic!("opened")
        };
        let message = error.to_string();
        assert!(
            message.starts_with("network interface no-such: this host has none of this name"),
            "{message}"
        );
    }

    /// The TCP ports of 127.0.0.1 on which this process listens.
    fn ports() -> Vec<u16> {
        let links =
            fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let sockets: Vec<String> = links.map(|link| link.display().to_string()).collect();
        let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
        let listening = table.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let port = fields[1].strip_prefix("0100007F:")?;
            let is_own = sockets.contains(&format!("socket:[{}]", fields[9]));
            (fields[3] == "0A" && is_own).then(|| u16::from_str_radix(port, 16).unwrap())
        });
        listening.collect()
    }

    #[test]
    fn garbage_on_the_port_of_a_rank_is_harmless() {
        let hosts = [on_host(1), on_host(2)];
        let addresses: Vec<Vec<u8>> = hosts.iter().map(|host| host.address().to_vec()).collect();
        let ports = ports();
        assert!(ports.len() >= 2, "{ports:?}");
        let garbage = |length: usize| -> Vec<TcpStream> {
            let bytes: Vec<u8> = (0..length).map(|index| (index * 151 + length) as u8).collect();
            let connect = |port: &u16| TcpStream::connect(("127.0.0.1", *port)).ok();
            let mut streams: Vec<TcpStream> = ports.iter().filter_map(connect).collect();
            // The other side may close before it has read everything.
            streams.iter_mut().for_each(|stream| drop(stream.write_all(&bytes)));
            streams
        };
        // Some connections stay open, some end.
        let mut open = Vec::new();
        for length in [0, 1, 7, 8, 9, 100, 10_000] {
            open.extend(garbage(length));
            drop(garbage(length));
        }
        thread::scope(|scope| {
            for (rank, listener) in hosts.into_iter().enumerate() {
                let (addresses, garbage) = (&addresses, &garbage);
                scope.spawn(move || {
                    let mut host = listener.connect(rank, (addresses, 0), Duration::from_secs(30)).unwrap();
                    for number in 1..=100 {
                        drop(garbage(100 * number as usize));
                        let label = Label { operation: Operation::Barrier, number, round: Round::Only };
                        let part = Arc::new(Buffer::from(&[number as u8; 50_000][..]));
                        let (parts, deadline) = (vec![part; 2], Deadline::after(Duration::from_secs(30)));
                        let (to, mut pool) = ((label, Group::Ranks), Pool::default());
                        let received = host.exchange(to, parts, Receive::Any(&mut pool), deadline, None);
                        assert_eq!(received.unwrap()[1 - rank][..], [number as u8; 50_000]);
                    }
                });
            }
        });
    }
}
