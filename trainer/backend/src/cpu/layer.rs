//! A fully connected layer: product, bias and activation, and their gradient.

use std::ops::Range;

use crate::backend::{Activation, LayerGradient, Sum};
use crate::cpu::gemm::{View, product};
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::{Cpu, rows_of_task, tasks_for};

/// Batch rows of a task: a multiple of the 6 rows that an AVX-512 kernel makes at once, few enough that
/// a task's activations stay in the second-level cache, many enough that reading the weights pays.
const ROWS: usize = 192;
/// Inputs of a task that sums weight gradients over the whole batch.
const INPUTS: usize = 48;
/// Side of a square that is transposed at once: 16 lines read, 16 written.
pub(crate) const TILE: usize = 16;

/// `output = activation(input . weights + bias)`
pub(crate) fn forward(
    cpu: &Cpu,
    rows: usize,
    input: &CpuMatrix,
    weights: &CpuMatrix,
    bias: Option<&CpuMatrix>,
    activation: Activation,
    output: &mut CpuMatrix,
) {
    let (inputs, outputs) = (weights.rows(), weights.columns());
    assert!(input.columns() == inputs && output.columns() == outputs);
    assert!(bias.is_none_or(|bias| bias.columns() == outputs));
    assert!(rows <= input.rows() && rows <= output.rows());
    let out_stride = output.stride();
    let out = output.parts();
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        let lhs = rows_of(input, block.clone(), inputs);
        let rhs = View::row_major(weights.as_slice(), inputs, outputs, weights.stride());
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.start * out_stride..block.end * out_stride) };
        product(lhs, rhs, out, out_stride, false);
        for row in out.chunks_exact_mut(out_stride) {
            let row = row[..outputs].iter_mut();
            match (bias, activation) {
                (Some(bias), Activation::Identity) => row.zip(bias.row(0)).for_each(|(y, b)| *y += b),
                (Some(bias), Activation::Relu) => row.zip(bias.row(0)).for_each(|(y, b)| *y = relu(*y + b)),
                (None, Activation::Identity) => {}
                (None, Activation::Relu) => row.for_each(|y| *y = relu(*y)),
            }
        }
    });
}

/// The gradient by weights, bias and, where wanted, input; masks `output_gradient` in place.
#[allow(clippy::too_many_arguments, reason = "the operation's own")]
pub(crate) fn backward(
    cpu: &Cpu,
    rows: usize,
    layer: &LayerGradient<'_, CpuMatrix>,
    output_gradient: &mut CpuMatrix,
    sum: Sum,
    weights_gradient: &mut CpuMatrix,
    bias_gradient: Option<&mut CpuMatrix>,
    input_gradient: Option<&mut CpuMatrix>,
) {
    let (inputs, outputs) = (layer.weights.rows(), layer.weights.columns());
    assert!(layer.input.columns() == inputs && output_gradient.columns() == outputs);
    assert!(layer.output.columns() == outputs && output_gradient.stride() == layer.output.stride());
    assert!(rows <= layer.input.rows() && rows <= output_gradient.rows() && rows <= layer.output.rows());
    if bias_gradient.is_some() || layer.activation != Activation::Identity {
        backward_by_bias(cpu, rows, layer, output_gradient, sum, bias_gradient);
    }
    if let Some(input_gradient) = input_gradient {
        backward_by_input(cpu, rows, layer.weights, output_gradient, input_gradient);
    }
    backward_by_weights(cpu, rows, layer.input, output_gradient, sum, weights_gradient);
}

/// Masks the gradient by the activation and sums its columns: each block's rows, then the blocks.
fn backward_by_bias(
    cpu: &Cpu,
    rows: usize,
    layer: &LayerGradient<'_, CpuMatrix>,
    output_gradient: &mut CpuMatrix,
    sum: Sum,
    bias_gradient: Option<&mut CpuMatrix>,
) {
    let (outputs, stride) = (output_gradient.columns(), output_gradient.stride());
    let blocks = tasks_for(rows, ROWS);
    let mut scratch = cpu.scratch(blocks * outputs);
    let sums = scratch.parts();
    let gradient = output_gradient.parts();
    cpu.run(blocks, |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: one run of sums a block, and blocks of rows are disjoint.
        let sums = unsafe { sums.get(task * outputs..(task + 1) * outputs) };
        // SAFETY: as above.
        let gradient = unsafe { gradient.get(block.start * stride..block.end * stride) };
        let output = &layer.output.as_slice()[block.start * stride..block.end * stride];
        sums.fill(0.0);
        for (gradient, output) in gradient.chunks_exact_mut(stride).zip(output.chunks_exact(stride)) {
            let gradient = &mut gradient[..outputs];
            if layer.activation == Activation::Relu {
                for (g, &y) in gradient.iter_mut().zip(output) {
                    *g = if y > 0.0 { *g } else { 0.0 };
                }
            }
            for (sum, &g) in sums.iter_mut().zip(&*gradient) {
                *sum += g;
            }
        }
    });
    let Some(bias_gradient) = bias_gradient else { return };
    let total = &mut bias_gradient.as_mut_slice()[..outputs];
    if sum == Sum::Anew {
        total.fill(0.0);
    }
    for sums in scratch.as_slice()[..blocks * outputs].chunks_exact(outputs.max(1)) {
        for (total, &sum) in total.iter_mut().zip(sums) {
            *total += sum;
        }
    }
}

/// `input_gradient = output_gradient . weights^T`, its first columns.
///
/// The weights are transposed once: the kernels would otherwise do so for every block.
fn backward_by_input(
    cpu: &Cpu,
    rows: usize,
    weights: &CpuMatrix,
    output_gradient: &CpuMatrix,
    input_gradient: &mut CpuMatrix,
) {
    let (outputs, wanted) = (weights.columns(), input_gradient.columns());
    assert!(wanted <= weights.rows() && rows <= input_gradient.rows());
    let stride = wanted.next_multiple_of(TILE);
    let mut scratch = cpu.scratch(outputs.next_multiple_of(TILE) * stride);
    let transposed = scratch.parts();
    cpu.run(tasks_for(outputs, TILE), |task| {
        let columns = rows_of_task(task, TILE, outputs);
        // SAFETY: each task writes rows of its own of the transposed matrix.
        let strip = unsafe { transposed.get(task * TILE * stride..(task + 1) * TILE * stride) };
        transpose(weights, columns, wanted, strip, stride);
    });
    let transposed = View::row_major(scratch.as_slice(), outputs, wanted, stride);
    let out_stride = input_gradient.stride();
    let out = input_gradient.parts();
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.start * out_stride..block.end * out_stride) };
        product(rows_of(output_gradient, block, outputs), transposed, out, out_stride, false);
    });
}

/// `weights_gradient = input^T . output_gradient`
fn backward_by_weights(
    cpu: &Cpu,
    rows: usize,
    input: &CpuMatrix,
    output_gradient: &CpuMatrix,
    sum: Sum,
    weights_gradient: &mut CpuMatrix,
) {
    let (inputs, outputs) = (weights_gradient.rows(), weights_gradient.columns());
    assert!(inputs == input.columns() && outputs == output_gradient.columns());
    let out_stride = weights_gradient.stride();
    let out = weights_gradient.parts();
    cpu.run(tasks_for(inputs, INPUTS), |task| {
        let block = rows_of_task(task, INPUTS, inputs);
        let lhs = View::row_major(&input.as_slice()[block.start..], rows, block.len(), input.stride());
        let rhs = rows_of(output_gradient, 0..rows, outputs);
        // SAFETY: blocks of inputs are disjoint.
        let out = unsafe { out.get(block.start * out_stride..block.end * out_stride) };
        product(lhs.transposed(), rhs, out, out_stride, sum == Sum::Further);
    });
}

/// Rows `block` of the first `columns` columns of `matrix`.
pub(crate) fn rows_of(matrix: &CpuMatrix, block: Range<usize>, columns: usize) -> View<'_> {
    let stride = matrix.stride();
    View::row_major(&matrix.as_slice()[block.start * stride..], block.len(), columns, stride)
}

/// Writes `columns` of the first `wanted` rows of `matrix` as rows of `out`.
#[inline(always)]
pub(crate) fn transpose(
    matrix: &CpuMatrix,
    columns: Range<usize>,
    wanted: usize,
    out: &mut [f32],
    stride: usize,
) {
    for first in (0..wanted).step_by(TILE) {
        for row in first..(first + TILE).min(wanted) {
            let values = &matrix.row(row)[columns.clone()];
            for (column, &value) in values.iter().enumerate() {
                out[column * stride + row] = value;
            }
        }
    }
}

/// `max(x, 0)` that keeps a NaN, so that a model that diverged shows it.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}
