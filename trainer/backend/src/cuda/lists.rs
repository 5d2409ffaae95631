//! Losses that compare the rows of a list.
//!
//! A warp computes the loss and the gradient of a row, and compares its id with those of all rows: `B^2` comparisons
//! once for each pass over a list, of which both losses have two. Ids are read coalesced, and from the L1 cache up to
//! some ten thousand rows.

use super::Cuda;
use super::buffers::Rooms;
use super::driver::Address;
use super::kernels::{LOSS_OF_LISTS, LOSS_OF_PAIRS, Lists, SHARE_PAIRS, WARP};
use super::layers::PAIR_BYTES;
use super::losses::{MOST_BLOCKS, kernel_total, kind, of_batch};
use crate::device::IdColumn;
use crate::ops::{Loss, TaskLoss};

/// The workspace.
struct Work {
    blocks: usize,
    weight: Address,
    shares: Address,
    partials: Address,
    bytes: usize,
}

impl Work {
    fn of(rows: usize) -> Self {
        let blocks = (rows * WARP as usize).div_ceil(LOSS_OF_LISTS.threads as usize);
        let mut rooms = Rooms::default();
        let weight = rooms.add(size_of::<f32>());
        let shares = rooms.add(rows * size_of::<f32>());
        let partials = rooms.add(blocks.max(MOST_BLOCKS) * PAIR_BYTES);
        Self { blocks, weight, shares, partials, bytes: rooms.bytes() }
    }
}

/// Workspace for lists of `rows` rows, in bytes.
pub(super) fn scratch_bytes(rows: usize) -> usize {
    Work::of(rows).bytes
}

impl Cuda {
    /// The loss of lists that feature `group` identifies, and its gradient.
    pub(super) fn loss_of_lists(&self, operation: TaskLoss<'_, Self>, group: usize) {
        let TaskLoss { task, batch, total, logits, logits_grad, sums, .. } = operation;
        let Work { blocks, weight, shares, partials, bytes } = Work::of(batch.rows());
        let scratch = self.scratch(bytes);
        let lists = Lists {
            logits: logits.view(),
            gradient: logits_grad.view(),
            labels: batch.labels(task.label),
            weights: batch.weights(),
            ids: batch.address() + batch.column(IdColumn::Single(group)).ids,
            weight: scratch + weight,
            shares: scratch + shares,
            partials: scratch + partials,
            rows: batch.rows() as u32,
            column: task.label as u32,
            task_weight: task.weight as f32,
            total: kernel_total(total),
        };
        if let Loss::Pairwise { .. } = task.loss {
            self.launch_blocks(SHARE_PAIRS, [blocks, 1], &lists);
            self.finish_sums(lists.partials, blocks, [lists.weight, 0], false);
            self.launch_blocks(LOSS_OF_PAIRS, [blocks, 1], &lists);
        } else {
            let mut targets = of_batch(batch, task.label, kind::RETRIEVAL);
            (targets.weight, targets.partials) = (lists.weight, lists.partials);
            self.sum_weights(&targets, batch.rows());
            self.launch_blocks(LOSS_OF_LISTS, [blocks, 1], &lists);
        }
        let of_label = sums.numbers() + (task.label * sums.shape().stride() * size_of::<f32>()) as Address;
        self.finish_sums(lists.partials, blocks, [of_label, of_label + size_of::<f32>() as Address], true);
    }
}
