//! Gradient norms, and the scale that clips gradients.
//!
//! Each task computes a partial sum of squares; these are added in order.

use crate::cpu::Cpu;
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::parts::{Blocks, Rows, block_of};
use crate::cpu::runs::{Runs, tasks_each};
use crate::cpu::touched::{MergedPart, STRIP, TouchedRows};
use crate::ops::{ClipScale, MergedRowSquares, RowSquares, Squares, Unscale};

/// Elements per task.
const NUMBERS: usize = 8192;

/// `sum += sum of the squares of the gradient's numbers`
pub(crate) fn squares(cpu: &Cpu, operation: Squares<'_, Cpu>) {
    let Squares { grad: gradient, sum } = operation;
    // The padding between rows is zero.
    let numbers = gradient.as_slice();
    add_all(
        cpu,
        sum,
        numbers.len().div_ceil(NUMBERS),
        #[inline(always)]
        |task| {
            let mut lanes = [0.0_f32; STRIP];
            for strip in numbers[block_of(task, NUMBERS, numbers.len())].chunks(STRIP) {
                for (lane, g) in lanes.iter_mut().zip(strip) {
                    *lane += g * g;
                }
            }
            lanes.iter().sum()
        },
    );
}

/// The same over the touched rows of tables, after each row's gradients have been summed.
pub(crate) fn row_squares(cpu: &Cpu, operation: RowSquares<'_, Cpu>) {
    let RowSquares { gradients, tables, sum } = operation;
    let each = tasks_each(gradients);
    add_all(
        cpu,
        sum,
        tables.len() * each,
        #[inline(always)]
        |task| {
            squares_of(&Runs::new(gradients, task / each, task % each, |table| tables[table].shape().width))
        },
    );
}

/// The same over the rows that all parts of a batch touch.
pub(crate) fn merged_row_squares(cpu: &Cpu, operation: MergedRowSquares<'_, Cpu>) {
    let MergedRowSquares { rows, sum, .. } = operation;
    let each = MergedPart::tasks_each(rows);
    add_all(
        cpu,
        sum,
        rows.shapes().len() * each,
        #[inline(always)]
        |task| squares_of(&MergedPart::new(rows, task / each, task % each)),
    );
}

/// The sum of the squares of the gradients of some rows.
#[inline(always)]
fn squares_of(rows: &impl TouchedRows) -> f32 {
    let mut lanes = [0.0_f32; STRIP];
    for number in 0..rows.len() {
        rows.fetch_ahead(number);
        for (first, columns) in rows.strips() {
            let sum = rows.sum(number, first, columns);
            lanes.iter_mut().zip(sum).for_each(|(lane, g)| *lane += g * g);
        }
    }
    lanes.iter().sum()
}

/// Adds the results of `each` for all tasks, in order.
fn add_all(cpu: &Cpu, sum: &mut CpuMatrix, tasks: usize, each: impl Fn(usize) -> f32 + Sync) {
    assert!(sum.rows() == 1 && sum.columns() == 1);
    let mut scratch = cpu.scratch(tasks);
    run_blocks!(cpu, Blocks::of(tasks, 1), Rows::of(scratch.as_mut_slice(), 1), |task, sum| {
        sum[0] = each(task.start);
    });
    let total: f64 = scratch.as_slice()[..tasks].iter().map(|&sum| f64::from(sum)).sum();
    let sum = &mut sum.as_mut_slice()[0];
    *sum = (f64::from(*sum) + total) as f32;
}

/// `scale = min(1, maximum / sqrt(squares))`; NaN if the norm is not finite, so that a diverged model is noticed.
pub(crate) fn clip_scale(operation: ClipScale<'_, Cpu>) {
    let ClipScale { maximum, squares, scale } = operation;
    let norm = f64::from(squares.row(0)[0]).sqrt();
    scale.as_mut_slice()[0] = match norm {
        _ if !norm.is_finite() => f32::NAN,
        _ if norm <= maximum => 1.0,
        _ => (maximum / norm) as f32,
    };
}

/// See [`crate::ops::Unscale`].
pub(crate) fn unscale(operation: Unscale<'_, Cpu>) {
    let Unscale { rule, maximum, squares, state, scale } = operation;
    let before = std::array::from_fn(|number| f64::from(state.row(0)[number]));
    let squares = f64::from(squares.row(0)[0]);
    let (by, after) = rule.unscale(maximum, squares, before, |number| f64::from(number as f32));
    scale.as_mut_slice()[0] = by as f32;
    state.as_mut_slice().iter_mut().zip(after).for_each(|(number, after)| *number = after as f32);
}
