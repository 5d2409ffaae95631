//! Random numbers addressed by row and column instead of drawn in sequence: row `i` gets the same values on any thread,
//! independent of previously generated rows.
//!
//! A [`Draws`] is a SplitMix64 sequence (`splitmix.rs`) with random access: its `i`-th output is a mix of
//! `key + i * GAMMA`. Each use has its own key.

use millstream_pipeline::splitmix::{GAMMA, mix};

/// A random-access sequence of random numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    key: u64,
}

impl Draws {
    /// The sequence number `stream` for `seed`.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self { key: mix(mix(seed.wrapping_add(GAMMA)) ^ stream.wrapping_mul(GAMMA)) }
    }

    /// 64 random bits.
    #[inline]
    pub(super) fn at(self, position: u64) -> u64 {
        mix(self.key.wrapping_add(position.wrapping_add(1).wrapping_mul(GAMMA)))
    }
}

/// A bijection of 32 bits (MurmurHash3's finalizer), so that distinct ids stay distinct.
#[inline]
pub(super) fn mix32(value: u32) -> u32 {
    let value = (value ^ (value >> 16)).wrapping_mul(0x85eb_ca6b);
    let value = (value ^ (value >> 13)).wrapping_mul(0xc2b2_ae35);
    value ^ (value >> 16)
}

/// Uniform in `[0, 1)`, on a grid of 2^-53.
#[inline]
pub(super) fn uniform(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// Approximately standard normal, within 3.46 of 0: the scaled sum of four uniform numbers (Irwin-Hall).
#[inline]
pub(super) fn normal(bits: u64) -> f64 {
    const MEAN: f64 = 4.0 * 65_535.0 / 2.0;
    // The variance of one number is 2^32 / 12, ignoring the grid.
    const DEVIATION: f64 = 65_536.0 / 1.732_050_807_568_877_2;
    let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    (sum as f64 - MEAN) / DEVIATION
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn moments_match_the_distributions() {
        let draws = Draws::new(7, 3);
        let count = 100_000;
        let mean = |of: &dyn Fn(u64) -> f64| (0..count).map(|i| of(draws.at(i))).sum::<f64>() / count as f64;
        assert!((mean(&uniform) - 0.5).abs() < 0.005);
        assert!((mean(&|bits| uniform(bits).powi(2)) - 1.0 / 3.0).abs() < 0.005);
        assert!(mean(&normal).abs() < 0.015);
        assert!((mean(&|bits| normal(bits).powi(2)) - 1.0).abs() < 0.02);
    }

    #[test]
    fn streams_and_seeds_differ() {
        let draws: HashSet<u64> = (0..100)
            .flat_map(|n| [Draws::new(1, n).at(0), Draws::new(2, n).at(0), Draws::new(1, n).at(1)])
            .collect();
        assert_eq!(draws.len(), 300);
    }
}
