//! Bucketized features: the id of the interval that contains a number.

use arrow_array::Array;

use super::column::{Missing, Number, fill_nulls, floats, numbers, resized, round_to_column_type};
use super::{INVALID, simd};

/// Up to this many boundaries, comparing with all of them is faster than a binary search.
const MAX_LINEAR_SCAN: usize = 32;

/// Boundaries, strictly increasing.
#[derive(Clone, Debug)]
pub(crate) struct Bucketized {
    boundaries: Vec<f64>,
}

impl Bucketized {
    pub(crate) fn new(boundaries: &[f64]) -> Self {
        Self { boundaries: boundaries.to_vec() }
    }

    /// The intervals plus one id for missing.
    pub(crate) fn cardinality(&self) -> usize {
        self.boundaries.len() + 2
    }

    /// Each element's id; [`INVALID`] for unreadable text and NaN. `None` when the column's type is
    /// unsupported.
    pub(crate) fn codes(&self, leaf: &dyn Array, missing: &Missing, spare: Vec<u32>) -> Option<Vec<u32>> {
        let held: Vec<f64> = self
            .boundaries
            .iter()
            .map(|&boundary| round_to_column_type(leaf.data_type(), boundary))
            .collect();
        // Ids are below the cardinality, which fits in a u32.
        let absent = self.boundaries.len() as u32 + 1;
        if held.len() <= MAX_LINEAR_SCAN
            && let Some(values) = floats(leaf, missing)
        {
            let mut codes = resized(spare, values.len());
            simd::run(
                #[inline(always)]
                || count_below(&held, &values, &mut codes),
            );
            fill_nulls(leaf, absent, &mut codes);
            return Some(codes);
        }
        numbers(leaf, missing, |number| match number {
            Number::Value(value) if value.is_nan() => INVALID,
            Number::Value(value) => held.partition_point(|&boundary| boundary <= value) as u32,
            Number::Absent => absent,
            Number::Unreadable => INVALID,
        })
    }
}

/// Counts the boundaries at or below each value.
#[inline(always)]
fn count_below(boundaries: &[f64], values: &[f64], codes: &mut [u32]) {
    for (code, value) in codes.iter_mut().zip(values) {
        *code = if value.is_nan() { INVALID } else { 0 };
    }
    for &boundary in boundaries {
        for (code, &value) in codes.iter_mut().zip(values) {
            // Always false for NaN.
            *code += u32::from(boundary <= value);
        }
    }
}
