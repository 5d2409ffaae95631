//! Metrics of classes: weighted sums over rows.

use super::probabilities::{CLIP, entropy};
use super::{Metric, MetricsError};

/// A row counts for the top-5 accuracy if its class is among this many with the highest scores.
pub(super) const NEAR: usize = 5;

/// The sums.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    weight: f64,
    loss: f64,
    correct: f64,
    near: f64,
    /// The weight of the rows of each class.
    of_classes: Vec<f64>,
}

impl Sums {
    /// Sums for this number of classes.
    pub(super) fn new(classes: u32) -> Self {
        Self { weight: 0.0, loss: 0.0, correct: 0.0, near: 0.0, of_classes: vec![0.0; classes as usize] }
    }

    /// Removes all rows.
    pub(super) fn clear(&mut self) {
        (self.weight, self.loss, self.correct, self.near) = (0.0, 0.0, 0.0, 0.0);
        self.of_classes.fill(0.0);
    }

    /// Number of scores per row.
    pub(super) fn classes(&self) -> usize {
        self.of_classes.len()
    }

    /// Adds row number `row` with a valid weight. `score` returns the probability of each class.
    pub(super) fn add(
        &mut self,
        row: u64,
        score: impl Fn(usize) -> f32,
        label: f32,
        weight: f32,
    ) -> Result<(), MetricsError> {
        let class = label as usize;
        if label != class as f32 || class >= self.classes() {
            return Err(MetricsError::Label { row, label, expected: "the index of a class" });
        }
        let own = score(class);
        let mut above = 0;
        for other in 0..self.classes() {
            let score = score(other);
            if !(0.0..=1.0).contains(&score) {
                return Err(MetricsError::Score { row, score, expected: "a probability" });
            }
            above += usize::from(score > own || (score == own && other < class));
        }
        let weight = f64::from(weight);
        self.weight += weight;
        self.loss -= weight * f64::from(own).clamp(CLIP, 1.0 - CLIP).ln();
        self.correct += if above == 0 { weight } else { 0.0 };
        self.near += if above < NEAR { weight } else { 0.0 };
        self.of_classes[class] += weight;
        Ok(())
    }

    /// The metrics. The log loss is compared with that of always predicting the classes' shares. The top-5 accuracy is
    /// the share of rows whose class is among the [`NEAR`] with the highest scores; absent unless there are more
    /// classes.
    pub(super) fn values(&self) -> Vec<(Metric, Option<f64>)> {
        let log_loss = self.loss / self.weight;
        let entropy = entropy(self.of_classes.iter().map(|weight| weight / self.weight));
        let mut values = vec![
            (Metric::LogLoss, Some(log_loss)),
            (Metric::NormalizedEntropy, entropy.map(|entropy| log_loss / entropy)),
            (Metric::Accuracy, Some(self.correct / self.weight)),
        ];
        if self.classes() > NEAR {
            values.push((Metric::Top5Accuracy, Some(self.near / self.weight)));
        }
        values
    }
}
