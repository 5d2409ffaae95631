//! The two ends of a ring in two processes, one of which is killed.
//!
//! The other process is this test binary again, running only [`other_end`], with one end of a socket pair as its
//! standard input.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::{env, fs, thread};

use millstream_batch::{BatchSchema, Consumer, Interrupter, Lease, Producer, RingError};
use support::{DEADLINE, Numbers, check, fill, schema, wait_until, while_blocked};

const ROLE: &str = "MILLSTREAM_TEST_RING_ROLE";
const SLOTS: u32 = 3;
/// Batches of a run that ends regularly.
const COUNT: u64 = 3000;
/// Kills of each role: after 0, 1, ... batches.
const KILLS: u64 = 40;
/// Byte that the other process sends when it has reached the state that its role names.
const REACHED: [u8; 1] = *b"!";

fn job() -> BatchSchema {
    schema(100)
}

/// The body of the other process. Without a role, as one of the tests, it does nothing.
#[test]
fn other_end() {
    let Ok(role) = env::var(ROLE) else { return };
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    match role.as_str() {
        "finite producer" => {
            let mut producer = send_ring(&socket);
            produce(&mut producer, 0..COUNT).unwrap();
            producer.finish();
        }
        "endless producer" => produce(&mut send_ring(&socket), 0..).unwrap(),
        "stalled producer" => {
            let mut producer = send_ring(&socket);
            produce(&mut producer, 0..2).unwrap();
            let mut half_written = producer.claim().unwrap();
            fill(&mut half_written.batch(), 2);
            stall(&socket);
        }
        "consumer" => {
            let mut consumer = Consumer::receive(&socket, &job()).unwrap();
            assert_eq!(consume(&mut consumer).unwrap(), COUNT);
        }
        "stalled consumer" => {
            let mut consumer = Consumer::receive(&socket, &job()).unwrap();
            let _held = consumer.next().unwrap();
            stall(&socket);
        }
        "idle" => stall(&socket),
        _ => panic!("no role `{role}`"),
    }
}

/// Reports that the state is reached, and waits to be killed.
fn stall(mut socket: &UnixStream) -> ! {
    socket.write_all(&REACHED).unwrap();
    loop {
        thread::park();
    }
}

fn send_ring(socket: &UnixStream) -> Producer {
    let (producer, handoff) = Producer::create(&job(), SLOTS).unwrap();
    handoff.send(socket).unwrap();
    producer
}

fn produce(producer: &mut Producer, batches: impl Iterator<Item = u64>) -> Result<(), RingError> {
    let mut numbers = Numbers::new(5);
    for number in batches {
        if numbers.below(10) == 0 {
            fill(&mut producer.claim()?.batch(), !number);
        }
        let mut slot = producer.claim()?;
        fill(&mut slot.batch(), number);
        slot.publish();
    }
    Ok(())
}

/// Consumes all batches, holding two leases at a time, and returns their number.
fn consume(consumer: &mut Consumer) -> Result<u64, RingError> {
    let mut previous: Option<(u64, Lease)> = None;
    for number in 0.. {
        let Some(leased) = consumer.next()? else { return Ok(number) };
        check(leased.batch(), number);
        if let Some((number, leased)) = previous.replace((number, leased)) {
            check(leased.batch(), number);
        }
    }
    unreachable!("a u64 of batches")
}

/// A child process, killed when dropped.
struct Other(Child);

impl Other {
    fn start(role: &str) -> (Self, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "other_end", "--quiet"])
            .env(ROLE, role)
            .stdin(Stdio::from(OwnedFd::from(there)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        (Self(child), here)
    }

    /// SIGKILL.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The inodes of the rings that this process maps.
fn own_rings() -> HashSet<String> {
    rings(&fs::read_to_string("/proc/self/maps").unwrap())
}

fn rings(maps: &str) -> HashSet<String> {
    let ring = |line: &str| {
        let mut fields = line.split_whitespace();
        let (inode, path) = (fields.nth(4)?, fields.next()?);
        path.starts_with("/memfd:millstream-ring").then(|| inode.to_owned())
    };
    maps.lines().filter_map(ring).collect()
}

/// Processes that map the ring with this inode or hold a descriptor of it.
fn holders(inode: &str) -> Vec<String> {
    let holds = |process: &fs::DirEntry| {
        let maps = fs::read_to_string(process.path().join("maps")).unwrap_or_default();
        let descriptors = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let mut descriptors = descriptors.filter(|fd| {
            fs::read_link(fd.path()).is_ok_and(|path| path.to_string_lossy().starts_with("/memfd:"))
        });
        let inode_of = |fd: fs::DirEntry| {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(fd.path()).map(|file| file.ino().to_string())
        };
        rings(&maps).contains(inode) || descriptors.any(|fd| inode_of(fd).is_ok_and(|found| found == inode))
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let holders = processes.filter(holds).map(|process| process.file_name().to_string_lossy().into_owned());
    holders.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).collect()
}

/// The inode of the one ring that this process has mapped since `before`.
///
/// Tests that call this must not run in parallel; see [`exclusive`].
fn new_ring(before: &HashSet<String>) -> String {
    let mut new = own_rings().difference(before).cloned().collect::<Vec<_>>();
    assert_eq!(new.len(), 1);
    new.remove(0)
}

fn exclusive() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits for the report of [`stall`].
fn wait_for_stall(mut socket: &UnixStream) {
    let mut byte = [0];
    socket.read_exact(&mut byte).unwrap();
    assert_eq!(byte, REACHED);
}

/// Interrupts an end of a ring that is still in use at the deadline, so that a missed death fails the test
/// instead of blocking it.
fn watchdog(interrupter: Interrupter) -> Sender<()> {
    let (cancel, cancelled) = mpsc::channel();
    thread::spawn(move || {
        if cancelled.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
            interrupter.interrupt();
        }
    });
    cancel
}

/// Spins for a varying number of iterations, so that kills hit different moments of the other process.
fn jitter(numbers: &mut Numbers) {
    for _ in 0..numbers.below(100_000) {
        std::hint::spin_loop();
    }
}

#[test]
fn batches_cross_processes() {
    let _exclusive = exclusive();
    let (_producing, socket) = Other::start("finite producer");
    let mut consumer = Consumer::receive(&socket, &job()).unwrap();
    assert_eq!(consume(&mut consumer).unwrap(), COUNT);
    assert!(consumer.next().unwrap().is_none(), "the end is permanent after the process exits");

    let (mut consuming, socket) = Other::start("consumer");
    let mut producer = send_ring(&socket);
    produce(&mut producer, 0..COUNT).unwrap();
    producer.finish();
    assert!(consuming.0.wait().unwrap().success(), "the other process checked its batches");
}

#[test]
fn killing_a_producer_before_the_hand_off_is_peer_gone() {
    let (mut idle, socket) = Other::start("idle");
    wait_for_stall(&socket);
    idle.kill();
    assert!(matches!(Consumer::receive(&socket, &job()), Err(RingError::PeerGone)));
}

#[test]
fn killing_a_producer_leaves_whole_batches_and_no_memory() {
    let _exclusive = exclusive();
    let mut numbers = Numbers::new(6);
    for kill_after in 0..KILLS {
        let (mut producing, socket) = Other::start("endless producer");
        let before = own_rings();
        let mut consumer = Consumer::receive(&socket, &job()).unwrap();
        let inode = new_ring(&before);
        let watchdog = watchdog(consumer.interrupter());
        for number in 0..kill_after {
            check(consumer.next().unwrap().unwrap().batch(), number);
        }
        jitter(&mut numbers);
        producing.kill();
        let mut number = kill_after;
        let end = loop {
            match consumer.next() {
                Ok(Some(lease)) => check(lease.batch(), number),
                Ok(None) => panic!("a killed producer has not finished"),
                Err(error) => break error,
            }
            number += 1;
        };
        assert!(matches!(end, RingError::PeerGone), "{end}");
        assert!(number <= kill_after + u64::from(SLOTS), "{number} batches, killed after {kill_after}");
        drop((consumer, watchdog));
        assert_eq!(holders(&inode), [""; 0]);
    }
}

#[test]
fn killing_a_consumer_is_noticed_and_leaves_no_memory() {
    let _exclusive = exclusive();
    let mut numbers = Numbers::new(7);
    for kill_after in 0..KILLS {
        let (mut consuming, socket) = Other::start("consumer");
        let before = own_rings();
        let mut producer = send_ring(&socket);
        let inode = new_ring(&before);
        let watchdog = watchdog(producer.interrupter());
        produce(&mut producer, 0..kill_after).unwrap();
        jitter(&mut numbers);
        consuming.kill();
        let mut number = kill_after;
        let end = loop {
            match produce(&mut producer, number..number + 1) {
                Ok(()) => number += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(end, RingError::PeerGone), "{end}");
        assert!(number <= kill_after + u64::from(SLOTS), "{number} batches, killed after {kill_after}");
        drop((producer, watchdog));
        assert_eq!(holders(&inode), [""; 0]);
    }
}

#[test]
fn a_death_ends_the_wait_of_the_other_end() {
    let _exclusive = exclusive();
    // The consumer holds a lease, and the producer waits for it.
    let (mut stalled, socket) = Other::start("stalled consumer");
    let before = own_rings();
    let mut producer = send_ring(&socket);
    let inode = new_ring(&before);
    produce(&mut producer, 0..1).unwrap();
    wait_for_stall(&socket);
    wait_until("both processes map the ring", || holders(&inode).len() == 2);
    let end = while_blocked(|| produce(&mut producer, 1..), || stalled.kill());
    assert!(matches!(end, Err(RingError::PeerGone)));
    assert!(!producer.waited().is_zero());
    drop(producer);
    assert_eq!(holders(&inode), [""; 0]);

    // The producer holds a half-written slot, and the consumer waits for it.
    let (mut stalled, socket) = Other::start("stalled producer");
    let before = own_rings();
    let mut consumer = Consumer::receive(&socket, &job()).unwrap();
    let inode = new_ring(&before);
    wait_for_stall(&socket);
    check(consumer.next().unwrap().unwrap().batch(), 0);
    check(consumer.next().unwrap().unwrap().batch(), 1);
    let end = while_blocked(|| consumer.next().map(drop), || stalled.kill());
    assert!(matches!(end, Err(RingError::PeerGone)));
    drop(consumer);
    assert_eq!(holders(&inode), [""; 0]);
}
