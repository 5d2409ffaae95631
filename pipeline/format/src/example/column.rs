//! Builds one Arrow column from `Feature` messages.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Float32Array, Int64Array, ListArray, NullArray};
use arrow_buffer::{BooleanBufferBuilder, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::Field;

use super::next_entry;
use super::wire::{self, Malformed, WireType};

/// The kind of list in a `Feature`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes,
    Float,
    Int,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Float => "float",
            Self::Int => "int64",
        }
    }
}

/// The values of all rows. In a single-valued column an absent row has a placeholder.
#[derive(Debug)]
enum Values {
    /// No values so far, so the type is unknown.
    None,
    Bytes {
        /// Starts with 0.
        offsets: Vec<i32>,
        data: Vec<u8>,
    },
    Float(Vec<f32>),
    Int(Vec<i64>),
}

#[derive(Debug)]
pub(super) struct Column {
    name: String,
    multi: bool,
    values: Values,
    /// The end offset of each row's values if the column is multi-valued. Starts with 0.
    ends: Vec<i32>,
    validity: Validity,
    /// Whether a finished chunk had values, so that the type is fixed.
    type_is_fixed: bool,
}

/// Records which rows are present.
#[derive(Debug, Default)]
struct Validity {
    rows: usize,
    /// Absent rows, ascending. A list costs less per row than a bitmap.
    absent: Vec<u32>,
}

impl Column {
    /// A column with `rows` absent rows.
    pub(super) fn new(name: String, multi: bool, rows: usize) -> Self {
        let mut column = Self {
            name,
            multi,
            values: Values::None,
            ends: vec![0],
            validity: Validity::default(),
            type_is_fixed: false,
        };
        for _ in 0..rows {
            column.append_absent();
        }
        column
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn bytes(&self) -> usize {
        let values = match &self.values {
            Values::None => 0,
            Values::Bytes { offsets, data } => 4 * offsets.len() + data.len(),
            Values::Float(values) => 4 * values.len(),
            Values::Int(values) => 8 * values.len(),
        };
        values + 4 * self.ends.len()
    }

    /// Appends a row without a value.
    #[inline]
    pub(super) fn append_absent(&mut self) {
        if !self.multi {
            self.values.push_placeholder();
        }
        self.end_row(false);
    }

    /// Appends a row with an empty list; in a single-valued column, an absent row.
    pub(super) fn append_empty(&mut self) {
        if self.multi {
            self.end_row(true);
        } else {
            self.append_absent();
        }
    }

    /// Appends a row with one value. If the column is not of this type (yet), returns false and appends nothing.
    #[inline(always)]
    pub(super) fn append_int(&mut self, value: i64) -> bool {
        let Values::Int(values) = &mut self.values else { return false };
        values.push(value);
        let values = values.len();
        self.end_row_at(values);
        true
    }

    /// Like [`Column::append_int`].
    #[inline(always)]
    pub(super) fn append_float(&mut self, value: f32) -> bool {
        let Values::Float(values) = &mut self.values else { return false };
        values.push(value);
        let values = values.len();
        self.end_row_at(values);
        true
    }

    /// Like [`Column::append_int`]. `padded` starts with the value, followed by arbitrary bytes: a copy of fixed
    /// length compiles to loads and stores instead of a call.
    #[inline(always)]
    pub(super) fn append_bytes(&mut self, padded: &[u8; wire::VALUE_BYTES], value: &[u8]) -> bool {
        let Values::Bytes { offsets, data } = &mut self.values else { return false };
        let end = data.len() + value.len();
        match value.len() {
            0..=16 => data.extend_from_slice(&padded[..16]),
            17..=32 => data.extend_from_slice(padded),
            _ => data.extend_from_slice(value),
        }
        data.truncate(end);
        offsets.push(end as i32);
        let values = offsets.len() - 1;
        self.end_row_at(values);
        true
    }

    /// Appends a row from a `Feature` message. After an error the column may hold part of the row; the caller truncates
    /// it.
    #[inline]
    pub(super) fn append(&mut self, feature: &[u8]) -> Result<(), String> {
        match one_list(feature) {
            Some((kind, list)) => self.append_list(kind, list),
            None => self.append_irregular(feature),
        }
    }

    /// Appends a row from a list message of this kind, like [`Column::append`].
    #[inline]
    pub(super) fn append_list(&mut self, kind: Kind, list: &[u8]) -> Result<(), String> {
        if self.values.kind() != Some(kind) {
            return self.append_other(kind, list);
        }
        let count = self.values.extend(list)?;
        if self.multi || count == 1 {
            self.end_row(true);
        } else if count == 0 {
            self.append_absent();
        } else {
            return Err(format!(
                "holds {count} values, expected one; a feature with several has `multi = true`"
            ));
        }
        Ok(())
    }

    /// Appends a list of another kind than the column's, or the first one. The first value determines the type;
    /// an empty list, which some writers use for "absent", matches any type.
    #[cold]
    #[inline(never)]
    fn append_other(&mut self, kind: Kind, list: &[u8]) -> Result<(), String> {
        if Values::placeholders(kind, 0).extend(list)? == 0 {
            self.append_empty();
            return Ok(());
        }
        if let Some(held) = self.values.kind() {
            return Err(format!("holds {} where earlier records hold {}", kind.name(), held.name()));
        }
        self.values = Values::placeholders(kind, if self.multi { 0 } else { self.validity.rows });
        self.append_list(kind, list)
    }

    /// Appends a `Feature` that is empty, fragmented, or has unknown fields.
    #[cold]
    #[inline(never)]
    fn append_irregular(&mut self, feature: &[u8]) -> Result<(), String> {
        match merged_list(feature).map_err(str::to_owned)? {
            Some((kind, list)) => self.append_list(kind, &list),
            None => {
                self.append_absent();
                Ok(())
            }
        }
    }

    /// Ends a row with values after which the column has `values` in total.
    #[inline(always)]
    fn end_row_at(&mut self, values: usize) {
        if self.multi {
            self.ends.push(values as i32);
        }
        self.validity.rows += 1;
    }

    #[inline]
    fn end_row(&mut self, valid: bool) {
        if self.multi {
            self.ends.push(self.values.len() as i32);
        }
        self.validity.push(valid);
    }

    /// Drops all rows after the first `rows`.
    pub(super) fn truncate(&mut self, rows: usize) {
        let values = if self.multi {
            self.ends.truncate(rows + 1);
            self.ends.last().map_or(0, |&end| end as usize)
        } else {
            rows
        };
        match &mut self.values {
            Values::None => {}
            Values::Bytes { offsets, data } => {
                offsets.truncate(values + 1);
                data.truncate(offsets.last().map_or(0, |&end| end as usize));
            }
            Values::Float(all) => all.truncate(values),
            Values::Int(all) => all.truncate(values),
        }
        self.validity.truncate(rows);
        if !self.type_is_fixed && if self.multi { values == 0 } else { !self.validity.any() } {
            self.values = Values::None;
        }
    }

    /// Returns the rows so far as an array and starts an empty one of the same type and capacity.
    pub(super) fn finish(&mut self) -> ArrayRef {
        self.type_is_fixed |= self.values.kind().is_some();
        let (rows, nulls) = self.validity.take();
        let ends = std::mem::replace(&mut self.ends, vec![0]);
        let value_nulls = if self.multi { None } else { nulls.clone() };
        let values: ArrayRef = match &mut self.values {
            Values::None => return Arc::new(NullArray::new(rows)),
            Values::Bytes { offsets, data } => Arc::new(BinaryArray::new(
                OffsetBuffer::new(ScalarBuffer::from(replace(offsets, &[0]))),
                Buffer::from_vec(replace(data, &[])),
                value_nulls,
            )),
            Values::Float(values) => {
                Arc::new(Float32Array::new(ScalarBuffer::from(replace(values, &[])), value_nulls))
            }
            Values::Int(values) => {
                Arc::new(Int64Array::new(ScalarBuffer::from(replace(values, &[])), value_nulls))
            }
        };
        if !self.multi {
            return values;
        }
        let item = Field::new_list_field(values.data_type().clone(), true);
        let ends = OffsetBuffer::new(ScalarBuffer::from(ends));
        Arc::new(ListArray::new(Arc::new(item), ends, values, nulls))
    }
}

/// Replaces a vector by one that starts with `start` and has slightly more capacity than the old length, as the
/// length of text varies. Returns the old one.
fn replace<T: Copy>(values: &mut Vec<T>, start: &[T]) -> Vec<T> {
    let mut fresh = Vec::with_capacity(values.len() + values.len() / 16);
    fresh.extend_from_slice(start);
    std::mem::replace(values, fresh)
}

impl Values {
    fn placeholders(kind: Kind, rows: usize) -> Self {
        match kind {
            Kind::Bytes => Self::Bytes { offsets: vec![0; rows + 1], data: Vec::new() },
            Kind::Float => Self::Float(vec![0.0; rows]),
            Kind::Int => Self::Int(vec![0; rows]),
        }
    }

    #[inline]
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::None => None,
            Self::Bytes { .. } => Some(Kind::Bytes),
            Self::Float(_) => Some(Kind::Float),
            Self::Int(_) => Some(Kind::Int),
        }
    }

    /// Appends the values of a list of this kind; returns their number.
    #[inline]
    fn extend(&mut self, list: &[u8]) -> Result<usize, Malformed> {
        match self {
            Self::None => Ok(0),
            Self::Bytes { offsets, data } => bytes_list(list, offsets, data),
            Self::Float(values) => float_list(list, values),
            Self::Int(values) => int64_list(list, values),
        }
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes { offsets, .. } => offsets.len() - 1,
            Self::Float(values) => values.len(),
            Self::Int(values) => values.len(),
        }
    }

    fn push_placeholder(&mut self) {
        match self {
            Self::None => {}
            Self::Bytes { offsets, data } => offsets.push(data.len() as i32),
            Self::Float(values) => values.push(0.0),
            Self::Int(values) => values.push(0),
        }
    }
}

impl Validity {
    #[inline]
    fn push(&mut self, valid: bool) {
        if !valid {
            // A chunk has far fewer than 2^32 rows.
            self.absent.push(self.rows as u32);
        }
        self.rows += 1;
    }

    /// Whether any row is present.
    fn any(&self) -> bool {
        self.absent.len() < self.rows
    }

    fn truncate(&mut self, rows: usize) {
        self.rows = self.rows.min(rows);
        let kept = self.absent.partition_point(|&row| (row as usize) < self.rows);
        self.absent.truncate(kept);
    }

    /// Returns the number of rows and their null buffer, and resets both.
    fn take(&mut self) -> (usize, Option<NullBuffer>) {
        let rows = std::mem::take(&mut self.rows);
        if self.absent.is_empty() {
            return (rows, None);
        }
        let mut bits = BooleanBufferBuilder::new(rows);
        bits.append_n(rows, true);
        for row in self.absent.drain(..) {
            bits.set_bit(row as usize, false);
        }
        (rows, Some(NullBuffer::new(bits.finish())))
    }
}

/// The list of a `Feature` that consists of exactly one list field.
#[inline]
pub(super) fn one_list(feature: &[u8]) -> Option<(Kind, &[u8])> {
    let (&tag, mut list) = feature.split_first()?;
    let kind = match tag {
        0x0a => Kind::Bytes,
        0x12 => Kind::Float,
        0x1a => Kind::Int,
        _ => return None,
    };
    let length = wire::varint(&mut list).ok()?;
    (length == list.len() as u64).then_some((kind, list))
}

/// The list of any `Feature`. The last kind of the `oneof` wins, and consecutive fragments of it are merged.
pub(super) fn merged_list(mut feature: &[u8]) -> Result<Option<(Kind, Vec<u8>)>, Malformed> {
    let mut merged: Option<(Kind, Vec<u8>)> = None;
    while !feature.is_empty() {
        let kind = match wire::tag(&mut feature)? {
            (1, WireType::Delimited) => Kind::Bytes,
            (2, WireType::Delimited) => Kind::Float,
            (3, WireType::Delimited) => Kind::Int,
            (1..=3, _) => return Err("a list is not a message"),
            (number, wire_type) => {
                wire::skip(&mut feature, number, wire_type)?;
                continue;
            }
        };
        let piece = wire::delimited(&mut feature)?;
        wire::check(piece)?;
        match &mut merged {
            Some((before, list)) if *before == kind => list.extend_from_slice(piece),
            _ => merged = Some((kind, piece.to_vec())),
        }
    }
    Ok(merged)
}

/// Appends the values of a `BytesList`; returns their number.
#[inline]
fn bytes_list(mut list: &[u8], offsets: &mut Vec<i32>, data: &mut Vec<u8>) -> Result<usize, Malformed> {
    let before = offsets.len();
    while let Some(value) = next_entry(&mut list, "a value is not bytes")? {
        data.extend_from_slice(value);
        offsets.push(data.len() as i32);
    }
    Ok(offsets.len() - before)
}

/// Appends the values of a `FloatList`; returns their number.
#[inline]
fn float_list(mut list: &[u8], values: &mut Vec<f32>) -> Result<usize, Malformed> {
    let before = values.len();
    while let Some(wire_type) = wire::next_value(&mut list)? {
        match wire_type {
            WireType::Delimited => {
                let (packed, rest) = wire::delimited(&mut list)?.as_chunks();
                values.extend(packed.iter().map(|&bytes| f32::from_le_bytes(bytes)));
                if !rest.is_empty() {
                    return Err("packed floats are truncated");
                }
            }
            WireType::Fixed32 => values.push(f32::from_le_bytes(wire::fixed32(&mut list)?)),
            _ => return Err("a value is not a float"),
        }
    }
    Ok(values.len() - before)
}

/// Appends the values of an `Int64List`; returns their number.
#[inline]
fn int64_list(mut list: &[u8], values: &mut Vec<i64>) -> Result<usize, Malformed> {
    let before = values.len();
    while let Some(wire_type) = wire::next_value(&mut list)? {
        match wire_type {
            WireType::Delimited => {
                let mut packed = wire::delimited(&mut list)?;
                while !packed.is_empty() {
                    values.push(wire::varint(&mut packed)? as i64);
                }
            }
            WireType::Varint => values.push(wire::varint(&mut list)? as i64),
            _ => return Err("a value is not an int64"),
        }
    }
    Ok(values.len() - before)
}
