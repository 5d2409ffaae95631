//! Rings leak no descriptors and no mappings.
//!
//! The only test of its binary, because it counts the descriptors of the process.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::net::UnixStream;

use millstream_batch::{Consumer, Producer, RingError};
use support::{check, fill, schema};

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mapped_rings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("millstream-ring")).count()
}

fn close_on_exec() -> bool {
    let rings = fs::read_dir("/proc/self/fdinfo").unwrap().flatten().filter_map(|info| {
        let fd = info.file_name().into_string().unwrap();
        let target = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        let target = target.to_string_lossy().into_owned();
        let is_ring = target.contains("millstream-ring") || target.contains("eventfd");
        is_ring.then(|| fs::read_to_string(info.path()).unwrap())
    });
    let flags = rings.map(|info| {
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim().to_owned();
        u64::from_str_radix(&flags, 8).unwrap()
    });
    let flags = flags.collect::<Vec<_>>();
    assert!(flags.len() >= 5, "the memory, two eventfds at each end, and the interrupters");
    flags.iter().all(|flags| flags & 0o2_000_000 != 0)
}

#[test]
fn rings_leak_no_descriptors_or_mappings() {
    let (job, mut other) = (schema(30), schema(30));
    other.dense.swap(0, 1);
    let send = || {
        let (here, there) = UnixStream::pair().unwrap();
        let (producer, handoff) = Producer::create(&job, 3).unwrap();
        handoff.send(&here).unwrap();
        (producer, there)
    };
    let before = (open_descriptors(), mapped_rings());
    for number in 0..200 {
        // From hand-off to end of stream.
        let (mut producer, socket) = send();
        let mut consumer = Consumer::receive(&socket, &job).unwrap();
        let mut slot = producer.claim().unwrap();
        fill(&mut slot.batch(), number);
        slot.publish();
        check(consumer.next().unwrap().unwrap().batch(), number);
        producer.finish();
        assert!(consumer.next().unwrap().is_none());

        // Rejected, lost in transit, and never sent.
        let (_producer, socket) = send();
        assert!(matches!(Consumer::receive(&socket, &other), Err(RingError::Mismatch(_))));
        drop(send());
        drop(Producer::create(&job, 3).unwrap());
    }
    assert_eq!((open_descriptors(), mapped_rings()), before);

    let (producer, handoff) = Producer::create(&job, 3).unwrap();
    assert!(close_on_exec());
    let (here, there) = UnixStream::pair().unwrap();
    handoff.send(&here).unwrap();
    let consumer = Consumer::receive(&there, &job).unwrap();
    assert_eq!(mapped_rings(), 2);
    let used = open_descriptors() - before.0 - 2;
    assert_eq!(used, 8, "each end has two eventfds, liveness and interruption; the memory needs none");
    drop((producer, consumer));
}
