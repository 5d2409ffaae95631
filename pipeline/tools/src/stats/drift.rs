//! How much the distribution of a column has changed: the population stability index (PSI).
//!
//! With the shares `p` of the earlier and `q` of the later values in each of some bins, it is the sum of `(q - p) ln(q / p)`,
//! which is the symmetric Kullback-Leibler divergence (Jeffreys). The bins of numbers are about tenths of the earlier values;
//! those of other values are up to 64 by their hash. Absent values have a bin of their own. By the usual convention, a PSI
//! below 0.1 says that nothing has changed, and one above 0.25 that much has.
//!
//! Two samples of one distribution, of `n` and `m` rows, have a PSI of about `(bins - 1) (1 / n + 1 / m)`. There are only as
//! many bins as keep that below half of what counts as drift, at least two.

use serde::Serialize;

use super::Distribution;

/// The PSI from which on a column has drifted.
const MODERATE: f64 = 0.1;
/// The PSI from which on it has drifted much.
const LARGE: f64 = 0.25;

/// The most bins of numbers.
const MAX_BINS: usize = 10;

/// The most PSI that chance may cause.
const MAX_NOISE: f64 = MODERATE / 2.0;

/// The least share of a bin: an empty one would make the PSI infinite.
const LEAST_SHARE: f64 = 1e-4;

/// How much a column has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Drift {
    /// No more than between samples.
    None,
    /// Somewhat.
    Moderate,
    /// Much: a model should be trained again.
    Large,
}

impl Drift {
    /// What a PSI says.
    pub fn of(psi: f64) -> Self {
        match psi {
            _ if psi >= LARGE => Self::Large,
            _ if psi >= MODERATE => Self::Moderate,
            _ => Self::None,
        }
    }

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Moderate => "moderate",
            Self::Large => "large",
        }
    }
}

/// The PSI of a column between two versions of the data, each with its distribution and the number of rows without a value;
/// `None` if its values are numbers in one only, or neither has values.
pub fn drift(before: (&Distribution, u64), after: (&Distribution, u64)) -> Option<f64> {
    let counts = match (before.0, after.0) {
        (Distribution::Numbers(before), Distribution::Numbers(after)) => before.aligned(after),
        (Distribution::Values(before), Distribution::Values(after)) if before.len() == after.len() => {
            before.iter().copied().zip(after.iter().copied()).collect()
        }
        _ => return None,
    };
    let absent = (before.1, after.1);
    let total = |of: fn(&(u64, u64)) -> u64| {
        counts.iter().chain([&absent]).map(of).fold(0_u64, u64::saturating_add) as f64
    };
    let (all_before, all_after) = (total(|bin| bin.0), total(|bin| bin.1));
    if all_before == 0.0 || all_after == 0.0 {
        return None;
    }
    let noise_per_bin = 1.0 / all_before + 1.0 / all_after;
    let most = ((1.0 + MAX_NOISE / noise_per_bin) as usize).max(2);
    let mut bins = match before.0 {
        Distribution::Numbers(_) => in_order(&counts, most.min(MAX_BINS) as u64),
        Distribution::Values(_) => folded(&counts, most),
    };
    bins.push(absent);
    let term = |&(before, after): &(u64, u64)| {
        let p = (before as f64 / all_before).max(LEAST_SHARE);
        let q = (after as f64 / all_after).max(LEAST_SHARE);
        (q - p) * (q / p).ln()
    };
    Some(bins.iter().filter(|bin| **bin != (0, 0)).map(term).sum())
}

/// Adjacent buckets put together to about `count` bins, each with as many of the earlier values.
fn in_order(buckets: &[(u64, u64)], count: u64) -> Vec<(u64, u64)> {
    let total = buckets.iter().map(|bucket| bucket.0).fold(0, u64::saturating_add);
    let enough = total.div_ceil(count).max(1);
    let mut bins = Vec::new();
    let mut bin = (0_u64, 0_u64);
    for bucket in buckets {
        bin = sum(bin, *bucket);
        if bin.0 >= enough {
            bins.push(std::mem::take(&mut bin));
        }
    }
    bins.push(bin);
    bins
}

/// The bins put together, by fewer bits of the hash, to the largest power of two that is at most `count`.
fn folded(buckets: &[(u64, u64)], count: usize) -> Vec<(u64, u64)> {
    let count = 1 << count.min(buckets.len()).max(1).ilog2();
    let mut bins = vec![(0, 0); count];
    for (place, bucket) in buckets.iter().enumerate() {
        bins[place % count] = sum(bins[place % count], *bucket);
    }
    bins
}

fn sum(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0.saturating_add(other.0), one.1.saturating_add(other.1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow_array::{ArrayRef, Float64Array, StringArray};

    use super::super::ColumnStatistics;
    use super::*;

    fn distribution(array: ArrayRef) -> Distribution {
        let mut statistics = ColumnStatistics::default();
        statistics.add_array(&array);
        statistics.distribution()
    }

    fn numbers(values: impl IntoIterator<Item = f64>) -> Distribution {
        distribution(Arc::new(Float64Array::from_iter_values(values)))
    }

    #[test]
    fn numbers_of_the_same_distribution_have_not_drifted_and_shifted_ones_have() {
        let sample =
            |from: u32, step: u32| (0..10_000).map(move |n| f64::from((from + n * step) % 9973) / 100.0);
        let before = numbers(sample(0, 7));
        let same = drift((&before, 0), (&numbers(sample(3, 11)), 0)).unwrap();
        assert!(same < 0.01, "{same}");
        let shifted = drift((&before, 0), (&numbers(sample(0, 7).map(|x| x + 30.0)), 0)).unwrap();
        assert!(Drift::of(shifted) == Drift::Large, "{shifted}");
        // Ten equal bins, of which one in ten values moves to the absent ones.
        let psi = drift((&before, 0), (&before, 1_111)).unwrap();
        let (least, share) = (LEAST_SHARE, 1_111.0 / 11_111.0_f64);
        let wanted = (share - least) * (share / least).ln() + share * (1.0 / (1.0 - share)).ln();
        assert!((psi - wanted).abs() < 0.01, "{psi} {wanted}");
        assert_eq!(Drift::of(0.09), Drift::None);
        assert_eq!(Drift::of(0.1), Drift::Moderate);
    }

    #[test]
    fn samples_of_one_distribution_have_not_drifted_however_small() {
        for rows in [40, 100, 500, 1_000, 5_000] {
            // Different words, of which each sample has others: nothing but their hashes differs.
            let words = |from: u32| {
                (from..from + rows).map(|n| format!("{}", n.wrapping_mul(2_654_435_761) % 100_003))
            };
            let [one, other] =
                [0, rows].map(|from| distribution(Arc::new(StringArray::from_iter_values(words(from)))));
            let psi = drift((&one, 0), (&other, 0)).unwrap();
            assert!(psi < 0.25, "{rows} rows: {psi}");
        }
        let days = |from: u32| numbers((0..10_000).map(|n| 1.79e9 + f64::from(from + n % 30) * 86_400.0));
        assert!(drift((&days(0), 0), (&days(15), 0)).unwrap() > 1.0, "15 of 30 days");
    }

    #[test]
    fn the_index_of_two_bins_is_that_of_its_formula() {
        let before =
            distribution(Arc::new(StringArray::from_iter_values(["a"; 60].into_iter().chain(["b"; 40]))));
        let after =
            distribution(Arc::new(StringArray::from_iter_values(["a"; 20].into_iter().chain(["b"; 80]))));
        let wanted = (0.2 - 0.6) * (0.2_f64 / 0.6).ln() + (0.8 - 0.4) * (0.8_f64 / 0.4).ln();
        assert!((drift((&before, 0), (&after, 0)).unwrap() - wanted).abs() < 1e-12);
        assert_eq!(drift((&before, 0), (&numbers([1.0, 2.0]), 0)), None);
        let nothing = Distribution::Values(vec![0; 64]);
        assert_eq!(drift((&nothing, 0), (&before, 0)), None);
    }
}
