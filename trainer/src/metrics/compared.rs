//! Numbers of an evaluation that models are compared by.

use serde::{Deserialize, Serialize};

use super::Metrics;

/// A number of [`Metrics`] that says which of two models is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The larger the better.
    #[default]
    Auc,
    /// The larger the better.
    PrAuc,
    /// The larger the better; there only where rows have groups.
    GroupAuc,
    /// The smaller the better.
    LogLoss,
    /// The smaller the better.
    NormalizedEntropy,
    /// The nearer to 1 the better.
    Calibration,
    /// The smaller the better.
    Rmse,
    /// The larger the better.
    Accuracy,
}

impl Metric {
    /// All of them, by the names that [`Metrics::named`] has.
    pub const ALL: [(&'static str, Self); 8] = [
        ("auc", Self::Auc),
        ("pr_auc", Self::PrAuc),
        ("group_auc", Self::GroupAuc),
        ("log_loss", Self::LogLoss),
        ("normalized_entropy", Self::NormalizedEntropy),
        ("calibration", Self::Calibration),
        ("rmse", Self::Rmse),
        ("accuracy", Self::Accuracy),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, metric)| *metric == self).map_or("", |(name, _)| name)
    }

    /// Its value, if it is defined and a number.
    pub fn of(self, metrics: &Metrics) -> Option<f64> {
        let mut named = metrics.named().filter(|(_, value)| value.is_finite());
        named.find(|(name, _)| *name == self.name()).map(|(_, value)| value)
    }

    /// By how much `value` is better than `than`; below 0 where it is worse.
    pub fn gain(self, value: f64, than: f64) -> f64 {
        match self {
            Self::Auc | Self::PrAuc | Self::GroupAuc | Self::Accuracy => value - than,
            Self::LogLoss | Self::NormalizedEntropy | Self::Rmse => than - value,
            Self::Calibration => (than - 1.0).abs() - (value - 1.0).abs(),
        }
    }

    /// What it does when it gets better, after "has not".
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Auc | Self::PrAuc | Self::GroupAuc | Self::Accuracy => "risen",
            Self::LogLoss | Self::NormalizedEntropy | Self::Rmse => "fallen",
            Self::Calibration => "come nearer to 1",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const METRICS: Metrics = Metrics {
        auc: Some(0.1),
        auc_error: Some(0.0),
        pr_auc: Some(0.2),
        pr_auc_error: Some(0.0),
        log_loss: 0.4,
        normalized_entropy: Some(0.5),
        calibration: Some(0.6),
        rmse: 0.7,
        accuracy: 0.8,
        group_auc: Some(0.3),
        groups: Some(9),
        examples: 99,
    };

    #[test]
    fn every_named_number_can_be_compared_by() {
        let compared = Metric::ALL.map(|(name, metric)| (name, metric.of(&METRICS).unwrap()));
        assert_eq!(compared.to_vec(), METRICS.named().collect::<Vec<_>>());
        assert_eq!(Metric::Auc.of(&Metrics { auc: None, ..METRICS }), None);
        assert_eq!(Metric::LogLoss.of(&Metrics { log_loss: f64::INFINITY, ..METRICS }), None);
    }

    #[test]
    fn better_is_what_people_mean_by_it() {
        for (name, metric) in Metric::ALL {
            let rises = matches!(name, "auc" | "pr_auc" | "group_auc" | "accuracy" | "calibration");
            assert_eq!(metric.gain(0.75, 0.5), if rises { 0.25 } else { -0.25 }, "{name}");
        }
        assert_eq!(Metric::Calibration.gain(1.25, 1.5), 0.25);
        assert!(Metric::Calibration.gain(1.25, 0.875) < 0.0);
    }
}
