//! Normalisation of rows or columns.

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use super::lookup::GradientMode;
use crate::backend::Backend;
use crate::device::MatrixShape;

/// The direction of a normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Each row over its columns: Ba, Kiros and Hinton, "Layer Normalization", 2016, section 3.
    Row,
    /// Each column over the rows: Ioffe and Szegedy, "Batch Normalization", 2015, Algorithm 1.
    Column,
}

/// `y = activation(scale * (x - mean) / sqrt(variance + epsilon) + shift)`
///
/// Means and variances, of the population, are `[B, 1]` for [`Axis::Row`] and `[1, N]` for [`Axis::Column`].
pub struct Normalization<'a, M> {
    /// The direction.
    pub axis: Axis,
    /// `[1, N]`
    pub scale: &'a M,
    /// `[1, N]`
    pub shift: &'a M,
    /// Keeps the quotient finite.
    pub epsilon: f64,
    /// Whether the activation is ReLU; otherwise there is none.
    pub is_rectified: bool,
}

/// The operands of a forward pass that the backward pass of a normalisation reads.
pub struct SavedNormalization<'a, M> {
    /// Its input, `[B, N]`.
    pub input: &'a M,
    /// Its means.
    pub mean: &'a M,
    /// Its variances.
    pub variance: &'a M,
    /// Its output, `[B, N]`.
    pub output: &'a M,
}

/// The mean and variance of each row or column over the first `rows` rows of `input`.
pub struct Moments<'a, B: Backend> {
    /// Number of rows.
    pub rows: usize,
    /// The direction.
    pub axis: Axis,
    /// `[B, N]`
    pub input: &'a B::Matrix,
    /// `[B, 1]` or `[1, N]`
    pub mean: &'a mut B::Matrix,
    /// As `mean`.
    pub variance: &'a mut B::Matrix,
}

impl<B: Backend> Moments<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        let input = B::matrix_shape(self.input);
        checks.matrix("input", input).rows_at_least(self.rows);
        check_moments::<B>(checks, self.rows, self.axis, input, (self.mean, self.variance));
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        cost::elementwise(self.rows, [B::matrix_shape(self.input)], 4)
    }
}

/// Normalises `input` by given means and variances; see [`Normalization`].
pub struct NormalizeForward<'a, B: Backend> {
    /// Number of rows.
    pub rows: usize,
    /// The formula.
    pub layer: &'a Normalization<'a, B::Matrix>,
    /// Mean and variance.
    pub moments: (&'a B::Matrix, &'a B::Matrix),
    /// `[B, N]`
    pub input: &'a B::Matrix,
    /// `[B, N]`
    pub output: &'a mut B::Matrix,
}

impl<B: Backend> NormalizeForward<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        let (input, output) = (B::matrix_shape(self.input), B::matrix_shape(self.output));
        checks.matrix("input", input).rows_at_least(self.rows);
        check_moments::<B>(checks, self.rows, self.layer.axis, input, self.moments);
        check_formula::<B>(checks, self.layer, input);
        checks.matrix("output", output).rows_at_least(self.rows).columns(input.columns);
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        cost::elementwise(self.rows, [B::matrix_shape(self.input), B::matrix_shape(self.output)], 4)
    }
}

/// The gradient of [`NormalizeForward`] with means and variances of the same rows.
pub struct NormalizeBackward<'a, B: Backend> {
    /// Number of rows.
    pub rows: usize,
    /// The formula.
    pub layer: &'a Normalization<'a, B::Matrix>,
    /// The operands of the forward pass.
    pub saved: &'a SavedNormalization<'a, B::Matrix>,
    /// `[B, N]`: the gradient with respect to the output, replaced by that with respect to the input.
    pub grad: &'a mut B::Matrix,
    /// Whether `scale_grad` and `shift_grad` are written or accumulated. Columns, whose moments are over all rows, are
    /// always written.
    pub mode: GradientMode,
    /// `[1, N]`
    pub scale_grad: &'a mut B::Matrix,
    /// `[1, N]`
    pub shift_grad: &'a mut B::Matrix,
}

impl<B: Backend> NormalizeBackward<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        let Self { rows, layer, saved, .. } = *self;
        let input = B::matrix_shape(saved.input);
        checks.matrix("input", input).rows_at_least(rows);
        check_moments::<B>(checks, rows, layer.axis, input, (saved.mean, saved.variance));
        check_formula::<B>(checks, layer, input);
        checks.matrix("output", B::matrix_shape(saved.output)).rows_at_least(rows).columns(input.columns);
        checks.matrix("grad", B::matrix_shape(self.grad)).rows_at_least(rows).columns(input.columns);
        for (name, matrix) in [("scale_grad", &*self.scale_grad), ("shift_grad", &*self.shift_grad)] {
            checks.matrix(name, B::matrix_shape(matrix)).rows_at_least(1).columns(input.columns);
        }
        let is_written = layer.axis == Axis::Row || self.mode == GradientMode::Write;
        assert!(
            is_written,
            "normalize_backward: operand `mode` is Accumulate, but columns are normalised over all rows"
        );
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        let [input, output] = [self.saved.input, self.saved.output].map(B::matrix_shape);
        let grad = B::matrix_shape(self.grad);
        cost::elementwise(self.rows, [input, output, grad, grad], 10)
    }
}

fn check_moments<B: Backend>(
    checks: Checks,
    rows: usize,
    axis: Axis,
    input: MatrixShape,
    (mean, variance): (&B::Matrix, &B::Matrix),
) {
    let (rows, columns) = match axis {
        Axis::Row => (rows, 1),
        Axis::Column => (1, input.columns),
    };
    for (name, matrix) in [("mean", mean), ("variance", variance)] {
        checks.matrix(name, B::matrix_shape(matrix)).rows_at_least(rows).columns(columns);
    }
}

fn check_formula<B: Backend>(checks: Checks, layer: &Normalization<'_, B::Matrix>, input: MatrixShape) {
    for (name, matrix) in [("scale", layer.scale), ("shift", layer.shift)] {
        checks.matrix(name, B::matrix_shape(matrix)).rows_at_least(1).columns(input.columns);
    }
}

/// `to += share * (factor * from - to)`, over all of two matrices of one shape: an exponential moving average.
pub struct Blend<'a, B: Backend> {
    /// The weight of the new value.
    pub share: f64,
    /// Multiplies the new value.
    pub factor: f64,
    /// The new value.
    pub from: &'a B::Matrix,
    /// The average.
    pub to: &'a mut B::Matrix,
}

impl<B: Backend> Blend<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        let from = B::matrix_shape(self.from);
        checks.matrix("to", B::matrix_shape(self.to)).rows(from.rows).columns(from.columns);
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        let to = B::matrix_shape(self.to);
        cost::elementwise(to.rows, [B::matrix_shape(self.from), to, to], 4)
    }
}
