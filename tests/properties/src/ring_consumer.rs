//! A ring's consumer against a hostile producer: nothing that the producer hands over or writes makes the
//! consumer reach beyond its memory, take a count beyond its schema's, or wait for what never comes.

use std::os::unix::net::UnixStream;

use millstream_batch::{Consumer, Lease, Producer, RingError};

use crate::hostile::{self, SLOTS};
use crate::input::Input;

/// The first byte chooses what is handed over, the rest what is done in turn.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    let schema = hostile::schema();
    let (producer, handoff) = Producer::create(&schema, SLOTS).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    handoff.send(&ours).unwrap();
    let mut fds = hostile::receive(&theirs);
    drop(producer);
    // Its producer is gone, so that the consumer need not wait for anything.
    fds[3] = hostile::hung_up();
    match input.byte() % 4 {
        0 => {}
        1 => hostile::spoil(&fds[0], &mut input),
        2 => fds[0] = hostile::other_memory(&mut input),
        _ => fds.truncate(input.below(4)),
    }
    let memory = fds.first().map(|memory| memory.try_clone().unwrap());
    hostile::send(&ours, &fds);
    drop(fds);
    let consumer = Consumer::receive(&theirs, &schema);
    match (consumer, memory) {
        (Ok(consumer), Some(memory)) => {
            assert_eq!(consumer.slots(), SLOTS as usize);
            play(consumer, &memory, &mut input);
        }
        (Ok(_), None) => panic!("a ring of no memory"),
        (Err(error), _) => assert!(matches!(error, RingError::Mismatch(_)), "{error}"),
    }
}

fn play(mut consumer: Consumer, memory: &std::os::fd::OwnedFd, input: &mut Input<'_>) {
    let mut leases: Vec<Lease> = Vec::new();
    while !input.is_empty() {
        match input.byte() % 4 {
            0 => hostile::spoil(memory, input),
            1 => match consumer.next() {
                Ok(Some(lease)) => {
                    hostile::look_at(lease.batch());
                    leases.push(lease);
                }
                Ok(None) | Err(RingError::PeerGone | RingError::Corrupt(_)) => {}
                Err(error) => panic!("{error}"),
            },
            2 => leases.iter().for_each(|lease| hostile::look_at(lease.batch())),
            _ => drop((!leases.is_empty()).then(|| leases.swap_remove(input.below(leases.len())))),
        }
        leases.truncate(16);
    }
}
