//! The loss of each query over the batch's items, and the gradients with respect to queries and items, in one pass.
//!
//! The matrix of all scores, `[Q, B]`, is never materialized. Queries are processed in strips of [`STRIP`] rows. A
//! strip's scores over all items fill a block that stays in the L2 cache while it is turned into the gradient with
//! respect to the scores, and this into the gradient with respect to the strip's queries and the strip's contribution
//! to the gradient with respect to the items. So each score and each exponential is computed once, and the total cost
//! is three products of `2 Q B W` floating-point operations. (Blocking over items as well, with running maxima, would
//! compute scores and exponentials a second time: 8 `Q B W` instead of 6.)
//!
//! The strips' contributions to the item gradient are summed in a few groups of strips, one copy per group, and
//! then over the groups. Groups depend on the number of queries alone, so sums do not depend on the number of threads.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::cpu::exp::exp;
use crate::cpu::gemm::{View, product};
use crate::cpu::layer::{TILE, transpose};
use crate::cpu::logistic::{FACTORS, Logistic};
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::memory::LINE;
use crate::cpu::parts::{Blocks, PerBlock, Rows, Spans, block_of};
use crate::host::HostBatch;
use crate::ops::{Choice, InBatchInput, InBatchLoss};

/// Queries per strip: a multiple of the 6 rows that an AVX-512 kernel computes at once.
const STRIP: usize = 48;
/// The most groups of strips, and therefore the most threads that help.
const GROUPS: usize = 8;
/// Rows per task when summing over groups.
const ROWS: usize = 128;

/// The division of the workspace, for a number of queries, of items and of columns.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    queries: usize,
    items: usize,
    /// Row stride of the scores: an odd number of cache lines, so that a column does not map to one cache set.
    stride: usize,
    /// Size of the transposed items divided by the temperature, `[W, B]`.
    turned: usize,
    /// Size of a group's item gradient, `[B, W]`.
    item_grad: usize,
}

/// The divided workspace.
struct Divided<'a> {
    turned: &'a mut [f32],
    losses: &'a mut [f32],
    /// A strip of scores for each group, `[STRIP, B]`.
    scores: &'a mut [f32],
    /// An item gradient for each group, `[B, W]`.
    item_grad: &'a mut [f32],
}

impl Work {
    pub(crate) fn of(queries: usize, items: usize, columns: usize) -> Self {
        let stride = (items.div_ceil(LINE) | 1) * LINE;
        let turned = columns.next_multiple_of(TILE) * stride;
        Self { queries, items, stride, turned, item_grad: items * CpuMatrix::stride_of(columns) }
    }

    fn strips(&self) -> usize {
        self.queries.div_ceil(STRIP)
    }

    fn groups(&self) -> usize {
        self.strips().min(GROUPS)
    }

    /// The strips of group `number`.
    fn group(&self, number: usize) -> Range<usize> {
        self.first_strip(number)..self.first_strip(number + 1)
    }

    fn first_strip(&self, group: usize) -> usize {
        group * self.strips() / self.groups().max(1)
    }

    /// The first query of a group; the number of queries for groups past the last.
    fn first_query(&self, group: usize) -> usize {
        (self.first_strip(group) * STRIP).min(self.queries)
    }

    /// The total size.
    pub(crate) fn numbers(&self) -> usize {
        self.turned + self.stride + self.groups() * (STRIP * self.stride + self.item_grad)
    }

    fn divide<'a>(&self, memory: &'a mut [f32]) -> Divided<'a> {
        let (turned, rest) = memory.split_at_mut(self.turned);
        let (losses, rest) = rest.split_at_mut(self.stride);
        let (scores, rest) = rest.split_at_mut(self.groups() * STRIP * self.stride);
        let item_grad = &mut rest[..self.groups() * self.item_grad];
        Divided { turned, losses: &mut losses[..self.queries], scores, item_grad }
    }
}

/// The loss, and its gradients with respect to queries and items.
pub(crate) fn loss(cpu: &Cpu, operation: InBatchLoss<'_, Cpu>) {
    let InBatchLoss { input, work: memory, query_grad, item_grad, sums } = operation;
    let InBatchInput { batch, rows, queries, .. } = input;
    let work = Work::of(rows.len(), batch.rows(), queries.columns());
    let mut divided = work.divide(memory.as_mut_slice());
    turn(cpu, input, work, divided.turned);
    let weight = |rows: Range<usize>| rows.map(|row| f64::from(weight_of(batch, row))).sum::<f64>();
    sweep(cpu, input, work, weight(0..batch.rows()), &mut divided, query_grad);
    sum_groups(cpu, work, divided.item_grad, item_grad);
    let loss = divided.losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
    for (sum, of_rows) in sums.as_mut_slice().iter_mut().zip([loss, weight(rows.clone())]) {
        *sum = (f64::from(*sum) + of_rows) as f32;
    }
}

/// The weight of a row times its label, which is 0 or 1.
fn weight_of(batch: &HostBatch, row: usize) -> f32 {
    batch.labels(0)[row] * batch.weights()[row]
}

/// Transposes the items and divides them by the temperature, so that products are scores.
fn turn(cpu: &Cpu, input: &InBatchInput<'_, Cpu>, work: Work, turned: &mut [f32]) {
    let factor = (1.0 / input.temperature) as f32;
    let (columns, stride) = (input.items.columns(), work.stride);
    let strips = PerBlock::of(turned, TILE * stride);
    run_blocks!(cpu, Blocks::of(columns, TILE), strips, |columns, strip| {
        transpose(input.items, columns, work.items, strip, stride);
        strip.iter_mut().for_each(|x| *x *= factor);
    });
}

/// Computes the losses, the query gradient, and each group's item gradient.
fn sweep(
    cpu: &Cpu,
    input: &InBatchInput<'_, Cpu>,
    work: Work,
    weight: f64,
    divided: &mut Divided<'_>,
    query_grad: &mut CpuMatrix,
) {
    let &InBatchInput { batch, ref rows, queries, items, temperature, choice, item_id } = input;
    let (count, columns, stride) = (work.items, queries.columns(), work.stride);
    let ids = item_id.map(|feature| batch.single_ids(feature));
    let by_score = if weight > 0.0 { (1.0 / (weight * temperature)) as f32 } else { 0.0 };
    let turned = View::row_major(divided.turned, columns, count, stride);
    let (query_stride, item_stride) = (query_grad.stride(), CpuMatrix::stride_of(columns));
    let float = query_grad.float();
    let starts: [usize; GROUPS + 1] = std::array::from_fn(|group| work.first_query(group));
    let of_groups = (Rows::of(divided.scores, STRIP * stride), Rows::of(divided.item_grad, work.item_grad));
    let of_rows =
        (Spans::of(divided.losses, 1, &starts), Spans::of(query_grad.as_mut_slice(), query_stride, &starts));
    let groups = Blocks::of(work.groups(), 1);
    run_blocks!(cpu, groups, (of_groups, of_rows), |group, ((scores, item_grad), (losses, query_grad))| {
        let group = group.start;
        let strips = losses.chunks_mut(STRIP).zip(query_grad.chunks_mut((STRIP * query_stride).max(1)));
        for (strip, (losses, query_grad)) in work.group(group).zip(strips) {
            let block = block_of(strip, STRIP, work.queries);
            let of_strip = rows_of(queries, block.clone());
            product(of_strip, turned, scores, stride, false);
            for ((query, loss), scores) in block.clone().zip(losses).zip(scores.chunks_exact_mut(stride)) {
                let row = rows.start + query;
                let weight = weight_of(batch, row);
                let (scores, factor) = (&mut scores[..count], weight * by_score);
                // Not a pointer to a function, which would not be compiled for the machine's vectors.
                let of_row = match choice {
                    Choice::Softmax => choose_by_softmax(scores, row, ids, factor),
                    Choice::Pairwise => choose_by_pairs(scores, row, ids, factor),
                };
                *loss = weight * of_row;
            }
            let scores = View::row_major(scores, block.len(), count, stride);
            product(scores, rows_of(items, 0..count), query_grad, query_stride, false);
            float.round_all(query_grad);
            let is_first = strip == work.group(group).start;
            product(scores.transposed(), of_strip, item_grad, item_stride, !is_first);
        }
    });
}

/// Returns the loss of row `row` given its `scores`, and replaces them by their gradient times `factor`.
#[inline(always)]
fn choose_by_softmax(scores: &mut [f32], row: usize, ids: Option<&[u32]>, factor: f32) -> f32 {
    if factor == 0.0 {
        scores.fill(0.0);
        return 0.0;
    }
    let score = scores[row];
    exclude(scores, row, ids);
    scores[row] = score;
    let larger = |largest: f32, score: f32| if score > largest { score } else { largest };
    let largest = by_lanes(scores, f32::NEG_INFINITY, |largest, score| larger(largest, *score));
    let largest = largest.into_iter().fold(f32::NEG_INFINITY, larger);
    let total = by_lanes(scores, 0.0, |sum, score| {
        *score = exp(*score - largest);
        sum + *score
    });
    let total = total.into_iter().sum::<f32>();
    let share = factor / total;
    scores.iter_mut().for_each(|score| *score *= share);
    scores[row] -= factor;
    total.ln() + largest - score
}

/// As [`choose_by_softmax`].
#[inline(always)]
fn choose_by_pairs(scores: &mut [f32], row: usize, ids: Option<&[u32]>, factor: f32) -> f32 {
    let score = scores[row];
    let others = exclude(scores, row, ids);
    if factor == 0.0 || others == 0 {
        scores.fill(0.0);
        return 0.0;
    }
    let share = factor / others as f32;
    let (mut hinges, mut logs, mut slopes) = ([0.0_f32; LINE], [0.0_f32; LINE], [0.0_f32; LINE]);
    for scores in scores.chunks_mut(FACTORS * LINE) {
        let mut products = [1.0_f32; LINE];
        for scores in scores.chunks_mut(LINE) {
            for (lane, other) in scores.iter_mut().enumerate() {
                // All but the factor, which is 1, are 0 for an excluded item.
                let Logistic { hinge, factor, rising, .. } = Logistic::of(*other - score);
                hinges[lane] += hinge;
                products[lane] *= factor;
                slopes[lane] += rising;
                *other = share * rising;
            }
        }
        for (log, product) in logs.iter_mut().zip(products) {
            *log += product.ln();
        }
    }
    let sum = |lanes: [f32; LINE]| lanes.into_iter().sum::<f32>();
    scores[row] = -share * sum(slopes);
    (sum(hinges) + sum(logs)) / others as f32
}

/// Sets the scores of the row's item, and of items with the same id, to the least number. Returns the number of others.
#[inline(always)]
fn exclude(scores: &mut [f32], row: usize, ids: Option<&[u32]>) -> usize {
    scores[row] = f32::NEG_INFINITY;
    let Some(ids) = ids else { return scores.len() - 1 };
    let id = ids[row];
    let mut others = 0;
    for (score, &other) in scores.iter_mut().zip(ids) {
        others += u32::from(other != id);
        *score = if other == id { f32::NEG_INFINITY } else { *score };
    }
    others as usize
}

/// Folds `numbers` from `start`, separately for each lane of a cache line.
#[inline(always)]
fn by_lanes(numbers: &mut [f32], start: f32, with: impl Fn(f32, &mut f32) -> f32) -> [f32; LINE] {
    let mut lanes = [start; LINE];
    let mut chunks = numbers.chunks_exact_mut(LINE);
    for chunk in &mut chunks {
        for (lane, number) in lanes.iter_mut().zip(chunk) {
            *lane = with(*lane, number);
        }
    }
    for (lane, number) in lanes.iter_mut().zip(chunks.into_remainder()) {
        *lane = with(*lane, number);
    }
    lanes
}

/// Sums the groups' item gradients.
fn sum_groups(cpu: &Cpu, work: Work, groups: &[f32], item_grad: &mut CpuMatrix) {
    let stride = item_grad.stride();
    let float = item_grad.float();
    run_blocks!(cpu, Blocks::of(work.items, ROWS), item_grad.by_rows(), |block, out| {
        let block = block.start * stride..block.end * stride;
        out.fill(0.0);
        for of_group in groups.chunks_exact(work.item_grad.max(1)) {
            for (sum, x) in out.iter_mut().zip(&of_group[block.clone()]) {
                *sum += x;
            }
        }
        float.round_all(out);
    });
}

/// Rows `block` of `matrix`.
fn rows_of(matrix: &CpuMatrix, block: Range<usize>) -> View<'_> {
    let stride = matrix.stride();
    View::row_major(&matrix.as_slice()[block.start * stride..], block.len(), matrix.columns(), stride)
}
