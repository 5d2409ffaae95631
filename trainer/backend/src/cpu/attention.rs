//! Attention over sequences. A task has whole batch rows with all of their values.

use crate::cpu::Cpu;
use crate::cpu::memory::LINE;
use crate::cpu::parts::{Blocks, Rows};
use crate::ops::{AttendBackward, AttendForward, PairBackward, PairForward, Sequence};

/// Batch rows per task: each has many values.
const ROWS: usize = 8;
/// Partial sums of a dot product, added in order at the end.
const LANES: usize = LINE;

impl Sequence {
    /// The values' vectors of a row, `V W` numbers, and its target's.
    #[inline(always)]
    fn of(self, row: &[f32]) -> (&[f32], &[f32]) {
        (&row[self.first..][..self.values * self.width], &row[self.target..][..self.width])
    }
}

/// `pairs = [e, t, e - t, e * t]`
pub(crate) fn pair_forward(cpu: &Cpu, operation: PairForward<'_, Cpu>) {
    let PairForward { rows, sequence, vectors, pairs } = operation;
    let (width, stride, float) = (sequence.width, pairs.stride(), pairs.float());
    if stride == 0 || sequence.values == 0 {
        return;
    }
    let of_row = Rows::of(pairs.as_mut_slice(), sequence.values * stride);
    run_blocks!(cpu, Blocks::of(rows, ROWS), of_row, |block, pairs| {
        for (row, pairs) in block.zip(pairs.chunks_exact_mut(sequence.values * stride)) {
            let (values, t) = sequence.of(vectors.row(row));
            for (e, pair) in values.chunks_exact(width).zip(pairs.chunks_exact_mut(stride)) {
                let (of_e, rest) = pair.split_at_mut(width);
                let (of_t, rest) = rest.split_at_mut(width);
                let (difference, product) = rest.split_at_mut(width);
                of_e.copy_from_slice(e);
                of_t.copy_from_slice(t);
                for ((to, e), t) in difference.iter_mut().zip(e).zip(t) {
                    *to = e - t;
                }
                for ((to, e), t) in product.iter_mut().zip(e).zip(t) {
                    *to = e * t;
                }
            }
        }
        float.round_all(pairs);
    });
}

/// `by e = a g + g_1 + g_3 + g_4 * t; by t += sum of g_2 - g_3 + g_4 * e`
pub(crate) fn pair_backward(cpu: &Cpu, operation: PairBackward<'_, Cpu>) {
    let PairBackward { rows, sequence, vectors, scores, out_grad, first_column, pairs_grad, vectors_grad } =
        operation;
    let Sequence { first, target, values: count, width } = sequence;
    if width == 0 {
        return;
    }
    run_rows!(cpu, rows, ROWS, vectors_grad, |row, out| {
        let (values, t) = sequence.of(vectors.row(row));
        let g = &out_grad.row(row)[first_column..][..width];
        for (value, e) in values.chunks_exact(width).enumerate() {
            let pair = row * count + value;
            let score = scores.row(pair)[0];
            let (g_1, rest) = pairs_grad.row(pair).split_at(width);
            let (g_2, rest) = rest.split_at(width);
            let (g_3, g_4) = rest.split_at(width);
            let by_e = &mut out[first + value * width..][..width];
            for (((((by_e, g), g_1), g_3), g_4), t) in
                by_e.iter_mut().zip(g).zip(g_1).zip(g_3).zip(g_4).zip(t)
            {
                *by_e = score * g + g_1 + g_3 + g_4 * t;
            }
            let by_t = &mut out[target..][..width];
            for ((((by_t, g_2), g_3), g_4), e) in by_t.iter_mut().zip(g_2).zip(g_3).zip(g_4).zip(e) {
                *by_t += g_2 - g_3 + g_4 * e;
            }
        }
    });
}

/// `out = sum of a e`
pub(crate) fn attend_forward(cpu: &Cpu, operation: AttendForward<'_, Cpu>) {
    let AttendForward { rows, sequence, vectors, scores, out, first_column } = operation;
    let Sequence { values: count, width, .. } = sequence;
    if width == 0 {
        return;
    }
    run_rows!(cpu, rows, ROWS, out, |row, out| {
        let (values, _) = sequence.of(vectors.row(row));
        let sum = &mut out[first_column..][..width];
        sum.fill(0.0);
        for (value, e) in values.chunks_exact(width).enumerate() {
            let score = scores.row(row * count + value)[0];
            for (sum, e) in sum.iter_mut().zip(e) {
                *sum += score * e;
            }
        }
    });
}

/// `scores_grad = g . e`
pub(crate) fn attend_backward(cpu: &Cpu, operation: AttendBackward<'_, Cpu>) {
    let AttendBackward { rows, sequence, vectors, out_grad, first_column, scores_grad } = operation;
    let (count, width, float) = (sequence.values, sequence.width, scores_grad.float());
    if width == 0 || count == 0 {
        return;
    }
    // A matrix of one column has no padding.
    let of_row = Rows::of(scores_grad.as_mut_slice(), count);
    run_blocks!(cpu, Blocks::of(rows, ROWS), of_row, |block, scores_grad| {
        for (row, scores_grad) in block.zip(scores_grad.chunks_exact_mut(count)) {
            let (values, _) = sequence.of(vectors.row(row));
            let g = &out_grad.row(row)[first_column..][..width];
            for (e, score_grad) in values.chunks_exact(width).zip(scores_grad) {
                *score_grad = dot(g, e);
            }
        }
        float.round_all(scores_grad);
    });
}

/// The dot product of two vectors of one length.
#[inline(always)]
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (left, right) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(left, right)| left * right).sum();
    for (left, right) in left.zip(right) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    sums.iter().sum::<f32>() + rest
}
