//! Normalization of rows or columns.

use super::{Reference, ReferenceMatrix, relu};
use crate::device::Axis;
use crate::ops::{GradientMode, MergeMoments, Moments, Normalization, NormalizeBackward, NormalizeForward};

impl Reference {
    /// The mean and variance of each row or column.
    pub(super) fn moments(&self, operation: Moments<'_, Self>) {
        let Moments { rows, axis, input, mean, variance } = operation;
        let (lines, items) = lines_of(axis, rows, input.columns);
        for line in 0..lines {
            let number = |item| input.on(axis, line, item);
            let average = (0..items).map(number).sum::<f64>() / items as f64;
            mean.values[line] = average;
            variance.values[line] =
                (0..items).map(|item| (number(item) - average).powi(2)).sum::<f64>() / items as f64;
        }
    }

    /// The mean and variance of each column, as written at [`MergeMoments`].
    pub(super) fn merge_moments(&self, operation: MergeMoments<'_, Self>) {
        let MergeMoments { rows, part, moments, mean, variance } = operation;
        let counts = || (0..rows.div_ceil(part)).map(|p| (p, (rows - p * part).min(part) as f64));
        for column in 0..moments.columns {
            let sum = |of: &dyn Fn(f64, f64) -> f64| {
                let of_part = |p| of(moments.at(2 * p, column), moments.at(2 * p + 1, column));
                counts().map(|(p, count)| count * of_part(p)).sum::<f64>() / rows as f64
            };
            let of_all = sum(&|mean, _| mean);
            mean.values[column] = of_all;
            variance.values[column] = sum(&|mean, variance| variance + (mean - of_all).powi(2));
        }
    }

    /// The forward pass, as written at [`Normalization`].
    pub(super) fn normalize_forward(&self, operation: NormalizeForward<'_, Self>) {
        let NormalizeForward { rows, layer, moments, input, output } = operation;
        output.set(rows, |row, column| {
            let normal = normal_at(layer, moments, input, (row, column)).0;
            let y = layer.scale.at(0, column) * normal + layer.shift.at(0, column);
            if layer.is_rectified { relu(y) } else { y }
        });
    }

    /// The gradient, along every path from an input element to the output.
    pub(super) fn normalize_backward(&self, operation: NormalizeBackward<'_, Self>) {
        let NormalizeBackward { rows, layer, saved, grad: gradient, mode, scale_grad, shift_grad } =
            operation;
        let normal = |at| normal_at(layer, (saved.mean, saved.variance), saved.input, at);
        if mode == GradientMode::Write {
            scale_grad.values.fill(0.0);
            shift_grad.values.fill(0.0);
        }
        for row in 0..rows {
            for column in 0..gradient.columns {
                if layer.is_rectified && saved.output.at(row, column) <= 0.0 {
                    *gradient.at_mut(row, column) = 0.0;
                }
                let g = gradient.at(row, column);
                *scale_grad.at_mut(0, column) += g * normal((row, column)).0;
                *shift_grad.at_mut(0, column) += g;
                *gradient.at_mut(row, column) = g * layer.scale.at(0, column);
            }
        }
        let (lines, items) = lines_of(layer.axis, rows, gradient.columns);
        for line in 0..lines {
            let place = |item| layer.axis.place(line, item);
            let mean = |of: &dyn Fn((usize, usize)) -> f64| {
                (0..items).map(|item| of(place(item))).sum::<f64>() / items as f64
            };
            let g = |(row, column)| gradient.at(row, column);
            let (mean_g, mean_product) = (mean(&|at| g(at)), mean(&|at| g(at) * normal(at).0));
            for item in 0..items {
                let (row, column) = place(item);
                let (x, inverse) = normal((row, column));
                let g = gradient.at(row, column);
                *gradient.at_mut(row, column) = inverse * (g - mean_g - x * mean_product);
            }
        }
        gradient.round(rows);
    }
}

/// The number of lines along the axis, and the length of each.
fn lines_of(axis: Axis, rows: usize, columns: usize) -> (usize, usize) {
    match axis {
        Axis::Row => (rows, columns),
        Axis::Column => (columns, rows),
    }
}

impl ReferenceMatrix {
    /// An element of a line.
    fn on(&self, axis: Axis, line: usize, item: usize) -> f64 {
        let (row, column) = axis.place(line, item);
        self.at(row, column)
    }
}

impl Axis {
    /// Row and column of an element of a line.
    fn place(self, line: usize, item: usize) -> (usize, usize) {
        match self {
            Self::Row => (line, item),
            Self::Column => (item, line),
        }
    }
}

/// A normalized input element, and the factor it was multiplied by.
fn normal_at(
    layer: &Normalization<'_, ReferenceMatrix>,
    (mean, variance): (&ReferenceMatrix, &ReferenceMatrix),
    input: &ReferenceMatrix,
    (row, column): (usize, usize),
) -> (f64, f64) {
    let line = if layer.axis == Axis::Row { row } else { column };
    let inverse = 1.0 / (variance.values[line] + layer.epsilon).sqrt();
    ((input.at(row, column) - mean.values[line]) * inverse, inverse)
}
