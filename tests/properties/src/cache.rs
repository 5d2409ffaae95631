//! Cache files: arbitrary bytes are an error or valid rows, and rows that are written again read the same.

use crc_fast::{CrcAlgorithm, Digest};
use millstream_pipeline::cache::{read_all, write_all};
use millstream_pipeline::chunk::{Chunk, RaggedColumn};

use crate::input::Input;

/// Blocks and the tail are padded to a multiple of this.
const SECTOR: usize = 4096;
/// The length of the trailer, the end of the tail, as documented in the cache's file format.
const TRAILER_BYTES: usize = 104;

/// If the first byte is odd, the rest is a file. If it is even, the rest is a file's contents, which are wrapped in a
/// file with correct lengths and checksums.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    let file = if input.byte() % 2 == 1 { input.0.to_vec() } else { wrap(input) };
    let Ok(chunks) = read_all(&file) else { return };
    for chunk in &chunks {
        let rows = chunk.rows();
        assert!(rows > 0, "empty block");
        for column in &chunk.ragged {
            assert_eq!(column.offsets.len(), rows + 1);
            assert!(column.offsets.is_sorted(), "offsets must not decrease");
            assert_eq!(column.offsets[rows] as usize, column.values.len());
            assert!(column.weights.as_ref().is_none_or(|weights| weights.len() == column.values.len()));
        }
    }
    let again = read_all(&write_all(&chunks)).expect("a written file is readable");
    assert_eq!(bits(&again), bits(&chunks));
}

/// Builds a file from `input`: the numbers of columns, then for each block its rows, the length of its bytes and the
/// bytes.
fn wrap(mut input: Input<'_>) -> Vec<u8> {
    let weighted = input.byte() & 1;
    let [dense, ids, ragged, more_labels, weighted_ragged] = [(); 5].map(|()| input.byte());
    let (mut file, mut entries, mut rows, mut blocks) = (Vec::new(), Vec::new(), 0_u64, 0_u32);
    while !input.is_empty() {
        let block_rows = input.word();
        let length = input.below(1 << 16);
        let block = input.take(length);
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&[0; 32]);
        digest.update(&blocks.to_le_bytes());
        digest.update(block);
        for word in [block.len() as u32, block_rows, digest.finalize() as u32] {
            entries.extend(word.to_le_bytes());
        }
        file.extend_from_slice(block);
        file.resize(file.len().next_multiple_of(SECTOR), 0);
        rows += u64::from(block_rows);
        blocks += 1;
    }
    let mut trailer = b"millchnk".to_vec();
    for word in [2, weighted.into(), dense.into(), ids.into(), ragged.into(), blocks] {
        trailer.extend(u32::to_le_bytes(word));
    }
    trailer.extend(rows.to_le_bytes());
    trailer.resize(96, 0);
    for word in [more_labels, weighted_ragged] {
        trailer.extend(u32::from(word).to_le_bytes());
    }
    let mut tail = entries;
    tail.resize((tail.len() + TRAILER_BYTES).next_multiple_of(SECTOR) - TRAILER_BYTES, 0);
    tail.extend(trailer);
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &tail) as u32;
    let at = tail.len() - TRAILER_BYTES + 52;
    tail[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    file.extend(tail);
    file
}

/// The rows in a comparable form, independent of their division into chunks: floats by their bits.
fn bits(chunks: &[Chunk]) -> Vec<Vec<u32>> {
    let row = |chunk: &Chunk, row: usize| {
        let float = |value: &f32| value.to_bits();
        let part = |length: usize| {
            let width = length / chunk.rows();
            width * row..width * (row + 1)
        };
        let scalars = chunk.labels.iter().chain(&chunk.weights);
        let mut words: Vec<u32> = scalars.map(|scalars| scalars[row].to_bits()).collect();
        words.extend(chunk.dense[part(chunk.dense.len())].iter().map(float));
        words.extend(&chunk.ids[part(chunk.ids.len())]);
        for RaggedColumn { offsets, values, weights } in &chunk.ragged {
            let of_row = offsets[row] as usize..offsets[row + 1] as usize;
            words.push(offsets[row + 1] - offsets[row]);
            words.extend(&values[of_row.clone()]);
            words.extend(weights.iter().flat_map(|weights| &weights[of_row.clone()]).map(float));
        }
        words
    };
    chunks.iter().flat_map(|chunk| (0..chunk.rows()).map(move |at| row(chunk, at))).collect()
}

/// Files, and the contents of files, with columns of every kind and width.
pub fn seeds() -> Vec<Vec<u8>> {
    let numbers = |rows: u32, largest: u32| (0..rows).map(move |row| row.wrapping_mul(0x9e37_79b1) % largest);
    let chunk = |rows: u32, weighted: bool, ragged: bool| {
        let offsets: Vec<u32> = (0..=rows).map(|row| row * row.min(3) / 2).collect();
        Chunk {
            labels: std::iter::once((0..rows).map(|row| (row % 2) as f32).collect())
                .chain(weighted.then(|| (0..rows).map(|row| row as f32 / 7.0).collect()))
                .collect(),
            weights: weighted.then(|| vec![0.5; rows as usize]),
            dense: (0..2 * rows).map(|value| value as f32 / 3.0 - 1.0).collect(),
            ids: [1, 200, 60_000, 1 << 20, u32::MAX].iter().flat_map(|&most| numbers(rows, most)).collect(),
            ragged: if ragged {
                let count = offsets.last().copied().unwrap_or(0);
                let values: Vec<u32> = numbers(count, 50).collect();
                let weights = Some(values.iter().map(|&value| value as f32 / 4.0 - 1.0).collect());
                vec![
                    RaggedColumn { values: values.clone(), offsets: offsets.clone(), weights: None },
                    RaggedColumn { values, offsets, weights },
                ]
            } else {
                Vec::new()
            },
            ..Chunk::default()
        }
    };
    let [plain, full] = [chunk(20, false, false), chunk(9, true, true)];
    let mut seeds = Vec::new();
    for chunks in [&[plain][..], &[full.clone(), full][..]] {
        let file = write_all(chunks);
        seeds.push(contents(&file));
        seeds.push([&[1][..], &file].concat());
    }
    seeds
}

/// The input from which [`wrap`] builds `file`.
fn contents(file: &[u8]) -> Vec<u8> {
    let word = |at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&file[at..at + 4]);
        u32::from_le_bytes(word)
    };
    let trailer = file.len() - TRAILER_BYTES;
    let blocks = word(trailer + 28) as usize;
    let tail = file.len() - (12 * blocks + TRAILER_BYTES).next_multiple_of(SECTOR);
    let mut contents = vec![0];
    contents.extend([12, 16, 20, 24, 96, 100].map(|at| word(trailer + at) as u8));
    let mut start = 0;
    for entry in (tail..).step_by(12).take(blocks) {
        let (bytes, rows) = (word(entry) as usize, word(entry + 4));
        contents.extend(rows.to_le_bytes());
        contents.extend((bytes as u16).to_le_bytes());
        contents.extend(&file[start..start + bytes]);
        start += bytes.next_multiple_of(SECTOR);
    }
    contents
}
