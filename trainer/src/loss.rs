//! The loss of a batch, as sums that add up over batches.

use millstream_backend::Loss;
use serde::{Deserialize, Serialize};

use crate::spec::LossSpec;

/// Weighted loss over some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossSum {
    /// Sum of each row's weight times its loss.
    pub loss: f64,
    /// Sum of the rows' weights.
    pub weight: f64,
}

impl LossSum {
    /// Loss per unit of weight; 0 over no weight.
    pub fn mean(&self) -> f64 {
        if self.weight > 0.0 { self.loss / self.weight } else { 0.0 }
    }
}

impl std::ops::AddAssign for LossSum {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.weight += other.weight;
    }
}

impl LossSpec {
    /// The loss, as kernels see it.
    pub(crate) fn as_loss(&self) -> Loss {
        match *self {
            Self::BinaryCrossEntropy { label_smoothing, positive_weight, negative_weight } => {
                Loss::BinaryCrossEntropy {
                    smoothing: label_smoothing.into(),
                    positive_weight: positive_weight.into(),
                    negative_weight: negative_weight.into(),
                }
            }
        }
    }
}
