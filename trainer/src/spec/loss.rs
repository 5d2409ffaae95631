//! The settings of losses.

use serde::{Deserialize, Serialize};

/// A loss. Training minimizes its weighted mean over the rows of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LossSpec {
    /// Binary cross-entropy of the probability that a label is 1.
    #[serde(rename = "bce")]
    BinaryCrossEntropy {
        /// The fraction of a label that is spread over both classes.
        label_smoothing: f32,
        /// The weight factor of rows with label 1.
        positive_weight: f32,
        /// The weight factor of rows with label 0.
        negative_weight: f32,
    },
    /// The cross-entropy of each row times `(1 - p)^gamma`, where `p` is the probability of its label, so that easy
    /// rows count less: Lin et al., "Focal Loss for Dense Object Detection", 2017, section 3.
    Focal {
        /// The focus on hard rows; 0 is the cross-entropy.
        gamma: f32,
        /// The factor of rows with label 1, and 1 minus that of rows with label 0; `None` for equal factors of 1.
        alpha: Option<f32>,
    },
    /// The squared difference between label and prediction.
    #[serde(rename = "mse")]
    SquaredError,
    /// Half of the squared difference, or, for a difference above `delta`, a linear function of it, so that outliers
    /// have a bounded gradient: Huber, "Robust Estimation of a Location Parameter", 1964.
    Huber {
        /// The difference from which the loss grows linearly.
        delta: f32,
    },
    /// The pinball loss, whose best score is a quantile of the label: Koenker and Bassett, "Regression Quantiles",
    /// 1978, section 3.
    Quantile {
        /// The share of labels below it, above 0 and below 1.
        quantile: f32,
    },
    /// The deviance of a Poisson distribution, for counts and other numbers of at least 0; a logit is the logarithm of
    /// the mean. McCullagh and Nelder, "Generalized Linear Models", 2nd edition, 1989, section 2.3.
    Poisson,
    /// Softmax cross-entropy over several classes; a label is the index of its class.
    CrossEntropy {
        /// Number of classes.
        classes: u32,
        /// The fraction of a label that is spread evenly over all classes.
        label_smoothing: f32,
        /// The weight factor of the rows of each class; empty for equal weights.
        class_weights: Vec<f32>,
    },
    /// Softmax cross-entropy over the rows of a list, the rows of a batch with the same id; labels are relevance grades
    /// of at least 0. Cao et al., "Learning to Rank: From Pairwise Approach to Listwise Approach", 2007, section 5.
    Listwise {
        /// The single-valued feature that identifies lists.
        group: String,
    },
    /// Logistic loss of the difference between the scores of two rows of a list with different labels: Burges et al.,
    /// "Learning to Rank using Gradient Descent", 2005, section 3.
    Pairwise {
        /// As of [`Self::Listwise`].
        group: String,
    },
}

/// The meaning of a model's score for a label.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prediction {
    /// The probability that the label is 1.
    Probability,
    /// The label itself, which may be any number: its mean for such a row.
    Number,
    /// The label itself, as [`LossSpec::Huber`] estimates it: outliers among the labels move it less than a mean.
    RobustNumber {
        /// As of the loss.
        delta: f32,
    },
    /// A number that this share of the labels is below.
    Quantile {
        /// The share.
        quantile: f32,
    },
    /// The mean of a label of at least 0, such as a count.
    Rate,
    /// A number for ranking rows: the larger, the likelier the label is 1.
    Rank,
    /// A number for ranking the rows of a list: the larger, the larger the label, which is at least 0.
    ListRank,
    /// The probability of each of this number of classes.
    Classes(u32),
}

/// The loss of one of several labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// The loss.
    pub loss: LossSpec,
    /// Its factor in the sum over the labels.
    pub weight: f32,
}

impl LossSpec {
    /// What a model with this loss predicts; see [`ModelSpec::prediction`](super::ModelSpec::prediction).
    pub fn prediction(&self) -> Prediction {
        match self {
            Self::BinaryCrossEntropy { .. } | Self::Focal { .. } => Prediction::Probability,
            Self::SquaredError => Prediction::Number,
            Self::Huber { delta } => Prediction::RobustNumber { delta: *delta },
            Self::Quantile { quantile } => Prediction::Quantile { quantile: *quantile },
            Self::Poisson => Prediction::Rate,
            Self::CrossEntropy { classes, .. } => Prediction::Classes(*classes),
            Self::Listwise { .. } | Self::Pairwise { .. } => Prediction::ListRank,
        }
    }

    /// Its kind, as in job files.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::BinaryCrossEntropy { .. } => "bce",
            Self::Focal { .. } => "focal",
            Self::SquaredError => "mse",
            Self::Huber { .. } => "huber",
            Self::Quantile { .. } => "quantile",
            Self::Poisson => "poisson",
            Self::CrossEntropy { .. } => "cross_entropy",
            Self::Listwise { .. } => "listwise",
            Self::Pairwise { .. } => "pairwise",
        }
    }

    /// The feature that identifies lists, if the loss compares rows.
    pub fn group(&self) -> Option<&str> {
        match self {
            Self::Listwise { group } | Self::Pairwise { group } => Some(group),
            _ => None,
        }
    }

    /// The first constant that is out of range, if any: its key, its value, and the expected range. Smoothing and
    /// weights only scale a loss.
    pub(crate) fn invalid_constant(&self) -> Option<(&'static str, f32, &'static str)> {
        match *self {
            Self::Huber { delta } => {
                let is_valid = delta > 0.0 && delta.is_finite();
                (!is_valid).then_some(("delta", delta, "a number above 0"))
            }
            Self::Focal { gamma, .. } if !(0.0..=f32::MAX).contains(&gamma) => {
                Some(("gamma", gamma, "a number of at least 0"))
            }
            Self::Focal { alpha: Some(alpha), .. } => {
                let is_valid = alpha > 0.0 && alpha < 1.0;
                (!is_valid).then_some(("alpha", alpha, "a number above 0 and below 1"))
            }
            Self::Quantile { quantile } => {
                let is_valid = quantile > 0.0 && quantile < 1.0;
                (!is_valid).then_some(("quantile", quantile, "a number above 0 and below 1"))
            }
            _ => None,
        }
    }

    /// Number of logits per row.
    pub fn outputs(&self) -> usize {
        match self {
            Self::CrossEntropy { classes, .. } => *classes as usize,
            _ => 1,
        }
    }
}

impl Prediction {
    /// Whether it is a number as large as the label, rather than a probability or a rank.
    pub fn is_number(self) -> bool {
        matches!(self, Self::Number | Self::RobustNumber { .. } | Self::Quantile { .. } | Self::Rate)
    }
}

impl From<LossSpec> for TaskSpec {
    fn from(loss: LossSpec) -> Self {
        Self { loss, weight: 1.0 }
    }
}

impl Default for LossSpec {
    fn default() -> Self {
        Self::BinaryCrossEntropy { label_smoothing: 0.0, positive_weight: 1.0, negative_weight: 1.0 }
    }
}
