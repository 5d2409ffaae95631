//! A ring's producer with a hostile consumer: nothing that the consumer writes makes the producer write beyond a slot,
//! miscount its slots, or wait forever.

use std::os::unix::net::UnixStream;

use millstream_batch::{BatchHeader, Producer, RingError, Stream};

use crate::hostile::{self, SLOTS};
use crate::input::Input;

/// The input is a script of actions of both sides.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    let schema = hostile::schema();
    let (mut producer, handoff) = Producer::create(&schema, SLOTS).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    handoff.send(&ours).unwrap();
    let mut fds = hostile::receive(&theirs);
    let memory = fds.swap_remove(0);
    // The consumer is gone, so the producer never has to wait; the shared memory remains.
    drop(fds);
    while !input.is_empty() {
        assert!(producer.occupied_slots() <= producer.slots());
        assert_eq!(producer.slots(), SLOTS as usize);
        let choice = input.byte();
        if choice % 2 == 0 {
            hostile::corrupt(&memory, &mut input);
            continue;
        }
        match producer.claim() {
            Ok(mut filling) => {
                let mut batch = filling.batch();
                let rows = u32::from(input.byte()) % (schema.rows + 1);
                let first_row = u32::from(input.byte());
                batch.set_header(&BatchHeader {
                    stream: Stream::Train,
                    epoch: 0,
                    batch: 0,
                    rows,
                    global_rows: first_row + rows,
                    first_row,
                    most_rows: rows.max(first_row),
                    last: false,
                });
                batch.set_position(input.take(usize::from(choice) % schema.position_bytes as usize));
                let sections = batch.sections();
                sections.labels.fill(1.0);
                sections.ids.fill(2);
                sections.ragged.into_iter().for_each(|(offsets, values)| {
                    offsets.fill(0);
                    values.fill(3);
                });
                hostile::read_all(batch.as_ref());
                if choice % 3 == 0 {
                    filling.publish();
                }
            }
            Err(RingError::PeerGone | RingError::Corrupt(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    producer.finish();
}
