//! Losses, as a job asks for them.

use serde::{Deserialize, Serialize};

/// What is minimised: the mean over the rows of a batch, by their weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LossSpec {
    /// Binary cross-entropy of the probability that a label is 1.
    #[serde(rename = "bce")]
    BinaryCrossEntropy {
        /// The share of a label that is spread over both classes.
        label_smoothing: f32,
        /// What the weight of a row of label 1 is multiplied by.
        positive_weight: f32,
        /// What that of a row of label 0 is multiplied by.
        negative_weight: f32,
    },
    /// The square of the difference between a label and what is predicted.
    #[serde(rename = "mse")]
    SquaredError,
}

/// What a model gives for a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prediction {
    /// The probability of its being 1.
    Probability,
    /// The label itself, any number.
    Number,
    /// A number of any size, the larger the likelier the label is 1: rows are ranked by it.
    Rank,
}

/// How one of several labels is learned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// What is minimised.
    pub loss: LossSpec,
    /// What this is multiplied by in the sum over the labels.
    pub weight: f32,
}

impl LossSpec {
    /// What a model that minimises it predicts; see [`ModelSpec::prediction`](super::ModelSpec::prediction).
    pub fn prediction(&self) -> Prediction {
        match self {
            Self::BinaryCrossEntropy { .. } => Prediction::Probability,
            Self::SquaredError => Prediction::Number,
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
