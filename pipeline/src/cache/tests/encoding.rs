//! The encoding of blocks and files.

use super::super::block::{self, BLOCK_BYTES, Block};
use super::super::read_all;
use super::*;
use crate::chunk::ChunkColumn;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn blocks_round_trip_any_range_of_rows(
        (chunk, shape) in chunks(1_usize..300),
        cuts in any::<[u16; 4]>(),
    ) {
        prop_assert!(shape.fits(&chunk));
        let rows = chunk.rows();
        let [start, end, first, last] = cuts.map(|cut| usize::from(cut) % (rows + 1));
        let (start, end) = (start.min(end).min(rows - 1), start.max(end).max(start.min(end).min(rows - 1) + 1));
        let encoded = block::encode(&chunk, &shape, start..end, 7);
        let block = Block::parse(&encoded.buffer[..encoded.bytes], &shape).unwrap();
        prop_assert_eq!((block.rows(), block.truncated_rows()), (end - start, 7));
        let (first, last) = (first.min(last).min(end - start), first.max(last).min(end - start));
        let (mut decoded, mut expected) = (Read::default(), Read::default());
        decoded.add(&block.decode(first..last), 0);
        expected.add(&cut(&chunk, start + first..start + last), 0);
        prop_assert_eq!(decoded, expected);
        prop_assert!(encoded.bytes <= block::decoded_bytes(&chunk, &shape) + 64);
    }

    #[test]
    fn damaged_blocks_never_panic(
        (chunk, shape) in chunks(1_usize..40),
        damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4),
        cut_off in any::<u16>(),
    ) {
        let encoded = block::encode(&chunk, &shape, 0..chunk.rows(), 0);
        let mut bytes = encoded.buffer[..encoded.bytes].to_vec();
        for (at, value) in damage {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        if cut_off % 2 == 0 {
            bytes.truncate(usize::from(cut_off) % bytes.len());
        }
        if let Ok(block) = Block::parse(&bytes, &shape) {
            let rows = block.decode(0..block.rows());
            prop_assert!(shape.fits(&rows));
        }
    }

    #[test]
    fn arbitrary_bytes_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
        prop_assert!(read_all(&bytes).is_err());
    }
}

#[test]
fn chunks_with_typed_columns_fit_no_file() {
    let chunk = Chunk { labels: vec![vec![0.0]], ..Chunk::default() };
    let typed = ChunkColumn::Narrow { at: 0, row_bytes: 1 };
    let shape = Shape::of(&chunk);
    assert!(shape.fits(&chunk));
    assert!(!shape.fits(&Chunk { narrow: vec![7], columns: vec![typed], ..chunk }));
}

#[test]
fn rows_larger_than_a_block_are_cached() {
    for value in [5, u32::MAX] {
        let count = BLOCK_BYTES as u32;
        let mut values: Vec<u32> = vec![value; count as usize];
        values.extend([1, 2, 3]);
        let weights = (value == 5).then(|| vec![0.5; values.len()]);
        let column = RaggedColumn { offsets: vec![0, 0, count, count + 3], values, weights };
        let chunk = Chunk { labels: vec![vec![0.0, 1.0, 0.0]], ragged: vec![column], ..Chunk::default() };
        let shape = shape_of(&chunk, 0, 0);
        let rows = Rows { splits: vec![chunk], skips: true, ..Rows::default() };
        let directory = tempfile::tempdir().unwrap();
        for hits in [0, 1] {
            let source =
                cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
            assert_eq!(pass(&source, &rows), hits);
        }
    }
}
