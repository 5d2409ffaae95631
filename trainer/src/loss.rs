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
            Self::Focal { gamma, alpha } => {
                let (positive, negative) = alpha.map_or((1.0, 1.0), |alpha| {
                    let alpha = f64::from(alpha);
                    (alpha, 1.0 - alpha)
                });
                Loss::Focal { gamma: (*gamma).into(), positive, negative }
            }
            Self::SquaredError => Loss::SquaredError,
            Self::Huber { delta } => Loss::Huber { delta: (*delta).into() },
            Self::Quantile { quantile } => Loss::Quantile { quantile: (*quantile).into() },
            Self::Poisson => Loss::Poisson,
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

/// The mean of a Poisson distribution from its logarithm.
pub(crate) fn rate(logit: f64) -> f64 {
    logit.min(Loss::MAX_LOG_RATE).exp()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;
    use std::sync::Arc;

    use millstream_backend::{Backend, Cpu, Reference, Scalar, ops};
    use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, SlotLayout, Stream};
    use serde::Deserialize;

    use super::*;

    /// Losses as `golden/losses.py` computes them with Keras and TensorFlow in float64.
    #[derive(Deserialize)]
    struct Case {
        loss: LossSpec,
        labels: Vec<f32>,
        logits: Vec<f64>,
        losses: Vec<f64>,
        gradient: Vec<f64>,
    }

    fn cases() -> Vec<Case> {
        serde_json::from_str(include_str!("../tests/golden/losses.json")).unwrap()
    }

    fn schema(rows: u32) -> BatchSchema {
        let (labels, dense, ids, ragged) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        BatchSchema { rows, labels, weighted: false, dense, ids, ragged, position_bytes: 0 }
    }

    fn batch(labels: &[f32]) -> BatchBuffer {
        let rows = labels.len() as u32;
        let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema(rows)).unwrap()));
        let (stream, epoch, batch, last) = (Stream::Train, 0, 0, false);
        buffer.as_mut().set_header(&BatchHeader { stream, epoch, batch, rows, global_rows: rows, last });
        buffer.as_mut().sections().labels.copy_from_slice(labels);
        buffer
    }

    /// Compares each row with the golden file, relative to the row's numbers.
    fn agree<B: Backend>(backend: &B, tolerance: f64) {
        for Case { loss, labels, logits, losses, gradient } in cases() {
            let (rows, buffer) = (labels.len(), batch(&labels));
            let mut batch = backend.batch(&schema(rows as u32));
            backend.upload(buffer.as_ref(), &mut batch).unwrap();
            let close = |found: f64, expected: f64, at: usize, what: &str| {
                let size = 1.0 + expected.abs() + f64::from(labels[at]).abs();
                let place = (&loss, labels[at], logits[at]);
                assert!(
                    (found - expected).abs() <= tolerance * size,
                    "{what} of {place:?}: {found}, {expected}"
                );
            };
            for row in 0..rows {
                let mut logit = backend.matrix(1, 1);
                backend.write_matrix(&mut logit, &[B::Scalar::from_f64(logits[row])]);
                let (mut logits_grad, mut sums) = (backend.matrix(1, 1), backend.matrix(1, 2));
                backend.run(ops::TaskLoss {
                    task: &loss.as_loss().into(),
                    batch: &batch,
                    rows: row..row + 1,
                    logits: &logit,
                    logits_grad: &mut logits_grad,
                    sums: &mut sums,
                });
                let read = |matrix, numbers: usize| {
                    let mut found = vec![B::Scalar::default(); numbers];
                    backend.read_matrix(matrix, &mut found);
                    found[0].to_f64()
                };
                close(read(&sums, 2), losses[row], row, "loss");
                close(read(&logits_grad, 1) * rows as f64, gradient[row], row, "gradient");
            }
        }
    }

    #[test]
    fn rows_have_the_losses_of_keras_and_tensorflow() {
        let kinds: BTreeSet<&str> = cases().iter().map(|case| case.loss.kind()).collect();
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["focal", "huber", "poisson", "quantile"]);
        agree(&Reference, 1e-12);
        agree(&Cpu::new(Some(1)).unwrap(), 1e-6);
    }
}
