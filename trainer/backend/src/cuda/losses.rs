//! Per-row losses, and scores.

use super::Cuda;
use super::batch::CudaBatch;
use super::buffers::Rooms;
use super::driver::{Address, Memory};
use super::interactions::warps;
use super::kernels::{
    FINISH_SUMS, LOSS_OF_CLASSES, LOSS_OF_ROWS, LossOf, SIGMOID, SOFTMAX, SUM_WEIGHTS, Scores, Sums, WARP,
};
use super::layers::PAIR_BYTES;
use super::moves::quads;
use super::programs::Entry;
use crate::ops::{Loss, Sigmoid, Softmax, Task, TaskLoss};

/// The most blocks of a weight sum.
pub(super) const MOST_BLOCKS: usize = 256;

/// Loss kinds, as in loss.cu.
pub(super) mod kind {
    pub(super) const BINARY_CROSS_ENTROPY: u32 = 0;
    pub(super) const SQUARED_ERROR: u32 = 1;
    pub(super) const CROSS_ENTROPY: u32 = 2;
    pub(in crate::cuda) const RETRIEVAL: u32 = 3;
    pub(super) const HUBER: u32 = 4;
    pub(super) const QUANTILE: u32 = 5;
    pub(super) const POISSON: u32 = 6;
    pub(super) const FOCAL: u32 = 7;
}

/// The kernel that computes a loss, and its workspace.
struct Work {
    entry: Entry<LossOf>,
    blocks: usize,
    weight: Address,
    partials: Address,
    bytes: usize,
}

impl Work {
    fn of(rows: usize, is_of_classes: bool) -> Self {
        let (entry, threads) = match is_of_classes {
            true => (LOSS_OF_CLASSES, rows * WARP as usize),
            false => (LOSS_OF_ROWS, rows),
        };
        let blocks = threads.div_ceil(entry.threads as usize);
        let mut rooms = Rooms::default();
        let weight = rooms.add(size_of::<f32>());
        let partials = rooms.add(blocks.max(MOST_BLOCKS) * PAIR_BYTES);
        Self { entry, blocks, weight, partials, bytes: rooms.bytes() }
    }
}

/// Workspace of the loss of `rows` rows, in bytes.
pub(super) fn scratch_bytes(rows: usize, is_of_classes: bool) -> usize {
    Work::of(rows, is_of_classes).bytes
}

/// GPU memory for the weights of `classes` classes, in bytes.
pub(super) fn constant_bytes(classes: usize) -> u64 {
    Memory::taken(classes * size_of::<f32>())
}

/// The kernels' representation of a total: negative if they read the sum of the batch's weights.
pub(super) fn kernel_total(total: Option<f64>) -> f32 {
    total.map_or(-1.0, |total| total.max(0.0) as f32)
}

/// The kernel argument for a batch; the task's fields are set later.
pub(super) fn of_batch(batch: &CudaBatch, label: usize, kind: u32) -> LossOf {
    LossOf {
        labels: batch.labels(label),
        weights: batch.weights(),
        kind,
        rows: batch.rows() as u32,
        positive_weight: 1.0,
        negative_weight: 1.0,
        task_weight: 1.0,
        total: kernel_total(None),
        ..LossOf::default()
    }
}

impl Cuda {
    pub(super) fn loss(&self, operation: TaskLoss<'_, Self>) {
        if let Some(group) = operation.task.loss.group() {
            return self.loss_of_lists(operation, group);
        }
        let TaskLoss { task, batch, rows, total, logits, logits_grad, sums } = operation;
        let mut of_task = self.arguments(task, batch);
        let is_of_classes = of_task.kind == kind::CROSS_ENTROPY;
        let Work { entry, blocks, weight, partials, bytes } = Work::of(rows.len(), is_of_classes);
        let scratch = self.scratch(bytes);
        of_task.weight = scratch + weight;
        of_task.partials = scratch + partials;
        if total.is_none() {
            self.sum_weights(&of_task, batch.rows());
        }
        let of_rows = LossOf {
            total: kernel_total(total),
            logits: logits.view(),
            gradient: logits_grad.view(),
            first_row: rows.start as u32,
            rows: rows.len() as u32,
            column: task.label as u32,
            ..of_task
        };
        self.launch_blocks(entry, [blocks, 1], &of_rows);
        let of_label = sums.numbers() + (task.label * sums.shape().stride() * size_of::<f32>()) as Address;
        self.finish_sums(of_rows.partials, blocks, [of_label, of_label + size_of::<f32>() as Address], true);
    }

    fn arguments(&self, task: &Task, batch: &CudaBatch) -> LossOf {
        let of = |kind| of_batch(batch, task.label, kind);
        let of_kind = match &task.loss {
            Loss::BinaryCrossEntropy { smoothing, positive_weight, negative_weight } => LossOf {
                smoothing: *smoothing as f32,
                positive_weight: *positive_weight as f32,
                negative_weight: *negative_weight as f32,
                ..of(kind::BINARY_CROSS_ENTROPY)
            },
            Loss::Focal { gamma, positive, negative } => LossOf {
                parameter: *gamma as f32,
                positive_weight: *positive as f32,
                negative_weight: *negative as f32,
                ..of(kind::FOCAL)
            },
            Loss::SquaredError => of(kind::SQUARED_ERROR),
            Loss::Huber { delta } => LossOf { parameter: *delta as f32, ..of(kind::HUBER) },
            Loss::Quantile { quantile } => LossOf { parameter: *quantile as f32, ..of(kind::QUANTILE) },
            Loss::Poisson => LossOf { parameter: Loss::MAX_LOG_RATE as f32, ..of(kind::POISSON) },
            Loss::Listwise { .. } | Loss::Pairwise { .. } => {
                unreachable!("a loss of lists has its own kernels")
            }
            Loss::CrossEntropy { smoothing, class_weights } => {
                let weights: Vec<f32> = class_weights.iter().map(|&weight| weight as f32).collect();
                LossOf {
                    class_weights: self.constants(&weights),
                    smoothing: *smoothing as f32,
                    classes: weights.len() as u32,
                    ..of(kind::CROSS_ENTROPY)
                }
            }
        };
        LossOf { task_weight: task.weight as f32, ..of_kind }
    }

    /// Sums the weights of the batch's rows into `of.weight`.
    pub(super) fn sum_weights(&self, of: &LossOf, rows: usize) {
        let blocks = rows.div_ceil(SUM_WEIGHTS.threads as usize).min(MOST_BLOCKS);
        self.launch_blocks(SUM_WEIGHTS, [blocks, 1], of);
        self.finish_sums(of.partials, blocks, [of.weight, 0], false);
    }

    /// Adds up pairs of partial sums and stores both sums where wanted.
    pub(super) fn finish_sums(&self, partials: Address, count: usize, to: [Address; 2], adds: bool) {
        let [first, second] = to;
        let sums = Sums { partials, first, second, count: count as u32, adds: u32::from(adds) };
        self.launch_blocks(FINISH_SUMS, [1, 1], &sums);
    }

    pub(super) fn sigmoid(&self, operation: Sigmoid<'_, Self>) {
        let Sigmoid { rows, logits, out } = operation;
        let scores = Scores { logits: logits.view(), out: out.view(), rows: rows as u32, unused: 0 };
        self.launch(SIGMOID, quads(rows, logits.columns()), &scores);
    }

    pub(super) fn softmax(&self, operation: Softmax<'_, Self>) {
        let Softmax { rows, logits, out } = operation;
        let scores = Scores { logits: logits.view(), out: out.view(), rows: rows as u32, unused: 0 };
        self.launch(SOFTMAX, warps(rows), &scores);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, SlotLayout, Stream};

    use super::super::testing::alone;
    use super::*;
    use crate::{Backend, Device};

    /// Its weight is not read: it would be past the end of the class weights.
    #[test]
    fn a_label_of_no_class_makes_the_loss_nan() {
        let (_stand_in, cuda) = alone();
        let schema = BatchSchema {
            rows: 2,
            labels: vec!["class".into()],
            weighted: false,
            dense: Vec::new(),
            ids: Vec::new(),
            ragged: Vec::new(),
            columns: Vec::new(),
            position_bytes: 0,
        };
        let header = BatchHeader {
            stream: Stream::Train,
            epoch: 0,
            batch: 0,
            rows: 2,
            global_rows: 2,
            first_row: 0,
            most_rows: 2,
            last: false,
        };
        let task = Loss::CrossEntropy { smoothing: 0.0, class_weights: vec![1.0; 3] }.into();
        let (mut batch, logits) = (cuda.batch(&schema), cuda.matrix(2, 3));
        for wrong in [3.0, 1e9, -1.0, f32::NAN, f32::INFINITY] {
            let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema).unwrap()));
            buffer.as_mut().set_header(&header);
            buffer.as_mut().sections().labels.copy_from_slice(&[2.0, wrong]);
            cuda.upload(buffer.as_ref(), &mut batch).unwrap();
            let (mut logits_grad, mut sums) = (cuda.matrix(2, 3), cuda.matrix(1, 2));
            let (batch, logits, rows) = (&batch, &logits, 0..2);
            let (logits_grad, sums) = (&mut logits_grad, &mut sums);
            cuda.run(TaskLoss { task: &task, batch, rows, total: None, logits, logits_grad, sums });
            let (mut found, mut gradient) = ([0.0; 2], [1.0; 6]);
            cuda.read_matrix(sums, &mut found);
            cuda.read_matrix(logits_grad, &mut gradient);
            assert!(found[0].is_nan(), "label {wrong}: {found:?}");
            assert_eq!(gradient, [0.0; 6], "label {wrong}");
        }
    }
}
