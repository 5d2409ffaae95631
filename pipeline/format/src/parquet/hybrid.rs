//! Parquet's RLE/bit-packing hybrid encoding of definition levels and dictionary keys.
//!
//! ```text
//! run      <- varint: count << 1 | 0, then the value in whole bytes      `count` repetitions
//!           | varint: groups << 1 | 1, then groups x width bytes         `groups` x 8 values,
//!                                                                        lowest bits first
//! ```
//!
//! Keys are most of the data in categorical columns, so packed runs are unpacked by a loop specialised for each
//! width, eight values from one window of bytes at a time.

use arrow_buffer::BooleanBufferBuilder;
use bytes::Bytes;
use parquet::errors::ParquetError;

/// Bytes from which eight values are unpacked: 8 x 32 bits, and the bytes that a `u64` load reads beyond.
const WINDOW: usize = 40;
/// Values per group.
const GROUP: usize = 8;

/// A stream of values of one width.
pub(super) struct Hybrid {
    data: Bytes,
    width: usize,
    /// Offset of the run after the current one.
    next: usize,
    run: Run,
    /// Values left in the current run.
    left: usize,
}

enum Run {
    Same(u32),
    /// Groups starting at byte `start`, and the number of their values already taken.
    Packed {
        start: usize,
        taken: usize,
    },
}

impl Hybrid {
    /// A stream of values of `width` bits, at most 32.
    pub(super) fn new(data: Bytes, width: u8) -> Result<Self, ParquetError> {
        if width > 32 {
            return Err(ParquetError::General(format!("values of {width} bits are not supported")));
        }
        Ok(Self { data, width: usize::from(width), next: 0, run: Run::Same(0), left: 0 })
    }

    /// Appends the next `count` values to `out`.
    pub(super) fn take(&mut self, mut count: usize, out: &mut Vec<u32>) -> Result<(), ParquetError> {
        while count > 0 {
            let taken = self.ready()?.min(count);
            match self.run {
                Run::Same(value) => out.resize(out.len() + taken, value),
                Run::Packed { .. } => self.unpack(taken, out),
            }
            self.left -= taken;
            count -= taken;
        }
        Ok(())
    }

    /// The number of values left in the current run, at least 1, and the value that they all have, if the run repeats one.
    pub(super) fn run(&mut self) -> Result<(usize, Option<u32>), ParquetError> {
        let left = self.ready()?;
        Ok((left, if let Run::Same(value) = self.run { Some(value) } else { None }))
    }

    /// Skips `count` values of a run that repeats one, as [`Hybrid::run`] has found it.
    pub(super) fn skip_repeated(&mut self, count: usize) {
        self.left -= count;
    }

    /// Appends the next `count` one-bit values to `out`. The width must be 1, so a packed run is copied unchanged.
    pub(super) fn take_bits(
        &mut self,
        mut count: usize,
        out: &mut BooleanBufferBuilder,
    ) -> Result<(), ParquetError> {
        while count > 0 {
            let count_of_run = self.ready()?.min(count);
            match &mut self.run {
                Run::Same(value) => out.append_n(count_of_run, *value == 1),
                Run::Packed { start, taken } => {
                    let bits = self.data.get(*start..).unwrap_or_default();
                    let end = *taken + count_of_run;
                    let available = (8 * bits.len()).clamp(*taken, end);
                    out.append_packed_range(*taken..available, bits);
                    out.append_n(end - available, false);
                    *taken = end;
                }
            }
            self.left -= count_of_run;
            count -= count_of_run;
        }
        Ok(())
    }

    /// Starts runs until one has values left; returns their number.
    fn ready(&mut self) -> Result<usize, ParquetError> {
        while self.left == 0 {
            let header = self.varint()?;
            let count = header >> 1;
            if header & 1 == 0 {
                let bytes = self.width.div_ceil(8);
                let value = self.data.get(self.next..self.next + bytes).ok_or_else(truncated)?;
                let value = value.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
                self.next += bytes;
                self.run = Run::Same(value);
                self.left = count;
            } else {
                let bytes = count.checked_mul(self.width).ok_or_else(truncated)?;
                if self.next > self.data.len() || (self.next == self.data.len() && self.width > 0) {
                    return Err(truncated());
                }
                self.run = Run::Packed { start: self.next, taken: 0 };
                // Writers may omit the padding of the last group; missing bytes read as 0.
                self.next = self.next.checked_add(bytes).ok_or_else(truncated)?;
                self.left = count.checked_mul(GROUP).ok_or_else(truncated)?;
            }
        }
        Ok(self.left)
    }

    fn varint(&mut self) -> Result<usize, ParquetError> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = *self.data.get(self.next).ok_or_else(truncated)?;
            self.next += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value as usize);
            }
        }
        Err(ParquetError::General("the length of a run is too long".to_owned()))
    }

    /// Unpacks `count` values of the current run, which must have that many left.
    fn unpack(&mut self, count: usize, out: &mut Vec<u32>) {
        let Run::Packed { start, taken } = &mut self.run else { return };
        let at = *start + *taken / GROUP * self.width;
        let offset = *taken % GROUP;
        *taken += count;
        // Unpack whole groups from the first one touched to the last, then remove the surplus values.
        let first = out.len();
        let groups = (offset + count).div_ceil(GROUP);
        out.reserve(groups * GROUP);
        unpack_groups(self.width, self.data.get(at..).unwrap_or_default(), groups, out);
        if offset > 0 {
            out.copy_within(first + offset..first + offset + count, first);
        }
        out.truncate(first + count);
    }
}

fn truncated() -> ParquetError {
    ParquetError::EOF("a run of values is truncated".to_owned())
}

/// Appends `groups` groups from `input` to `out`; bytes missing from `input` read as 0.
fn unpack_groups(width: usize, input: &[u8], groups: usize, out: &mut Vec<u32>) {
    macro_rules! by_width {
        ($($width:literal)*) => {
            match width {
                $($width => unpack_of::<$width>(input, groups, out),)*
                // Width 0: all values are 0.
                _ => out.resize(out.len() + groups * GROUP, 0),
            }
        };
    }
    by_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
}

fn unpack_of<const WIDTH: usize>(input: &[u8], groups: usize, out: &mut Vec<u32>) {
    let mut rest = input;
    for _ in 0..groups {
        let group = match rest.first_chunk::<WINDOW>() {
            Some(window) => unpack_group::<WIDTH>(window),
            None => {
                let mut window = [0; WINDOW];
                window[..rest.len()].copy_from_slice(rest);
                unpack_group::<WIDTH>(&window)
            }
        };
        out.extend_from_slice(&group);
        rest = rest.get(WIDTH..).unwrap_or_default();
    }
}

#[inline(always)]
fn unpack_group<const WIDTH: usize>(window: &[u8; WINDOW]) -> [u32; GROUP] {
    let mask = (u64::MAX >> (64 - WIDTH)) as u32;
    std::array::from_fn(|place| {
        let bit = place * WIDTH;
        let bytes = window[bit / 8..].first_chunk::<8>();
        let word = bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
        (word >> (bit % 8)) as u32 & mask
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// A run as written: a repeated value, or bit-packed values.
    #[derive(Clone, Debug)]
    enum Written {
        Same(u32, usize),
        Packed(Vec<u32>),
    }

    fn put_varint(mut value: usize, out: &mut Vec<u8>) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    fn encode(runs: &[Written], width: usize) -> (Vec<u8>, Vec<u32>) {
        let (mut bytes, mut values) = (Vec::new(), Vec::new());
        for run in runs {
            match run {
                Written::Same(value, count) => {
                    put_varint(count << 1, &mut bytes);
                    bytes.extend(&value.to_le_bytes()[..width.div_ceil(8)]);
                    values.extend(std::iter::repeat_n(*value, *count));
                }
                Written::Packed(packed) => {
                    put_varint(((packed.len() / 8) << 1) | 1, &mut bytes);
                    let bits: Vec<bool> = packed
                        .iter()
                        .flat_map(|value| (0..width).map(move |bit| value >> bit & 1 == 1))
                        .collect();
                    bytes.extend(bits.chunks(8).map(|byte| {
                        byte.iter().enumerate().fold(0, |byte, (bit, &set)| byte | u8::from(set) << bit)
                    }));
                    values.extend(packed);
                }
            }
        }
        (bytes, values)
    }

    fn streams() -> impl Strategy<Value = (usize, Vec<Written>, Vec<usize>)> {
        prop_oneof![Just(1usize), 0usize..=32].prop_flat_map(|width| {
            let value = 0..=((1u64 << width) - 1) as u32;
            let run = prop_oneof![
                (value.clone(), 0usize..40).prop_map(|(value, count)| Written::Same(value, count)),
                (0usize..12).prop_flat_map(move |groups| {
                    proptest::collection::vec(value.clone(), groups * 8).prop_map(Written::Packed)
                }),
            ];
            let steps = proptest::collection::vec(1usize..70, 1..40);
            (Just(width), proptest::collection::vec(run, 0..8), steps)
        })
    }

    proptest! {
        #[test]
        fn decodes_in_steps_of_any_size((width, runs, steps) in streams()) {
            let (bytes, values) = encode(&runs, width);
            let mut by_take = Hybrid::new(bytes.clone().into(), width as u8).unwrap();
            let mut taken = Vec::new();
            for &step in steps.iter().cycle() {
                let step = step.min(values.len() - taken.len());
                if step == 0 { break }
                by_take.take(step, &mut taken).unwrap();
            }
            prop_assert_eq!(&taken, &values);

            if width == 1 {
                let mut by_bits = Hybrid::new(bytes.into(), 1).unwrap();
                let (mut bits, mut left) = (BooleanBufferBuilder::new(0), values.len());
                for &step in steps.iter().cycle() {
                    let step = step.min(left);
                    if step == 0 { break }
                    by_bits.take_bits(step, &mut bits).unwrap();
                    left -= step;
                }
                prop_assert!(bits.finish().iter().eq(values.iter().map(|&value| value == 1)));
            }
        }

        #[test]
        fn arbitrary_bytes_are_values_or_an_error(bytes: Vec<u8>, width in 0u8..=40, count in 0usize..5000) {
            let mut out = Vec::new();
            if let Ok(mut stream) = Hybrid::new(bytes.clone().into(), width)
                && stream.take(count, &mut out).is_ok()
            {
                prop_assert_eq!(out.len(), count);
                let mut bits = BooleanBufferBuilder::new(0);
                if width == 1 {
                    Hybrid::new(bytes.into(), 1).unwrap().take_bits(count, &mut bits).unwrap();
                    prop_assert!(bits.finish().iter().eq(out.iter().map(|&value| value == 1)));
                }
            }
        }
    }
}
