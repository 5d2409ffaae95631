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
    /// The squared difference between label and prediction.
    #[serde(rename = "mse")]
    SquaredError,
    /// Softmax cross-entropy over several classes; a label is the index of its class.
    CrossEntropy {
        /// Number of classes.
        classes: u32,
        /// The fraction of a label that is spread evenly over all classes.
        label_smoothing: f32,
        /// The weight factor of the rows of each class; empty for equal weights.
        class_weights: Vec<f32>,
    },
}

/// The meaning of a model's score for a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prediction {
    /// The probability that the label is 1.
    Probability,
    /// The label itself, which may be any number.
    Number,
    /// A number for ranking rows: the larger, the likelier the label is 1.
    Rank,
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
            Self::BinaryCrossEntropy { .. } => Prediction::Probability,
            Self::SquaredError => Prediction::Number,
            Self::CrossEntropy { classes, .. } => Prediction::Classes(*classes),
        }
    }

    /// Number of logits per row.
    pub fn outputs(&self) -> usize {
        match self {
            Self::BinaryCrossEntropy { .. } | Self::SquaredError => 1,
            Self::CrossEntropy { classes, .. } => *classes as usize,
        }
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
