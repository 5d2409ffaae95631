//! A job's position in its data: decodable bytes are encoded to the same bytes again.

use crc_fast::CrcAlgorithm;
use millstream_pipeline::order::Position;

/// Decodes the bytes unchanged, and again with a valid checksum.
pub fn check(data: &[u8]) {
    decode(data);
    if let Some((body, _)) = data.split_last_chunk::<4>() {
        let checksum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, body) as u32;
        decode(&[body, &checksum.to_le_bytes()].concat());
    }
}

fn decode(bytes: &[u8]) {
    let position = match Position::decode(bytes) {
        Ok(position) => position,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_eq!(Position::encoded_bytes(position.lanes.len() as u32), bytes.len() as u64);
    let mut again = Vec::new();
    position.encode(&mut again);
    assert_eq!(Position::decode(&again).as_ref(), Ok(&position));
}

/// Positions at the start, in the middle of a pass, and at the end.
pub fn seeds() -> Vec<Vec<u8>> {
    use millstream_batch::Stream;
    use millstream_pipeline::order::{Cursor, LanePosition, Pass};

    let mut middle = Position::start_of(Some(Pass { stream: Stream::Eval, epoch: 3 }), 3, 99);
    middle.batch = 1000;
    middle.turn = 2;
    middle.lanes[1] = LanePosition::At(Cursor { split: 4, row: 5, window: 6, drawn: 7 });
    middle.lanes[2] = LanePosition::Ended;
    let start = Position::start_of(Some(Pass { stream: Stream::Train, epoch: 0 }), 1, 7);
    let encoded = |position: &Position| {
        let mut bytes = Vec::new();
        position.encode(&mut bytes);
        bytes
    };
    vec![encoded(&start), encoded(&middle), encoded(&Position::start_of(None, 2, 1))]
}
