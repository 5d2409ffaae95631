//! An update about a piece of a lane, from another host: decodable bytes are encoded to the same bytes again.

use millstream_batch::Stream;
use millstream_pipeline::ingest::{MAX_ENCODED_BYTES, PieceKey, PieceUpdate};
use millstream_pipeline::order::{Pass, WindowExtent};

/// Decodes the bytes.
pub fn check(data: &[u8]) {
    let (key, update) = match PieceUpdate::decode(data) {
        Ok(decoded) => decoded,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let mut again = Vec::new();
    update.encode(key, &mut again);
    assert!(again.len() <= MAX_ENCODED_BYTES);
    assert_eq!(PieceUpdate::decode(&again), Ok((key, update)));
    assert_eq!(again, data, "one encoding of each update");
}

/// An update of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let key = PieceKey { pass: Pass { stream: Stream::Train, epoch: 2 }, lane: 3, number: 4 };
    let window =
        WindowExtent { rows: 1000, split: 7, row: 500, ends_split: true, skipped: 1, first_marked: Some(9) };
    let plain = WindowExtent { first_marked: None, ends_split: false, ..window };
    let updates = [
        PieceUpdate::Window(window, Some("record 7".to_owned())),
        PieceUpdate::Window(plain, None),
        PieceUpdate::End(5, None),
        PieceUpdate::Failed("gone".to_owned()),
    ];
    let encoded = |update: &PieceUpdate| {
        let mut bytes = Vec::new();
        update.encode(key, &mut bytes);
        bytes
    };
    updates.iter().map(encoded).collect()
}
