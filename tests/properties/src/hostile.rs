//! A hostile ring peer: it takes part in the hand-off, holds the ring's descriptors, and writes arbitrary data at
//! arbitrary places.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use millstream_batch::{BatchHeader, BatchRef, BatchSchema, IdFeature, RaggedFeature};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::input::Input;

/// The number of bytes before the slots of a ring with few slots.
const HEAD_BYTES: usize = 4096;
pub(crate) const SLOTS: u32 = 3;

/// A schema with a section of every kind.
pub(crate) fn schema() -> BatchSchema {
    BatchSchema {
        rows: 5,
        labels: Vec::new(),
        weighted: true,
        dense: vec!["age".into(), "hours".into()],
        ids: vec![IdFeature { name: "job".into(), cardinality: 17 }],
        ragged: vec![RaggedFeature { name: "tags".into(), cardinality: 50, maximum: 3, weighted: true }],
        columns: Vec::new(),
        position_bytes: 100,
    }
}

/// Receives a ring's descriptors: memory, two eventfds, and the liveness socket.
pub(crate) fn receive(socket: &UnixStream) -> Vec<OwnedFd> {
    let mut greeting = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(&mut greeting)];
    rustix::net::recvmsg(socket, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    rights.flatten().collect()
}

pub(crate) fn send(socket: &UnixStream, fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"millring")], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Memory that is a valid ring only by chance: of arbitrary size and with arbitrary seals.
pub(crate) fn other_memory(input: &mut Input<'_>) -> OwnedFd {
    let memory =
        rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let bytes = input.below(4) * HEAD_BYTES + input.below(3) * 256;
    rustix::fs::ftruncate(&memory, bytes as u64).unwrap();
    let seals = SealFlags::from_bits_truncate(u32::from(input.byte()) & 0x7);
    // Never adds the seal against further sealing, with which the other seals could not be set.
    let _ = rustix::fs::fcntl_add_seals(&memory, seals);
    let head = input.take(256);
    let _ = rustix::io::pwrite(&memory, &head[..head.len().min(bytes)], 0);
    memory
}

/// Overwrites part of the memory: mostly one of the ring's own words, or a few bytes anywhere.
pub(crate) fn corrupt(memory: &OwnedFd, input: &mut Input<'_>) {
    let size = rustix::fs::fstat(memory).unwrap().st_size as usize;
    let choice = input.byte();
    let (at, bytes): (usize, Vec<u8>) = match choice % 4 {
        // The header: magic number, version, slots, sizes, fingerprint.
        0 => (4 * input.below(10), input.word().to_le_bytes().to_vec()),
        // The end mark and the slot states, one cache line each.
        1 => {
            (64 * (1 + input.below(1 + SLOTS as usize)), (u32::from(input.byte()) % 6).to_le_bytes().to_vec())
        }
        // A slot's header with its counts.
        2 => (HEAD_BYTES + 4 * input.below(10), input.word().to_le_bytes().to_vec()),
        _ => {
            let at = input.below(size.max(1));
            (at, input.take(16).to_vec())
        }
    };
    let room = size.saturating_sub(at).min(bytes.len());
    rustix::io::pwrite(memory, &bytes[..room], at as u64).unwrap();
}

/// Reads every value of a batch, and asserts the limits of the schema.
pub(crate) fn read_all(batch: BatchRef<'_>) {
    let schema = batch.layout().schema().clone();
    let most = schema.rows as usize;
    let BatchHeader { rows, first_row, global_rows, most_rows, .. } = batch.header();
    assert!(batch.rows() <= most && rows <= schema.rows);
    assert!(first_row.checked_add(rows).is_some_and(|end| end <= global_rows));
    assert!((rows..=global_rows).contains(&most_rows));
    assert!(batch.position().len() <= schema.position_bytes as usize);
    let mut sum = batch.position().iter().map(|&byte| f64::from(byte)).sum::<f64>();
    for values in [batch.labels(0), batch.weights().unwrap(), batch.dense()] {
        assert!(values.len() <= most * schema.dense.len());
        sum += values.iter().map(|&value| f64::from(value)).sum::<f64>();
    }
    for feature in 0..schema.ids.len() {
        assert!(batch.ids(feature).len() <= most);
        sum += batch.ids(feature).iter().map(|&id| f64::from(id)).sum::<f64>();
    }
    for (feature, described) in schema.ragged.iter().enumerate() {
        let (offsets, values) = batch.ragged(feature);
        assert!(offsets.len() <= most + 1 && values.len() <= most * described.maximum as usize);
        sum += offsets.iter().chain(values).map(|&value| f64::from(value)).sum::<f64>();
        let weights = batch.ragged_weights(feature).map_or(&[][..], |weights| &weights[..values.len()]);
        sum += weights.iter().map(|&weight| f64::from(weight)).sum::<f64>();
    }
    std::hint::black_box(sum);
}

/// A socket whose peer has closed the connection.
pub(crate) fn hung_up() -> OwnedFd {
    let (end, other) = UnixStream::pair().unwrap();
    drop(other);
    let mut nothing = [0];
    assert_eq!((&end).read(&mut nothing).unwrap(), 0);
    end.into()
}

/// Scripts of actions: of a well-behaved peer, and of hostile ones.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0],
        // Slot 0 is ready, taken, and taken again; then the end mark.
        vec![0, 0, 1, 1, 0, 2, 1, 2, 0, 1, 1, 0, 2, 1, 0, 1, 0, 0, 1, 1],
        // A slot's row count exceeds the schema, then the slot is ready.
        vec![0, 0, 2, 4, 0, 0xff, 0xff, 0xff, 0xff, 0, 1, 1, 0, 2, 1, 2],
        // The header's slot count changes before the ring is opened.
        vec![1, 0, 3, 0, 0xff, 0xff, 0xff, 0x7f, 0, 1],
        vec![2, 2, 0, 1, 0, 7, b'm', b'i', b'l', b'l', b'r', b'i', b'n', b'g', 2, 0, 0, 0, 3, 0, 0, 0],
    ]
}

/// Values that occur in the ring's header.
pub(crate) fn dictionary() -> Vec<Vec<u8>> {
    vec![b"millring".to_vec(), vec![2, 0, 0, 0], vec![3, 0, 0, 0], vec![0xff; 4], vec![0, 0, 0, 0x80]]
}
