//! The losses of queries that choose among the items of a batch, computed for a chunk of queries at a time to bound the
//! memory of the scores.

use super::Cuda;
use super::blas::{Epilogue, Factor, Product};
use super::buffers::{DEPTH, Rooms, Shape};
use super::driver::Address;
use super::kernels::{IN_BATCH_PAIRS, IN_BATCH_SOFTMAX, InBatch, LossOf, MatrixView};
use super::layers::PAIR_BYTES;
use super::losses::{MOST_BLOCKS, kind, of_batch};
use crate::device::IdColumn;
use crate::float::Float;
use crate::ops::{Choice, Clear, InBatchInput, InBatchLoss};

/// The most scores in memory at once; at least those of one query.
const MOST_SCORES: usize = 16 << 20;

/// The workspace, in fp32.
pub(super) struct Work {
    /// Queries per chunk.
    each: usize,
    of_queries: Shape,
    of_items: Shape,
    scores: Shape,
    queries: Address,
    items: Address,
    query_grad: Address,
    item_grad: Address,
    of_scores: Address,
    of_rows: Address,
    weight: Address,
    partials: Address,
    bytes: usize,
}

impl Work {
    pub(super) fn of(queries: usize, items: usize, columns: usize) -> Self {
        let shape = |rows, columns| Shape::of(Float::F32, rows, columns);
        let (of_queries, of_items) = (shape(queries, columns), shape(items, columns));
        let most = MOST_SCORES / shape(queries, items).stride().max(1);
        let whole = if most < DEPTH { most } else { most / DEPTH * DEPTH };
        let each = whole.clamp(1, queries.max(1));
        let scores = shape(each, items);
        // A smaller batch needs no more, although its chunks have more queries.
        let least = shape(queries.min(DEPTH), items).bytes();
        let of_scores = shape(queries, items).bytes().min(least.max(MOST_SCORES * size_of::<f32>()));
        let mut rooms = Rooms::default();
        Self {
            each,
            of_queries,
            of_items,
            scores,
            queries: rooms.add(of_queries.bytes()),
            items: rooms.add(of_items.bytes()),
            query_grad: rooms.add(of_queries.bytes()),
            item_grad: rooms.add(of_items.bytes()),
            of_scores: rooms.add(of_scores),
            of_rows: rooms.add(queries * PAIR_BYTES),
            weight: rooms.add(size_of::<f32>()),
            partials: rooms.add(MOST_BLOCKS * PAIR_BYTES),
            bytes: rooms.bytes(),
        }
    }

    pub(super) fn numbers(&self) -> usize {
        self.bytes / size_of::<f32>()
    }
}

impl Cuda {
    pub(super) fn in_batch_loss(&self, operation: InBatchLoss<'_, Self>) {
        let InBatchLoss { input, work: room, query_grad, item_grad, sums } = operation;
        let &InBatchInput { batch, rows: ref own, queries, items, temperature, choice, item_id } = input;
        let (rows, width) = (batch.rows(), queries.columns());
        if own.is_empty() {
            self.clear(Clear { rows, matrix: item_grad });
            return;
        }
        let work = Work::of(own.len(), rows, width);
        let at = |place: Address| room.numbers() + place;
        let of_queries = |place: Address| work.of_queries.view(at(place));
        let of_items = |place: Address| work.of_items.view(at(place));
        self.copy(own.len(), (queries.view(), 0), (of_queries(work.queries), 0), width);
        self.copy(rows, (items.view(), 0), (of_items(work.items), 0), width);
        let weights = LossOf {
            weight: at(work.weight),
            partials: at(work.partials),
            ..of_batch(batch, 0, kind::RETRIEVAL)
        };
        self.sum_weights(&weights, rows);
        let factor = |view: MatrixView, is_transposed| Factor {
            address: view.data,
            float: Float::F32,
            stride: view.stride as usize,
            is_transposed,
        };
        for first in (0..own.len()).step_by(work.each) {
            let count = work.each.min(own.len() - first);
            let before = (first * work.of_queries.stride() * size_of::<f32>()) as Address;
            let some = |place: Address| work.of_queries.view(at(place) + before);
            let scores = MatrixView { columns: rows as u32, ..work.scores.view(at(work.of_scores)) };
            let product = Product {
                rows: count,
                depth: width,
                columns: rows,
                left: factor(some(work.queries), false),
                right: factor(of_items(work.items), true),
                out: factor(scores, false),
                adds: false,
                epilogue: Epilogue::Plain,
            };
            self.must_multiply(&product);
            let arguments = InBatch {
                scores,
                labels: batch.labels(0),
                weights: batch.weights(),
                items: item_id
                    .map_or(0, |feature| batch.address() + batch.column(IdColumn::Single(feature)).ids),
                weight: at(work.weight),
                of_rows: at(work.of_rows) + (first * PAIR_BYTES) as Address,
                temperature: temperature as f32,
                first_row: (own.start + first) as u32,
                rows: count as u32,
                all_rows: rows as u32,
            };
            let kernel = match choice {
                Choice::Softmax => IN_BATCH_SOFTMAX,
                Choice::Pairwise => IN_BATCH_PAIRS,
            };
            self.launch_blocks(kernel, [count, 1], &arguments);
            self.must_multiply(&Product {
                rows: count,
                depth: rows,
                columns: width,
                left: factor(scores, false),
                right: factor(of_items(work.items), false),
                out: factor(some(work.query_grad), false),
                ..product
            });
            self.must_multiply(&Product {
                rows,
                depth: count,
                columns: width,
                left: factor(scores, true),
                right: factor(some(work.queries), false),
                out: factor(of_items(work.item_grad), false),
                adds: first > 0,
                ..product
            });
        }
        self.copy(own.len(), (of_queries(work.query_grad), 0), (query_grad.view(), 0), width);
        self.copy(rows, (of_items(work.item_grad), 0), (item_grad.view(), 0), width);
        let to = [sums.numbers(), sums.numbers() + size_of::<f32>() as Address];
        self.finish_sums(at(work.of_rows), own.len(), to, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model has the workspace of its largest batches, and the last batch of an epoch is smaller.
    #[test]
    fn smaller_batches_need_no_more_workspace() {
        for most in [3_usize, 40, 5_000, 40_000, 70_000, 3_000_000] {
            let room = Work::of(most, most, 64).bytes;
            let share = Work::of(most / 3, most, 64).bytes;
            for items in (1..=most).step_by((most / 5_000).max(1)) {
                let work = Work::of(items, items, 64);
                let chunk = work.scores.bytes() as Address;
                assert!(work.of_scores + chunk <= work.of_rows, "{items} of {most}: the chunk has no room");
                assert!(work.bytes <= room, "{items} of {most} rows");
                assert!(Work::of(items.min(most / 3), items, 64).bytes <= share, "{items} of {most} rows");
            }
        }
    }
}
