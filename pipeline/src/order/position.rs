//! The read position of a job after a batch.
//!
//! Every slot and every checkpoint contains a position. Encoded, little-endian:
//!
//! ```text
//!   0  u8   version, 1
//!   1  u8   stream of the pass: 0 train, 1 eval, 2 end of the feed
//!   2  u8   1 if a marked row was delivered (one with a positive label), else 0
//!   3  u8   0
//!   4  u32  epoch
//!   8  u64  batches delivered of this pass
//!  16  u64  fingerprint of the order (OrderSpec::fingerprint)
//!  24  u64  records skipped in earlier passes
//!  32  u64  records skipped in this pass
//!  40  u32  the next lane
//!  44  u32  lanes, V
//!  48  for each of the V lanes:
//!        u64  row within the split at which the current window starts
//!        u64  number of that window
//!        u32  index of the split in the lane's sequence, 2^32 - 1 if the lane has ended
//!        u32  rows drawn from that window
//!  ..  u32  CRC-32C of all preceding bytes
//! ```
//!
//! Its size depends only on V. A lane's window is identified by its start, so resuming reads the current windows
//! again, and before them only the records that precede them in their split; for Parquet those are not decoded,
//! for TFRecord they are at most part of `split_bytes`.
//!
//! Invariants: a position covers all lanes, including those of other hosts, and has the same bytes on every host. It
//! depends on the number of rows drawn, not on how they were read. A job with another seed, lane count, shuffle pool,
//! group feature, packing, feed or division into splits rejects it; the batch size, the number of hosts, `drop_last`
//! and `deterministic` may change between saving and resuming.

use millstream_batch::Stream;

use super::pass::{Feed, Pass};

/// The read position of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The current pass; `None` at the end of the feed.
    pub pass: Option<Pass>,
    /// Number of batches delivered in this pass.
    pub batch: u64,
    /// Fingerprint of the order that this is a position of.
    pub fingerprint: u64,
    /// Whether a marked row was delivered ([`WindowExtent::first_marked`](super::WindowExtent)).
    pub marked_seen: bool,
    /// Records skipped in earlier passes.
    pub skipped_before: u64,
    /// Records skipped in this pass, in splits entirely before the lanes' current windows.
    pub skipped: u64,
    /// The next lane.
    pub turn: u32,
    /// The position of each lane.
    pub lanes: Vec<LanePosition>,
}

/// The position of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanePosition {
    /// Rows remain from this cursor on.
    At(Cursor),
    /// All rows are drawn.
    Ended,
}

/// A window of a lane, and the number of rows drawn from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Index of the split in the lane's sequence.
    pub split: u32,
    /// Row within that split at which the window starts.
    pub row: u64,
    /// Number of the window. An ordered pass has no windows; `row` is then the next row.
    pub window: u64,
    /// Rows drawn from the window.
    pub drawn: u32,
}

/// Why a position is invalid, or not valid for this job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PositionError {
    /// The length does not match the number of lanes.
    #[error("position: {found} bytes; {lanes} lanes require {expected}")]
    Length {
        /// The stated number of lanes.
        lanes: u32,
        /// Expected length.
        expected: u64,
        /// Actual length.
        found: u64,
    },
    /// An unsupported version.
    #[error("position: version {0} is not supported (expected {VERSION})")]
    Version(u8),
    /// The checksum does not match.
    #[error("position: the checksum does not match")]
    Checksum,
    /// An invalid field.
    #[error("position: {field} {value} is invalid")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The order has another seed, number of lanes, shuffle pool, packing or data.
    #[error(
        "the position belongs to another order: seed, lanes, shuffle_rows, the filter, the packing or the data have changed, or \
         there are fewer epochs"
    )]
    OtherOrder,
    /// The data has fewer rows than when the position was saved.
    #[error("lane {lane}: the data ends before the position: the data has changed")]
    DataChanged {
        /// The lane.
        lane: u32,
    },
}

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 48;
const LANE_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 4;
const STREAM_ENDED: u8 = 2;
const LANE_ENDED: u32 = u32::MAX;
/// Limit of decoded counts, so that counting on from a position never overflows.
const MAX_COUNT: u64 = u64::MAX / 4;

impl Position {
    /// The start of `pass`.
    pub fn start_of(pass: Option<Pass>, lanes: u32, fingerprint: u64) -> Self {
        Self {
            pass,
            batch: 0,
            fingerprint,
            marked_seen: false,
            skipped_before: 0,
            skipped: 0,
            turn: 0,
            lanes: vec![LanePosition::At(Cursor::default()); lanes as usize],
        }
    }

    /// Length of an encoded position with `lanes` lanes: a schema's `position_bytes`.
    pub fn encoded_bytes(lanes: u32) -> u64 {
        (HEAD_BYTES + CHECKSUM_BYTES) as u64 + u64::from(lanes) * LANE_BYTES as u64
    }

    /// Encodes into `bytes`, replacing its contents.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        let (stream, epoch) = match self.pass {
            None => (STREAM_ENDED, 0),
            Some(pass) => (pass.stream as u8, pass.epoch),
        };
        bytes.extend([VERSION, stream, u8::from(self.marked_seen), 0]);
        bytes.extend(epoch.to_le_bytes());
        for word in [self.batch, self.fingerprint, self.skipped_before, self.skipped] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.turn.to_le_bytes());
        bytes.extend((self.lanes.len() as u32).to_le_bytes());
        for lane in &self.lanes {
            let cursor = match *lane {
                LanePosition::At(cursor) => cursor,
                LanePosition::Ended => Cursor { split: LANE_ENDED, ..Cursor::default() },
            };
            bytes.extend(cursor.row.to_le_bytes());
            bytes.extend(cursor.window.to_le_bytes());
            bytes.extend(cursor.split.to_le_bytes());
            bytes.extend(cursor.drawn.to_le_bytes());
        }
        bytes.extend(checksum(bytes).to_le_bytes());
    }

    /// Decodes an encoded position. [`Position::check`] checks that it belongs to a job.
    ///
    /// # Errors
    /// When `bytes` was not written by [`Position::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, PositionError> {
        let length = |lanes: u32| PositionError::Length {
            lanes,
            expected: Self::encoded_bytes(lanes),
            found: bytes.len() as u64,
        };
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or_else(|| length(0))?;
        if head[0] != VERSION {
            return Err(PositionError::Version(head[0]));
        }
        let lanes = u32_at(head, 44);
        if bytes.len() as u64 != Self::encoded_bytes(lanes) {
            return Err(length(lanes));
        }
        let (body, sum) = rest.split_at(rest.len() - CHECKSUM_BYTES);
        if checksum(&bytes[..bytes.len() - CHECKSUM_BYTES]) != u32_at(sum, 0) {
            return Err(PositionError::Checksum);
        }
        let field = |field, value| PositionError::Field { field, value };
        let epoch = u32_at(head, 4);
        let pass = match head[1] {
            0 => Some(Pass { stream: Stream::Train, epoch }),
            1 => Some(Pass { stream: Stream::Eval, epoch }),
            STREAM_ENDED if epoch == 0 => None,
            other => return Err(field("stream", u64::from(other))),
        };
        if head[2] > 1 || head[3] != 0 {
            return Err(field("flags", u64::from(head[2]) << 8 | u64::from(head[3])));
        }
        for (name, at) in [("batch", 8), ("skipped_before", 24), ("skipped", 32)] {
            let value = u64_at(head, at);
            if value > MAX_COUNT {
                return Err(field(name, value));
            }
        }
        let turn = u32_at(head, 40);
        if turn >= lanes {
            return Err(field("turn", u64::from(turn)));
        }
        Ok(Self {
            pass,
            batch: u64_at(head, 8),
            fingerprint: u64_at(head, 16),
            marked_seen: head[2] == 1,
            skipped_before: u64_at(head, 24),
            skipped: u64_at(head, 32),
            turn,
            lanes: body.chunks_exact(LANE_BYTES).map(decode_lane).collect::<Result<_, _>>()?,
        })
    }

    /// Checks that this is a position of `feed` in the order with this `fingerprint`.
    ///
    /// # Errors
    /// When it belongs to another order.
    pub fn check(&self, feed: Feed, lanes: u32, fingerprint: u64) -> Result<(), PositionError> {
        let known = self.pass.is_none_or(|pass| feed.contains(pass));
        if self.fingerprint != fingerprint || self.lanes.len() != lanes as usize || !known {
            return Err(PositionError::OtherOrder);
        }
        Ok(())
    }
}

fn decode_lane(bytes: &[u8]) -> Result<LanePosition, PositionError> {
    let split = u32_at(bytes, 16);
    if split == LANE_ENDED {
        return Ok(LanePosition::Ended);
    }
    let cursor = Cursor { row: u64_at(bytes, 0), window: u64_at(bytes, 8), split, drawn: u32_at(bytes, 20) };
    for (field, value) in [("row", cursor.row), ("window", cursor.window)] {
        if value > MAX_COUNT {
            return Err(PositionError::Field { field, value });
        }
    }
    Ok(LanePosition::At(cursor))
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
