//! How well the first ranks of one group are filled: NDCG, reciprocal rank and recall.
//!
//! Rows with equal scores have no order. Each metric is the mean over all of their orders, so that neither the order of
//! rows in the data nor chance decides: McSherry and Najork, "Computing Information Retrieval Performance Measures
//! Efficiently in the Presence of Tied Scores", 2008, section 3.
//!
//! Functions take a group's rows sorted by score, the highest last. A row is relevant if its label is above 0.

use super::ranking::WeightedRow;
use crate::spec::{Gains, RankingSpec};

/// Exponential gains of larger labels would exceed all others; LightGBM has the same bound.
const MOST_EXPONENTIAL_LABEL: f32 = 31.0;

/// The discounts of the first ranks: 1 divided by the binary logarithm of 1 plus the rank, which starts at 1.
#[derive(Clone, Debug)]
pub(super) struct Discounts {
    /// The sum over the first `i` ranks, for each `i` up to the last rank that counts.
    sums: Vec<f64>,
}

impl Discounts {
    pub(super) fn new(ranking: RankingSpec) -> Self {
        let mut sums = vec![0.0];
        for rank in 1..=ranking.top_k.min(RankingSpec::MAX_TOP_K) {
            sums.push(sums[sums.len() - 1] + 1.0 / (1.0 + f64::from(rank)).log2());
        }
        Self { sums }
    }

    /// The number of ranks that count.
    fn ranks(&self) -> usize {
        self.sums.len() - 1
    }

    /// The sum over `count` ranks after the first `before`.
    fn sum(&self, before: usize, count: usize) -> f64 {
        let last = self.ranks();
        self.sums[(before + count).min(last)] - self.sums[before.min(last)]
    }
}

/// The gain of a label; `None` if it has none.
pub(super) fn gain(label: f32, gains: Gains) -> Option<f64> {
    match gains {
        Gains::Exponential => (0.0..=MOST_EXPONENTIAL_LABEL)
            .contains(&label)
            .then(|| (f64::from(label) * std::f64::consts::LN_2).exp_m1()),
        Gains::Linear => (label >= 0.0).then(|| f64::from(label)),
    }
}

/// The discounted cumulative gain of the first ranks, divided by that of the ideal order. `None` if no row has a gain.
pub(super) fn ndcg(rows: &[WeightedRow], discounts: &Discounts, gains: Gains) -> Option<f64> {
    let gain_of = |row: &WeightedRow| gain(row.label, gains).unwrap_or(0.0);
    let mut of_rows: Vec<f64> = rows.iter().map(gain_of).collect();
    of_rows.sort_unstable_by(|a, b| b.total_cmp(a));
    let ideal = of_rows.iter().take(discounts.ranks()).enumerate();
    let ideal: f64 = ideal.map(|(before, gain)| gain * discounts.sum(before, 1)).sum();
    let of_ties = ties(rows).map(|(before, tied)| {
        let mean = tied.iter().map(gain_of).sum::<f64>() / tied.len() as f64;
        mean * discounts.sum(before, tied.len())
    });
    let found: f64 = of_ties.sum();
    (ideal > 0.0).then(|| found / ideal)
}

/// 1 divided by the rank of the first relevant row. `None` without relevant rows.
pub(super) fn reciprocal_rank(rows: &[WeightedRow]) -> Option<f64> {
    let mut ties = ties(rows).map(|(before, tied)| (before, tied.len(), relevant(tied)));
    let (before, rows, relevant) = ties.find(|&(.., relevant)| relevant > 0)?;
    // The first relevant row is row `place` of the tied ones with this probability.
    let (mut probability, mut mean) = (relevant as f64 / rows as f64, 0.0);
    for place in 1..=rows - relevant + 1 {
        mean += probability / (before + place) as f64;
        if place < rows {
            probability *= (rows - relevant + 1 - place) as f64 / (rows - place) as f64;
        }
    }
    Some(mean)
}

/// The share of relevant rows that are among the first `top_k` ranks. `None` without relevant rows.
pub(super) fn recall(rows: &[WeightedRow], top_k: u32) -> Option<f64> {
    let found = ties(rows).map(|(before, tied)| {
        let ranks = (top_k as usize).saturating_sub(before).min(tied.len());
        relevant(tied) as f64 * (ranks as f64 / tied.len() as f64)
    });
    let all = relevant(rows);
    (all > 0).then(|| found.sum::<f64>() / all as f64)
}

fn relevant(rows: &[WeightedRow]) -> usize {
    rows.iter().filter(|row| row.label > 0.0).count()
}

/// The rows of each score, the highest first, each with the number of rows above.
fn ties(rows: &[WeightedRow]) -> impl Iterator<Item = (usize, &[WeightedRow])> {
    let mut before = 0;
    rows.chunk_by(|a, b| a.score_bits == b.score_bits).rev().map(move |tied| {
        let above = before;
        before += tied.len();
        (above, tied)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn sorted(rows: &[(f32, f32)]) -> Vec<WeightedRow> {
        let mut rows: Vec<_> =
            rows.iter().map(|&(score, label)| WeightedRow::of_any_score(score, label, 1.0)).collect();
        rows.sort_unstable_by_key(WeightedRow::order);
        rows
    }

    /// Every order of the numbers below `count`.
    fn orders(count: usize) -> Vec<Vec<usize>> {
        match count {
            0 => vec![Vec::new()],
            _ => orders(count - 1)
                .into_iter()
                .flat_map(|order| {
                    (0..count).map(move |at| {
                        let mut longer = order.clone();
                        longer.insert(at, count - 1);
                        longer
                    })
                })
                .collect(),
        }
    }

    /// The mean of `metric`, which maps labels from the first rank on, over every order in which no score is below a
    /// later one.
    fn mean(rows: &[(f32, f32)], metric: impl Fn(&[f32]) -> f64) -> f64 {
        let valid = orders(rows.len())
            .into_iter()
            .filter(|order| order.windows(2).all(|pair| rows[pair[0]].0 >= rows[pair[1]].0));
        let values: Vec<f64> =
            valid.map(|order| metric(&order.iter().map(|&row| rows[row].1).collect::<Vec<_>>())).collect();
        values.iter().sum::<f64>() / values.len() as f64
    }

    fn dcg(labels: &[f32], top_k: usize, gains: Gains) -> f64 {
        let gain = |label: f32| match gains {
            Gains::Exponential => 2.0_f64.powf(label.into()) - 1.0,
            Gains::Linear => f64::from(label),
        };
        let ranked = labels.iter().take(top_k).zip(1_u8..);
        ranked.map(|(&label, rank)| gain(label) / (f64::from(rank) + 1.0).log2()).sum()
    }

    fn close(found: Option<f64>, expected: Option<f64>) -> bool {
        match (found, expected) {
            (Some(found), Some(expected)) => (found - expected).abs() < 1e-12,
            (found, expected) => found == expected,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn each_metric_is_the_mean_over_the_orders_of_ties(
            rows in prop::collection::vec((-1_i8..2, 0_u8..4), 1..7), top_k in 1_u32..8, linear in any::<bool>(),
        ) {
            let rows: Vec<(f32, f32)> = rows.into_iter().map(|(s, y)| (s.into(), y.into())).collect();
            let (sorted, gains) = (sorted(&rows), if linear { Gains::Linear } else { Gains::Exponential });
            let (few, all) = (top_k as usize, rows.iter().filter(|row| row.1 > 0.0).count());
            let relevant = (all > 0).then_some(());
            let mut best: Vec<f32> = rows.iter().map(|row| row.1).collect();
            best.sort_unstable_by(|a, b| b.total_cmp(a));
            let ideal = dcg(&best, few, gains);

            let expected = relevant.map(|()| mean(&rows, |labels| dcg(labels, few, gains) / ideal));
            let discounts = Discounts::new(RankingSpec { top_k, gains });
            let found = ndcg(&sorted, &discounts, gains);
            prop_assert!(close(found, expected), "NDCG {:?}, not {:?}", found, expected);

            let first = |labels: &[f32]| 1.0 / (1 + labels.iter().position(|&y| y > 0.0).unwrap()) as f64;
            let (found, expected) = (reciprocal_rank(&sorted), relevant.map(|()| mean(&rows, first)));
            prop_assert!(close(found, expected), "reciprocal rank {:?}, not {:?}", found, expected);

            let share = |labels: &[f32]| {
                labels.iter().take(few).filter(|&&y| y > 0.0).count() as f64 / all as f64
            };
            let (found, expected) = (recall(&sorted, top_k), relevant.map(|()| mean(&rows, share)));
            prop_assert!(close(found, expected), "recall {:?}, not {:?}", found, expected);
        }
    }

    #[test]
    fn ndcg_by_hand() {
        // Labels 3, 2, 3, 0, 1 and 2 in this order: the example of Wikipedia's article on NDCG, with linear gains.
        let labels = [3.0, 2.0, 3.0, 0.0, 1.0, 2.0];
        let rows: Vec<_> = labels.iter().enumerate().map(|(at, &y)| (-(at as f32), y)).collect();
        let gains = Gains::Linear;
        let all = Discounts::new(RankingSpec { top_k: 6, gains });
        let found = ndcg(&sorted(&rows), &all, gains).unwrap();
        assert!((found - 6.861_126_688 / 7.140_995_184).abs() < 1e-8, "{found}");
    }

    #[test]
    fn labels_out_of_range_have_no_gain() {
        for (label, exponential, linear) in [
            (-1.0, None, None),
            (0.0, Some(0.0), Some(0.0)),
            (1.0, Some(1.0), Some(1.0)),
            (32.0, None, Some(32.0)),
        ] {
            assert_eq!(gain(label, Gains::Exponential), exponential, "{label}");
            assert_eq!(gain(label, Gains::Linear), linear, "{label}");
        }
        assert!(close(gain(4.0, Gains::Exponential), Some(15.0)));
    }
}
