//! What predicted numbers come to: sums over rows, each times its weight.
//!
//! The variance of labels is taken as their mean moves, row by row: West, "Updating Mean and Variance Estimates: An
//! Improved Method", 1979. So labels that are large beside their spread lose no digits.

use super::MetricsError;

/// The sums.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    weight: f64,
    score: f64,
    squares: f64,
    absolutes: f64,
    /// The mean label, and the sum of squared distances from it.
    mean: f64,
    spread: f64,
}

impl Sums {
    /// Adds row number `row`, whose weight is a weight.
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

    pub(super) fn rmse(&self) -> f64 {
        (self.squares / self.weight).sqrt()
    }

    pub(super) fn mae(&self) -> f64 {
        self.absolutes / self.weight
    }

    /// The share of the labels' variance that is explained; `None` where they have none.
    pub(super) fn r2(&self) -> Option<f64> {
        (self.spread > 0.0).then(|| 1.0 - self.squares / self.spread)
    }

    /// Mean score over mean label; `None` where that is 0.
    pub(super) fn calibration(&self) -> Option<f64> {
        (self.mean != 0.0).then(|| self.score / self.weight / self.mean)
    }
}
