//! The loss of a batch, as sums that can be added over batches.

use millstream_backend::{Loss, Task};
use serde::{Deserialize, Serialize};

use crate::spec::{LossSpec, TaskSpec};

/// The weighted loss over some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossSum {
    /// Sum of each row's weight times its loss.
    pub loss: f64,
    /// Sum of the rows' weights.
    pub weight: f64,
}

impl LossSum {
    /// Loss per unit of weight; 0 for zero weight.
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
    /// The loss in the form for kernels.
    pub(crate) fn as_loss(&self) -> Loss {
        match self {
            Self::BinaryCrossEntropy { label_smoothing, positive_weight, negative_weight } => {
                Loss::BinaryCrossEntropy {
                    smoothing: (*label_smoothing).into(),
                    positive_weight: (*positive_weight).into(),
                    negative_weight: (*negative_weight).into(),
                }
            }
            Self::SquaredError => Loss::SquaredError,
            Self::CrossEntropy { classes, label_smoothing, class_weights } => Loss::CrossEntropy {
                smoothing: (*label_smoothing).into(),
                class_weights: match class_weights.as_slice() {
                    [] => vec![1.0; *classes as usize],
                    weights => weights.iter().copied().map(f64::from).collect(),
                },
            },
        }
    }
}

impl TaskSpec {
    /// The task of label `label` in the form for kernels.
    pub(crate) fn as_task(&self, label: usize) -> Task {
        Task { loss: self.loss.as_loss(), label, weight: self.weight.into() }
    }
}

impl LossSum {
    /// The loss of a batch from the sums of each task: the sum over tasks of weight times mean.
    pub(crate) fn of_batch(tasks: &[Task], sums: &[Self]) -> Self {
        match sums {
            // Without the rounding of a mean.
            [only] => Self { loss: tasks[0].weight * only.loss, ..*only },
            sums => {
                let mean: f64 = tasks.iter().zip(sums).map(|(task, sum)| task.weight * sum.mean()).sum();
                let weight = sums.first().map_or(0.0, |sum| sum.weight);
                Self { loss: mean * weight, weight }
            }
        }
    }
}
