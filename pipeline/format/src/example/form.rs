//! The forms of an entry with one value, whose bytes before the value depend only on the value's length.
//!
//! With `V` the length of the value, such an entry is
//!
//! ```text
//! 0a L | 0a n name 12 | F k F-2 0a V | value          packed numbers, and bytes
//! 0a L | 0a n name 12 | F k F-2 08   | value          an int64 that is not packed (a float: 0d)
//! ```
//!
//! `expected.rs` and `scattered.rs` compare these bytes, up to the value, as words.

use super::column::Column;
use super::wire::{self, VALUE_BYTES};

/// The largest length that is encoded in one byte.
pub(super) const MAX_SHORT_LENGTH: u8 = 127;

/// The type of a single value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Bytes,
    Float,
    Int,
    /// Another or unknown layout, which matches no entry.
    Irregular,
}

/// The form of a `Feature` with one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) layout: Layout,
    /// The tag of the list, `k`.
    list_tag: u8,
    /// The tag before the value or its length.
    value_tag: u8,
    /// Whether the value's length precedes it.
    packed: bool,
    /// The least and greatest length of the value.
    pub(super) least: u8,
    pub(super) most: u8,
}

impl Form {
    /// The form of a feature; `None` if it does not have exactly one value, or is too long.
    pub(super) fn of(feature: &[u8]) -> Option<Self> {
        let (&[list_tag, list_bytes, value_tag], value) = feature.split_first_chunk()?;
        let (layout, least, most, packed) = match (list_tag, value_tag) {
            (0x0a, 0x0a) => (Layout::Bytes, 0, MAX_SHORT_LENGTH, true),
            (0x12, 0x0a) => (Layout::Float, 4, 4, true),
            (0x12, 0x0d) => (Layout::Float, 4, 4, false),
            (0x1a, 0x0a) => (Layout::Int, 1, 10, true),
            (0x1a, 0x08) => (Layout::Int, 1, 10, false),
            _ => return None,
        };
        let value_bytes = value.len().checked_sub(usize::from(packed))?;
        let is_one_value = usize::from(list_bytes) == value.len() + 1
            && (!packed || usize::from(value[0]) == value_bytes)
            && feature.len() <= usize::from(MAX_SHORT_LENGTH);
        is_one_value.then_some(Self { layout, list_tag, value_tag, packed, least, most })
    }

    /// The bytes between the name's head (see `Name::head`) and a value of this length.
    pub(super) fn before_value(&self, value_bytes: u8) -> Vec<u8> {
        let list = 1 + u8::from(self.packed) + value_bytes;
        let mut bytes = vec![list + 2, self.list_tag, list, self.value_tag];
        if self.packed {
            bytes.push(value_bytes);
        }
        bytes
    }
}

impl Layout {
    /// Appends the value in `bytes[start..start + length]` to a column. `None` if it is malformed or of another type
    /// than the column, or if fewer than [`VALUE_BYTES`] bytes follow `start`.
    #[inline(always)]
    pub(super) fn append(self, bytes: &[u8], start: usize, length: u8, column: &mut Column) -> Option<()> {
        let value: &[u8; VALUE_BYTES] = bytes.get(start..)?.first_chunk()?;
        let appended = if self == Self::Int {
            column.append_int(wire::whole_varint(value, length)? as i64)
        } else if self == Self::Float {
            column.append_float(f32::from_le_bytes(*value.first_chunk()?))
        } else {
            column.append_bytes(value, bytes.get(start..start + usize::from(length))?)
        };
        appended.then_some(())
    }
}
