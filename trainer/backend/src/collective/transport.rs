//! The one primitive of all collective operations, which each transport implements.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::{Absent, CollectiveError};
use super::memory::{Buffer, Format, Pool};
use super::recorder::Recorder;
use crate::Float;

/// Moves data between the ranks of a world, and between them and its reducers, if it has any.
///
/// All ranks call `exchange` equally often, with equal labels and groups. A rank may be one exchange ahead of another, never two,
/// because it waits for data that depends on all others.
pub trait Transport: Send {
    /// The number of this rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// The number of reducers, which add what ranks send them ([`Group::Reducers`]).
    fn reducers(&self) -> usize {
        0
    }

    /// In an exchange with this label, sends `parts[r]` to each other member `r` of the group, and returns what each sent to this rank, in the same order;
    /// nothing at this rank's own place, where `parts` is not read either. Sizes may differ and be zero. When this returns, the
    /// transport has released all parts. While it waits, it shows signs of life to `recorder`, many times a second.
    ///
    /// # Errors
    /// If the labels or sizes of two ranks differ, a rank dies, or one has not completed the exchange by the deadline. The
    /// transport cannot be used after an error.
    fn exchange(
        &mut self,
        to: (Label, Group),
        parts: Vec<Arc<Buffer>>,
        receive: Receive<'_>,
        deadline: Deadline,
        recorder: Option<&Recorder>,
    ) -> Result<Vec<Buffer>, CollectiveError>;
}

/// With whom a rank exchanges data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// All ranks.
    Ranks,
    /// The reducers. Each returns the sum of what the ranks sent to it.
    Reducers,
}

/// Where received data goes.
pub enum Receive<'a> {
    /// To buffers of the sizes sent, from this pool.
    Any(&'a mut Pool),
    /// To these buffers, one per member of the group. Each sender must send as many bytes as its buffer has.
    Into(Vec<Buffer>),
}

impl Receive<'_> {
    /// The buffer for `sent` bytes of rank or reducer `peer`, which has place `place` in the group.
    pub(super) fn buffer(
        &mut self,
        (label, rank): (Label, usize),
        (peer, place): (usize, usize),
        sent: usize,
    ) -> Result<Buffer, CollectiveError> {
        match self {
            Self::Any(pool) => Ok(pool.take(sent)),
            Self::Into(buffers) if buffers[place].len() == sent => Ok(std::mem::take(&mut buffers[place])),
            Self::Into(buffers) => {
                Err(CollectiveError::Size { label, rank, expected: buffers[place].len(), peer, sent })
            }
        }
    }
}

/// When an operation must be complete.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now on.
    pub fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    /// The same time limit, from now on.
    pub(super) fn restarted(self) -> Self {
        Self::after(self.limit)
    }

    /// The time left, zero after the deadline.
    pub(crate) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// The error of an operation that lacks these ranks.
    pub(super) fn absent(self, label: Label, dead: Vec<usize>, late: Vec<usize>) -> CollectiveError {
        CollectiveError::Absent { label, absent: Absent { dead, late, deadline: self.limit } }
    }
}

/// What an exchange belongs to. It travels with the data, so ranks that run different operations get an error instead of
/// each other's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The operation.
    pub operation: Operation,
    /// Counts the operations of a communicator, from 1.
    pub number: u64,
    /// Which exchange of the operation this is.
    pub round: Round,
}

/// A collective operation, with all that ranks must agree on but sizes. Serialized as its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u8, u8, u16)", try_from = "(u8, u8, u16)")]
pub enum Operation {
    /// The first exchange after ranks connect.
    Connect,
    /// A sum of fp32 numbers, which travel in this format.
    Sum(Float),
    /// A sum of fp64 numbers.
    SumF64,
    /// All-to-all.
    Exchange(Format),
    /// All ranks get the parts of all.
    Gather(Format),
    /// All ranks get the data of `root`.
    Broadcast {
        /// The format of the data.
        format: Format,
        /// The rank that sends.
        root: u16,
    },
    /// All ranks wait for all.
    Barrier,
    /// A sum of matrices in the memory of the ranks' devices, which they communicate directly.
    DeviceSum,
    /// All ranks get the table rows of all, from the memory of the ranks' devices.
    DeviceGather,
    /// A reducer waits for the next sum.
    NextSum,
}

/// One of an operation's exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The operation has one exchange.
    Only = 0,
    /// Owners receive the contributions to their chunks.
    Parts = 1,
    /// Owners send the sums of their chunks.
    Sums = 2,
}

impl Label {
    /// Size of an encoded label, in bytes.
    pub(super) const BYTES: usize = 16;

    /// The label as bytes: number (u64), root (u16), operation, format, round (u8 each), zeros.
    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let (code, format, root) = self.operation.codes();
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..10].copy_from_slice(&root.to_le_bytes());
        bytes[10..13].copy_from_slice(&[code, format, self.round as u8]);
        bytes
    }

    /// The label of these bytes, if they are one.
    pub(super) fn decode(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [n0, n1, n2, n3, n4, n5, n6, n7, r0, r1, code, format, round, 0, 0, 0] = bytes else {
            return None;
        };
        let number = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let operation = Operation::of_codes(code, format, u16::from_le_bytes([r0, r1]))?;
        let round =
            [Round::Only, Round::Parts, Round::Sums].into_iter().find(|&known| known as u8 == round)?;
        Some(Self { operation, number, round })
    }
}

impl Operation {
    /// The operation's code, its format's code, and its root.
    pub(super) fn codes(self) -> (u8, u8, u16) {
        match self {
            Self::Connect => (0, 0, 0),
            Self::Sum(float) => (1, float as u8, 0),
            Self::Exchange(format) => (2, format as u8, 0),
            Self::Gather(format) => (3, format as u8, 0),
            Self::Broadcast { format, root } => (4, format as u8, root),
            Self::Barrier => (5, 0, 0),
            Self::SumF64 => (6, 0, 0),
            Self::DeviceSum => (7, 0, 0),
            Self::DeviceGather => (8, 0, 0),
            Self::NextSum => (9, 0, 0),
        }
    }

    /// The operation of these codes, if they are those of one.
    pub(super) fn of_codes(code: u8, format: u8, root: u16) -> Option<Self> {
        let float = || [Float::F32, Float::Bf16, Float::F16].into_iter().find(|&float| float as u8 == format);
        let formats = [Format::Bytes, Format::F32, Format::U32, Format::U64, Format::F64];
        let element = || formats.into_iter().find(|&known| known as u8 == format);
        let operation = match code {
            0 => Self::Connect,
            1 => Self::Sum(float()?),
            2 => Self::Exchange(element()?),
            3 => Self::Gather(element()?),
            4 => Self::Broadcast { format: element()?, root },
            5 => Self::Barrier,
            6 => Self::SumF64,
            7 => Self::DeviceSum,
            8 => Self::DeviceGather,
            9 => Self::NextSum,
            _ => return None,
        };
        (operation.codes() == (code, format, root)).then_some(operation)
    }
}

impl From<Operation> for (u8, u8, u16) {
    fn from(operation: Operation) -> Self {
        operation.codes()
    }
}

impl TryFrom<(u8, u8, u16)> for Operation {
    type Error = &'static str;

    fn try_from((code, format, root): (u8, u8, u16)) -> Result<Self, Self::Error> {
        Self::of_codes(code, format, root).ok_or("the codes of no operation")
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, number {}", self.operation, self.number)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("first contact"),
            Self::Sum(Float::F32) => f.write_str("sum of f32"),
            Self::Sum(Float::Bf16) => f.write_str("sum of f32 as bf16"),
            Self::Sum(Float::F16) => f.write_str("sum of f32 as f16"),
            Self::SumF64 => f.write_str("sum of f64"),
            Self::Exchange(format) => write!(f, "exchange of {format}"),
            Self::Gather(format) => write!(f, "gather of {format}"),
            Self::Broadcast { format, root } => write!(f, "broadcast of {format} from rank {root}"),
            Self::Barrier => f.write_str("barrier"),
            Self::DeviceSum => f.write_str("sum on GPUs"),
            Self::DeviceGather => f.write_str("gather of rows on GPUs"),
            Self::NextSum => f.write_str("wait for a sum"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_survive_encoding() {
        let operations = [
            Operation::Connect,
            Operation::Sum(Float::F32),
            Operation::Sum(Float::Bf16),
            Operation::Sum(Float::F16),
            Operation::Exchange(Format::Bytes),
            Operation::Exchange(Format::F32),
            Operation::Gather(Format::U32),
            Operation::Broadcast { format: Format::U64, root: 300 },
            Operation::Barrier,
            Operation::SumF64,
            Operation::Gather(Format::F64),
            Operation::DeviceSum,
            Operation::DeviceGather,
            Operation::NextSum,
        ];
        for operation in operations {
            for round in [Round::Only, Round::Parts, Round::Sums] {
                let label = Label { operation, number: u64::MAX - 7, round };
                assert_eq!(Label::decode(label.encode()), Some(label));
            }
        }
    }

    #[test]
    fn unknown_codes_are_no_label() {
        let label = Label { operation: Operation::Sum(Float::F16), number: 3, round: Round::Sums };
        for (place, value) in [(8, 1), (9, 1), (10, 10), (11, 3), (12, 3), (13, 1), (15, 255)] {
            let mut bytes = label.encode();
            bytes[place] = value;
            assert_eq!(Label::decode(bytes), None, "byte {place} is {value}");
        }
        assert_eq!(Operation::try_from(<(u8, u8, u16)>::from(label.operation)), Ok(label.operation));
        assert!(Operation::try_from((10, 0, 0)).is_err());
    }
}
