//! Validation of a hand-off, and detection of corrupt shared words.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod support;

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use millstream_batch::ring::{Corrupt, MAX_SLOTS};
use millstream_batch::{BatchSchema, Consumer, LayoutError, Producer, RingError, SlotLayout};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use support::{check, fill, schema};

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// Offsets of the words, as documented in `ring/memory.rs`.
const END_MARK: u64 = 64;
const FIRST_STATE: u64 = 128;

fn job() -> BatchSchema {
    schema(20)
}

/// Sends descriptors with a greeting, like a hand-off.
fn send(socket: &UnixStream, greeting: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(greeting)], &mut control, SendFlags::empty()).unwrap();
}

/// A ring's producer, and the descriptors of its hand-off.
fn intercepted(slots: u32) -> (Producer, Vec<OwnedFd>) {
    let (producer, handoff) = Producer::create(&job(), slots).unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    handoff.send(&here).unwrap();
    let (mut greeting, mut space) = ([0; 64], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(&mut greeting)];
    let received = rustix::net::recvmsg(&there, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    assert_eq!(&greeting[..received.bytes], b"millring");
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    assert_eq!(fds.len(), 4);
    (producer, fds)
}

/// Opens a ring from its descriptors, with the first replaced by `memory`.
fn receive(memory: impl AsFd, fds: &[OwnedFd]) -> Result<Consumer, RingError> {
    let (here, there) = UnixStream::pair().unwrap();
    let mut fds = fds.iter().map(AsFd::as_fd).collect::<Vec<_>>();
    fds[0] = memory.as_fd();
    send(&here, b"millring", &fds);
    Consumer::receive(&there, &job())
}

fn mismatch(received: Result<Consumer, RingError>) -> String {
    match received {
        Err(RingError::Mismatch(what)) => what,
        Err(error) => panic!("unexpected error: {error}"),
        Ok(_) => panic!("the ring was accepted"),
    }
}

/// An anonymous file with these contents and seals.
fn anonymous(bytes: &[u8], seals: SealFlags) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("forged", flags).unwrap());
    file.write_all(bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn contents(memory: &OwnedFd) -> Vec<u8> {
    let file = File::from(memory.try_clone().unwrap());
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn memory_matches_the_documented_layout() {
    let (mut producer, fds) = intercepted(4);
    let mut slot = producer.claim().unwrap();
    fill(&mut slot.batch(), 5);
    slot.publish();
    let mut slot = producer.claim().unwrap();
    fill(&mut slot.batch(), 6);
    slot.publish();
    let _half_written = producer.claim().unwrap();
    let layout = SlotLayout::of(&job()).unwrap();
    let bytes = contents(&fds[0]);
    let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(&bytes[..8], b"millring");
    assert_eq!((u32_at(8), u32_at(12)), (4, 4));
    assert_eq!((u64_at(16), u64_at(24)), (layout.slot_bytes() as u64, layout.fingerprint()));
    let words = [64, 128, 192, 256, 320].map(u32_at);
    assert_eq!(words, [0, 2, 2 + 4, 1, 0], "open; batch 0, batch 1, filling, free");
    assert_eq!(bytes.len(), 4096 + 4 * layout.slot_bytes());
    let batch = u64_at(4096 + 8);
    assert_eq!(batch, 5, "the header of slot 0");
}

#[test]
fn memory_is_sealed_and_unlinked() {
    let (_producer, fds) = intercepted(2);
    let size = contents(&fds[0]).len() as u64;
    for resized in [0, size - 1, size + 1] {
        assert_eq!(rustix::fs::ftruncate(&fds[0], resized), Err(rustix::io::Errno::PERM));
    }
    assert!(rustix::fs::fcntl_get_seals(&fds[0]).unwrap().contains(SEALS));
    assert_eq!(rustix::fs::fstat(&fds[0]).unwrap().st_nlink, 0);
}

#[test]
fn unmodified_rings_are_accepted() {
    let (mut producer, fds) = intercepted(2);
    let mut consumer = receive(&fds[0], &fds).unwrap();
    let mut slot = producer.claim().unwrap();
    fill(&mut slot.batch(), 0);
    slot.publish();
    check(consumer.next().unwrap().unwrap().batch(), 0);
    // A copy with the same bytes and seals is accepted too, so the rejections below have no other reason.
    drop(receive(anonymous(&contents(&fds[0]), SEALS), &fds).unwrap());
}

#[test]
fn unsealed_memory_and_other_files_are_rejected() {
    let (_producer, fds) = intercepted(2);
    let bytes = contents(&fds[0]);
    for seals in
        [SealFlags::empty(), SEALS - SealFlags::SHRINK, SEALS - SealFlags::GROW, SEALS - SealFlags::SEAL]
    {
        let what = mismatch(receive(anonymous(&bytes, seals), &fds));
        assert_eq!(what, "the memory is not sealed against resizing");
    }
    let what = mismatch(receive(File::open("/proc/self/exe").unwrap(), &fds));
    assert_eq!(what, "the memory is not an anonymous file");
    assert_eq!(mismatch(receive(&fds[1], &fds)), "the memory is not an anonymous file");
}

#[test]
fn every_header_field_is_checked() {
    let (_producer, fds) = intercepted(2);
    let bytes = contents(&fds[0]);
    let checked =
        [(0, "magic number"), (8, "version"), (12, "slots of"), (16, "slots have"), (24, "fingerprint")];
    for (offset, expected) in checked {
        for change in [1, 0x80] {
            let mut forged = bytes.clone();
            forged[offset] ^= change;
            let what = mismatch(receive(anonymous(&forged, SEALS), &fds));
            assert!(what.contains(expected), "{what}");
        }
    }
    for slots in [0, MAX_SLOTS + 1, u32::MAX] {
        let mut forged = bytes.clone();
        forged[12..16].copy_from_slice(&slots.to_ne_bytes());
        let what = mismatch(receive(anonymous(&forged, SEALS), &fds));
        assert!(what.starts_with(&format!("{slots} slots")), "{what}");
    }
    for length in [0, 1, 64, 4095, 4096, bytes.len() - 1] {
        mismatch(receive(anonymous(&bytes[..length], SEALS), &fds));
    }
    let longer = [&bytes[..], &[0]].concat();
    mismatch(receive(anonymous(&longer, SEALS), &fds));
}

#[test]
fn rings_of_another_schema_are_rejected() {
    let mut renamed = job();
    renamed.dense.swap(0, 1);
    let mut wider = job();
    wider.rows += 100;
    for (schema, expected) in [(renamed, "fingerprint"), (wider, "slots have")] {
        let (_producer, handoff) = Producer::create(&job(), 2).unwrap();
        let what = mismatch(handoff.open(&schema));
        assert!(what.contains(expected), "{what}");
    }
}

#[test]
fn messages_that_are_not_a_hand_off_are_rejected() {
    let (_producer, fds) = intercepted(2);
    let all = fds.iter().map(AsFd::as_fd).collect::<Vec<_>>();
    let received = |greeting: &[u8], fds: &[BorrowedFd<'_>]| {
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, greeting, fds);
        drop(here);
        mismatch(Consumer::receive(&there, &job()))
    };
    assert_eq!(received(b"millstone", &all), "the message is not a ring hand-off");
    assert_eq!(received(b"millri", &all), "the message is not a ring hand-off");
    let six = [&all[..], &all[..2]].concat();
    for wrong in [&all[..1], &all[..3], &six] {
        let what = received(b"millring", wrong);
        assert!(what.contains("descriptors instead of 4"), "{what}");
    }
    let (mut here, there) = UnixStream::pair().unwrap();
    here.write_all(b"millring").unwrap();
    assert_eq!(mismatch(Consumer::receive(&there, &job())), "the message has 0 descriptors instead of 4");

    drop(here);
    assert!(matches!(Consumer::receive(&there, &job()), Err(RingError::PeerGone)));
    let (_producer, handoff) = Producer::create(&job(), 2).unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    drop(there);
    assert!(matches!(handoff.send(&here), Err(RingError::PeerGone)));
}

#[test]
fn ring_size_is_bounded() {
    for slots in [0, MAX_SLOTS + 1] {
        assert!(matches!(Producer::create(&job(), slots), Err(RingError::Slots(found)) if found == slots));
    }
    let nothing = BatchSchema { rows: 0, ..job() };
    let none = Producer::create(&nothing, 1);
    assert!(matches!(none, Err(RingError::Layout(LayoutError::NoRows))));
    // More memory than any machine has is an error, by the system if necessary, rather than a later OOM kill.
    let dense = vec![String::new(); 1 << 20];
    let huge = BatchSchema { rows: u32::MAX, dense, ..BatchSchema { ragged: Vec::new(), ..job() } };
    assert!(matches!(Producer::create(&huge, MAX_SLOTS), Err(RingError::Layout(_) | RingError::Os(_))));
}

#[test]
fn corrupt_words_are_detected() {
    let overwrite = |memory: &OwnedFd, at: u64, value: u32| {
        let file = File::from(memory.try_clone().unwrap());
        file.write_all_at(&value.to_ne_bytes(), at).unwrap();
    };
    let corrupt = |error: RingError| match error {
        RingError::Corrupt(corrupt) => corrupt,
        error => panic!("unexpected error: {error}"),
    };

    // A free slot, before it is claimed and before it is leased.
    for found in [4, 77, u32::MAX] {
        let (mut producer, fds) = intercepted(2);
        let mut consumer = receive(&fds[0], &fds).unwrap();
        overwrite(&fds[0], FIRST_STATE, found);
        let error = corrupt(producer.claim().err().unwrap());
        assert!(matches!(error, Corrupt::Slot { slot: 0, found: f, .. } if f == found), "{error}");
        assert!(consumer.wait(Duration::ZERO).unwrap(), "the error is not waited for");
        let error = corrupt(consumer.next().err().unwrap());
        assert!(matches!(error, Corrupt::Slot { slot: 0, found: f, .. } if f == found), "{error}");
    }

    // A ready slot whose batch is none of the next two.
    for batch in [2, 500, u32::MAX >> 2] {
        let (_producer, fds) = intercepted(2);
        let mut consumer = receive(&fds[0], &fds).unwrap();
        overwrite(&fds[0], FIRST_STATE, batch << 2 | 2);
        assert!(consumer.wait(Duration::ZERO).unwrap(), "the error is not waited for");
        let error = corrupt(consumer.next().err().unwrap());
        assert_eq!(error, Corrupt::Batch { slot: 0, found: batch, next: 0 });
    }

    // A slot that is being filled.
    for publishes in [true, false] {
        let (mut producer, fds) = intercepted(2);
        let slot = producer.claim().unwrap();
        overwrite(&fds[0], FIRST_STATE, 0);
        if publishes {
            slot.publish();
        } else {
            drop(slot);
        }
        let error = corrupt(producer.claim().err().unwrap());
        assert_eq!(error, Corrupt::Slot { slot: 0, found: 0, expected: "filling" });
    }

    // A slot that is leased.
    let (mut producer, fds) = intercepted(2);
    let mut consumer = receive(&fds[0], &fds).unwrap();
    let mut slot = producer.claim().unwrap();
    fill(&mut slot.batch(), 0);
    slot.publish();
    let leased = consumer.next().unwrap().unwrap();
    overwrite(&fds[0], FIRST_STATE, 2);
    drop(leased);
    assert!(consumer.wait(Duration::ZERO).unwrap(), "the error is not waited for");
    let error = corrupt(consumer.next().err().unwrap());
    assert_eq!(error, Corrupt::Slot { slot: 0, found: 2, expected: "leased" });

    // The end mark.
    let (_producer, fds) = intercepted(2);
    let mut consumer = receive(&fds[0], &fds).unwrap();
    overwrite(&fds[0], END_MARK, 9);
    assert!(consumer.wait(Duration::ZERO).unwrap(), "the error is not waited for");
    assert_eq!(corrupt(consumer.next().err().unwrap()), Corrupt::End { found: 9 });
}
