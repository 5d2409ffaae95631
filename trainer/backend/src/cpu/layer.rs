//! A fully connected layer: product, bias and activation, and their gradient.
//!
//! Products take their factors in the format of the layer's input: what has more digits is rounded to it before.

use std::ops::Range;

use crate::backend::{Activation, LayerGradient, Sum};
use crate::cpu::gemm::{View, product};
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::memory::Parts;
use crate::cpu::{Cpu, rows_of_task, tasks_for};
use crate::float::Float;

/// Batch rows of a task: a multiple of the 6 rows that an AVX-512 kernel makes at once, few enough that
/// a task's activations stay in the second-level cache, many enough that reading the weights pays.
const ROWS: usize = 192;
/// Inputs of a task that sums weight gradients over the whole batch.
const INPUTS: usize = 48;
/// Side of a square that is transposed at once: 16 lines read, 16 written.
const TILE: usize = 16;

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
    let factor = Factor { float: input.float(), matrix: weights, rows: inputs };
    let mut scratch = cpu.scratch(factor.room());
    let rhs = factor.view(cpu, scratch.as_mut_slice());
    let (float, out_stride) = (output.float(), output.stride());
    let out = output.parts();
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        let lhs = View::row_major(input.as_slice(), rows, inputs, input.stride()).rows(block.clone());
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.start * out_stride..block.end * out_stride) };
        product(lhs, rhs, out, out_stride, false);
        for out in out.chunks_exact_mut(out_stride) {
            let row = out[..outputs].iter_mut();
            match (bias, activation) {
                (Some(bias), Activation::Identity) => row.zip(bias.row(0)).for_each(|(y, b)| *y += b),
                (Some(bias), Activation::Relu) => row.zip(bias.row(0)).for_each(|(y, b)| *y = relu(*y + b)),
                (None, Activation::Identity) => {}
                (None, Activation::Relu) => row.for_each(|y| *y = relu(*y)),
            }
            float.round_all(&mut out[..outputs]);
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
    let float = layer.input.float();
    let factor = Factor { float, matrix: output_gradient, rows };
    let wanted = input_gradient.as_ref().map_or(0, |gradient| gradient.columns().next_multiple_of(TILE));
    let mut scratch = cpu.scratch(factor.room() + outputs.next_multiple_of(TILE) * wanted);
    let (room, transposed) = scratch.as_mut_slice().split_at_mut(factor.room());
    let by_output = factor.view(cpu, room);
    if let Some(input_gradient) = input_gradient {
        backward_by_input(cpu, float, layer.weights, by_output, transposed, input_gradient);
    }
    backward_by_weights(cpu, layer.input, by_output, sum, weights_gradient);
}

/// A matrix as products take it.
struct Factor<'a> {
    float: Float,
    matrix: &'a CpuMatrix,
    rows: usize,
}

impl<'a> Factor<'a> {
    fn is_rounded(&self) -> bool {
        self.float == Float::F32 || self.float == self.matrix.float()
    }

    /// Numbers that [`Factor::view`] needs room for.
    fn room(&self) -> usize {
        if self.is_rounded() { 0 } else { self.rows * self.matrix.stride() }
    }

    /// The matrix, rounded in `room` where it is not.
    fn view(&self, cpu: &Cpu, room: &'a mut [f32]) -> View<'a> {
        let (matrix, stride) = (self.matrix, self.matrix.stride());
        let numbers = if self.is_rounded() {
            matrix.as_slice()
        } else {
            let room = &mut room[..self.room()];
            let parts = Parts::new(room);
            cpu.run(tasks_for(self.rows, ROWS), |task| {
                let block = rows_of_task(task, ROWS, self.rows);
                let part = block.start * stride..block.end * stride;
                // SAFETY: blocks of rows are disjoint.
                let rounded = unsafe { parts.get(part.clone()) };
                rounded.copy_from_slice(&matrix.as_slice()[part]);
                self.float.round_all(rounded);
            });
            room
        };
        View::row_major(numbers, self.rows, matrix.columns(), stride)
    }
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
/// The weights are transposed once, into `transposed`: the kernels would otherwise do so for every block.
fn backward_by_input(
    cpu: &Cpu,
    float: Float,
    weights: &CpuMatrix,
    by_output: View<'_>,
    transposed: &mut [f32],
    input_gradient: &mut CpuMatrix,
) {
    let (rows, outputs, wanted) = (by_output.rows, weights.columns(), input_gradient.columns());
    assert!(wanted <= weights.rows() && rows <= input_gradient.rows());
    let stride = wanted.next_multiple_of(TILE);
    let strips = Parts::new(&mut *transposed);
    cpu.run(tasks_for(outputs, TILE), |task| {
        let columns = rows_of_task(task, TILE, outputs);
        // SAFETY: each task writes rows of its own of the transposed matrix.
        let strip = unsafe { strips.get(task * TILE * stride..(task + 1) * TILE * stride) };
        transpose(weights, columns, wanted, strip, stride);
        float.round_all(strip);
    });
    let transposed = View::row_major(transposed, outputs, wanted, stride);
    let (float, out_stride) = (input_gradient.float(), input_gradient.stride());
    let out = input_gradient.parts();
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.start * out_stride..block.end * out_stride) };
        product(by_output.rows(block), transposed, out, out_stride, false);
        float.round_all(out);
    });
}

/// `weights_gradient = input^T . output_gradient`
fn backward_by_weights(
    cpu: &Cpu,
    input: &CpuMatrix,
    by_output: View<'_>,
    sum: Sum,
    weights_gradient: &mut CpuMatrix,
) {
    let (inputs, outputs) = (weights_gradient.rows(), weights_gradient.columns());
    assert!(inputs == input.columns() && outputs == by_output.columns);
    let out_stride = weights_gradient.stride();
    let out = weights_gradient.parts();
    cpu.run(tasks_for(inputs, INPUTS), |task| {
        let block = rows_of_task(task, INPUTS, inputs);
        let columns = &input.as_slice()[block.start..];
        let lhs = View::row_major(columns, by_output.rows, block.len(), input.stride());
        // SAFETY: blocks of inputs are disjoint.
        let out = unsafe { out.get(block.start * out_stride..block.end * out_stride) };
        product(lhs.transposed(), by_output, out, out_stride, sum == Sum::Further);
    });
}

/// Writes `columns` of the first `wanted` rows of `matrix` as rows of `out`.
#[inline(always)]
fn transpose(matrix: &CpuMatrix, columns: Range<usize>, wanted: usize, out: &mut [f32], stride: usize) {
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
