//! The loss of a batch, as sums that can be added over batches.

use millstream_backend::{Loss, Task};
use millstream_batch::BatchSchema;
use serde::{Deserialize, Serialize};

use crate::model::ModelError;
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
    /// The loss in the form for kernels, for batches of `schema`.
    ///
    /// # Errors
    /// When the batches lack the feature that identifies lists.
    pub(crate) fn as_loss(&self, schema: &BatchSchema) -> Result<Loss, ModelError> {
        let place_of = |group: &String| {
            let place = schema.ids.iter().position(|feature| feature.name == *group);
            place.ok_or_else(|| ModelError::NoLists { feature: group.clone() })
        };
        Ok(match self {
            Self::Listwise { group } => Loss::Listwise { group: place_of(group)? },
            Self::Pairwise { group } => Loss::Pairwise { group: place_of(group)? },
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
        })
    }
}

/// The mean of a Poisson distribution from its logarithm.
pub(crate) fn rate(logit: f64) -> f64 {
    logit.min(Loss::MAX_LOG_RATE).exp()
}

impl TaskSpec {
    /// The task of label `label` in the form for kernels, for batches of `schema`.
    ///
    /// # Errors
    /// As of [`LossSpec::as_loss`].
    pub(crate) fn as_task(&self, label: usize, schema: &BatchSchema) -> Result<Task, ModelError> {
        Ok(Task { loss: self.loss.as_loss(schema)?, label, weight: self.weight.into() })
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
    use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, SlotLayout};
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
        BatchSchema {
            rows,
            labels,
            weighted: false,
            dense,
            ids,
            ragged,
            columns: Vec::new(),
            position_bytes: 0,
        }
    }

    fn batch(labels: &[f32]) -> BatchBuffer {
        let rows = labels.len() as u32;
        let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema(rows)).unwrap()));
        buffer.as_mut().set_header(&BatchHeader::train(rows));
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
                    total: None,
                    task: &loss.as_loss(&schema(1)).unwrap().into(),
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

    /// Losses of lists as `golden/lists.py` computes them with TensorFlow in float64.
    #[derive(Deserialize)]
    struct Lists {
        kind: String,
        lists: Vec<u32>,
        labels: Vec<f32>,
        weights: Vec<f32>,
        logits: Vec<f64>,
        sums: Vec<f64>,
        gradient: Vec<f64>,
    }

    /// Compares each batch with the golden file.
    fn lists_agree<B: Backend>(backend: &B, tolerance: f64) {
        let cases: Vec<Lists> = serde_json::from_str(include_str!("../tests/golden/lists.json")).unwrap();
        let kinds: BTreeSet<&str> = cases.iter().map(|case| case.kind.as_str()).collect();
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["listwise", "pairwise"]);
        for Lists { kind, lists, labels, weights, logits, sums: expected, gradient } in cases {
            let rows = labels.len();
            let query = IdFeature { name: "query".to_owned(), cardinality: 8 };
            let schema = BatchSchema { weighted: true, ids: vec![query], ..schema(rows as u32) };
            let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema).unwrap()));
            buffer.as_mut().set_header(&BatchHeader::train(rows as u32));
            let mut slot = buffer.as_mut();
            let sections = slot.sections();
            sections.labels.copy_from_slice(&labels);
            sections.weights.unwrap().copy_from_slice(&weights);
            sections.ids.copy_from_slice(&lists);
            let mut batch = backend.batch(&schema);
            backend.upload(buffer.as_ref(), &mut batch).unwrap();
            let group = "query".to_owned();
            let loss = match kind.as_str() {
                "listwise" => LossSpec::Listwise { group },
                _ => LossSpec::Pairwise { group },
            };
            let numbers =
                |numbers: &[f64]| numbers.iter().map(|&x| B::Scalar::from_f64(x)).collect::<Vec<_>>();
            let mut matrix = backend.matrix(rows, 1);
            backend.write_matrix(&mut matrix, &numbers(&logits));
            let (mut logits_grad, mut sums) = (backend.matrix(rows, 1), backend.matrix(1, 2));
            backend.run(ops::TaskLoss {
                total: None,
                task: &loss.as_loss(&schema).unwrap().into(),
                batch: &batch,
                rows: 0..rows,
                logits: &matrix,
                logits_grad: &mut logits_grad,
                sums: &mut sums,
            });
            let close = |matrix: &B::Matrix, expected: &[f64], scale: f64| {
                let mut found = vec![B::Scalar::default(); expected.len()];
                backend.read_matrix(matrix, &mut found);
                for (found, expected) in found.iter().map(|x| scale * x.to_f64()).zip(expected) {
                    let distance = (found - expected).abs();
                    assert!(distance <= tolerance * (1.0 + expected.abs()), "{kind}: {found}, {expected}");
                }
            };
            close(&sums, &expected, 1.0);
            close(&logits_grad, &gradient, expected[1]);
        }
    }

    #[test]
    fn lists_have_the_losses_of_tensorflow() {
        lists_agree(&Reference, 1e-12);
        lists_agree(&Cpu::new(Some(1)).unwrap(), 3e-6);
    }

    #[test]
    fn rows_have_the_losses_of_keras_and_tensorflow() {
        let kinds: BTreeSet<&str> = cases().iter().map(|case| case.loss.kind()).collect();
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["focal", "huber", "poisson", "quantile"]);
        agree(&Reference, 1e-12);
        agree(&Cpu::new(Some(1)).unwrap(), 1e-6);
    }
}
