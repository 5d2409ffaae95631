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
}

impl Default for LossSpec {
    fn default() -> Self {
        Self::BinaryCrossEntropy { label_smoothing: 0.0, positive_weight: 1.0, negative_weight: 1.0 }
    }
}
