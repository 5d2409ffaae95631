//! Nothing stays open or mapped, however rings end. The only test of its process: it counts.

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
        let ours = target.contains("millstream-ring") || target.contains("eventfd");
        ours.then(|| fs::read_to_string(info.path()).unwrap())
    });
    let flags = rings.map(|info| {
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim().to_owned();
        u64::from_str_radix(&flags, 8).unwrap()
    });
    let flags = flags.collect::<Vec<_>>();
    assert!(flags.len() >= 5, "the memory, two bells at each end, and interrupters");
    flags.iter().all(|flags| flags & 0o2_000_000 != 0)
}

#[test]
fn nothing_stays_open_or_mapped() {
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
        // A whole life.
        let (mut producer, socket) = send();
        let mut consumer = Consumer::receive(&socket, &job).unwrap();
        let mut filling = producer.fill().unwrap();
        fill(&mut filling.batch(), number);
        filling.publish();
        check(consumer.next().unwrap().unwrap().batch(), number);
        producer.finish();
        assert!(consumer.next().unwrap().is_none());

        // Refused, lost on the way, and never sent.
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
    let leftover = open_descriptors() - before.0 - 2;
    assert_eq!(leftover, 8, "at each end two bells, liveness and interruption; the memory needs none");
    drop((producer, consumer));
}
