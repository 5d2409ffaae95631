//! Metrics of classes: weighted sums over rows.

use super::MetricsError;
use super::probabilities::CLIP;

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

    /// Mean cross-entropy, natural logarithm, scores clipped to `[2^-23, 1 - 2^-23]`.
    pub(super) fn log_loss(&self) -> f64 {
        self.loss / self.weight
    }

    /// The log loss divided by that of always predicting the classes' shares; `None` unless two classes have
    /// weight.
    pub(super) fn normalized_entropy(&self) -> Option<f64> {
        let shares = self.of_classes.iter().map(|weight| weight / self.weight).filter(|&share| share > 0.0);
        let entropy = -shares.map(|share| share * share.ln()).sum::<f64>();
        (entropy > 0.0).then(|| self.log_loss() / entropy)
    }

    pub(super) fn accuracy(&self) -> f64 {
        self.correct / self.weight
    }

    /// The share of rows whose class is among the [`NEAR`] with the highest scores; `None` unless there are
    /// more classes.
    pub(super) fn top5_accuracy(&self) -> Option<f64> {
        (self.classes() > NEAR).then(|| self.near / self.weight)
    }
}
