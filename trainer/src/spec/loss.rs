//! Losses, as a job asks for them.

use serde::{Deserialize, Serialize};

/// What is minimised: the mean over the rows of a batch, by their weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Cross-entropy of how probable a softmax makes each of several classes: a label is the number of one, from 0.
    CrossEntropy {
        /// How many.
        classes: u32,
        /// The share of a label that is spread over all classes alike.
        label_smoothing: f32,
        /// What the weight of a row of each class is multiplied by; none where all count alike.
        class_weights: Vec<f32>,
    },
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
    /// Of each of so many classes, the probability that the label is its number.
    Classes(u32),
}

/// How one of several labels is learned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
            Self::CrossEntropy { classes, .. } => Prediction::Classes(*classes),
        }
    }

    /// Logits of a row.
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
