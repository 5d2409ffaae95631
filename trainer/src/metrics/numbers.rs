//! Metrics of predicted numbers: weighted sums over rows.
//!
//! The variance of labels is updated row by row together with their mean: West, "Updating Mean and Variance
//! Estimates: An Improved Method", 1979. So labels that are large compared with their spread lose no
//! precision.

use super::{Metric, MetricsError};
use crate::spec::Prediction;

/// The sums.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    prediction: Prediction,
    /// The loss in which such numbers are best.
    loss: f64,
    weight: f64,
    score: f64,
    squares: f64,
    absolutes: f64,
    /// The weight of rows whose label is at most the score.
    covered: f64,
    /// The mean label, and the weighted sum of squared distances from it.
    mean: f64,
    spread: f64,
}

impl Sums {
    /// Sums for this kind of number.
    pub(super) fn new(prediction: Prediction) -> Self {
        Self {
            prediction,
            loss: 0.0,
            weight: 0.0,
            score: 0.0,
            squares: 0.0,
            absolutes: 0.0,
            covered: 0.0,
            mean: 0.0,
            spread: 0.0,
        }
    }

    /// Removes all rows.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.prediction);
    }

    /// Adds row number `row` with a valid weight.
    pub(super) fn add(&mut self, row: u64, score: f32, label: f32, weight: f32) -> Result<(), MetricsError> {
        let expected = "a finite number";
        if !score.is_finite() {
            return Err(MetricsError::Score { row, score, expected });
        }
        if !label.is_finite() {
            return Err(MetricsError::Label { row, label, expected });
        }
        if self.prediction == Prediction::Rate && score < 0.0 {
            return Err(MetricsError::Score { row, score, expected: "a number of at least 0" });
        }
        if self.prediction == Prediction::Rate && label < 0.0 {
            return Err(MetricsError::Label { row, label, expected: "a number of at least 0" });
        }
        let (score, label, weight) = (f64::from(score), f64::from(label), f64::from(weight));
        let difference = score - label;
        self.loss += weight * loss(self.prediction, score, label);
        self.score += weight * score;
        self.squares += weight * (difference * difference);
        self.absolutes += weight * difference.abs();
        self.covered += if label <= score { weight } else { 0.0 };
        self.weight += weight;
        if weight > 0.0 {
            let before = label - self.mean;
            self.mean += weight / self.weight * before;
            self.spread += weight * before * (label - self.mean);
        }
        Ok(())
    }

    /// The metrics. R2 is the explained share of the labels' variance, undefined if that is 0; calibration is the mean
    /// score divided by the mean label, undefined if the latter is 0.
    pub(super) fn values(&self) -> Vec<(Metric, Option<f64>)> {
        let all = [
            (Metric::HuberLoss, Some(self.loss / self.weight)),
            (Metric::PinballLoss, Some(self.loss / self.weight)),
            (Metric::Coverage, Some(self.covered / self.weight)),
            (Metric::PoissonDeviance, Some(self.loss / self.weight)),
            (Metric::Rmse, Some((self.squares / self.weight).sqrt())),
            (Metric::Mae, Some(self.absolutes / self.weight)),
            (Metric::R2, (self.spread > 0.0).then(|| 1.0 - self.squares / self.spread)),
            (Metric::Calibration, (self.mean != 0.0).then(|| self.score / self.weight / self.mean)),
        ];
        all.into_iter().filter(|(metric, _)| metric.applies_to(self.prediction)).collect()
    }
}

/// The loss of a score; 0 for numbers whose loss is the squared error.
fn loss(prediction: Prediction, score: f64, label: f64) -> f64 {
    let difference = score - label;
    match prediction {
        Prediction::RobustNumber { delta } => {
            let (distance, delta) = (difference.abs(), f64::from(delta));
            if distance <= delta { distance * distance / 2.0 } else { delta * (distance - delta / 2.0) }
        }
        Prediction::Quantile { quantile } => {
            let quantile = f64::from(quantile);
            if difference < 0.0 { -quantile * difference } else { (1.0 - quantile) * difference }
        }
        Prediction::Rate => {
            // A score of 0 has underflowed.
            let score = score.max(f64::from(f32::MIN_POSITIVE));
            let relative = if label > 0.0 { label * (label / score).ln() } else { 0.0 };
            2.0 * (relative - label + score)
        }
        _ => 0.0,
    }
}
