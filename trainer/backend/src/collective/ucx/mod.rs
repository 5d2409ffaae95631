//! The transport between processes of one host, over UCX (`libucp.so.0`), which is opened at run time.
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
//! # Dead ranks
//!
//! Ranks share memory segments, which stay valid whatever happens to the other process. A message to or from a dead rank then
//! stays open, without an error. So each rank holds a descriptor of every other process, which becomes readable when that
//! process ends: a death is noticed within milliseconds.
//!
//! A rank that leaves in good order says farewell. A process that has ended without one is dead for all exchanges under way,
//! even for those that it completed: a killed sender may have reserved a place in the receiver's queue, where all messages of
//! other ranks then wait behind it.
//!
//! UCX 1.13 has faster transports and its own error handling, which cannot be used here. With copies from the memory of
//! another process (CMA), a rank that is killed in the middle of one aborts the other rank. Endpoints with error
//! handling need TCP besides, whose ports are open to the network, and are slower for large messages
//! (`bench/results/2026-11-27-collective.md`).

mod exchange;
mod parameters;
mod worker;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use self::exchange::Exchange;
use self::worker::{Endpoint, InFlight, Progress, Worker};
pub use self::worker::{OpenUcxError, UcxError};
use super::error::CollectiveError;
use super::memory::{Buffer, Pool};
use super::recorder::Recorder;
use super::transport::{Deadline, Label, Operation, Receive, Round, Transport};
use crate::library::Libraries;

/// Shared memory of System V, which is as fast as that of POSIX, and not limited by the size of `/dev/shm`, which containers
/// keep small.
const TRANSPORTS: &str = "sysv";

/// Ranks beyond this do not fit the tag.
const MOST_RANKS: usize = 1 << 14;
/// How long a rank waits for what must happen at once: for the end of a process whose memory is gone, and for its own
/// farewell.
const PATIENCE: Duration = Duration::from_secs(1);

/// A process that is ready to be a rank: it has an address, which the others need before they connect.
pub struct HostListener {
    worker: Worker,
    address: Vec<u8>,
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
    /// A rank's process cannot be observed.
    #[error("rank {rank}: process {process} cannot be observed: {source}; all ranks must run on one host")]
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
    /// Opens UCX.
    ///
    /// # Errors
    /// If the library is missing, too old, or refuses to start. The message names the package to install.
    pub fn open(libraries: &Libraries) -> Result<Self, OpenUcxError> {
        let worker = Worker::open(libraries, TRANSPORTS)?;
        let mut address = process::id().to_le_bytes().to_vec();
        address.extend(worker.address()?);
        Ok(Self { worker, address })
    }

    /// The address for [`HostListener::connect`] in the other processes: the number of this process (u32) and UCX's
    /// address.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// Becomes rank `rank` of a world with these addresses, by rank. Returns when all ranks have connected.
    ///
    /// # Errors
    /// If an address is damaged, a process has ended or runs on another host, or a rank has not connected within `limit`.
    pub fn connect(self, rank: usize, addresses: &[Vec<u8>], limit: Duration) -> Result<Host, ConnectError> {
        let ranks = addresses.len();
        if rank >= ranks || ranks > MOST_RANKS {
            return Err(ConnectError::Rank { rank, ranks });
        }
        let peers = addresses.iter().enumerate().map(|(peer, address)| {
            if peer == rank { Ok(None) } else { Peer::connect(&self.worker, peer, address).map(Some) }
        });
        let peers = peers.collect::<Result<Vec<_>, _>>()?;
        let mut host = Host { rank, peers, exchanges: 0, is_broken: false, worker: self.worker };
        let label = Label { operation: Operation::Connect, number: 0, round: Round::Only };
        let nothing = Arc::new(Buffer::default());
        host.exchange(
            label,
            vec![nothing; ranks],
            Receive::Any(&mut Pool::default()),
            Deadline::after(limit),
            None,
        )?;
        Ok(host)
    }
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
        self.connect(rank, &addresses, limit)
    }
}

/// A rank that is a process of this host.
pub struct Host {
    rank: usize,
    /// By rank; none at this rank's own place.
    peers: Vec<Option<Peer>>,
    /// Counts exchanges, for their tags.
    exchanges: u64,
    /// Whether an exchange has failed.
    is_broken: bool,
    worker: Worker,
}

/// Another rank.
struct Peer {
    rank: usize,
    endpoint: Endpoint,
    /// Readable when the process has ended.
    process: OwnedFd,
    /// Its last message, until it has arrived.
    farewell: Option<InFlight<Buffer>>,
}

impl Peer {
    fn connect(worker: &Worker, rank: usize, address: &[u8]) -> Result<Self, ConnectError> {
        let Some((number, address)) = address.split_first_chunk().filter(|(_, address)| !address.is_empty())
        else {
            return Err(ConnectError::Address { rank, bytes: address.len() });
        };
        let process = u32::from_le_bytes(*number);
        let opened = Pid::from_raw(process.cast_signed())
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let opened = opened.map_err(|error| ConnectError::Process { rank, process, source: error.into() })?;
        let farewell = worker.receive(Buffer::default(), tag(Kind::Farewell, rank, 0))?;
        Ok(Self { rank, endpoint: worker.connect(address)?, process: opened, farewell: Some(farewell) })
    }

    /// Whether the process has ended, or is just about to: its memory disappears a moment before the kernel reports its end.
    fn ends(&self) -> bool {
        let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut process = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut process, Some(&limit)).is_ok_and(|ready| ready > 0)
    }

    /// Whether the rank has said farewell.
    fn has_left(&mut self, worker: &Worker) -> Result<bool, UcxError> {
        if let Some(farewell) = self.farewell.take() {
            match worker.received(farewell)? {
                Progress::Open(farewell) => self.farewell = Some(farewell),
                Progress::Complete(_) => {}
            }
        }
        Ok(self.farewell.is_none())
    }
}

impl Host {
    /// Says farewell to all ranks, and gives up the messages that are still expected. After an error, or if a rank does not
    /// take the farewell, messages stay open, and the worker is leaked.
    fn leave(&mut self) -> Result<(), UcxError> {
        let deadline = Deadline::after(PATIENCE);
        let mut sending = Vec::new();
        for peer in self.peers.iter().flatten() {
            let nothing = Arc::new(Buffer::default());
            sending.push(self.worker.send(peer.endpoint, nothing, tag(Kind::Farewell, self.rank, 0))?);
        }
        for mut farewell in sending {
            while let Progress::Open(message) = farewell
                && !deadline.left().is_zero()
            {
                self.worker.progress();
                farewell = self.worker.sent(message)?;
            }
        }
        for peer in self.peers.iter_mut().flatten() {
            if let Some(farewell) = &peer.farewell {
                self.worker.cancel(farewell);
            }
            // The cancelled message ends with an error.
            while matches!(peer.has_left(&self.worker), Ok(false)) && !deadline.left().is_zero() {
                self.worker.progress();
            }
        }
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Without a farewell, other ranks take this one for dead when its process ends.
        if self.is_broken || self.leave().is_err() {
            self.worker.abandon();
        }
    }
}

impl Transport for Host {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.peers.len()
    }

    fn exchange(
        &mut self,
        label: Label,
        parts: Vec<Arc<Buffer>>,
        receive: Receive<'_>,
        deadline: Deadline,
        recorder: Option<&Recorder>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        self.exchanges += 1;
        let (rank, number, worker) = (self.rank, self.exchanges, &self.worker);
        let exchange = Exchange { label, rank, number, worker, recorder };
        let received = exchange.run(&mut self.peers, parts, receive, deadline);
        self.is_broken |= received.is_err();
        received
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

    use std::process::Command;

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
        match HostListener::open(&Libraries::of(folder)) {
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
        HostListener::open(&Libraries::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_world_of_one_process_connects() {
        let listener = listener();
        let addresses = vec![listener.address().to_vec()];
        let host = listener.connect(0, &addresses, Duration::from_secs(10)).unwrap();
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
            let Err(error) = listener().connect(rank, &addresses, Duration::from_secs(10)) else {
                panic!("connected");
            };
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }
}
