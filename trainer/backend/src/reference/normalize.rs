//! Normalization of rows or columns.

use super::{Reference, ReferenceMatrix, relu};
use crate::device::Axis;
use crate::ops::{
    GradientMode, MergeMoments, Moments, Normalization, NormalizeBackward, NormalizeForward,
    NormalizeParameters, SavedNormalization,
};

impl Reference {
    /// The mean and variance of each row or column.
    pub(super) fn moments(&self, operation: Moments<'_, Self>) {
        let Moments { rows, axis, input, mean, variance } = operation;
        let (lines, items) = lines_of(axis, rows, input.columns);
        let count = items.max(1) as f64;
        for line in 0..lines {
            let number = |item| input.on(axis, line, item);
            let average = (0..items).map(number).sum::<f64>() / count;
            mean.values[line] = average;
            variance.values[line] =
                (0..items).map(|item| (number(item) - average).powi(2)).sum::<f64>() / count;
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

    /// The gradients with respect to scale and shift.
    pub(super) fn normalize_parameters(&self, operation: NormalizeParameters<'_, Self>) {
        let NormalizeParameters { rows, layer, saved, grad: gradient, mode, scale_grad, shift_grad } =
            operation;
        if mode == GradientMode::Write {
            scale_grad.values.fill(0.0);
            shift_grad.values.fill(0.0);
        }
        for row in 0..rows {
            for column in 0..gradient.columns {
                let g = masked(layer, saved, gradient, (row, column));
                *scale_grad.at_mut(0, column) += g * saved_normal(layer, saved, (row, column)).0;
                *shift_grad.at_mut(0, column) += g;
            }
        }
    }

    /// The gradient with respect to the input, along every path to the output.
    pub(super) fn normalize_backward(&self, operation: NormalizeBackward<'_, Self>) {
        let NormalizeBackward { rows, layer, saved, grad: gradient, columns: sums } = operation;
        let columns = gradient.columns;
        let scale = |column| layer.scale.at(0, column);
        for row in 0..rows {
            let g: Vec<f64> = (0..columns)
                .map(|column| masked(layer, saved, gradient, (row, column)) * scale(column))
                .collect();
            let normal = |column| saved_normal(layer, saved, (row, column));
            let mean = |of: &dyn Fn(usize) -> f64| (0..columns).map(of).sum::<f64>() / columns as f64;
            let of_row = (mean(&|column| g[column]), mean(&|column| g[column] * normal(column).0));
            for (column, &g) in g.iter().enumerate() {
                let (mean_g, mean_product) = sums.as_ref().map_or(of_row, |sums| {
                    let share = scale(column) / sums.rows as f64;
                    (sums.shift.at(0, column) * share, sums.scale.at(0, column) * share)
                });
                let (x, inverse) = normal(column);
                *gradient.at_mut(row, column) = inverse * (g - mean_g - x * mean_product);
            }
        }
        gradient.round(rows);
    }
}

/// An element of the gradient with respect to the output, behind the activation.
fn masked(
    layer: &Normalization<'_, ReferenceMatrix>,
    saved: &SavedNormalization<'_, ReferenceMatrix>,
    gradient: &ReferenceMatrix,
    (row, column): (usize, usize),
) -> f64 {
    let is_masked = layer.is_rectified && saved.output.at(row, column) <= 0.0;
    if is_masked { 0.0 } else { gradient.at(row, column) }
}

/// [`normal_at`] of a saved input.
fn saved_normal(
    layer: &Normalization<'_, ReferenceMatrix>,
    saved: &SavedNormalization<'_, ReferenceMatrix>,
    at: (usize, usize),
) -> (f64, f64) {
    normal_at(layer, (saved.mean, saved.variance), saved.input, at)
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
