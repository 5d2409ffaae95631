//! Metrics of predicted numbers: weighted sums over rows.
//!
//! The variance of labels is updated row by row together with their mean: West, "Updating Mean and Variance
//! Estimates: An Improved Method", 1979. So labels that are large compared with their spread lose no
//! precision.

use super::{Metric, MetricsError};

/// The sums.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    weight: f64,
    score: f64,
    squares: f64,
    absolutes: f64,
    /// The mean label, and the weighted sum of squared distances from it.
    mean: f64,
    spread: f64,
}

impl Sums {
    /// Adds row number `row` with a valid weight.
    pub(super) fn add(&mut self, row: u64, score: f32, label: f32, weight: f32) -> Result<(), MetricsError> {
        let expected = "a finite number";
        if !score.is_finite() {
            return Err(MetricsError::Score { row, score, expected });
        }
        if !label.is_finite() {
            return Err(MetricsError::Label { row, label, expected });
        }
        let (score, label, weight) = (f64::from(score), f64::from(label), f64::from(weight));
        let difference = score - label;
        self.score += weight * score;
        self.squares += weight * (difference * difference);
        self.absolutes += weight * difference.abs();
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
        vec![
            (Metric::Rmse, Some((self.squares / self.weight).sqrt())),
            (Metric::Mae, Some(self.absolutes / self.weight)),
            (Metric::R2, (self.spread > 0.0).then(|| 1.0 - self.squares / self.spread)),
            (Metric::Calibration, (self.mean != 0.0).then(|| self.score / self.weight / self.mean)),
        ]
    }
}
