//! Bucketized features: the interval that a number falls in, as an id.

use arrow_array::Array;

use super::column::{Missing, Number, as_held, floats, numbers, put_absent, zeroed};
use super::{INVALID, simd};

/// Up to so many boundaries, comparing with each is faster than looking for the right one.
const FEW: usize = 32;

/// Boundaries, strictly increasing.
#[derive(Clone, Debug)]
pub(crate) struct Bucketized {
    boundaries: Vec<f64>,
}

impl Bucketized {
    pub(crate) fn new(boundaries: &[f64]) -> Self {
        Self { boundaries: boundaries.to_vec() }
    }

    /// Intervals, and missing.
    pub(crate) fn cardinality(&self) -> usize {
        self.boundaries.len() + 2
    }

    /// Each element's id; [`INVALID`] for text that is no number, and for NaN, which is in no interval.
    pub(crate) fn codes(&self, leaf: &dyn Array, missing: &Missing, spare: Vec<u32>) -> Option<Vec<u32>> {
        let held: Vec<f64> =
            self.boundaries.iter().map(|&boundary| as_held(leaf.data_type(), boundary)).collect();
        // Ids are below the cardinality, which is a u32.
        let absent = self.boundaries.len() as u32 + 1;
        if held.len() <= FEW
            && let Some(values) = floats(leaf, missing)
        {
            let mut codes = zeroed(spare, values.len());
            simd::run(
                #[inline(always)]
                || count_below(&held, &values, &mut codes),
            );
            put_absent(leaf, absent, &mut codes);
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

/// Adds up how many boundaries are not above each value.
#[inline(always)]
fn count_below(boundaries: &[f64], values: &[f64], codes: &mut [u32]) {
    for (code, value) in codes.iter_mut().zip(values) {
        *code = if value.is_nan() { INVALID } else { 0 };
    }
    for &boundary in boundaries {
        for (code, &value) in codes.iter_mut().zip(values) {
            // Never true of NaN.
            *code += u32::from(boundary <= value);
        }
    }
}
