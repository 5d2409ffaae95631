//! Ranks that are processes: a test runs its own program again, with its own name, once per rank.
//!
//! Each rank has a socket to the test as its standard input. Both exchange frames there: addresses at the start, later the
//! ranks' calls of [`Link::meet`].

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::Duration;

use millstream_backend::Libraries;
use millstream_backend::collective::{HostId, HostListener, HostReducer, Recorder, Reducer};

use crate::worlds::{Body, End, Hosts, Others, Seat};

/// The variable that makes a test a rank: its number.
const RANK: &str = "MILLSTREAM_TEST_RANK";

/// The most time that ranks need to connect, and the test waits for a frame.
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket between a rank and its test.
pub(crate) struct Link {
    socket: UnixStream,
}

impl Link {
    fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket }
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.socket.write_all(&(frame.len() as u32).to_le_bytes())?;
        self.socket.write_all(frame)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut size = [0; 4];
        self.socket.read_exact(&mut size)?;
        let mut frame = vec![0; u32::from_le_bytes(size) as usize];
        self.socket.read_exact(&mut frame)?;
        Ok(frame)
    }

    /// Waits until all living ranks have called this.
    pub(crate) fn meet(&mut self) {
        self.send(b"meet").unwrap();
        assert_eq!(self.receive().unwrap(), b"met");
    }
}

/// In the test: runs its ranks. In a rank: runs the body, and ends the process.
pub(crate) fn run(hosts: Hosts, ranks: usize, limit: Duration, test: &str, body: Body) -> Vec<End> {
    match std::env::var(RANK) {
        Ok(rank) => {
            be_rank(hosts, rank.parse().unwrap(), limit, body);
            std::process::exit(0)
        }
        Err(_) => start_ranks((ranks, hosts.reducers()), test),
    }
}

fn be_rank(hosts: Hosts, rank: usize, limit: Duration, body: Body) {
    let socket = rustix::stdio::stdin().try_clone_to_owned().unwrap();
    let mut link = Link::new(UnixStream::from(socket));
    let libraries = Libraries::default();
    let listener = match hosts {
        Hosts::This => HostListener::open(&libraries, None),
        Hosts::Imagined { ranks_of_each, .. } => {
            HostListener::open_as(&libraries, Some("lo"), HostId::imagined((rank / ranks_of_each) as u64))
        }
    };
    let listener = listener.unwrap_or_else(|error| panic!("{error}"));
    link.send(listener.address()).unwrap();
    let all = link.receive().unwrap()[0];
    let addresses: Vec<Vec<u8>> = (0..all).map(|_| link.receive().unwrap()).collect();
    let world = (&addresses[..], hosts.reducers());
    if rank + hosts.reducers() >= addresses.len() {
        let transport = listener.connect_reducer(rank, world, PATIENCE).unwrap();
        return be_reducer(transport, addresses.len(), limit, &mut link);
    }
    let host = listener.connect(rank, world, PATIENCE).unwrap();
    let others = Others::Processes(Link::new(link.socket.try_clone().unwrap()));
    let mut seat = Seat::new(host, limit, (others, hosts));
    link.send(seat.record().as_raw_fd().to_string().as_bytes()).unwrap();
    assert_eq!(link.receive().unwrap(), b"begin");
    body(&mut seat);
}

/// Adds for the ranks until they have left. An error shows there, too.
fn be_reducer(transport: HostReducer, all: usize, limit: Duration, link: &mut Link) {
    let record = Recorder::create_file(transport.number(), all).unwrap();
    let recorder = Recorder::open(&record).unwrap();
    let mut reducer = Reducer::new(transport, limit, Some(recorder));
    link.send(record.as_raw_fd().to_string().as_bytes()).unwrap();
    assert_eq!(link.receive().unwrap(), b"begin");
    let _ = reducer.run();
}

/// A rank or a reducer, from outside.
struct Rank {
    process: Child,
    link: Link,
}

impl Drop for Rank {
    fn drop(&mut self) {
        // No rank outlives a test that fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start_ranks((ranks, reducers): (usize, usize), test: &str) -> Vec<End> {
    let mut world: Vec<Rank> = (0..ranks + reducers).map(|rank| start_rank(rank, test)).collect();
    let addresses: Vec<Vec<u8>> = world.iter_mut().map(|rank| rank.link.receive().unwrap()).collect();
    for rank in &mut world {
        rank.link.send(&[addresses.len() as u8]).unwrap();
        addresses.iter().for_each(|address| rank.link.send(address).unwrap());
    }
    // The records are opened before any rank can die.
    let record = |rank: &mut Rank| {
        let descriptor = String::from_utf8(rank.link.receive().unwrap()).unwrap();
        File::open(format!("/proc/{}/fd/{descriptor}", rank.process.id())).unwrap()
    };
    let records: Vec<File> = world.iter_mut().map(record).collect();
    world.iter_mut().for_each(|rank| rank.link.send(b"begin").unwrap());

    host_meetings(&mut world[..ranks]);
    let ends = world.iter_mut().zip(&records).enumerate().map(|(number, (rank, record))| {
        let status = rank.process.wait().unwrap();
        let is_killed = status.signal() == Some(rustix::process::Signal::KILL.as_raw());
        assert!(status.success() || is_killed, "rank {number}: {status}");
        End::of(record, is_killed)
    });
    ends.collect()
}

/// Answers the ranks' meetings until all have ended.
fn host_meetings(world: &mut [Rank]) {
    loop {
        // Ranks whose socket is closed have ended, well or not.
        let waiting = world.iter_mut().filter_map(|rank| match rank.link.receive() {
            Ok(frame) => {
                assert_eq!(frame, b"meet");
                Some(&mut rank.link)
            }
            Err(error) => {
                let is_end =
                    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset);
                assert!(is_end, "a rank hangs: {error}");
                None
            }
        });
        let waiting: Vec<&mut Link> = waiting.collect();
        if waiting.is_empty() {
            return;
        }
        waiting.into_iter().for_each(|link| link.send(b"met").unwrap());
    }
}

fn start_rank(rank: usize, test: &str) -> Rank {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(RANK, rank.to_string())
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    Rank { process, link: Link::new(ours) }
}
