//! The layout of a cache file: blocks, followed by a tail with their locations.
//!
//! ```text
//! blocks    each padded with zeros to a multiple of 4096 bytes
//! tail      entries    12 bytes per block: bytes without padding u32, rows u32, CRC-32C u32
//!           fault      the error of the last skipped record, as JSON; may be empty
//!           zeros      so that the tail is a multiple of 4096 bytes
//!           trailer, the file's last 104 bytes:
//!              0   magic      8 bytes, "millchnk"
//!              8   version    u32, [`VERSION`]
//!             12   weighted   u32, 0 or 1
//!             16   dense, ids, ragged   u32 each, number of columns
//!             28   blocks     u32
//!             32   rows       u64, of all blocks
//!             40   left out   u64, skipped records
//!             48   fault bytes   u32
//!             52   CRC-32C of the tail, with this word set to 0
//!             56   key        32 bytes, [`Key`]
//!             88   truncated  u64, truncated rows that no block counts, because they were skipped
//!             96   labels     u32, number of label columns after the first
//!            100   weighted lists   u32, number of ragged columns with weights
//! ```
//!
//! A file is written from front to back with the tail last, so a truncated file has no tail. A block's checksum
//! also covers the key and the block's number: after a power failure, blocks of other files left on the disk
//! are never mistaken for blocks of this one.

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};
use millstream_disk::{ALIGNMENT, AlignedBuffer};

use super::Malformed;
use super::block::{self, Block, Encoded, Shape};
use super::key::Key;
use crate::chunk::Chunk;

/// Changes whenever the layout changes.
const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"millchnk";
const ENTRY_BYTES: usize = 12;
const CRC_AT: usize = 52;

/// Length of the trailer, which determines the length of the tail.
pub(crate) const TRAILER_BYTES: usize = 104;

/// Maximum number of columns of one kind, and of blocks: more than any file has, and sums do not overflow.
const MAX_COUNT: u32 = 1 << 24;

/// The location of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) offset: u64,
    /// Length without padding.
    pub(crate) bytes: u32,
    pub(crate) rows: u32,
    pub(crate) crc: u32,
}

/// The decoded tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) key: Key,
    pub(crate) shape: Shape,
    pub(crate) entries: Vec<Entry>,
    pub(crate) rows: u64,
    pub(crate) left_out: u64,
    pub(crate) fault: Vec<u8>,
    /// Truncated rows not counted by any block.
    pub(crate) truncated_rows: u64,
}

impl Entry {
    /// Its byte range, including padding.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + (self.bytes as usize).next_multiple_of(ALIGNMENT) as u64
    }
}

/// The checksum of block `number` of the file of `key`.
fn block_crc(key: &Key, number: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(key.bytes());
    digest.update(&number.to_le_bytes());
    digest.update(bytes);
    digest.finalize() as u32
}

/// Length of the whole tail according to its trailer.
pub(crate) fn tail_bytes(trailer: &[u8]) -> Result<u64, Malformed> {
    let trailer: &[u8; TRAILER_BYTES] = trailer.try_into().map_err(|_| Malformed("the file is too short"))?;
    if &trailer[..8] != MAGIC {
        return Err(Malformed("the file does not end with a cache trailer"));
    }
    if word(trailer, 8) != VERSION {
        return Err(Malformed("the file has another version"));
    }
    let content = u64::from(word(trailer, 28)) * ENTRY_BYTES as u64 + u64::from(word(trailer, 48));
    Ok((content + TRAILER_BYTES as u64).next_multiple_of(ALIGNMENT as u64))
}

impl Contents {
    /// The contents of a file without blocks.
    pub(crate) fn new(key: Key, shape: Shape) -> Self {
        let (entries, fault) = (Vec::new(), Vec::new());
        Self { key, shape, entries, rows: 0, left_out: 0, fault, truncated_rows: 0 }
    }

    /// Appends a block. `false` if its length exceeds 32 bits.
    pub(crate) fn add(&mut self, block: &Encoded, rows: u32) -> bool {
        let Ok(bytes) = u32::try_from(block.bytes) else { return false };
        let offset = self.entries.last().map_or(0, |last| last.range().end);
        let crc = block_crc(&self.key, self.entries.len() as u32, &block.buffer[..block.bytes]);
        self.entries.push(Entry { offset, bytes, rows, crc });
        self.rows += u64::from(rows);
        true
    }

    /// Encodes the tail.
    pub(crate) fn encode(&self) -> AlignedBuffer {
        let content = self.entries.len() * ENTRY_BYTES + self.fault.len();
        let bytes = (content + TRAILER_BYTES).next_multiple_of(ALIGNMENT);
        let mut tail = AlignedBuffer::zeroed(bytes);
        for (entry, out) in self.entries.iter().zip(tail.chunks_exact_mut(ENTRY_BYTES)) {
            put(out, 0, entry.bytes);
            put(out, 4, entry.rows);
            put(out, 8, entry.crc);
        }
        tail[content - self.fault.len()..content].copy_from_slice(&self.fault);
        let trailer = &mut tail[bytes - TRAILER_BYTES..];
        trailer[..8].copy_from_slice(MAGIC);
        let Shape { more_labels, weighted, dense, ids, ragged, weighted_ragged } = self.shape;
        let words = [VERSION, u32::from(weighted), dense, ids, ragged, self.entries.len() as u32];
        words.iter().enumerate().for_each(|(i, &value)| put(trailer, 8 + 4 * i, value));
        trailer[32..40].copy_from_slice(&self.rows.to_le_bytes());
        trailer[40..48].copy_from_slice(&self.left_out.to_le_bytes());
        put(trailer, 48, self.fault.len() as u32);
        trailer[56..88].copy_from_slice(self.key.bytes());
        trailer[88..96].copy_from_slice(&self.truncated_rows.to_le_bytes());
        put(trailer, 96, more_labels);
        put(trailer, 100, weighted_ragged);
        let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &tail) as u32;
        put(&mut tail[bytes - TRAILER_BYTES..], CRC_AT, crc);
        tail
    }

    /// Decodes the tail of a file of `file_bytes`.
    pub(crate) fn parse(tail: &[u8], file_bytes: u64) -> Result<Self, Malformed> {
        let start = tail.len().checked_sub(TRAILER_BYTES).ok_or(Malformed("the file is too short"))?;
        let trailer = &tail[start..];
        if tail_bytes(trailer)? != tail.len() as u64 {
            return Err(Malformed("the tail has another length"));
        }
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&tail[..start + CRC_AT]);
        digest.update(&[0; 4]);
        digest.update(&tail[start + CRC_AT + 4..]);
        if digest.finalize() as u32 != word(trailer, CRC_AT) {
            return Err(Malformed("the tail's checksum does not match"));
        }
        let [weighted, dense, ids, ragged, blocks, more_labels, weighted_ragged] =
            [12, 16, 20, 24, 28, 96, 100].map(|at| word(trailer, at));
        let max = [dense, ids, ragged, blocks, more_labels].into_iter().max();
        if weighted > 1 || weighted_ragged > ragged || max > Some(MAX_COUNT) {
            return Err(Malformed("the tail has invalid counts"));
        }
        let (entries, rest) = tail.split_at(blocks as usize * ENTRY_BYTES);
        let mut offset = 0;
        let entries: Vec<Entry> = entries
            .chunks_exact(ENTRY_BYTES)
            .map(|entry| {
                let entry =
                    Entry { offset, bytes: word(entry, 0), rows: word(entry, 4), crc: word(entry, 8) };
                offset = entry.range().end;
                entry
            })
            .collect();
        if offset.checked_add(tail.len() as u64) != Some(file_bytes) {
            return Err(Malformed("the blocks do not fill the file"));
        }
        let rows = u64::from_le_bytes(array(trailer, 32));
        if entries.iter().map(|entry| u64::from(entry.rows)).sum::<u64>() != rows {
            return Err(Malformed("the blocks' rows do not add up"));
        }
        Ok(Self {
            key: Key::from_bytes(array(trailer, 56)),
            shape: Shape { more_labels, weighted: weighted == 1, dense, ids, ragged, weighted_ragged },
            entries,
            rows,
            left_out: u64::from_le_bytes(array(trailer, 40)),
            fault: rest[..word(trailer, 48) as usize].to_vec(),
            truncated_rows: u64::from_le_bytes(array(trailer, 88)),
        })
    }

    /// Checks the bytes of block `number`, with or without padding; returns them without padding.
    pub(crate) fn check<'a>(&self, number: usize, bytes: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let entry = &self.entries[number];
        let bytes = bytes.get(..entry.bytes as usize).ok_or(Malformed("a block is truncated"))?;
        if block_crc(&self.key, number as u32, bytes) != entry.crc {
            return Err(Malformed("a block's checksum does not match"));
        }
        Ok(bytes)
    }

    /// Parses the checked bytes of block `number`.
    pub(crate) fn block<'a>(&self, number: usize, bytes: &'a [u8]) -> Result<Block<'a>, Malformed> {
        let block = Block::parse(bytes, &self.shape)?;
        if block.rows() != self.entries[number].rows as usize {
            return Err(Malformed("a block has a different number of rows than the tail states"));
        }
        Ok(block)
    }
}

/// Decodes a whole cache file. No I/O; for tests and fuzzing.
///
/// # Errors
/// When it is not a complete cache file.
pub fn read_all(file: &[u8]) -> Result<Vec<Chunk>, Malformed> {
    let start = file.len().checked_sub(TRAILER_BYTES).ok_or(Malformed("the file is too short"))?;
    let tail = usize::try_from(tail_bytes(&file[start..])?).unwrap_or(usize::MAX);
    let tail = file.len().checked_sub(tail).ok_or(Malformed("the file is shorter than its tail"))?;
    let contents = Contents::parse(&file[tail..], file.len() as u64)?;
    let block = |(number, entry): (usize, &Entry)| {
        let bytes = contents.check(number, &file[entry.offset as usize..entry.range().end as usize])?;
        let block = contents.block(number, bytes)?;
        Ok(block.decode(0..block.rows()))
    };
    contents.entries.iter().enumerate().map(block).collect()
}

/// Encodes a cache file from non-empty chunks with the same columns. No I/O; for tests and fuzzing.
///
/// # Panics
/// When a row has 4 GiB or more, the chunks' columns differ, or they have typed columns.
pub fn write_all(chunks: &[Chunk]) -> Vec<u8> {
    let shape = chunks.first().map_or_else(Shape::default, Shape::of);
    let mut contents = Contents::new(Key::from_bytes([0; 32]), shape);
    let mut file = Vec::new();
    for chunk in chunks {
        assert!(shape.fits(chunk), "chunks with the same columns, none of them typed");
        let mut start = 0;
        while start < chunk.rows() {
            let rows = start..start + block::rows_within(chunk, &shape, start);
            start = rows.end;
            let block = block::encode(chunk, &shape, rows.clone(), 0);
            assert!(contents.add(&block, rows.len() as u32), "a block of one row exceeds 4 GiB");
            file.extend_from_slice(&block.buffer);
        }
    }
    file.extend_from_slice(&contents.encode());
    file
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// The `N` bytes at `at`, which must exist.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
