//! Mixing by weight: how often the rows of each split occur in an epoch.
//!
//! A row of weight `w` occurs in epoch `e`
//!
//! ```text
//! floor((e + 1) w + u) - floor(e w + u) times, where u in [0, 1) is a hash of (seed, split, row)
//! ```
//!
//! This is systematic sampling over epochs (Madow and Madow, "On the Theory of Systematic Sampling", 1944). Within an
//! epoch, rows are drawn independently, with the fraction of `w` as their probability. Over `E` epochs, each row occurs
//! `E w` times, rounded up or down: with `w = 0.5`, once in any two successive epochs. Arithmetic is exact, in units of
//! 2^-64.
//!
//! An epoch contains each split in copies: whole ones, and one of the drawn rows if `w` has a fraction. Each copy is a
//! split of the epoch, so it is assigned to a lane and permuted independently of the others. Copies are numbered split by
//! split, so an ordered pass keeps the data's order. If all weights are 1, the splits of the epoch are those of the data.

use super::random::{Domain, Random};
use crate::splitmix::{GAMMA, mix};

/// How often a row occurs in an epoch, on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    whole: u32,
    /// In units of 2^-64.
    fraction: u64,
}

/// The weights of the splits of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    weights: Vec<Weight>,
    /// For each split, the number of copies up to its last one.
    ends: Vec<u32>,
}

/// A copy of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitCopy {
    pub(crate) split: u32,
    /// Its number among the copies of the split, from 0.
    pub(crate) number: u32,
    weight: Weight,
}

/// The rows of a split that are drawn in one epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    key: u64,
    fraction: u64,
    epoch: u32,
}

impl Weight {
    /// Every row once.
    pub const ONE: Self = Self { whole: 1, fraction: 0 };

    /// Rounds `weight`, which is positive, to the nearest representable value below.
    pub fn new(weight: f64) -> Self {
        // Conversions saturate.
        Self { whole: weight as u32, fraction: (weight.fract() * 2.0_f64.powi(64)) as u64 }
    }

    /// The number of copies of a split in an epoch.
    fn copies(self) -> u32 {
        self.whole.saturating_add((self.fraction > 0).into())
    }
}

impl Mix {
    /// The mix of splits with these weights, in order; `None` if an epoch would have more than `most` splits.
    pub fn new(weights: Vec<Weight>, most: usize) -> Option<Self> {
        let mut ends = Vec::with_capacity(weights.len());
        let mut end = 0_u32;
        for weight in &weights {
            end = end.checked_add(weight.copies()).filter(|&end| end as usize <= most)?;
            ends.push(end);
        }
        Some(Self { weights, ends })
    }

    /// The weight of each split of the data.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// The number of splits of an epoch.
    pub fn splits(&self) -> u32 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The copy that is split `index` of an epoch.
    ///
    /// # Panics
    /// When `index` is out of range.
    pub(crate) fn copy(&self, index: u32) -> SplitCopy {
        let split = self.ends.partition_point(|&end| end <= index);
        let start = if split == 0 { 0 } else { self.ends[split - 1] };
        SplitCopy { split: split as u32, number: index - start, weight: self.weights[split] }
    }

    /// Distinguishes this mix from others of the same data; 0 if all weights are 1.
    pub(crate) fn key(&self) -> u64 {
        if self.weights.iter().all(|&weight| weight == Weight::ONE) {
            return 0;
        }
        let words = self.weights.iter().flat_map(|weight| [u64::from(weight.whole), weight.fraction]);
        words.fold(0, |hash, word| mix(hash.wrapping_add(GAMMA) ^ word))
    }
}

impl SplitCopy {
    /// The rows of this copy in `epoch`; `None` for all rows of the split.
    pub(crate) fn sample(self, seed: u64, epoch: u32) -> Option<Sample> {
        (self.number == self.weight.whole).then(|| Sample {
            key: Random::keyed(Domain::Sample, &[seed, u64::from(self.split)]).next(),
            fraction: self.weight.fraction,
            epoch,
        })
    }
}

impl Sample {
    /// Whether row `row` of the split is drawn.
    pub(crate) fn holds(self, row: u64) -> bool {
        let hash = mix(self.key.wrapping_add(GAMMA.wrapping_mul(row.wrapping_add(1))));
        let phase = hash.wrapping_add(self.fraction.wrapping_mul(self.epoch.into()));
        phase.checked_add(self.fraction).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 5;

    fn mixed(weights: &[f64]) -> Mix {
        Mix::new(weights.iter().map(|&weight| Weight::new(weight)).collect(), usize::MAX).expect("few splits")
    }

    /// How often row `row` of `split` occurs in `epoch`.
    fn count(mix: &Mix, split: u32, row: u64, epoch: u32) -> u32 {
        let copies = (0..mix.splits()).map(|index| mix.copy(index)).filter(|copy| copy.split == split);
        copies.map(|copy| u32::from(copy.sample(SEED, epoch).is_none_or(|sample| sample.holds(row)))).sum()
    }

    #[test]
    fn copies_are_numbered_split_by_split() {
        let mix = mixed(&[1.0, 2.5, 0.25, 3.0]);
        let copies: Vec<_> = (0..mix.splits()).map(|index| mix.copy(index)).collect();
        let places: Vec<_> = copies.iter().map(|copy| (copy.split, copy.number)).collect();
        assert_eq!(places, [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (3, 1), (3, 2)]);
        let sampled: Vec<_> = copies.iter().map(|copy| copy.sample(SEED, 0).is_some()).collect();
        assert_eq!(sampled, [false, false, false, true, true, false, false, false]);
        assert_eq!(Mix::new(vec![Weight::new(2.5); 4], 12).map(|mix| mix.splits()), Some(12));
        assert_eq!(Mix::new(vec![Weight::new(2.5); 4], 11), None);
        assert_eq!(Mix::new(vec![Weight::new(f64::MAX); 4], usize::MAX), None);
    }

    #[test]
    fn the_key_is_of_the_weights() {
        let lists: [&[f64]; 6] = [&[1.0, 1.0], &[2.0, 1.0], &[1.0, 2.0], &[1.5, 1.5], &[1.5, 1.25], &[1.5]];
        let keys: Vec<_> = lists.iter().map(|weights| mixed(weights).key()).collect();
        assert_eq!(keys[0], 0);
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    /// Over any epochs, a row occurs as often as its weight says, rounded up or down.
    #[test]
    fn every_row_gets_its_weight_over_epochs() {
        let weights = [0.5, 1.0 / 3.0, 0.001, 1.0, 2.5, 7.9];
        let mix = mixed(&weights);
        for (split, weight) in (0..).zip(weights) {
            for row in 0..200 {
                for first in [0, 7] {
                    let mut total = 0;
                    for epochs in 1..40 {
                        total += count(&mix, split, row, first + epochs - 1);
                        let expected = weight * f64::from(epochs);
                        assert!(
                            (f64::from(total) - expected).abs() < 1.0,
                            "{weight} {row} {epochs}: {total}"
                        );
                    }
                }
            }
        }
    }

    /// Within an epoch, the number of drawn rows is binomially distributed, and independent between splits and seeds.
    #[test]
    fn rows_are_drawn_with_their_probability() {
        const ROWS: u64 = 20_000;
        for fraction in [0.01, 0.3, 0.5, 0.95] {
            let mix = mixed(&[fraction, fraction]);
            let drawn = |split: u32, seed, epoch| {
                let sample = mix.copy(split).sample(seed, epoch).expect("a fraction");
                (0..ROWS).filter(|&row| sample.holds(row)).collect::<std::collections::BTreeSet<_>>()
            };
            let bound = |probability: f64| 5.0 * (ROWS as f64 * probability * (1.0 - probability)).sqrt();
            for epoch in [0, 1, 2, 1_000_000, u32::MAX] {
                let rows = drawn(0, SEED, epoch);
                let excess = rows.len() as f64 - ROWS as f64 * fraction;
                assert!(excess.abs() < bound(fraction), "{fraction} {epoch}: {excess}");
                for other in [drawn(1, SEED, epoch), drawn(0, SEED + 1, epoch)] {
                    let both = rows.intersection(&other).count() as f64;
                    let expected = ROWS as f64 * fraction * fraction;
                    assert!(
                        (both - expected).abs() < bound(fraction * fraction),
                        "{fraction} {epoch}: {both}"
                    );
                }
                assert_ne!(rows, drawn(0, SEED, epoch.wrapping_add(1)));
            }
        }
    }
}
