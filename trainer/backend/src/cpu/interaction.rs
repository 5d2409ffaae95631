//! Feature interactions: factorization machines, cross layers, pairwise dot products.

use crate::cpu::Cpu;
use crate::cpu::memory::LINE;
use crate::cpu::parts::{Blocks, PerBlock};
use crate::ops::{CrossBackward, CrossForward, DotBackward, DotForward, FmBackward, FmForward};

/// Batch rows per task.
const ROWS: usize = 64;
/// Vectors that are processed at once: one cache line of a transposed row.
const LANES: usize = LINE;

/// Runs the work for `N` columns of vectors of some width, starting at `first`, until all columns are done. It is
/// compiled for a full cache line, half a line and one column.
macro_rules! by_columns {
    ($width:expr, |$first:ident, $n:ident| $work:block) => {{
        let mut $first = 0;
        while $first + LANES <= $width {
            const $n: usize = LANES;
            $work
            $first += $n;
        }
        if $first + LANES / 2 <= $width {
            const $n: usize = LANES / 2;
            $work
            $first += $n;
        }
        while $first < $width {
            const $n: usize = 1;
            $work
            $first += $n;
        }
    }};
}

/// `out += 1/2 sum over k of ((sum of v_k)^2 - sum of v_k^2)`
pub(crate) fn fm_forward(cpu: &Cpu, operation: FmForward<'_, Cpu>) {
    let FmForward { rows, vectors, shape: (count, width), out } = operation;
    run_rows!(cpu, rows, ROWS, out, |row, out| {
        let vectors = &vectors.row(row)[..count * width];
        let mut total = 0.0;
        by_columns!(width, |first, N| {
            let (sum, squares) = sums::<N>(vectors, width, first);
            total += sum.iter().zip(&squares).map(|(sum, squares)| sum * sum - squares).sum::<f32>();
        });
        out[0] += 0.5 * total;
    });
}

/// `vectors_grad += out_grad * (sum of v - v)`
pub(crate) fn fm_backward(cpu: &Cpu, operation: FmBackward<'_, Cpu>) {
    let FmBackward { rows, vectors, shape: (count, width), out_grad, vectors_grad } = operation;
    run_rows!(cpu, rows, ROWS, vectors_grad, |row, out| {
        let (vectors, g) = (&vectors.row(row)[..count * width], out_grad.row(row)[0]);
        by_columns!(width, |first, N| {
            let (sum, _) = sums::<N>(vectors, width, first);
            for (v, by_v) in vectors.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                let v = *columns::<N>(&v[first..]);
                let others = std::array::from_fn(|lane| sum[lane] - v[lane]);
                add_times::<N>(columns_mut(&mut by_v[first..]), g, &others);
            }
        });
    });
}

/// The sums of these columns over all vectors, and the sums of their squares.
#[inline(always)]
fn sums<const N: usize>(vectors: &[f32], width: usize, first: usize) -> ([f32; N], [f32; N]) {
    let (mut sum, mut squares) = ([0.0; N], [0.0; N]);
    for v in vectors.chunks_exact(width) {
        let v = *columns::<N>(&v[first..]);
        add_times(&mut sum, 1.0, &v);
        add_times(&mut squares, 1.0, &v.map(|v| v * v));
    }
    (sum, squares)
}

/// `output = first * product + input`
pub(crate) fn cross_forward(cpu: &Cpu, operation: CrossForward<'_, Cpu>) {
    let CrossForward { rows, first, product, input, output } = operation;
    let stride = output.stride();
    let float = output.float();
    run_blocks!(cpu, Blocks::of(rows, ROWS), output.by_rows(), |block, output| {
        let part = block.start * stride..block.end * stride;
        let (first, product) = (&first.as_slice()[part.clone()], &product.as_slice()[part.clone()]);
        let input = &input.as_slice()[part];
        for (((output, x0), u), x) in output.iter_mut().zip(first).zip(product).zip(input) {
            *output = float.round(x0 * u + x);
        }
    });
}

/// `product_grad = output_grad * first; first_grad += output_grad * product`
pub(crate) fn cross_backward(cpu: &Cpu, operation: CrossBackward<'_, Cpu>) {
    let CrossBackward { rows, first, product, output_grad, product_grad, first_grad } = operation;
    let stride = first.stride();
    let (product_float, first_float) = (product_grad.float(), first_grad.float());
    let out = (product_grad.by_rows(), first_grad.by_rows());
    run_blocks!(cpu, Blocks::of(rows, ROWS), out, |block, (product_grad, first_grad)| {
        let part = block.start * stride..block.end * stride;
        let (first, product) = (&first.as_slice()[part.clone()], &product.as_slice()[part.clone()]);
        let output_grad = &output_grad.as_slice()[part];
        let read = first.iter().zip(product).zip(output_grad);
        for (((x0, u), g), (product_grad, first_grad)) in read.zip(product_grad.iter_mut().zip(first_grad)) {
            *product_grad = product_float.round(g * x0);
            *first_grad = first_float.round(*first_grad + g * u);
        }
    });
}

/// The first vector, then the dot product of each pair.
///
/// A row's vectors are transposed, so that one of them is multiplied by a cache line of others at once.
pub(crate) fn dot_forward(cpu: &Cpu, operation: DotForward<'_, Cpu>) {
    let DotForward { rows, vectors, width, out } = operation;
    let count = vectors.columns() / width;
    let (blocks, lanes) = (Blocks::of(rows, ROWS), count.next_multiple_of(LANES));
    let (float, stride) = (out.float(), out.stride());
    let mut scratch = cpu.scratch(blocks.count() * lanes * width);
    let out = (PerBlock::of(scratch.as_mut_slice(), lanes * width), out.by_rows());
    run_blocks!(cpu, blocks, out, |block, (transposed, out)| {
        // Lanes past the last vector are multiplied, too; old contents could be subnormal numbers, which are slow.
        let transposed = &mut transposed[..lanes * width];
        transposed.fill(0.0);
        for (row, out) in block.zip(out.chunks_exact_mut(stride)) {
            let vectors = vectors.row(row);
            out[..width].copy_from_slice(&vectors[..width]);
            for (number, v) in vectors.chunks_exact(width).enumerate() {
                v.iter().enumerate().for_each(|(k, &v)| transposed[k * lanes + number] = v);
            }
            let mut pairs = width;
            for (number, v) in vectors.chunks_exact(width).enumerate().skip(1) {
                for first in (0..number).step_by(LANES) {
                    let products = multiply(v, &transposed[first..], lanes);
                    let wanted = LANES.min(number - first);
                    match out[pairs..].first_chunk_mut() {
                        // The excess products are overwritten by the pairs that follow.
                        Some(out) => *out = products,
                        None => out[pairs..pairs + wanted].copy_from_slice(&products[..wanted]),
                    }
                    pairs += wanted;
                }
            }
            float.round_all(out);
        }
    });
}

/// The dot product of `v` with each of [`LANES`] vectors, whose elements `k` are at `k * stride`.
#[inline(always)]
fn multiply(v: &[f32], others: &[f32], stride: usize) -> [f32; LANES] {
    let mut products = [0.0; LANES];
    for (k, &v) in v.iter().enumerate() {
        let others: &[f32; LANES] = others[k * stride..][..LANES].try_into().expect("a line");
        for (product, other) in products.iter_mut().zip(others) {
            *product += v * other;
        }
    }
    products
}

/// `vectors_grad_i = sum over j of (gradient of pair i, j) * v_j`, plus the gradient of the copy for the first
/// vector.
pub(crate) fn dot_backward(cpu: &Cpu, operation: DotBackward<'_, Cpu>) {
    let DotBackward { rows, vectors, width, out_grad, vectors_grad } = operation;
    run_rows!(cpu, rows, ROWS, vectors_grad, |row, out| {
        let (first, pairs) = out_grad.row(row).split_at(width);
        out.fill(0.0);
        out[..width].copy_from_slice(first);
        by_columns!(width, |first, N| {
            add_pair_gradients::<N>(vectors.row(row), width, first, pairs, out);
        });
    });
}

/// Adds the gradients with respect to both vectors of each pair, for `N` columns from `first` on, given the
/// gradients with respect to the products.
#[inline(always)]
fn add_pair_gradients<const N: usize>(
    vectors: &[f32],
    width: usize,
    first: usize,
    pairs: &[f32],
    vectors_grad: &mut [f32],
) {
    let mut pairs = pairs.iter();
    for i in 1..vectors.len() / width {
        let v_i = *columns::<N>(&vectors[i * width + first..]);
        let (before, from) = vectors_grad.split_at_mut(i * width);
        let by_i = columns_mut::<N>(&mut from[first..]);
        let mut sum = *by_i;
        let others = vectors.chunks_exact(width).zip(before.chunks_exact_mut(width));
        for ((v_j, by_j), &g) in others.zip(&mut pairs) {
            add_times(&mut sum, g, columns(&v_j[first..]));
            add_times(columns_mut(&mut by_j[first..]), g, &v_i);
        }
        *by_i = sum;
    }
}

/// `to += factor * from`, as whole vectors: read, computed, then written.
#[inline(always)]
fn add_times<const N: usize>(to: &mut [f32; N], factor: f32, from: &[f32; N]) {
    let from = *from;
    let mut sum = *to;
    for lane in 0..N {
        sum[lane] += factor * from[lane];
    }
    *to = sum;
}

#[inline(always)]
fn columns<const N: usize>(vector: &[f32]) -> &[f32; N] {
    vector.first_chunk().expect("columns of a vector")
}

#[inline(always)]
fn columns_mut<const N: usize>(vector: &mut [f32]) -> &mut [f32; N] {
    vector.first_chunk_mut().expect("columns of a vector")
}
