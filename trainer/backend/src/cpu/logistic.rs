//! The logistic loss `log(1 + e^d)` and its derivative, as plain formulas, which vectorize.
//!
//! `log(1 + e^d) = max(d, 0) + log(1 + e^-|d|)`, so nothing overflows. A sum of the second terms is the logarithm of a
//! product, which needs one logarithm for [`FACTORS`] of them.

use crate::cpu::exp::exp;

/// The most factors in `1..=2` whose product is finite in fp32.
pub(crate) const FACTORS: usize = 127;

/// The parts of the loss of a difference `d`.
#[derive(Clone, Copy)]
pub(crate) struct Logistic {
    /// `max(d, 0)`
    pub(crate) hinge: f32,
    /// `1 + e^-|d|`
    pub(crate) factor: f32,
    /// `sigmoid(d)`, the derivative.
    pub(crate) rising: f32,
    /// `sigmoid(-d)`
    pub(crate) falling: f32,
}

impl Logistic {
    #[inline(always)]
    pub(crate) fn of(difference: f32) -> Self {
        let e = exp(-difference.abs());
        let (small, large) = (e / (1.0 + e), 1.0 / (1.0 + e));
        let (rising, falling) = if difference >= 0.0 { (large, small) } else { (small, large) };
        // Not `max`, which drops a NaN.
        let hinge = if difference < 0.0 { 0.0 } else { difference };
        Self { hinge, factor: 1.0 + e, rising, falling }
    }
}
