//! How features meet: factorization machines, cross layers, products of pairs.

use std::ops::Range;

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
    let out = out.parts();
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.clone()) };
        for (row, out) in block.zip(out) {
            let vectors = &vectors.row(row)[..count * width];
            let mut total = 0.0;
            for strip in strips(width) {
                let (sum, squares) = sums(vectors, width, strip.clone());
                let pairs = sum.iter().zip(&squares).map(|(sum, squares)| sum * sum - squares);
                total += pairs.take(strip.len()).sum::<f32>();
            }
            *out += 0.5 * total;
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
    let out = vectors_gradient.parts();
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.start * stride..block.end * stride) };
        for (row, out) in block.zip(out.chunks_exact_mut(stride)) {
            let (vectors, g) = (&vectors.row(row)[..count * width], out_gradient.row(row)[0]);
            for strip in strips(width) {
                let (sum, _) = sums(vectors, width, strip.clone());
                for (v, by_v) in vectors.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                    let lanes = v[strip.clone()].iter().zip(&mut by_v[strip.clone()]).zip(&sum);
                    lanes.for_each(|((v, by_v), sum)| *by_v += g * (sum - v));
                }
            }
        }
    });
}

/// Columns of a vector, a line at a time.
#[inline(always)]
fn strips(width: usize) -> impl Iterator<Item = Range<usize>> {
    (0..width).step_by(LANES).map(move |first| first..(first + LANES).min(width))
}

/// The sums of these columns of all vectors, and of their squares.
#[inline(always)]
fn sums(vectors: &[f32], width: usize, columns: Range<usize>) -> ([f32; LANES], [f32; LANES]) {
    let (mut sum, mut squares) = ([0.0; LANES], [0.0; LANES]);
    for v in vectors.chunks_exact(width) {
        for ((sum, squares), v) in sum.iter_mut().zip(&mut squares).zip(&v[columns.clone()]) {
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
    let output = output.parts();
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        let part = block.start * stride..block.end * stride;
        // SAFETY: blocks of rows are disjoint.
        let output = unsafe { output.get(part.clone()) };
        let (first, product) = (&first.as_slice()[part.clone()], &product.as_slice()[part.clone()]);
        let input = &input.as_slice()[part];
        for (((output, x0), u), x) in output.iter_mut().zip(first).zip(product).zip(input) {
            *output = x0 * u + x;
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
            *by_product = g * x0;
            *by_first += g * u;
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
    let out = out.parts();
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
    let out = vectors_gradient.parts();
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.start * stride..block.end * stride) };
        for (row, out) in block.zip(out.chunks_exact_mut(stride)) {
            let (vectors, gradient) = (vectors.row(row), out_gradient.row(row));
            let pairs = &gradient[width..];
            for (i, by_v) in out.chunks_exact_mut(width).take(count).enumerate() {
                for columns in strips(width) {
                    let sum = weighted_sum(vectors, width, columns.clone(), |j| match i.cmp(&j) {
                        std::cmp::Ordering::Greater => pairs[i * (i - 1) / 2 + j],
                        std::cmp::Ordering::Equal => 0.0,
                        std::cmp::Ordering::Less => pairs[j * (j - 1) / 2 + i],
                    });
                    by_v[columns.clone()].copy_from_slice(&sum[..columns.len()]);
                }
            }
            for (by_v, g) in out[..width].iter_mut().zip(gradient) {
                *by_v += g;
            }
        }
    });
}

/// These columns of the vectors, each counted by its weight and summed.
#[inline(always)]
fn weighted_sum(
    vectors: &[f32],
    width: usize,
    columns: Range<usize>,
    weight: impl Fn(usize) -> f32,
) -> [f32; LANES] {
    let mut sum = [0.0; LANES];
    for (number, v) in vectors.chunks_exact(width).enumerate() {
        let weight = weight(number);
        for (sum, v) in sum.iter_mut().zip(&v[columns.clone()]) {
            *sum += weight * v;
        }
    }
    sum
}
