//! Rows as vectors: scaling to unit length, and dot products.

use crate::cpu::Cpu;
use crate::cpu::columns::ROWS;
use crate::cpu::memory::LINE;
use crate::ops::{MIN_SQUARE, RowProducts, UnitBackward, UnitForward};

/// Scales rows to unit length.
pub(crate) fn unit_forward(cpu: &Cpu, operation: UnitForward<'_, Cpu>) {
    let UnitForward { rows, input, output } = operation;
    run_rows!(cpu, rows, ROWS, output, |row, output| {
        let input = input.row(row);
        let factor = 1.0 / product(input, input).max(MIN_SQUARE as f32).sqrt();
        for (y, x) in output.iter_mut().zip(input) {
            *y = x * factor;
        }
    });
}

/// Replaces the gradient with respect to the output by the gradient with respect to the input.
pub(crate) fn unit_backward(cpu: &Cpu, operation: UnitBackward<'_, Cpu>) {
    let UnitBackward { rows, input, grad: gradient } = operation;
    run_rows!(cpu, rows, ROWS, gradient, |row, gradient| {
        let input = input.row(row);
        let square = product(input, input);
        let factor = 1.0 / square.max(MIN_SQUARE as f32).sqrt();
        // The component along the vector changes only its length, so it is removed. Short vectors are only scaled.
        let along = if square > MIN_SQUARE as f32 { product(input, gradient) / square } else { 0.0 };
        for (g, x) in gradient.iter_mut().zip(input) {
            *g = (*g - along * x) * factor;
        }
    });
}

/// `out[b] = factor * left[b] . right[b]`
pub(crate) fn products(cpu: &Cpu, operation: RowProducts<'_, Cpu>) {
    let RowProducts { rows, factor, left, right, out } = operation;
    run_rows!(cpu, rows, ROWS, out, |row, out| {
        out[0] = factor as f32 * product(left.row(row), right.row(row));
    });
}

/// The dot product of two vectors, with as many partial sums as a cache line has floats.
#[inline(always)]
pub(crate) fn product(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LINE];
    let (lefts, rights) = (left.chunks_exact(LINE), right.chunks_exact(LINE));
    let rest = lefts.remainder().iter().zip(rights.remainder());
    for (left, right) in lefts.zip(rights) {
        for (sum, (x, y)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += x * y;
        }
    }
    for (sum, (x, y)) in sums.iter_mut().zip(rest) {
        *sum += x * y;
    }
    sums.iter().sum()
}

/// The sum of `term` over the numbers, with as many partial sums as a cache line has floats.
#[inline(always)]
pub(crate) fn sum(numbers: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0_f32; LINE];
    for numbers in numbers.chunks(LINE) {
        for (sum, &number) in sums.iter_mut().zip(numbers) {
            *sum += term(number);
        }
    }
    sums.iter().sum()
}

/// `to += factor * from`
#[inline(always)]
pub(crate) fn add_times(factor: f32, from: &[f32], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}
