//! Normalization of rows or columns.

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use super::lookup::GradientMode;
use crate::device::{Axis, Shapes};

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

/// The operands of a forward pass that its gradients need.
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

/// The mean and variance of each row or column over the first `rows` rows of `input`. Those of columns without rows are 0.
pub struct Moments<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The direction.
    pub axis: Axis,
    /// `[B, N]`
    pub input: &'a D::Matrix,
    /// `[B, 1]` or `[1, N]`
    pub mean: &'a mut D::Matrix,
    /// As `mean`.
    pub variance: &'a mut D::Matrix,
}

impl<D: Shapes> Moments<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.matrix::<D>("input", self.input).rows_at_least(self.rows);
        let columns = D::matrix_shape(self.input).columns;
        check_moments::<D>(checks, self.rows, self.axis, columns, (self.mean, self.variance));
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(self.rows, [D::matrix_shape(self.input)], 4)
    }
}

/// The mean and variance of each column over `rows` rows, from those of parts of the rows: Chan, Golub and LeVeque,
/// "Algorithms for Computing the Sample Variance", 1983, equation 2.1.
///
/// Each part has `part` rows; the last one that has rows may have fewer, and later ones have none. With
/// `c_p = clamp(rows - p * part, 0, part)` rows in part `p`,
///
/// ```text
/// mean     = sum over p of c_p mean_p / rows
/// variance = sum over p of c_p (variance_p + (mean_p - mean)^2) / rows
/// ```
///
/// The moments of parts without rows are not read.
pub struct MergeMoments<'a, D: Shapes> {
    /// Number of rows of all parts, at least 1.
    pub rows: usize,
    /// Rows per part, at least 1.
    pub part: usize,
    /// `[2 P, N]`, fp32: rows `2 p` and `2 p + 1` are the means and variances of part `p`.
    pub moments: &'a D::Matrix,
    /// `[1, N]`
    pub mean: &'a mut D::Matrix,
    /// `[1, N]`
    pub variance: &'a mut D::Matrix,
}

impl<D: Shapes> MergeMoments<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.at_least("rows", self.rows, 1);
        checks.at_least("part", self.part, 1);
        let parts = self.rows.div_ceil(self.part);
        checks.matrix::<D>("moments", self.moments).rows_at_least(parts.saturating_mul(2));
        let columns = D::matrix_shape(self.moments).columns;
        check_moments::<D>(checks, self.rows, Axis::Column, columns, (self.mean, self.variance));
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(2 * self.rows.div_ceil(self.part), [D::matrix_shape(self.moments)], 3)
    }
}

/// Normalizes `input` with the given means and variances; see [`Normalization`].
pub struct NormalizeForward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The formula.
    pub layer: &'a Normalization<'a, D::Matrix>,
    /// Mean and variance.
    pub moments: (&'a D::Matrix, &'a D::Matrix),
    /// `[B, N]`
    pub input: &'a D::Matrix,
    /// `[B, N]`
    pub output: &'a mut D::Matrix,
}

impl<D: Shapes> NormalizeForward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.alike::<D>(self.rows, &[("input", self.input), ("output", self.output)]);
        let columns = D::matrix_shape(self.input).columns;
        check_moments::<D>(checks, self.rows, self.layer.axis, columns, self.moments);
        check_formula::<D>(checks, self.layer, columns);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(self.rows, [D::matrix_shape(self.input), D::matrix_shape(self.output)], 4)
    }
}

/// The gradients of [`NormalizeForward`] with respect to scale and shift, summed over rows.
pub struct NormalizeParameters<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The formula.
    pub layer: &'a Normalization<'a, D::Matrix>,
    /// The operands of the forward pass.
    pub saved: &'a SavedNormalization<'a, D::Matrix>,
    /// `[B, N]`: the gradient with respect to the output.
    pub grad: &'a D::Matrix,
    /// Whether `scale_grad` and `shift_grad` are written or accumulated.
    pub mode: GradientMode,
    /// `[1, N]`
    pub scale_grad: &'a mut D::Matrix,
    /// `[1, N]`
    pub shift_grad: &'a mut D::Matrix,
}

impl<D: Shapes> NormalizeParameters<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let columns = check_saved::<D>(checks, self.rows, self.layer, self.saved, self.grad);
        for (name, matrix) in [("scale_grad", &*self.scale_grad), ("shift_grad", &*self.shift_grad)] {
            checks.matrix::<D>(name, matrix).rows_at_least(1).columns(columns);
        }
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let operands = [self.saved.input, self.saved.output, self.grad];
        cost::elementwise(self.rows, operands.map(D::matrix_shape), 5)
    }
}

/// The gradients with respect to scale and shift, as [`NormalizeParameters`] computes them, over all rows that the
/// moments of columns cover.
pub struct ColumnSums<'a, M> {
    /// The number of those rows. With several workers, they are more than a worker's own.
    pub rows: usize,
    /// `[1, N]`
    pub scale: &'a M,
    /// `[1, N]`
    pub shift: &'a M,
}

/// The gradient of [`NormalizeForward`] with respect to its input, including the paths through means and variances.
pub struct NormalizeBackward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The formula.
    pub layer: &'a Normalization<'a, D::Matrix>,
    /// The operands of the forward pass.
    pub saved: &'a SavedNormalization<'a, D::Matrix>,
    /// `[B, N]`: the gradient with respect to the output, replaced by that with respect to the input.
    pub grad: &'a mut D::Matrix,
    /// Required for [`Axis::Column`], whose moments depend on other rows; absent for [`Axis::Row`].
    pub columns: Option<ColumnSums<'a, D::Matrix>>,
}

impl<D: Shapes> NormalizeBackward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let columns = check_saved::<D>(checks, self.rows, self.layer, self.saved, self.grad);
        let wanted = usize::from(self.layer.axis == Axis::Column);
        checks.equal("columns", usize::from(self.columns.is_some()), wanted);
        if let Some(ColumnSums { rows, scale, shift }) = self.columns {
            checks.at_least("columns.rows", rows, self.rows);
            for (name, matrix) in [("columns.scale", scale), ("columns.shift", shift)] {
                checks.matrix::<D>(name, matrix).rows_at_least(1).columns(columns);
            }
        }
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let operands = [self.saved.input, self.saved.output, self.grad, self.grad];
        cost::elementwise(self.rows, operands.map(D::matrix_shape), 7)
    }
}

/// Checks the operands that both gradients share, and returns the number of columns.
fn check_saved<D: Shapes>(
    checks: Checks,
    rows: usize,
    layer: &Normalization<'_, D::Matrix>,
    saved: &SavedNormalization<'_, D::Matrix>,
    grad: &D::Matrix,
) -> usize {
    checks.alike::<D>(rows, &[("input", saved.input), ("output", saved.output), ("grad", grad)]);
    let columns = D::matrix_shape(saved.input).columns;
    check_moments::<D>(checks, rows, layer.axis, columns, (saved.mean, saved.variance));
    check_formula::<D>(checks, layer, columns);
    columns
}

fn check_moments<D: Shapes>(
    checks: Checks,
    rows: usize,
    axis: Axis,
    columns: usize,
    (mean, variance): (&D::Matrix, &D::Matrix),
) {
    let (rows, columns) = match axis {
        Axis::Row => (rows, 1),
        Axis::Column => (1, columns),
    };
    for (name, matrix) in [("mean", mean), ("variance", variance)] {
        checks.matrix::<D>(name, matrix).rows_at_least(rows).columns(columns);
    }
}

fn check_formula<D: Shapes>(checks: Checks, layer: &Normalization<'_, D::Matrix>, columns: usize) {
    for (name, matrix) in [("scale", layer.scale), ("shift", layer.shift)] {
        checks.matrix::<D>(name, matrix).rows_at_least(1).columns(columns);
    }
}

/// `to += share * (factor * from - to)`, over all of two matrices of one shape: an exponential moving average.
pub struct Blend<'a, D: Shapes> {
    /// The weight of the new value.
    pub share: f64,
    /// Multiplies the new value.
    pub factor: f64,
    /// The new value.
    pub from: &'a D::Matrix,
    /// The average.
    pub to: &'a mut D::Matrix,
}

impl<D: Shapes> Blend<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let from = D::matrix_shape(self.from);
        checks.matrix::<D>("to", self.to).rows(from.rows).columns(from.columns);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let to = D::matrix_shape(self.to);
        cost::elementwise(to.rows, [D::matrix_shape(self.from), to, to], 4)
    }
}
