//! Where a job stands in its data, after some batch.
//!
//! A position travels in every slot and ends up in every checkpoint. Encoded, in little-endian order:
//!
//! ```text
//!   0  u8   version, 1
//!   1  u8   stream of the pass: 0 train, 1 eval, 2 the feed has ended
//!   2  u8   1 when a positive label was seen, else 0
//!   3  u8   0
//!   4  u32  epoch
//!   8  u64  batches delivered of this pass
//!  16  u64  fingerprint of the order (OrderSpec::fingerprint)
//!  24  u64  records left out in earlier passes
//!  32  u64  records left out in this pass
//!  40  u32  the lane whose turn it is
//!  44  u32  lanes, V
//!  48  V times, for each lane:
//!        u64  row within the split at which the current window starts
//!        u64  number of that window
//!        u32  place of the split in the lane's sequence, 2^32 - 1 when the lane has ended
//!        u32  rows drawn from that window
//!  ..  u32  CRC-32C of all before
//! ```
//!
//! Its size depends on V alone. A lane's window is named by where it starts, so resuming reads the
//! current windows again, and nothing before them but the records that lie before them in their split; which
//! for Parquet are not decoded, and for TFRecord are at most a part of `split_bytes`.
//!
//! Invariants: it names all lanes, also those that other hosts read, and is the same bytes on every host, so
//! that any one's is the job's. It is a function of how many rows were drawn and not of how they were read. It
//! is refused by a job whose seed, lanes, shuffle pool, feed or cuts of the data are others; the batch size, the
//! number of hosts, `drop_last` and `deterministic` may change between a position and its use.

use millstream_batch::Stream;

use super::pass::{Feed, Pass};

/// Where a job stands in its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The pass under way; `None` once the feed has ended.
    pub pass: Option<Pass>,
    /// Batches delivered of this pass.
    pub batch: u64,
    /// Which order this is a position of.
    pub fingerprint: u64,
    /// Whether a label above 0 was seen.
    pub positive_seen: bool,
    /// Records left out in earlier passes.
    pub skipped_before: u64,
    /// Records left out in this pass, of splits that lie wholly before the lanes' current windows.
    pub skipped: u64,
    /// The lane whose turn it is.
    pub turn: u32,
    /// Where each lane stands.
    pub lanes: Vec<LanePosition>,
}

/// Where a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanePosition {
    /// Within its rows.
    At(Cursor),
    /// All its rows are drawn.
    Ended,
}

/// A window of a lane, and how much of it is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Place of the split in the lane's sequence.
    pub split: u32,
    /// Row within that split at which the window starts.
    pub row: u64,
    /// Number of the window. In an ordered pass there are no windows, and `row` is the next row.
    pub window: u64,
    /// Rows drawn from it.
    pub drawn: u32,
}

/// Why bytes are not a position, or not one of this job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PositionError {
    /// Cut, or longer than its lanes ask for.
    #[error("a position of {lanes} lanes has {expected} bytes, not {found}")]
    Length {
        /// Lanes it says it has.
        lanes: u32,
        /// Bytes expected.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// Written by another version.
    #[error("a position of version {0} is not known here (expected {VERSION})")]
    Version(u8),
    /// Damaged.
    #[error("a position's checksum does not fit its content")]
    Checksum,
    /// A field that no position can have.
    #[error("a position with {field} {value} cannot be")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Of another seed, number of lanes, shuffle pool or data.
    #[error("the position was taken under another order: seed, lanes, shuffle_rows or the data have changed")]
    OtherOrder,
    /// The data has fewer rows than when the position was taken.
    #[error("lane {lane}: the data ends before the position; it has changed")]
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
/// No count comes near it, so that counting on from a position never overflows.
const MOST: u64 = u64::MAX / 4;

impl Position {
    /// The beginning of `pass`.
    pub fn start_of(pass: Option<Pass>, lanes: u32, fingerprint: u64) -> Self {
        Self {
            pass,
            batch: 0,
            fingerprint,
            positive_seen: false,
            skipped_before: 0,
            skipped: 0,
            turn: 0,
            lanes: vec![LanePosition::At(Cursor::default()); lanes as usize],
        }
    }

    /// Bytes of every encoded position of `lanes` lanes: a schema's `position_bytes`.
    pub fn encoded_bytes(lanes: u32) -> u64 {
        (HEAD_BYTES + CHECKSUM_BYTES) as u64 + u64::from(lanes) * LANE_BYTES as u64
    }

    /// Encodes into `bytes`, in place of what it held.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        let (stream, epoch) = match self.pass {
            None => (STREAM_ENDED, 0),
            Some(pass) => (pass.stream as u8, pass.epoch),
        };
        bytes.extend([VERSION, stream, u8::from(self.positive_seen), 0]);
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

    /// Decodes what [`Position::encode`] wrote.
    ///
    /// # Errors
    /// When `bytes` is anything else. Whether it fits a job is for [`Position::check`].
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
            if value > MOST {
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
            positive_seen: head[2] == 1,
            skipped_before: u64_at(head, 24),
            skipped: u64_at(head, 32),
            turn,
            lanes: body.chunks_exact(LANE_BYTES).map(decode_lane).collect::<Result<_, _>>()?,
        })
    }

    /// Checks that this is a position of the order that `fingerprint` identifies, in `feed`.
    ///
    /// # Errors
    /// When it is of another.
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
        if value > MOST {
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
