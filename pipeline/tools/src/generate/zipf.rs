//! Zipf-like ids by inversion. Rank `k` of `n` has probability proportional to the integral of `x^-s` from
//! `k - 1/2` to `k + 1/2`. This is Zipf's `k^-s` except for the first few ranks (12 % more at rank 1 when `s`
//! is 1.1), and needs only one uniform number, without rejection or a table of size `n`.

use super::draw::uniform;

/// The number of equal parts of the unit interval with a precomputed rank, where a part has only one.
const PARTS: usize = 1024;

/// A distribution over ranks `1..=n`.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    ranks: u32,
    inverse_power: f64,
    low: f64,
    span: f64,
    /// The rank of each part; 0 for a part with several.
    parts: Vec<u32>,
}

impl Zipf {
    /// # Panics
    /// If `ranks` is 0 or `exponent` is 1.
    pub(super) fn new(ranks: u32, exponent: f64) -> Self {
        assert!(
            ranks > 0 && exponent != 1.0,
            "a Zipf distribution requires ranks and an exponent other than 1"
        );
        let power = 1.0 - exponent;
        let low = 0.5_f64.powf(power);
        let span = (f64::from(ranks) + 0.5).powf(power) - low;
        let mut zipf = Self { ranks, inverse_power: 1.0 / power, low, span, parts: Vec::new() };
        let part = |index: usize| zipf.invert(index as f64 / PARTS as f64);
        let parts = (0..PARTS).map(|index| if part(index) == part(index + 1) { part(index) } else { 0 });
        zipf.parts = parts.collect();
        zipf
    }

    /// The rank selected by 64 random bits.
    #[inline]
    pub(super) fn rank(&self, bits: u64) -> u32 {
        match self.parts[(bits >> (64 - PARTS.trailing_zeros())) as usize] {
            0 => self.invert(uniform(bits)),
            rank => rank,
        }
    }

    fn invert(&self, uniform: f64) -> u32 {
        let x = (self.low + uniform * self.span).powf(self.inverse_power);
        // Saturates; clamps values that rounding moved out of range.
        ((x + 0.5) as u32).clamp(1, self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::Draws;
    use super::*;

    #[test]
    fn precomputed_ranks_match_inversion() {
        for (ranks, exponent) in [(1, 1.2), (3, 0.7), (1000, 1.1), (1_000_000, 1.05)] {
            let zipf = Zipf::new(ranks, exponent);
            assert!(zipf.parts.iter().any(|&rank| rank > 0));
            for i in 0..20_000 {
                let bits = Draws::new(1, 1).at(i);
                assert_eq!(zipf.rank(bits), zipf.invert(uniform(bits)));
            }
            assert_eq!(zipf.rank(0), 1);
            assert_eq!(zipf.rank(u64::MAX), ranks);
        }
    }

    #[test]
    fn frequencies_follow_the_power_law() {
        let zipf = Zipf::new(10_000, 1.2);
        let count = 400_000;
        let mut seen = [0_u32; 64];
        for i in 0..count {
            if let Some(seen) = seen.get_mut(zipf.rank(Draws::new(5, 2).at(i)) as usize) {
                *seen += 1;
            }
        }
        // Ranks 8 and 32 differ by a factor of 4: 4^1.2 is 5.28.
        let ratio = f64::from(seen[8]) / f64::from(seen[32]);
        assert!((ratio - 5.28).abs() < 0.4, "{ratio}");
    }
}
