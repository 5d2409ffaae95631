//! The metrics of a model.

use serde::{Deserialize, Serialize};

use super::classes::NEAR;
use crate::spec::Prediction;

/// A metric for comparing models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The probability that a positive row scores above a negative one, with ties counting half. Undefined if
    /// all rows have one class. Higher is better.
    #[default]
    Auc,
    /// Average precision: the mean over positive rows of the share of positives among the rows with at least
    /// the same score. Undefined without positives. Higher is better.
    PrAuc,
    /// The mean of the AUCs within groups of rows, weighted by the groups' weights. Undefined if no group has
    /// both classes; absent if rows have no groups. Higher is better.
    GroupAuc,
    /// The mean of the groups' normalized discounted cumulative gains of the first ranks: the sum of gains, each
    /// divided by the binary logarithm of 1 plus its rank, divided by that of the ideal order. Undefined if no group
    /// has a gain, or a label is negative or too large for exponential gains; absent if rows have no groups. Higher is
    /// better. Järvelin and Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques", 2002, section 2.
    Ndcg,
    /// Mean reciprocal rank: the mean of the groups' 1 divided by the rank of the first row with a label above 0.
    /// Undefined if no group has such a row; absent if rows have no groups. Higher is better.
    Mrr,
    /// The mean of the groups' shares of rows with a label above 0 that are among the first ranks. Undefined and absent
    /// as the former. Higher is better.
    Recall,
    /// Mean binary cross-entropy, natural logarithm, scores clipped to `[2^-23, 1 - 2^-23]`; for classes,
    /// mean cross-entropy. Lower is better.
    LogLoss,
    /// Normalized entropy: the log loss divided by that of always predicting the mean label, or each class's
    /// share of the rows; below 1 is better than that. He et al., "Practical Lessons from Predicting Clicks
    /// on Ads at Facebook", 2014. Undefined if all rows have one class. Lower is better.
    NormalizedEntropy,
    /// The mean Huber loss, with the delta of training. Lower is better.
    HuberLoss,
    /// The mean pinball loss, with the quantile of training. Lower is better.
    PinballLoss,
    /// The share of labels that are at most the score. Best if it equals the quantile of training, so it compares no
    /// evaluations.
    Coverage,
    /// The mean deviance of Poisson distributions: `2 (y log(y / s) - y + s)` of label `y` and score `s`. Lower is
    /// better.
    PoissonDeviance,
    /// Root of the mean squared difference between score and label; for labels 0 and 1, the root of the Brier
    /// score. Lower is better.
    Rmse,
    /// The mean absolute difference between score and label. Lower is better.
    Mae,
    /// Coefficient of determination: 1 minus the mean squared difference divided by the labels' variance; always
    /// predicting the mean label gives 0. Undefined if all labels are equal. Higher is better.
    R2,
    /// The sum of scores divided by the sum of labels; above 1, predictions are too high. Undefined if the
    /// sum of labels is 0. Closer to 1 is better.
    Calibration,
    /// The share of weight with a correct prediction: a score above 0.5 for a positive row, or another for a
    /// negative one; for classes, the highest score for the row's class, the first of equal scores. Higher is
    /// better.
    Accuracy,
    /// For more than 5 classes, the share of weight where the row's class is among the 5 highest scores.
    /// Higher is better.
    #[serde(rename = "top5_accuracy")]
    Top5Accuracy,
}

impl Metric {
    /// All metrics, with their names.
    pub const ALL: [(&'static str, Self); 18] = [
        ("auc", Self::Auc),
        ("pr_auc", Self::PrAuc),
        ("group_auc", Self::GroupAuc),
        ("ndcg", Self::Ndcg),
        ("mrr", Self::Mrr),
        ("recall", Self::Recall),
        ("log_loss", Self::LogLoss),
        ("normalized_entropy", Self::NormalizedEntropy),
        ("huber_loss", Self::HuberLoss),
        ("pinball_loss", Self::PinballLoss),
        ("coverage", Self::Coverage),
        ("poisson_deviance", Self::PoissonDeviance),
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

    /// Whether it is computed within groups of rows.
    pub fn needs_groups(self) -> bool {
        matches!(self, Self::GroupAuc | Self::Ndcg | Self::Mrr | Self::Recall)
    }

    /// Whether the metric is defined for this kind of prediction.
    pub fn applies_to(self, prediction: Prediction) -> bool {
        match prediction {
            Prediction::Probability => matches!(
                self,
                Self::Auc
                    | Self::PrAuc
                    | Self::GroupAuc
                    | Self::Ndcg
                    | Self::Mrr
                    | Self::Recall
                    | Self::LogLoss
                    | Self::NormalizedEntropy
                    | Self::Rmse
                    | Self::Calibration
                    | Self::Accuracy
            ),
            Prediction::Number => {
                matches!(self, Self::Ndcg | Self::Calibration | Self::Rmse | Self::Mae | Self::R2)
            }
            Prediction::RobustNumber { .. } => self == Self::HuberLoss || self.applies_to(Prediction::Number),
            Prediction::Quantile { .. } => {
                matches!(self, Self::Ndcg | Self::PinballLoss | Self::Coverage | Self::Mae)
            }
            Prediction::Rate => self == Self::PoissonDeviance || self.applies_to(Prediction::Number),
            Prediction::Rank | Prediction::ListRank => {
                matches!(self, Self::Auc | Self::PrAuc) || self.needs_groups()
            }
            Prediction::Classes(classes) => match self {
                Self::LogLoss | Self::NormalizedEntropy | Self::Accuracy => true,
                Self::Top5Accuracy => classes as usize > NEAR,
                _ => false,
            },
        }
    }

    /// The default metric for comparing models with this kind of prediction.
    pub fn default_for(prediction: Prediction) -> Self {
        match prediction {
            Prediction::Probability | Prediction::Rank => Self::Auc,
            Prediction::ListRank => Self::Ndcg,
            Prediction::Number => Self::Rmse,
            Prediction::RobustNumber { .. } => Self::HuberLoss,
            Prediction::Quantile { .. } => Self::PinballLoss,
            Prediction::Rate => Self::PoissonDeviance,
            Prediction::Classes(_) => Self::LogLoss,
        }
    }

    /// Whether the value may have an error bound.
    pub fn has_error_bound(self) -> bool {
        matches!(self, Self::Auc | Self::PrAuc)
    }

    /// Whether its value alone shows which of two evaluations is better.
    pub fn compares(self) -> bool {
        !matches!(self.best(), Best::AtQuantile)
    }

    /// By how much `value` is better than `than`; negative if it is worse, and 0 for a metric that does not compare.
    pub fn gain(self, value: f64, than: f64) -> f64 {
        match self.best() {
            Best::High => value - than,
            Best::Low => than - value,
            Best::NearOne => (than - 1.0).abs() - (value - 1.0).abs(),
            Best::AtQuantile => 0.0,
        }
    }

    /// The verb for an improvement, after "has not".
    pub(crate) fn improvement_verb(self) -> &'static str {
        match self.best() {
            Best::High => "risen",
            Best::Low => "fallen",
            Best::NearOne => "come closer to 1",
            Best::AtQuantile => "come closer to the quantile",
        }
    }

    fn best(self) -> Best {
        match self {
            Self::Auc
            | Self::PrAuc
            | Self::GroupAuc
            | Self::Ndcg
            | Self::Mrr
            | Self::Recall
            | Self::R2
            | Self::Accuracy
            | Self::Top5Accuracy => Best::High,
            Self::LogLoss
            | Self::NormalizedEntropy
            | Self::HuberLoss
            | Self::PinballLoss
            | Self::PoissonDeviance
            | Self::Rmse
            | Self::Mae => Best::Low,
            Self::Calibration => Best::NearOne,
            Self::Coverage => Best::AtQuantile,
        }
    }
}

/// Which values of a metric are best.
enum Best {
    High,
    Low,
    NearOne,
    /// At the quantile of training, which the metric does not know.
    AtQuantile,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_those_of_documents_and_their_order() {
        for (number, (name, metric)) in Metric::ALL.into_iter().enumerate() {
            assert_eq!(serde_json::to_value(metric).ok(), Some(name.into()));
            assert!(Metric::ALL[number..].iter().all(|(_, later)| metric <= *later), "{name}");
        }
    }

    #[test]
    fn gains_have_the_expected_sign() {
        for (name, metric) in Metric::ALL.into_iter().filter(|(_, metric)| metric.compares()) {
            let rises = matches!(
                name,
                "auc"
                    | "pr_auc"
                    | "group_auc"
                    | "ndcg"
                    | "mrr"
                    | "recall"
                    | "accuracy"
                    | "top5_accuracy"
                    | "calibration"
                    | "r2"
            );
            assert_eq!(metric.gain(0.75, 0.5), if rises { 0.25 } else { -0.25 }, "{name}");
            assert_eq!(metric.improvement_verb() == "fallen", !rises, "{name}");
        }
        assert_eq!(Metric::Calibration.gain(1.25, 1.5), 0.25);
        assert!(Metric::Calibration.gain(1.25, 0.875) < 0.0);
    }
}
