//! Feature interactions: factorization machines, cross layers and pairwise dot products.

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use crate::device::Shapes;

/// `out += 1/2 sum over k of ((sum of v_k)^2 - sum of v_k^2)`, the sum of the dot products of all pairs of vectors.
///
/// Rendle, "Factorization Machines", 2010, lemma 3.1.
pub struct FmForward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// Each row starts with the vectors.
    pub vectors: &'a D::Matrix,
    /// Number of vectors, and their width.
    pub shape: (usize, usize),
    /// `[B, 1]`
    pub out: &'a mut D::Matrix,
}

impl<D: Shapes> FmForward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let columns = self.shape.0.saturating_mul(self.shape.1);
        checks.matrix::<D>("vectors", self.vectors).rows_at_least(self.rows).columns_at_least(columns);
        checks.matrix::<D>("out", self.out).rows_at_least(self.rows).columns(1);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let (vectors, out) = (D::matrix_shape(self.vectors), D::matrix_shape(self.out));
        cost::pairs(self.rows, self.shape, false, 4, [vectors, out, out])
    }
}

/// Adds the gradient of [`FmForward`] with respect to its vectors to the first columns of `vectors_grad`.
pub struct FmBackward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// Each row starts with the vectors.
    pub vectors: &'a D::Matrix,
    /// Number of vectors, and their width.
    pub shape: (usize, usize),
    /// `[B, 1]`
    pub out_grad: &'a D::Matrix,
    /// Each row starts with the gradients of the vectors.
    pub vectors_grad: &'a mut D::Matrix,
}

impl<D: Shapes> FmBackward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let columns = self.shape.0.saturating_mul(self.shape.1);
        for (name, matrix) in [("vectors", self.vectors), ("vectors_grad", &*self.vectors_grad)] {
            checks.matrix::<D>(name, matrix).rows_at_least(self.rows).columns_at_least(columns);
        }
        checks.matrix::<D>("out_grad", self.out_grad).rows_at_least(self.rows).columns(1);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let (vectors, out) = (D::matrix_shape(self.vectors), D::matrix_shape(self.out_grad));
        cost::pairs(self.rows, self.shape, false, 4, [vectors, out, vectors, vectors])
    }
}

/// `output = first * product + input`, elementwise, all `[B, N]`: the part of a cross layer after the product of
/// its input and its weights.
///
/// Wang et al., "DCN V2", 2021, equation 1.
pub struct CrossForward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The input of the first cross layer.
    pub first: &'a D::Matrix,
    /// The product of this layer's input and weights.
    pub product: &'a D::Matrix,
    /// This layer's input.
    pub input: &'a D::Matrix,
    /// This layer's output.
    pub output: &'a mut D::Matrix,
}

impl<D: Shapes> CrossForward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let operands = [
            ("first", self.first),
            ("product", self.product),
            ("input", self.input),
            ("output", &*self.output),
        ];
        checks.alike::<D>(self.rows, &operands);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let moved = [self.first, self.product, self.input, &*self.output];
        cost::elementwise(self.rows, moved.map(D::matrix_shape), 2)
    }
}

/// The gradient of [`CrossForward`]: writes the gradient with respect to its product, and accumulates the gradient
/// with respect to `first`.
///
/// The gradient with respect to its input is `output_grad` itself.
pub struct CrossBackward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The input of the first cross layer.
    pub first: &'a D::Matrix,
    /// The product of this layer's input and weights.
    pub product: &'a D::Matrix,
    /// The gradient with respect to the output.
    pub output_grad: &'a D::Matrix,
    /// Written.
    pub product_grad: &'a mut D::Matrix,
    /// Accumulated.
    pub first_grad: &'a mut D::Matrix,
}

impl<D: Shapes> CrossBackward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let operands = [
            ("first", self.first),
            ("product", self.product),
            ("output_grad", self.output_grad),
            ("product_grad", &*self.product_grad),
            ("first_grad", &*self.first_grad),
        ];
        checks.alike::<D>(self.rows, &operands);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let moved = [
            self.first,
            self.product,
            self.output_grad,
            &*self.product_grad,
            &*self.first_grad,
            &*self.first_grad,
        ];
        cost::elementwise(self.rows, moved.map(D::matrix_shape), 3)
    }
}

/// `out[b] = first vector, then the dot product of each pair of vectors`: `(1, 0), (2, 0), (2, 1), ...`
///
/// Naumov et al., "Deep Learning Recommendation Model", 2019, section 2.2.
pub struct DotForward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// `[B, V * W]`
    pub vectors: &'a D::Matrix,
    /// `W`
    pub width: usize,
    /// `[B, W + V (V - 1) / 2]`
    pub out: &'a mut D::Matrix,
}

impl<D: Shapes> DotForward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        check_dot::<D>(checks, self.rows, self.width, self.vectors, ("out", self.out));
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let (vectors, out) = (D::matrix_shape(self.vectors), D::matrix_shape(self.out));
        let shape = (vectors.columns / self.width.max(1), self.width);
        cost::pairs(self.rows, shape, true, 2, [vectors, out])
    }
}

/// The gradient of [`DotForward`] with respect to its vectors.
pub struct DotBackward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// `[B, V * W]`
    pub vectors: &'a D::Matrix,
    /// `W`
    pub width: usize,
    /// `[B, W + V (V - 1) / 2]`
    pub out_grad: &'a D::Matrix,
    /// `[B, V * W]`, written.
    pub vectors_grad: &'a mut D::Matrix,
}

impl<D: Shapes> DotBackward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        check_dot::<D>(checks, self.rows, self.width, self.vectors, ("out_grad", self.out_grad));
        let columns = D::matrix_shape(self.vectors).columns;
        checks.matrix::<D>("vectors_grad", self.vectors_grad).rows_at_least(self.rows).columns(columns);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let (vectors, out) = (D::matrix_shape(self.vectors), D::matrix_shape(self.out_grad));
        let shape = (vectors.columns / self.width.max(1), self.width);
        cost::pairs(self.rows, shape, true, 4, [vectors, out, vectors])
    }
}

fn check_dot<D: Shapes>(
    checks: Checks,
    rows: usize,
    width: usize,
    vectors: &D::Matrix,
    (name, out): (&'static str, &D::Matrix),
) {
    let count = D::matrix_shape(vectors).columns.checked_div(width).unwrap_or(0);
    let out_columns = width.saturating_add(count * count.saturating_sub(1) / 2);
    checks.matrix::<D>("vectors", vectors).rows_at_least(rows).columns(count * width).columns_at_least(1);
    checks.matrix::<D>(name, out).rows_at_least(rows).columns(out_columns);
}
