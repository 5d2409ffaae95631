//! A ring's consumer with a hostile producer: nothing that the producer sends or writes makes the consumer access memory
//! out of bounds, accept counts beyond its schema, or wait forever.

use std::os::unix::net::UnixStream;

use millstream_batch::{Consumer, Lease, Producer, RingError};

use crate::hostile::{self, SLOTS};
use crate::input::Input;

/// The first byte selects what is handed over; the rest is a script of actions.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    let schema = hostile::schema();
    let (producer, handoff) = Producer::create(&schema, SLOTS).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    handoff.send(&ours).unwrap();
    let mut fds = hostile::receive(&theirs);
    drop(producer);
    // The producer is gone, so the consumer never has to wait.
    fds[3] = hostile::hung_up();
    match input.byte() % 4 {
        0 => {}
        1 => hostile::corrupt(&fds[0], &mut input),
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
        (Ok(_), None) => panic!("a ring without memory"),
        (Err(error), _) => assert!(matches!(error, RingError::Mismatch(_)), "{error}"),
    }
}

fn play(mut consumer: Consumer, memory: &std::os::fd::OwnedFd, input: &mut Input<'_>) {
    let mut leases: Vec<Lease> = Vec::new();
    while !input.is_empty() {
        match input.byte() % 4 {
            0 => hostile::corrupt(memory, input),
            1 => match consumer.next() {
                Ok(Some(lease)) => {
                    hostile::read_all(lease.batch());
                    leases.push(lease);
                }
                Ok(None) | Err(RingError::PeerGone | RingError::Corrupt(_)) => {}
                Err(error) => panic!("{error}"),
            },
            2 => leases.iter().for_each(|lease| hostile::read_all(lease.batch())),
            _ => drop((!leases.is_empty()).then(|| leases.swap_remove(input.below(leases.len())))),
        }
        leases.truncate(16);
    }
}
