//! Identity features: integers that are already ids, as in TensorFlow's
//! `categorical_column_with_identity`.

use arrow_array::Array;
use millstream_format::integers::integers;

use super::column::{Missing, Number, fill_nulls, numbers, resized};
use super::{INVALID, simd};
use crate::spec::OutOfRange;

/// Ids `0..buckets`, and `buckets` for missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    buckets: u32,
    /// The id of a number out of range.
    out_of_range_id: u32,
}

impl Identity {
    pub(crate) fn new(buckets: u32, out_of_range: OutOfRange) -> Self {
        let out_of_range_id = match out_of_range {
            OutOfRange::Error => INVALID,
            OutOfRange::Missing => buckets,
        };
        Self { buckets, out_of_range_id }
    }

    pub(crate) fn buckets(self) -> u32 {
        self.buckets
    }

    /// The ids plus one for missing.
    pub(crate) fn cardinality(self) -> usize {
        self.buckets as usize + 1
    }

    /// Each element's id; [`INVALID`] for a non-integer, and for a number out of range unless that counts
    /// as missing. `None` when the column's type is unsupported.
    pub(crate) fn codes(self, leaf: &dyn Array, missing: &Missing, spare: Vec<u32>) -> Option<Vec<u32>> {
        if !missing.has_numbers()
            && let Some(values) = integers(leaf)
        {
            let mut codes = resized(spare, values.len());
            simd::run(
                #[inline(always)]
                || {
                    for (code, &value) in codes.iter_mut().zip(values.values()) {
                        *code = self.of_integer(value);
                    }
                },
            );
            fill_nulls(leaf, self.buckets, &mut codes);
            return Some(codes);
        }
        numbers(leaf, missing, |number| match number {
            // Exact: a number of 2^32 or more is out of range in either type.
            Number::Value(value) if value.fract() == 0.0 => self.of_integer(value as i64),
            Number::Absent => self.buckets,
            _ => INVALID,
        })
    }

    #[inline(always)]
    fn of_integer(self, value: i64) -> u32 {
        // Below `buckets`, so it fits in a u32.
        if (0..i64::from(self.buckets)).contains(&value) { value as u32 } else { self.out_of_range_id }
    }
}
