//! Metrics of probabilities: weighted sums over rows.

use super::MetricsError;

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

    /// Mean binary cross-entropy, natural logarithm, scores clipped to `[2^-23, 1 - 2^-23]`.
    pub(super) fn log_loss(&self) -> f64 {
        self.loss / self.weight
    }

    /// The log loss divided by that of always predicting the mean label.
    pub(super) fn normalized_entropy(&self) -> Option<f64> {
        self.entropy().map(|entropy| self.log_loss() / entropy)
    }

    pub(super) fn calibration(&self) -> Option<f64> {
        (self.positive > 0.0).then(|| self.score / self.positive)
    }

    pub(super) fn rmse(&self) -> f64 {
        (self.squares / self.weight).sqrt()
    }

    pub(super) fn accuracy(&self) -> f64 {
        self.correct / self.weight
    }

    /// The log loss of always predicting the mean label; `None` unless both classes have weight.
    fn entropy(&self) -> Option<f64> {
        let shares = [self.positive / self.weight, self.negative / self.weight];
        shares
            .iter()
            .all(|&share| share > 0.0)
            .then(|| -shares.iter().map(|share| share * share.ln()).sum::<f64>())
            .filter(|&entropy| entropy > 0.0)
    }
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
