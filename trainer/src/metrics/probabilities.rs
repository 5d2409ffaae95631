//! Metrics of probabilities: weighted sums over rows.

use super::{Metric, MetricsError};

/// Scores are clipped to this distance from 0 and 1 before taking the logarithm, as in scikit-learn's
/// `log_loss` for single precision.
pub(super) const CLIP: f64 = f32::EPSILON as f64;

/// A score above this predicts the positive class, as in Keras and scikit-learn.
const THRESHOLD: f32 = 0.5;

/// The sums.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    weight: f64,
    positive: f64,
    negative: f64,
    score: f64,
    loss: f64,
    squares: f64,
    correct: f64,
}

impl Sums {
    /// Adds row number `row` with a valid weight.
    pub(super) fn add(&mut self, row: u64, score: f32, label: f32, weight: f32) -> Result<(), MetricsError> {
        if !(0.0..=1.0).contains(&score) {
            return Err(MetricsError::Score { row, score, expected: "a probability" });
        }
        if !(0.0..=1.0).contains(&label) {
            return Err(MetricsError::Label { row, label, expected: "a number from 0 to 1" });
        }
        let (positive, weight) = (f64::from(label), f64::from(weight));
        let difference = f64::from(score) - positive;
        self.weight += weight;
        self.positive += weight * positive;
        self.negative += weight * (1.0 - positive);
        self.score += weight * f64::from(score);
        self.loss += weight * cross_entropy(score, positive);
        self.squares += weight * (difference * difference);
        self.correct += weight * if score > THRESHOLD { positive } else { 1.0 - positive };
        Ok(())
    }

    /// The metrics. The log loss is compared with that of always predicting the mean label.
    pub(super) fn values(&self) -> Vec<(Metric, Option<f64>)> {
        let log_loss = self.loss / self.weight;
        let entropy = entropy([self.positive, self.negative].map(|weight| weight / self.weight));
        vec![
            (Metric::LogLoss, Some(log_loss)),
            (Metric::NormalizedEntropy, entropy.map(|entropy| log_loss / entropy)),
            (Metric::Calibration, (self.positive > 0.0).then(|| self.score / self.positive)),
            (Metric::Rmse, Some((self.squares / self.weight).sqrt())),
            (Metric::Accuracy, Some(self.correct / self.weight)),
        ]
    }
}

/// The log loss of always predicting these shares of the classes; `None` unless two classes have weight.
pub(super) fn entropy(shares: impl IntoIterator<Item = f64>) -> Option<f64> {
    let shares = shares.into_iter().filter(|&share| share > 0.0);
    Some(-shares.map(|share| share * share.ln()).sum::<f64>()).filter(|&entropy| entropy > 0.0)
}

fn cross_entropy(score: f32, label: f64) -> f64 {
    let score = f64::from(score).clamp(CLIP, 1.0 - CLIP);
    if label == 1.0 {
        -score.ln()
    } else if label == 0.0 {
        -(1.0 - score).ln()
    } else {
        -(label * score.ln() + (1.0 - label) * (1.0 - score).ln())
    }
}
