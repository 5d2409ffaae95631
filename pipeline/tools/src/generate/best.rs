//! The score of the planted model on the rows that it generated: the best that a trained model can expect.
//!
//! True probabilities are multiples of 2^-20 by construction. Counting rows and positives per grid point is
//! therefore enough to compute all metrics exactly, in 16 MiB for any number of rows, and counts of parts can
//! be merged in any order.

/// The resolution of a probability in bits.
pub(super) const BITS: u32 = 20;

/// Rows by true probability.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// Index `k` counts the rows of probability `k / 2^20`.
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Point {
    rows: u64,
    positives: u64,
}

/// The metrics of the true probabilities on the generated labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BestScore {
    /// The number of positive rows.
    pub positives: u64,
    /// The exact area under the ROC curve of the true probabilities over the drawn labels; ties count half.
    /// NaN when all labels are equal.
    pub auc: f64,
    /// The same over all possible draws of the labels: expected correctly ordered pairs over expected pairs.
    pub expected_auc: f64,
    /// The mean negative log-likelihood of the drawn labels, in nats.
    pub log_loss: f64,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self { points: vec![Point::default(); 1 << BITS] }
    }

    /// Counts a row of probability `point / 2^20`.
    #[inline]
    pub(super) fn add(&mut self, point: u32, positive: bool) {
        let counts = &mut self.points[point as usize];
        counts.rows += 1;
        counts.positives += u64::from(positive);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (point, other) in self.points.iter_mut().zip(&other.points) {
            point.rows += other.rows;
            point.positives += other.positives;
        }
    }

    pub(super) fn best(&self) -> BestScore {
        let rows: u64 = self.points.iter().map(|point| point.rows).sum();
        let positives: u64 = self.points.iter().map(|point| point.positives).sum();
        BestScore {
            positives,
            auc: self.auc(),
            expected_auc: self.expected_auc(),
            log_loss: self.log_loss() / rows as f64,
        }
    }

    fn auc(&self) -> f64 {
        let (mut below, mut positives, mut doubled) = (0_u128, 0_u128, 0_u128);
        for point in &self.points {
            let negative = u128::from(point.rows - point.positives);
            let positive = u128::from(point.positives);
            doubled += positive * (2 * below + negative);
            below += negative;
            positives += positive;
        }
        doubled as f64 / (2 * positives * below) as f64
    }

    /// Weights each ordered pair of distinct rows by the probability that the first is positive and the
    /// second negative.
    fn expected_auc(&self) -> f64 {
        const ONE: u128 = 1 << BITS;
        let (mut below, mut positives, mut self_pairs, mut doubled) = (0_u128, 0_u128, 0_u128, 0_u128);
        for (index, point) in self.points.iter().enumerate() {
            let rows = u128::from(point.rows);
            let positive = rows * index as u128;
            let negative = rows * (ONE - index as u128);
            let self_pair = rows * index as u128 * (ONE - index as u128);
            doubled += positive * (2 * below + negative) - self_pair;
            below += negative;
            positives += positive;
            self_pairs += self_pair;
        }
        doubled as f64 / (2 * (positives * below - self_pairs)) as f64
    }

    /// The total over all rows.
    fn log_loss(&self) -> f64 {
        let points = self.points.iter().enumerate().filter(|(_, point)| point.rows > 0);
        let loss = points.map(|(index, point)| {
            let probability = index as f64 / f64::from(1 << BITS);
            let positives = point.positives as f64;
            -(positives * probability.ln() + (point.rows as f64 - positives) * (-probability).ln_1p())
        });
        loss.sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn matches_counting_all_pairs(rows in proptest::collection::vec((1u32..9, any::<bool>()), 2..40)) {
            let mut tally = Tally::new();
            let mut rest = Tally::new();
            for (index, &(point, positive)) in rows.iter().enumerate() {
                if index % 3 == 0 { &mut rest } else { &mut tally }.add(point << 17 >> 1, positive);
            }
            tally.merge(&rest);
            let best = tally.best();
            let probability = |point: u32| f64::from(point) / 16.0;
            let (mut pairs, mut ordered, mut expected_pairs, mut expected_ordered) = (0.0, 0.0, 0.0, 0.0);
            let mut loss = 0.0;
            for (i, &(a, a_positive)) in rows.iter().enumerate() {
                loss -= if a_positive { probability(a).ln() } else { (1.0 - probability(a)).ln() };
                for (j, &(b, b_positive)) in rows.iter().enumerate() {
                    let share = if a > b { 1.0 } else if a == b { 0.5 } else { 0.0 };
                    if a_positive && !b_positive {
                        pairs += 1.0;
                        ordered += share;
                    }
                    if i != j {
                        let chance = probability(a) * (1.0 - probability(b));
                        expected_pairs += chance;
                        expected_ordered += chance * share;
                    }
                }
            }
            prop_assert!(pairs == 0.0 || (best.auc - ordered / pairs).abs() < 1e-12);
            prop_assert!(pairs > 0.0 || best.auc.is_nan());
            prop_assert!((best.expected_auc - expected_ordered / expected_pairs).abs() < 1e-12);
            prop_assert!((best.log_loss - loss / rows.len() as f64).abs() < 1e-12);
        }
    }
}
