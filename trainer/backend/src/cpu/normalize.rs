//! Normalization of rows or columns.
//!
//! Sums over a row's columns belong to one task. Sums over rows are computed per block of rows, and the blocks'
//! sums are added in order. The gradient needs two sums per column.

use crate::cpu::Cpu;
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::parts::{Blocks, PerBlock};
use crate::cpu::vectors::sum;
use crate::device::Axis;
use crate::ops::{
    Blend, GradientMode, MergeMoments, Moments, Normalization, NormalizeBackward, NormalizeForward,
    NormalizeParameters, SavedNormalization,
};

/// Batch rows per task.
const ROWS: usize = 128;

/// The mean and variance of each row or column.
pub(crate) fn moments(cpu: &Cpu, operation: Moments<'_, Cpu>) {
    let Moments { rows, axis, input, mean, variance } = operation;
    match axis {
        Axis::Row => {
            let out = (mean.by_rows(), variance.by_rows());
            run_blocks!(cpu, Blocks::of(rows, ROWS), out, |block, (means, variances)| {
                for (row, (mean, variance)) in block.zip(means.iter_mut().zip(variances)) {
                    let (numbers, share) = (input.row(row), 1.0 / input.columns() as f32);
                    *mean = sum(numbers, |x| x) * share;
                    let center = *mean;
                    *variance = sum(numbers, |x| (x - center) * (x - center)) * share;
                }
            });
        }
        Axis::Column => {
            let share = 1.0 / rows.max(1) as f32;
            let means = &mut mean.as_mut_slice()[..input.columns()];
            sum_columns(cpu, rows, GradientMode::Write, [&mut *means], |row, [sums]| {
                sums.iter_mut().zip(input.row(row)).for_each(|(sum, x)| *sum += x);
            });
            means.iter_mut().for_each(|mean| *mean *= share);
            let variances = &mut variance.as_mut_slice()[..input.columns()];
            sum_columns(cpu, rows, GradientMode::Write, [&mut *variances], |row, [sums]| {
                for ((sum, x), mean) in sums.iter_mut().zip(input.row(row)).zip(&*means) {
                    *sum += (x - mean) * (x - mean);
                }
            });
            variances.iter_mut().for_each(|variance| *variance *= share);
        }
    }
}

/// The mean and variance of each column from those of parts. A single part is copied exactly.
pub(crate) fn merge_moments(operation: MergeMoments<'_, Cpu>) {
    let MergeMoments { rows, part, moments, mean, variance } = operation;
    let columns = moments.columns();
    let (means, variances) = (&mut mean.as_mut_slice()[..columns], &mut variance.as_mut_slice()[..columns]);
    let shares =
        || (0..rows.div_ceil(part)).map(|p| (2 * p, (rows - p * part).min(part) as f32 / rows as f32));
    means.fill(0.0);
    for (first, share) in shares() {
        means.iter_mut().zip(moments.row(first)).for_each(|(sum, mean)| *sum += share * mean);
    }
    variances.fill(0.0);
    for (first, share) in shares() {
        let of_part = moments.row(first).iter().zip(moments.row(first + 1));
        for ((sum, all), (mean, variance)) in variances.iter_mut().zip(&*means).zip(of_part) {
            *sum += share * (variance + (mean - all) * (mean - all));
        }
    }
}

/// Adds to each of `totals`, or sets it to, what `add` sums over rows: per block, then in order.
fn sum_columns<const N: usize>(
    cpu: &Cpu,
    rows: usize,
    mode: GradientMode,
    totals: [&mut [f32]; N],
    add: impl Fn(usize, [&mut [f32]; N]) + Sync,
) {
    let columns = totals.first().map_or(0, |total| total.len());
    let blocks = Blocks::of(rows, ROWS);
    let mut scratch = cpu.scratch(blocks.count() * N * columns);
    run_blocks!(cpu, blocks, PerBlock::of(scratch.as_mut_slice(), N * columns), |block, sums| {
        sums.fill(0.0);
        for row in block {
            let mut rest = &mut *sums;
            add(
                row,
                std::array::from_fn(|_| {
                    let (first, others) = std::mem::take(&mut rest).split_at_mut(columns);
                    rest = others;
                    first
                }),
            );
        }
    });
    let sums = &scratch.as_slice()[..blocks.count() * N * columns];
    for (number, total) in totals.into_iter().enumerate() {
        if mode == GradientMode::Write {
            total.fill(0.0);
        }
        for block in sums.chunks_exact((N * columns).max(1)) {
            let of_block = &block[number * columns..][..columns];
            total.iter_mut().zip(of_block).for_each(|(total, sum)| *total += sum);
        }
    }
}

/// `y = activation(scale * (x - mean) / sqrt(variance + epsilon) + shift)`
pub(crate) fn forward(cpu: &Cpu, operation: NormalizeForward<'_, Cpu>) {
    let NormalizeForward { rows, layer, moments: (mean, variance), input, output } = operation;
    let (scale, shift, epsilon) = (layer.scale.row(0), layer.shift.row(0), layer.epsilon as f32);
    let least = if layer.is_rectified { 0.0 } else { f32::NEG_INFINITY };
    run_rows!(cpu, rows, ROWS, output, |row, output| {
        let affine = input.row(row).iter().zip(scale).zip(shift);
        let numbers = output.iter_mut().zip(affine);
        match layer.axis {
            Axis::Row => {
                let (mean, inverse) = (mean.row(row)[0], inverse(variance.row(row)[0], epsilon));
                numbers.for_each(|(y, ((x, scale), shift))| {
                    *y = at_least(least, (x - mean) * inverse * scale + shift);
                });
            }
            Axis::Column => {
                let moments = mean.row(0).iter().zip(variance.row(0));
                numbers.zip(moments).for_each(|((y, ((x, scale), shift)), (mean, variance))| {
                    *y = at_least(least, (x - mean) * inverse(*variance, epsilon) * scale + shift);
                });
            }
        }
    });
}

/// The gradients with respect to scale and shift.
pub(crate) fn parameters(cpu: &Cpu, operation: NormalizeParameters<'_, Cpu>) {
    let NormalizeParameters { rows, layer, saved, grad: gradient, mode, scale_grad, shift_grad } = operation;
    let columns = gradient.columns();
    let sum_product = &mut scale_grad.as_mut_slice()[..columns];
    let sum_g = &mut shift_grad.as_mut_slice()[..columns];
    let saved = Saved::of(layer, saved);
    sum_columns(cpu, rows, mode, [sum_g, sum_product], |row, [sum_g, sum_product]| {
        for (column, &g) in gradient.row(row).iter().enumerate() {
            let g = saved.masked(row, column, g);
            sum_g[column] += g;
            sum_product[column] += g * saved.normal(row, column).0;
        }
    });
}

/// The gradient with respect to the input, in place.
pub(crate) fn backward(cpu: &Cpu, operation: NormalizeBackward<'_, Cpu>) {
    let NormalizeBackward { rows, layer, saved, grad: gradient, columns: sums } = operation;
    let (saved, scale) = (Saved::of(layer, saved), layer.scale.row(0));
    let Some(sums) = sums else {
        let share = gradient.columns() as f32;
        run_rows!(cpu, rows, ROWS, gradient, |row, gradient| {
            // Apart from the sums, whose order is fixed, so that this is vectorized.
            for (column, g) in gradient.iter_mut().enumerate() {
                *g = saved.masked(row, column, *g) * scale[column];
            }
            let (mut sum_g, mut sum_product) = (0.0, 0.0);
            for (column, g) in gradient.iter().enumerate() {
                sum_g += g;
                sum_product += g * saved.normal(row, column).0;
            }
            let (mean_g, mean_product) = (sum_g / share, sum_product / share);
            for (column, g) in gradient.iter_mut().enumerate() {
                let (x, inverse) = saved.normal(row, column);
                *g = inverse * (*g - mean_g - x * mean_product);
            }
        });
        return;
    };
    let (sum_g, sum_product, share) = (sums.shift.row(0), sums.scale.row(0), 1.0 / sums.rows as f32);
    run_rows!(cpu, rows, ROWS, gradient, |row, gradient| {
        for (column, g) in gradient.iter_mut().enumerate() {
            let (x, inverse) = saved.normal(row, column);
            let of_column = scale[column] * share;
            let (mean_g, mean_product) = (sum_g[column] * of_column, sum_product[column] * of_column);
            *g = inverse * (saved.masked(row, column, *g) * scale[column] - mean_g - x * mean_product);
        }
    });
}

/// The operands of a forward pass, by element.
struct Saved<'a> {
    axis: Axis,
    operands: &'a SavedNormalization<'a, CpuMatrix>,
    epsilon: f32,
    is_rectified: bool,
}

impl<'a> Saved<'a> {
    fn of(layer: &Normalization<'_, CpuMatrix>, operands: &'a SavedNormalization<'a, CpuMatrix>) -> Self {
        let &Normalization { axis, epsilon, is_rectified, .. } = layer;
        Self { axis, operands, epsilon: epsilon as f32, is_rectified }
    }

    /// A gradient with respect to the output, behind the activation.
    #[inline(always)]
    fn masked(&self, row: usize, column: usize, g: f32) -> f32 {
        let is_off = self.is_rectified && self.operands.output.row(row)[column] <= 0.0;
        if is_off { 0.0 } else { g }
    }

    /// A normalized element, and the factor it was multiplied by.
    #[inline(always)]
    fn normal(&self, row: usize, column: usize) -> (f32, f32) {
        let SavedNormalization { input, mean, variance, .. } = self.operands;
        let (mean, variance) = match self.axis {
            Axis::Row => (mean.row(row)[0], variance.row(row)[0]),
            Axis::Column => (mean.row(0)[column], variance.row(0)[column]),
        };
        let inverse = inverse(variance, self.epsilon);
        ((input.row(row)[column] - mean) * inverse, inverse)
    }
}

#[inline(always)]
fn inverse(variance: f32, epsilon: f32) -> f32 {
    1.0 / (variance + epsilon).sqrt()
}

/// Propagates NaN, so that a diverged model is noticed.
#[inline(always)]
fn at_least(least: f32, x: f32) -> f32 {
    if x < least { least } else { x }
}

/// `to += share * (factor * from - to)`
pub(crate) fn blend(operation: Blend<'_, Cpu>) {
    let Blend { share, factor, from, to } = operation;
    for (to, &from) in to.as_mut_slice().iter_mut().zip(from.as_slice()) {
        *to += share as f32 * (factor as f32 * from - *to);
    }
}
