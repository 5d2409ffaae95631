//! Encodes rows as `tf.train.Example` records.

use crate::cells::Cells;

/// Encodes rows one at a time, reusing its buffers.
#[derive(Default)]
pub struct ExampleEncoder {
    features: Vec<u8>,
    record: Vec<u8>,
}

impl ExampleEncoder {
    /// The record of a row. Columns are written in order; absent ones are omitted.
    ///
    /// # Errors
    /// The index of a column whose list contains an absent value, which an Example cannot represent.
    pub fn encode(&mut self, names: &[String], columns: &[Cells], row: usize) -> Result<&[u8], usize> {
        self.features.clear();
        for (column, (name, cells)) in names.iter().zip(columns).enumerate() {
            if !cells.is_present(row) {
                continue;
            }
            let (values, range) = match cells {
                Cells::List(values, ends, _) => (&**values, ends[row]..ends[row + 1]),
                single => (single, row..row + 1),
            };
            if !range.clone().all(|value| values.is_present(value)) {
                return Err(column);
            }
            let list = list_bytes(values, range.clone());
            let feature = field_bytes(list);
            let entry = field_bytes(name.len()) + field_bytes(feature);
            open(&mut self.features, 1, entry);
            open(&mut self.features, 1, name.len());
            self.features.extend_from_slice(name.as_bytes());
            open(&mut self.features, 2, feature);
            put_list(&mut self.features, values, range, list);
        }
        self.record.clear();
        open(&mut self.record, 1, self.features.len());
        self.record.extend_from_slice(&self.features);
        Ok(&self.record)
    }
}

/// The length of a list message in bytes.
fn list_bytes(values: &Cells, range: std::ops::Range<usize>) -> usize {
    let packed = |bytes: usize| if bytes == 0 { 0 } else { field_bytes(bytes) };
    match values {
        Cells::Int(values) => packed(range.map(|at| varint_bytes(values.value(at) as u64)).sum()),
        Cells::Float(_) | Cells::Double(_) => packed(4 * range.len()),
        Cells::Bytes(values) => range.map(|at| field_bytes(values.value(at).len())).sum(),
        Cells::List(..) | Cells::Absent => 0,
    }
}

/// Writes a list message as its field of `Feature`.
fn put_list(out: &mut Vec<u8>, values: &Cells, range: std::ops::Range<usize>, list: usize) {
    match values {
        Cells::Bytes(values) => {
            open(out, 1, list);
            for at in range {
                let value = values.value(at);
                open(out, 1, value.len());
                out.extend_from_slice(value);
            }
        }
        Cells::Float(values) => put_floats(out, range.map(|at| values.value(at)), list),
        Cells::Double(values) => put_floats(out, range.map(|at| values.value(at) as f32), list),
        Cells::Int(values) => {
            open(out, 3, list);
            if !range.is_empty() {
                open(out, 1, range.clone().map(|at| varint_bytes(values.value(at) as u64)).sum());
            }
            for at in range {
                put_varint(out, values.value(at) as u64);
            }
        }
        Cells::List(..) | Cells::Absent => {}
    }
}

fn put_floats(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = f32>, list: usize) {
    open(out, 2, list);
    if values.len() > 0 {
        open(out, 1, 4 * values.len());
    }
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Writes a length-delimited field's tag and length. Field numbers are below 16.
pub(super) fn open(out: &mut Vec<u8>, field: u8, bytes: usize) {
    out.push(field << 3 | 2);
    put_varint(out, bytes as u64);
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The encoded length of a length-delimited field with a payload of `bytes`.
pub(super) fn field_bytes(bytes: usize) -> usize {
    1 + varint_bytes(bytes as u64) + bytes
}

pub(super) fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}
