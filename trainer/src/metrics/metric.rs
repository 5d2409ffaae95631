//! Numbers that say how good a model is.

use serde::{Deserialize, Serialize};

use super::classes::NEAR;
use crate::spec::Prediction;

/// A number that says which of two models is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The probability that a positive row scores above a negative one, ties counting half. Not defined when
    /// the rows are all of one class. The larger the better.
    #[default]
    Auc,
    /// Average precision: the mean over positive rows of the share of positives among the rows that score
    /// no less. Not defined when there are no positives. The larger the better.
    PrAuc,
    /// The mean of the AUCs within groups of rows, weighted by the groups' weights. Not defined when no group has both
    /// classes. The larger the better; there only where rows have groups.
    GroupAuc,
    /// Mean binary cross-entropy, natural logarithm, scores clipped to `[2^-23, 1 - 2^-23]`; of classes, mean
    /// cross-entropy. The smaller the better.
    LogLoss,
    /// Normalised entropy: the log loss divided by that of always predicting the mean label, or each class by its
    /// share of the rows; below 1 is better than that. He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", 2014.
    /// Not defined when the rows are all of one class. The smaller the better.
    NormalizedEntropy,
    /// Root of the mean squared difference between score and label; of the Brier score, where labels are 0
    /// or 1. The smaller the better.
    Rmse,
    /// The mean absolute difference between score and label. The smaller the better.
    Mae,
    /// Coefficient of determination: 1 less the share of the labels' variance that is left as squared difference; 0 is
    /// always predicting the mean label. Not defined when the labels are all the same. The larger the better.
    R2,
    /// The sum of scores divided by the sum of labels: above 1, too much is predicted. Not defined when
    /// that is 0. The nearer to 1 the better.
    Calibration,
    /// Share of the weight where a score above 0.5 meets a positive row, or another a negative one; of classes, where
    /// the row's class scores highest, the first of those that score the same. The larger the better.
    Accuracy,
    /// Of more than 5 classes, the share of the weight where the row's class is among the 5 that score highest. The
    /// larger the better.
    #[serde(rename = "top5_accuracy")]
    Top5Accuracy,
}

impl Metric {
    /// All of them, by their names.
    pub const ALL: [(&'static str, Self); 11] = [
        ("auc", Self::Auc),
        ("pr_auc", Self::PrAuc),
        ("group_auc", Self::GroupAuc),
        ("log_loss", Self::LogLoss),
        ("normalized_entropy", Self::NormalizedEntropy),
        ("rmse", Self::Rmse),
        ("mae", Self::Mae),
        ("r2", Self::R2),
        ("calibration", Self::Calibration),
        ("accuracy", Self::Accuracy),
        ("top5_accuracy", Self::Top5Accuracy),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, metric)| *metric == self).map_or("", |(name, _)| name)
    }

    /// Whether it is known of what is predicted so.
    pub fn applies_to(self, prediction: Prediction) -> bool {
        match prediction {
            Prediction::Probability => !matches!(self, Self::Mae | Self::R2 | Self::Top5Accuracy),
            Prediction::Number => matches!(self, Self::Calibration | Self::Rmse | Self::Mae | Self::R2),
            Prediction::Rank => matches!(self, Self::Auc | Self::PrAuc | Self::GroupAuc),
            Prediction::Classes(classes) => match self {
                Self::LogLoss | Self::NormalizedEntropy | Self::Accuracy => true,
                Self::Top5Accuracy => classes as usize > NEAR,
                _ => false,
            },
        }
    }

    /// What models that predict so are compared by, where nobody says otherwise.
    pub fn default_for(prediction: Prediction) -> Self {
        match prediction {
            Prediction::Probability | Prediction::Rank => Self::Auc,
            Prediction::Number => Self::Rmse,
            Prediction::Classes(_) => Self::LogLoss,
        }
    }

    /// Whether it may be known within bounds only.
    pub fn has_error_bound(self) -> bool {
        matches!(self, Self::Auc | Self::PrAuc)
    }

    /// By how much `value` is better than `than`; below 0 where it is worse.
    pub fn gain(self, value: f64, than: f64) -> f64 {
        match self {
            Self::Auc | Self::PrAuc | Self::GroupAuc | Self::R2 | Self::Accuracy | Self::Top5Accuracy => {
                value - than
            }
            Self::LogLoss | Self::NormalizedEntropy | Self::Rmse | Self::Mae => than - value,
            Self::Calibration => (than - 1.0).abs() - (value - 1.0).abs(),
        }
    }

    /// What it does when it gets better, after "has not".
    pub(crate) fn improvement_verb(self) -> &'static str {
        match self {
            Self::Auc | Self::PrAuc | Self::GroupAuc | Self::R2 | Self::Accuracy | Self::Top5Accuracy => {
                "risen"
            }
            Self::LogLoss | Self::NormalizedEntropy | Self::Rmse | Self::Mae => "fallen",
            Self::Calibration => "come nearer to 1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_documents_in_their_order() {
        for (number, (name, metric)) in Metric::ALL.into_iter().enumerate() {
            assert_eq!(serde_json::to_value(metric).ok(), Some(name.into()));
            assert!(Metric::ALL[number..].iter().all(|(_, later)| metric <= *later), "{name}");
        }
    }

    #[test]
    fn better_is_what_people_mean_by_it() {
        for (name, metric) in Metric::ALL {
            let rises = matches!(
                name,
                "auc" | "pr_auc" | "group_auc" | "accuracy" | "top5_accuracy" | "calibration" | "r2"
            );
            assert_eq!(metric.gain(0.75, 0.5), if rises { 0.25 } else { -0.25 }, "{name}");
            assert_eq!(metric.improvement_verb() == "fallen", !rises, "{name}");
        }
        assert_eq!(Metric::Calibration.gain(1.25, 1.5), 0.25);
        assert!(Metric::Calibration.gain(1.25, 0.875) < 0.0);
    }
}
