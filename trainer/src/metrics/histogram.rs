//! A histogram of rows by score, in bounded memory.
//!
//! There are [`BINS`] bins of some 20 bytes. A ranking depends on the ratios of scores near 0, and on the
//! ratios of their distances to 1 near 1. So bins have equal width in the leading bits of the score below one
//! half, and of one minus the score from one half on: 2^14 bins for each doubling, down to 2^-40 and up to
//! 1 - 2^-24, the fp32 score next to 1. No bin is wider than 1 part in 16384 of the distance of its scores to
//! the nearer end; scores below 2^-40 share one bin.
//!
//! A bin records whether all its rows have the same score. Such rows are tied and ranked exactly. So few
//! distinct scores lose no precision, and neither do scores within 2^-10 of 1.

use super::areas::Sweep;
use super::ranking::WeightedRow;

/// The leading bits of a number are its exponent and this many bits of its mantissa.
const MANTISSA_BITS: u32 = 14;
const DROPPED_BITS: u32 = f32::MANTISSA_DIGITS - 1 - MANTISSA_BITS;

/// The leading bits of 0.5, and those just below 2^-40 and 2^-24, which represent all lower scores.
const HALF: u32 = leading(0.5_f32.to_bits());
const LEAST: u32 = leading((127 - 40) << 23) - 1;
const LEAST_BELOW_ONE: u32 = leading((127 - 24) << 23) - 1;

const BINS: u32 = (HALF - LEAST) + (HALF - LEAST_BELOW_ONE + 1);

/// Values in place of a bin's only score: the bin has no rows, or several scores.
const NO_SCORE: u32 = u32::MAX;
const SCORES: u32 = u32::MAX - 1;

/// Weights of rows in bins of similar scores.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    /// `[BINS]`: positive and negative weight. Integers, for rows of weight 1, are exact up to 2^53.
    weights: Vec<[f64; 2]>,
    /// `[BINS]`: the bits of a bin's only score.
    scores: Vec<u32>,
}

const fn leading(bits: u32) -> u32 {
    bits >> DROPPED_BITS
}

/// The bin of a score in `[0, 1]`. Bins sort like scores.
fn bin(score: f32) -> usize {
    let bin = if score < 0.5 {
        leading(score.to_bits()).max(LEAST) - LEAST
    } else {
        // From one half on, the difference to 1 is exact (Sterbenz).
        let below_one = leading((1.0 - score).to_bits()).max(LEAST_BELOW_ONE) - LEAST_BELOW_ONE;
        BINS - 1 - below_one
    };
    bin as usize
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self { weights: vec![[0.0; 2]; BINS as usize], scores: vec![NO_SCORE; BINS as usize] }
    }

    /// Adds a row.
    pub(super) fn add(&mut self, row: &WeightedRow) {
        let score_bits = row.score_bits;
        let (positive, negative) = row.parts();
        // A row without weight must not make a bin's scores count as several.
        if positive + negative == 0.0 {
            return;
        }
        let bin = bin(f32::from_bits(score_bits));
        let [positives, negatives] = &mut self.weights[bin];
        *positives += positive;
        *negatives += negative;
        let score = &mut self.scores[bin];
        *score = if *score == NO_SCORE || *score == score_bits { score_bits } else { SCORES };
    }

    pub(super) fn sweep(&self) -> Sweep {
        let mut sweep = Sweep::default();
        for (&[positive, negative], &score) in self.weights.iter().zip(&self.scores).rev() {
            match score {
                NO_SCORE => {}
                SCORES => sweep.mixed(positive, negative),
                _ => sweep.tied(positive, negative),
            }
        }
        sweep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_sort_like_scores_and_are_narrow() {
        assert_eq!(BINS, 1_015_811, "the sum of both halves");
        let one = 1.0_f32.to_bits();
        let (mut before, mut first) = (0, 0.0_f32);
        let mut tried = 0_u32;
        // Every 61st possible score, and all scores near the boundaries.
        let seams = [0, (127 - 40) << 23, 0.5_f32.to_bits(), one];
        let near = |bits: u32| seams.iter().any(|seam| bits.abs_diff(*seam) < 2000);
        for bits in (0..=one).filter(|&bits| bits % 61 == 0 || near(bits)) {
            let score = f32::from_bits(bits);
            let found = bin(score);
            assert!(found >= before && found < BINS as usize, "{score:e}");
            if found != before {
                (before, first) = (found, score);
            }
            let to_the_nearer_end = f64::from(first).min(1.0 - f64::from(score));
            let width = f64::from(score) - f64::from(first);
            assert!(found == 0 || width <= to_the_nearer_end / 16384.0, "{first:e} to {score:e}");
            tried += 1;
        }
        assert!(tried > 17_000_000);
        assert_eq!((bin(0.0), bin(1.0)), (0, BINS as usize - 1));
        assert_eq!(bin(0.5) - bin(0.5_f32.next_down()), 1);
        assert_ne!(bin(1.0), bin(1.0_f32.next_down()));
    }
}
