//! A fully connected layer: product, bias and activation, and their gradients.
//!
//! Products take their factors in the format of the layer's input; a factor of higher precision is rounded to it
//! first.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::cpu::bf16::{self, Instructions, Panels};
use crate::cpu::gemm::{self, View};
#[cfg(target_arch = "x86_64")]
use crate::cpu::groups;
use crate::cpu::matrix::CpuMatrix;
#[cfg(target_arch = "x86_64")]
use crate::cpu::memory::LINE;
use crate::cpu::parts::{Blocks, PerBlock, Rows};
use crate::cpu::{Cpu, weights};
use crate::float::Float;
use crate::ops::{Activation, GradientMode, LayerBackward, LayerForward, SavedLayer};

/// The most batch rows per task: a multiple of the 6 rows that the library's kernel computes at once, few enough
/// that a task's activations stay in the L2 cache, and enough to amortize reading the weights.
const ROWS: usize = 192;
/// Batch rows per partial sum of a bias gradient, independent of the tasks.
const SUMMED: usize = 64;
/// Side of the square that is transposed at once: 16 lines read, 16 written.
pub(crate) const TILE: usize = 16;

/// Workspace of layers of `inputs` inputs and `outputs` outputs on `threads` threads, in floats, for any format and
/// batch. Excludes a small amount for rounding logits and their gradients.
pub(crate) fn work(threads: usize, inputs: usize, outputs: usize) -> usize {
    let _ = threads;
    let transposed = outputs.next_multiple_of(TILE) * inputs.next_multiple_of(TILE);
    #[cfg(target_arch = "x86_64")]
    if let Some(instructions) = Instructions::detect_split().or_else(Instructions::detect) {
        let forward = Panels::room(instructions, inputs, outputs);
        let input_grad = transposed + Panels::room(instructions, outputs, inputs);
        return forward.max(input_grad).max(groups::work(instructions, threads, inputs, outputs));
    }
    transposed
}

/// `output = activation(input . weights + bias)`
pub(crate) fn forward(cpu: &Cpu, operation: LayerForward<'_, Cpu>) {
    let LayerForward { rows, input, weights, bias, activation, output } = operation;
    let (inputs, outputs) = (weights.rows(), weights.columns());
    let weights = Factor::of(input.float(), weights, 0..inputs);
    let mut scratch = cpu.scratch(weights.room(cpu));
    let weights = weights.ready(cpu, scratch.as_mut_slice());
    let (float, out_stride) = (output.float(), output.stride());
    let bias: Option<Vec<f32>> = bias.map(|bias| bias.row(0).iter().map(|&b| float.round(b)).collect());
    let each = weights.rows_of_task(cpu, rows, ROWS, ROWS);
    run_blocks!(cpu, Blocks::of(rows, each), output.by_rows(), |block, out| {
        let lhs = View::row_major(input.as_slice(), rows, inputs, input.stride()).rows(block);
        weights.product(lhs, out, out_stride, false);
        for out in out.chunks_exact_mut(out_stride) {
            let row = out[..outputs].iter_mut();
            match (&bias, activation) {
                (Some(bias), Activation::Identity) => row.zip(bias).for_each(|(y, b)| *y += b),
                (Some(bias), Activation::Relu) => row.zip(bias).for_each(|(y, b)| *y = relu(*y + b)),
                (None, Activation::Identity) => {}
                (None, Activation::Relu) => row.for_each(|y| *y = relu(*y)),
            }
            float.round_all(&mut out[..outputs]);
        }
    });
}

/// The gradients with respect to weights, bias and optionally input; masks `output_grad` in place.
pub(crate) fn backward(cpu: &Cpu, operation: LayerBackward<'_, Cpu>) {
    let LayerBackward { rows, layer, output_grad, mode, weight_grad, bias_grad, input_grad } = operation;
    if bias_grad.is_some() || layer.activation != Activation::Identity {
        bias_backward(cpu, rows, layer, output_grad, mode, bias_grad);
    }
    if let Some(input_grad) = input_grad {
        input_backward(cpu, rows, layer, output_grad, input_grad);
    }
    weights::backward(cpu, rows, layer.input, output_grad, mode, weight_grad);
}

/// The right factor of products in a format, row-major, before it is prepared.
pub(crate) struct Factor<'a> {
    float: Float,
    /// The format of its values.
    of: Float,
    view: View<'a>,
}

/// A prepared right factor.
#[derive(Clone, Copy)]
pub(crate) enum Ready<'a> {
    Plain(View<'a>),
    #[cfg(target_arch = "x86_64")]
    Bf16(Panels<'a>),
}

impl<'a> Factor<'a> {
    /// Some rows of a matrix.
    pub(crate) fn of(float: Float, matrix: &'a CpuMatrix, rows: Range<usize>) -> Self {
        let numbers = &matrix.as_slice()[rows.start * matrix.stride()..];
        let view = View::row_major(numbers, rows.len(), matrix.columns(), matrix.stride());
        Self { float, of: matrix.float(), view }
    }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn instructions(&self, cpu: &Cpu) -> Option<Instructions> {
        match self.float {
            Float::Bf16 => cpu.bf16,
            Float::F32 | Float::F16 => cpu.split,
        }
    }

    fn is_rounded(&self) -> bool {
        self.float == Float::F32 || self.float == self.of
    }

    /// Floats that [`Factor::rounded`] needs as workspace.
    fn rounded_room(&self) -> usize {
        if self.is_rounded() { 0 } else { self.view.rows * self.view.row_stride }
    }

    /// The matrix, rounded into `room` unless it has the format already.
    fn rounded(self, cpu: &Cpu, room: &'a mut [f32]) -> View<'a> {
        if self.is_rounded() {
            return self.view;
        }
        let (rows, stride) = (self.view.rows, self.view.row_stride);
        let room = &mut room[..self.rounded_room()];
        run_blocks!(cpu, Blocks::of(rows, ROWS), Rows::of(room, stride), |block, rounded| {
            rounded.copy_from_slice(&self.view.data[block.start * stride..block.end * stride]);
            self.float.round_all(rounded);
        });
        View { data: room, ..self.view }
    }

    /// Floats that [`Factor::packable`] needs as workspace.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn packable_room(&self) -> usize {
        if self.float == Float::Bf16 { 0 } else { self.rounded_room().next_multiple_of(LINE) }
    }

    /// The matrix, rounded into `room` unless packing rounds it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn packable(self, cpu: &Cpu, room: &'a mut [f32]) -> View<'a> {
        if self.float == Float::Bf16 { self.view } else { self.rounded(cpu, room) }
    }

    /// Floats that [`Factor::ready`] needs as workspace.
    pub(crate) fn room(&self, cpu: &Cpu) -> usize {
        #[cfg(target_arch = "x86_64")]
        if let Some(instructions) = self.instructions(cpu) {
            return self.packable_room() + Panels::room(instructions, self.view.rows, self.view.columns);
        }
        let _ = cpu;
        self.rounded_room()
    }

    /// Packs or rounds the factor into `room`, where needed.
    pub(crate) fn ready(self, cpu: &Cpu, room: &'a mut [f32]) -> Ready<'a> {
        #[cfg(target_arch = "x86_64")]
        if let Some(instructions) = self.instructions(cpu) {
            let (room, packed) = room.split_at_mut(self.packable_room());
            let packable = self.packable(cpu, room);
            return Ready::Bf16(Panels::pack(instructions, cpu, packable, packed));
        }
        Ready::Plain(self.rounded(cpu, room))
    }
}

impl Ready<'_> {
    /// Rows of the left factor per task, of `rows` in total. Library products use `block`, because their summation
    /// order depends on a block's shape. Tile products use at most `most`, balanced across threads.
    pub(crate) fn rows_of_task(&self, cpu: &Cpu, rows: usize, block: usize, most: usize) -> usize {
        let _ = (cpu, rows, most);
        match self {
            Self::Plain(_) => block,
            #[cfg(target_arch = "x86_64")]
            Self::Bf16(rhs) => cpu.items_of_task(rows, rhs.tile_rows(), most),
        }
    }

    /// As [`gemm::product`]; packing for bfloat16 rounds `lhs`, too.
    pub(crate) fn product(self, lhs: View<'_>, out: &mut [f32], out_stride: usize, accumulate: bool) {
        match self {
            Self::Plain(rhs) => gemm::product(lhs, rhs, out, out_stride, accumulate),
            #[cfg(target_arch = "x86_64")]
            Self::Bf16(rhs) => bf16::product(lhs, rhs, out, out_stride, accumulate),
        }
    }
}

/// Applies the activation mask to the gradient and sums its columns: each block's rows, then the blocks.
fn bias_backward(
    cpu: &Cpu,
    rows: usize,
    layer: &SavedLayer<'_, CpuMatrix>,
    output_grad: &mut CpuMatrix,
    mode: GradientMode,
    bias_grad: Option<&mut CpuMatrix>,
) {
    let (outputs, stride) = (output_grad.columns(), output_grad.stride());
    let blocks = Blocks::of(rows, SUMMED);
    let mut scratch = cpu.scratch(blocks.count() * outputs);
    let out = (PerBlock::of(scratch.as_mut_slice(), outputs), output_grad.by_rows());
    run_blocks!(cpu, blocks, out, |block, (sums, gradient)| {
        let output = &layer.output.as_slice()[block.start * stride..block.end * stride];
        sums.fill(0.0);
        for (gradient, output) in gradient.chunks_exact_mut(stride).zip(output.chunks_exact(stride)) {
            let gradient = &mut gradient[..outputs];
            if layer.activation == Activation::Relu {
                mask(gradient, output);
            }
            for (sum, &g) in sums.iter_mut().zip(&*gradient) {
                *sum += g;
            }
        }
    });
    let Some(bias_grad) = bias_grad else { return };
    let total = &mut bias_grad.as_mut_slice()[..outputs];
    if mode == GradientMode::Write {
        total.fill(0.0);
    }
    for sums in scratch.as_slice()[..blocks.count() * outputs].chunks_exact(outputs.max(1)) {
        for (total, &sum) in total.iter_mut().zip(sums) {
            *total += sum;
        }
    }
}

/// `input_grad = output_grad . weights^T`, its first columns, with the mask of the input's activation applied.
///
/// The weights are transposed once; otherwise the kernels would transpose them for every block.
fn input_backward(
    cpu: &Cpu,
    rows: usize,
    layer: &SavedLayer<'_, CpuMatrix>,
    output_grad: &CpuMatrix,
    input_grad: &mut CpuMatrix,
) {
    let (float, weights) = (layer.input.float(), layer.weights);
    let (outputs, wanted) = (weights.columns(), input_grad.columns());
    assert!(wanted <= weights.rows() && rows <= input_grad.rows());
    let stride = wanted.next_multiple_of(TILE);
    let output_grad = Factor::of(float, output_grad, 0..rows);
    let of_transposed = Factor { float, of: float, view: View::row_major(&[], outputs, wanted, stride) };
    let rooms = (output_grad.rounded_room(), outputs.next_multiple_of(TILE) * stride);
    let mut scratch = cpu.scratch(rooms.0 + rooms.1 + of_transposed.room(cpu));
    let (room, rest) = scratch.as_mut_slice().split_at_mut(rooms.0);
    let (transposed, packed) = rest.split_at_mut(rooms.1);
    let output_grad = output_grad.rounded(cpu, room);
    let strips = PerBlock::of(transposed, TILE * stride);
    run_blocks!(cpu, Blocks::of(outputs, TILE), strips, |columns, strip| {
        transpose(weights, columns, wanted, strip, stride);
        float.round_all(strip);
    });
    let transposed = Factor { view: View { data: transposed, ..of_transposed.view }, ..of_transposed };
    let transposed = transposed.ready(cpu, packed);
    let (float, out_stride) = (input_grad.float(), input_grad.stride());
    let each = transposed.rows_of_task(cpu, rows, ROWS, ROWS);
    run_blocks!(cpu, Blocks::of(rows, each), input_grad.by_rows(), |block, out| {
        transposed.product(output_grad.rows(block.clone()), out, out_stride, false);
        float.round_all(out);
        if layer.input_activation == Activation::Relu {
            for (out, row) in out.chunks_exact_mut(out_stride).zip(block) {
                mask(&mut out[..wanted], layer.input.row(row));
            }
        }
    });
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
            match <&[f32; TILE]>::try_from(values).ok() {
                // Compiled for this constant number of columns.
                Some(values) => scatter(values, &mut out[row..], stride),
                None => scatter(values, &mut out[row..], stride),
            }
        }
    }
}

/// Writes values `stride` apart.
#[inline(always)]
fn scatter(values: &[f32], out: &mut [f32], stride: usize) {
    for (place, &value) in values.iter().enumerate() {
        out[place * stride] = value;
    }
}

/// The gradient with respect to the input of ReLU, from the gradient with respect to its output.
#[inline(always)]
fn mask(gradient: &mut [f32], given: &[f32]) {
    for (g, &y) in gradient.iter_mut().zip(given) {
        *g = if y > 0.0 { *g } else { 0.0 };
    }
}

/// `max(x, 0)`; propagates NaN, so that a diverged model is noticed.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}
