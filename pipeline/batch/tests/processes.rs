//! Both ends of a ring in two processes, one of which is killed at any moment.
//!
//! The other process is this test binary once more, running [`other_end`] only, with one end of a
//! socket pair as its standard input.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use millstream_batch::{BatchSchema, Consumer, Leased, Producer, RingError};
use support::{Numbers, check, fill, schema};

const ROLE: &str = "MILLSTREAM_TEST_RING_ROLE";
const SLOTS: u32 = 3;
/// Batches of a run that ends by itself.
const COUNT: u64 = 3000;
/// Times a process is killed, for each role.
const KILLS: u64 = 40;
/// By when a death must have been noticed, on however busy a machine.
const NOTICED: Duration = Duration::from_secs(10);

fn job() -> BatchSchema {
    schema(100)
}

/// What the other process does. Run among the other tests, without a role, it has nothing to do.
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
            let mut half_written = producer.fill().unwrap();
            fill(&mut half_written.batch(), 2);
            sleep_for_ever();
        }
        "consumer" => {
            let mut consumer = Consumer::receive(&socket, &job()).unwrap();
            assert_eq!(consume(&mut consumer).unwrap(), COUNT);
        }
        "stalled consumer" => {
            let mut consumer = Consumer::receive(&socket, &job()).unwrap();
            let _held = consumer.next().unwrap();
            sleep_for_ever();
        }
        _ => panic!("no role `{role}`"),
    }
}

fn sleep_for_ever() -> ! {
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
            fill(&mut producer.fill()?.batch(), !number);
        }
        let mut filling = producer.fill()?;
        fill(&mut filling.batch(), number);
        filling.publish();
    }
    Ok(())
}

/// Takes batches to the end, two leases at a time, and returns how many there were.
fn consume(consumer: &mut Consumer) -> Result<u64, RingError> {
    let mut before: Option<(u64, Leased)> = None;
    for number in 0.. {
        let Some(leased) = consumer.next()? else { return Ok(number) };
        check(leased.batch(), number);
        if let Some((number, leased)) = before.replace((number, leased)) {
            check(leased.batch(), number);
        }
    }
    unreachable!("a u64 of batches")
}

/// A process that does not outlive its test.
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

/// The rings this process maps, by the inode of their memory.
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

/// Every process that maps the ring of this inode or holds a descriptor of it.
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

/// The one ring that this process maps and did not map before.
///
/// Tests that ask must not run side by side; see [`one_at_a_time`].
fn new_ring(before: &HashSet<String>) -> String {
    let mut new = own_rings().difference(before).cloned().collect::<Vec<_>>();
    assert_eq!(new.len(), 1);
    new.remove(0)
}

/// Waits for something that happens soon, on however busy a machine.
fn eventually(what: &str, happens: impl Fn() -> bool) {
    let deadline = Instant::now() + NOTICED;
    while !happens() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn batches_pass_from_process_to_process() {
    let _turn = one_at_a_time();
    let (_producing, socket) = Other::start("finite producer");
    let mut consumer = Consumer::receive(&socket, &job()).unwrap();
    assert_eq!(consume(&mut consumer).unwrap(), COUNT);
    assert!(consumer.next().unwrap().is_none(), "the end stays the end once its process is gone");

    let (mut consuming, socket) = Other::start("consumer");
    let mut producer = send_ring(&socket);
    produce(&mut producer, 0..COUNT).unwrap();
    producer.finish();
    assert!(consuming.0.wait().unwrap().success(), "the other process checked what it got");
}

#[test]
fn a_producer_killed_at_any_moment_leaves_whole_batches_and_no_memory() {
    let _turn = one_at_a_time();
    let mut numbers = Numbers::new(6);
    let (mut received, mut delivered) = (0, 0);
    for _ in 0..KILLS {
        let (mut producing, socket) = Other::start("endless producer");
        let delay = Duration::from_micros(numbers.below(30_000));
        let killing = thread::spawn(move || {
            thread::sleep(delay);
            producing.kill();
            Instant::now()
        });
        let before = own_rings();
        let mut consumer = match Consumer::receive(&socket, &job()) {
            Ok(consumer) => consumer,
            Err(RingError::PeerGone) => {
                killing.join().unwrap();
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        received += 1;
        let inode = new_ring(&before);
        let mut number = 0;
        let end = loop {
            match consumer.next() {
                Ok(Some(leased)) => check(leased.batch(), number),
                Ok(None) => panic!("a killed producer has not finished"),
                Err(error) => break error,
            }
            number += 1;
        };
        let noticed = Instant::now();
        delivered += number;
        assert!(matches!(end, RingError::PeerGone), "{end}");
        let killed = killing.join().unwrap();
        assert!(noticed.saturating_duration_since(killed) < NOTICED);
        drop(consumer);
        assert_eq!(holders(&inode), [""; 0]);
    }
    assert!(received > KILLS / 4 && delivered > KILLS, "{received} rings, {delivered} batches");
}

#[test]
fn a_consumer_killed_at_any_moment_is_noticed_and_leaves_no_memory() {
    let _turn = one_at_a_time();
    let mut numbers = Numbers::new(7);
    let mut published = 0;
    for _ in 0..KILLS {
        let (mut consuming, socket) = Other::start("consumer");
        let before = own_rings();
        let mut producer = send_ring(&socket);
        let inode = new_ring(&before);
        let delay = Duration::from_micros(numbers.below(30_000));
        let killing = thread::spawn(move || {
            thread::sleep(delay);
            consuming.kill();
            Instant::now()
        });
        let mut number = 0;
        let end = loop {
            match produce(&mut producer, number..number + 1) {
                Ok(()) => number += 1,
                Err(error) => break error,
            }
        };
        let noticed = Instant::now();
        published += number;
        assert!(matches!(end, RingError::PeerGone), "{end}");
        assert!(noticed.saturating_duration_since(killing.join().unwrap()) < NOTICED);
        drop(producer);
        assert_eq!(holders(&inode), [""; 0]);
    }
    assert!(published > KILLS * u64::from(SLOTS) * 2, "{published} batches");
}

#[test]
fn a_death_ends_the_wait_of_the_other_end() {
    let _turn = one_at_a_time();
    // The consumer holds a lease, and the producer waits for it.
    let (mut stalled, socket) = Other::start("stalled consumer");
    let before = own_rings();
    let mut producer = send_ring(&socket);
    let inode = new_ring(&before);
    let waiting = thread::spawn(move || (produce(&mut producer, 0..), producer.waited()));
    eventually("both processes map the ring", || holders(&inode).len() == 2);
    thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    stalled.kill();
    let (end, waited) = waiting.join().unwrap();
    assert!(matches!(end, Err(RingError::PeerGone)));
    assert!(waited > Duration::from_millis(1), "{waited:?}");
    assert_eq!(holders(&inode), [""; 0]);

    // The producer sits on a half-written slot, and the consumer waits for it.
    let (mut stalled, socket) = Other::start("stalled producer");
    let before = own_rings();
    let mut consumer = Consumer::receive(&socket, &job()).unwrap();
    let inode = new_ring(&before);
    let waiting = thread::spawn(move || {
        check(consumer.next().unwrap().unwrap().batch(), 0);
        check(consumer.next().unwrap().unwrap().batch(), 1);
        consumer.next().map(drop)
    });
    thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    stalled.kill();
    assert!(matches!(waiting.join().unwrap(), Err(RingError::PeerGone)));
    assert_eq!(holders(&inode), [""; 0]);
}
