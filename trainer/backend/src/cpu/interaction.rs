//! How features meet: factorization machines, cross layers, products of pairs.

use crate::cpu::matrix::CpuMatrix;
use crate::cpu::memory::LINE;
use crate::cpu::{Cpu, rows_of_task, tasks_for};

/// Batch rows of a task.
const ROWS: usize = 64;
/// Vectors that are worked on at once: a line of a transposed row.
const LANES: usize = LINE;

/// `out += 1/2 sum over k of ((sum of v_k)^2 - sum of v_k^2)`
pub(crate) fn fm_forward(
    cpu: &Cpu,
    rows: usize,
    vectors: &CpuMatrix,
    (count, width): (usize, usize),
    out: &mut CpuMatrix,
) {
    assert!(rows <= vectors.rows() && rows <= out.rows() && out.columns() == 1);
    assert!(count * width <= vectors.columns());
    let (float, out) = (out.float(), out.parts());
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.clone()) };
        for (row, out) in block.zip(out) {
            let vectors = &vectors.row(row)[..count * width];
            let mut total = 0.0;
            each_strip(width, |first, columns| {
                let (sum, squares) = sums(vectors, width, first, columns);
                let pairs = sum.iter().zip(&squares).map(|(sum, squares)| sum * sum - squares);
                total += pairs.take(columns).sum::<f32>();
            });
            *out = float.round(*out + 0.5 * total);
        }
    });
}

/// `vectors_gradient += out_gradient * (sum of v - v)`
pub(crate) fn fm_backward(
    cpu: &Cpu,
    rows: usize,
    vectors: &CpuMatrix,
    (count, width): (usize, usize),
    out_gradient: &CpuMatrix,
    vectors_gradient: &mut CpuMatrix,
) {
    assert!(rows <= vectors.rows() && rows <= out_gradient.rows() && rows <= vectors_gradient.rows());
    assert!(count * width <= vectors.columns() && count * width <= vectors_gradient.columns());
    let stride = vectors_gradient.stride();
    let (float, out) = (vectors_gradient.float(), vectors_gradient.parts());
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.start * stride..block.end * stride) };
        for (row, out) in block.zip(out.chunks_exact_mut(stride)) {
            let (vectors, g) = (&vectors.row(row)[..count * width], out_gradient.row(row)[0]);
            each_strip(width, |first, columns| {
                let (sum, _) = sums(vectors, width, first, columns);
                for (v, by_v) in vectors.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                    let (v, by_v) = (&v[first..first + columns], &mut by_v[first..first + columns]);
                    for ((v, by_v), sum) in v.iter().zip(by_v).zip(&sum) {
                        *by_v += g * (sum - v);
                    }
                }
            });
            float.round_all(&mut out[..count * width]);
        }
    });
}

/// Calls `strip` with the first column and the number of columns of each line of a vector. Inlined, it is compiled
/// for whole lines, and for the rest once more.
#[inline(always)]
fn each_strip(width: usize, mut strip: impl FnMut(usize, usize)) {
    let whole = width / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        strip(first, LANES);
    }
    if whole < width {
        strip(whole, width - whole);
    }
}

/// The sums of these columns of all vectors, and of their squares.
#[inline(always)]
fn sums(vectors: &[f32], width: usize, first: usize, columns: usize) -> ([f32; LANES], [f32; LANES]) {
    let (mut sum, mut squares) = ([0.0; LANES], [0.0; LANES]);
    for v in vectors.chunks_exact(width) {
        for ((sum, squares), v) in sum.iter_mut().zip(&mut squares).zip(&v[first..first + columns]) {
            *sum += v;
            *squares += v * v;
        }
    }
    (sum, squares)
}

/// `output = first * product + input`
pub(crate) fn cross_forward(
    cpu: &Cpu,
    rows: usize,
    first: &CpuMatrix,
    product: &CpuMatrix,
    input: &CpuMatrix,
    output: &mut CpuMatrix,
) {
    let stride = output.stride();
    assert!([first, product, input].iter().all(|matrix| matrix.stride() == stride && rows <= matrix.rows()));
    assert!(rows <= output.rows());
    let (float, output) = (output.float(), output.parts());
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        let part = block.start * stride..block.end * stride;
        // SAFETY: blocks of rows are disjoint.
        let output = unsafe { output.get(part.clone()) };
        let (first, product) = (&first.as_slice()[part.clone()], &product.as_slice()[part.clone()]);
        let input = &input.as_slice()[part];
        for (((output, x0), u), x) in output.iter_mut().zip(first).zip(product).zip(input) {
            *output = float.round(x0 * u + x);
        }
    });
}

/// `product_gradient = output_gradient * first; first_gradient += output_gradient * product`
pub(crate) fn cross_backward(
    cpu: &Cpu,
    rows: usize,
    first: &CpuMatrix,
    product: &CpuMatrix,
    output_gradient: &CpuMatrix,
    product_gradient: &mut CpuMatrix,
    first_gradient: &mut CpuMatrix,
) {
    let stride = first.stride();
    let read = [first, product, output_gradient];
    assert!(read.iter().all(|matrix| matrix.stride() == stride && rows <= matrix.rows()));
    let written = [&*product_gradient, &*first_gradient];
    assert!(written.iter().all(|matrix| matrix.stride() == stride && rows <= matrix.rows()));
    let (product_float, first_float) = (product_gradient.float(), first_gradient.float());
    let (by_product, by_first) = (product_gradient.parts(), first_gradient.parts());
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        let part = block.start * stride..block.end * stride;
        // SAFETY: blocks of rows are disjoint.
        let by_product = unsafe { by_product.get(part.clone()) };
        // SAFETY: as above.
        let by_first = unsafe { by_first.get(part.clone()) };
        let (first, product) = (&first.as_slice()[part.clone()], &product.as_slice()[part.clone()]);
        let by_output = &output_gradient.as_slice()[part];
        let read = first.iter().zip(product).zip(by_output);
        for (((x0, u), g), (by_product, by_first)) in read.zip(by_product.iter_mut().zip(by_first)) {
            *by_product = product_float.round(g * x0);
            *by_first = first_float.round(*by_first + g * u);
        }
    });
}

/// The first vector, then the product of each pair.
///
/// A row's vectors are transposed, so that one of them is multiplied with a line of others at once.
pub(crate) fn dot_forward(cpu: &Cpu, rows: usize, vectors: &CpuMatrix, width: usize, out: &mut CpuMatrix) {
    let count = vectors.columns() / width;
    assert!(vectors.columns() == count * width && out.columns() == width + count * (count - 1) / 2);
    assert!(rows <= vectors.rows() && rows <= out.rows());
    let (tasks, stride, lanes) = (tasks_for(rows, ROWS), out.stride(), count.next_multiple_of(LANES));
    let mut scratch = cpu.scratch(tasks * lanes * width);
    let transposed = scratch.parts();
    let (float, out) = (out.float(), out.parts());
    cpu.run(tasks, |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: a part a task, and blocks of rows are disjoint.
        let transposed = unsafe { transposed.get(task * lanes * width..(task + 1) * lanes * width) };
        // SAFETY: as above.
        let out = unsafe { out.get(block.start * stride..block.end * stride) };
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
                    out[pairs..pairs + wanted].copy_from_slice(&products[..wanted]);
                    pairs += wanted;
                }
            }
            float.round_all(out);
        }
    });
}

/// The product of `v` with each of [`LANES`] vectors, whose numbers `k` are at `k * stride`.
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

/// `by v_i = sum over j of (gradient of the pair i, j) * v_j`; the first vector also was given as it is.
pub(crate) fn dot_backward(
    cpu: &Cpu,
    rows: usize,
    vectors: &CpuMatrix,
    width: usize,
    out_gradient: &CpuMatrix,
    vectors_gradient: &mut CpuMatrix,
) {
    let count = vectors.columns() / width;
    assert!(out_gradient.columns() == width + count * (count - 1) / 2);
    assert!(vectors.columns() == count * width && vectors_gradient.columns() == vectors.columns());
    assert!(rows <= vectors.rows() && rows <= out_gradient.rows() && rows <= vectors_gradient.rows());
    let stride = vectors_gradient.stride();
    let (float, out) = (vectors_gradient.float(), vectors_gradient.parts());
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.start * stride..block.end * stride) };
        for (row, out) in block.zip(out.chunks_exact_mut(stride)) {
            let (first, pairs) = out_gradient.row(row).split_at(width);
            let out = &mut out[..count * width];
            out.fill(0.0);
            out[..width].copy_from_slice(first);
            each_strip(width, |first, columns| {
                by_pairs(vectors.row(row), width, first, columns, pairs, out);
            });
            float.round_all(out);
        }
    });
}

/// Adds the gradient by these columns of both vectors of each pair, given that by their products.
#[inline(always)]
fn by_pairs(
    vectors: &[f32],
    width: usize,
    first: usize,
    columns: usize,
    pairs: &[f32],
    by_vectors: &mut [f32],
) {
    let mut pairs = pairs.iter();
    for (i, v_i) in vectors.chunks_exact(width).enumerate().skip(1) {
        let v_i = &v_i[first..first + columns];
        let (before, from) = by_vectors.split_at_mut(i * width);
        let mut by_i = [0.0; LANES];
        by_i[..columns].copy_from_slice(&from[first..first + columns]);
        let others = vectors.chunks_exact(width).zip(before.chunks_exact_mut(width));
        for ((v_j, by_j), g) in others.zip(&mut pairs) {
            let (v_j, by_j) = (&v_j[first..first + columns], &mut by_j[first..first + columns]);
            for (((by_i, v_j), by_j), v_i) in by_i.iter_mut().zip(v_j).zip(by_j).zip(v_i) {
                *by_i += g * v_j;
                *by_j += g * v_i;
            }
        }
        from[first..first + columns].copy_from_slice(&by_i[..columns]);
    }
}
