//! Processes that are ready to be ranks or reducers, and how they connect.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::error::CollectiveError;
use super::super::memory::Pool;
use super::super::transport::{Deadline, Label, Operation, Receive, Round};
use super::address::{HostId, RankAddress};
use super::exchange::{Flow, Terms};
use super::peer::{Link, Peer};
use super::reducer::HostReducer;
use super::worker::{OpenUcxError, UcxError, Worker};
use super::{Host, Workers};
use crate::library::Libraries;

/// Ranks beyond this do not fit the tag.
const MOST_RANKS: usize = 1 << 14;

/// A process that is ready to be a rank: it has an address, which the others need before they connect.
pub struct HostListener {
    host: HostId,
    workers: Workers,
    address: Vec<u8>,
}

/// The addresses of the ranks of a world, then those of its reducers.
#[derive(Clone, Copy)]
struct World<'a> {
    addresses: &'a [Vec<u8>],
    ranks: usize,
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
        let world = World { addresses, ranks: addresses.len().saturating_sub(reducers) };
        self.connect_to(world, rank, (0..world.ranks, 0..addresses.len()), limit)
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
        let world = World { addresses, ranks: addresses.len().saturating_sub(reducers) };
        let host = self.connect_to(world, number, (world.ranks..addresses.len(), 0..world.ranks), limit)?;
        Ok(HostReducer::new(host))
    }

    /// Becomes `number`, which is one of `own`, and connects to `others`.
    fn connect_to(
        mut self,
        World { addresses, ranks }: World<'_>,
        number: usize,
        (own, others): (Range<usize>, Range<usize>),
        limit: Duration,
    ) -> Result<Host, ConnectError> {
        if !own.contains(&number) || addresses.len() > MOST_RANKS {
            return Err(ConnectError::Rank { rank: number, ranks: addresses.len() });
        }
        let connect = |(peer, address): (usize, &Vec<u8>)| {
            let is_other = peer != number && others.contains(&peer);
            is_other.then(|| self.reach(peer, address)).transpose()
        };
        let peers = addresses.iter().enumerate().map(connect).collect::<Result<Vec<_>, _>>()?;
        // A world of one host closes its ports.
        if !peers.iter().flatten().any(|peer| matches!(peer.link, Link::Network)) {
            self.workers.network = None;
        }
        let all = peers.len();
        let (rank, workers) = (number, self.workers);
        let mut host = Host { rank, ranks, peers, exchanges: 1, reductions: 1, is_broken: false, workers };
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
