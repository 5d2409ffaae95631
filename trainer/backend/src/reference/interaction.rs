//! Feature interactions, as in their equations.

use super::{Reference, ReferenceMatrix};
use crate::ops::{CrossBackward, CrossForward, DotBackward, DotForward, FmBackward, FmForward};

impl Reference {
    pub(super) fn fm_forward(&self, operation: FmForward<'_, Self>) {
        let FmForward { rows, vectors, shape: (count, width), out } = operation;
        for row in 0..rows {
            for_each_pair(count, |i, j| {
                *out.at_mut(row, 0) += vectors.product(row, width, i, j);
            });
        }
        out.round(rows);
    }

    pub(super) fn fm_backward(&self, operation: FmBackward<'_, Self>) {
        let FmBackward { rows, vectors, shape: (count, width), out_grad, vectors_grad } = operation;
        for row in 0..rows {
            let g = out_grad.at(row, 0);
            for_each_pair(count, |i, j| {
                vectors.product_grad(row, width, (i, j), g, vectors_grad);
            });
        }
        vectors_grad.round(rows);
    }

    pub(super) fn cross_forward(&self, operation: CrossForward<'_, Self>) {
        let CrossForward { rows, first, product, input, output } = operation;
        output
            .set(rows, |row, column| first.at(row, column) * product.at(row, column) + input.at(row, column));
    }

    pub(super) fn cross_backward(&self, operation: CrossBackward<'_, Self>) {
        let CrossBackward { rows, first, product, output_grad, product_grad, first_grad } = operation;
        product_grad.set(rows, |row, column| output_grad.at(row, column) * first.at(row, column));
        for row in 0..rows {
            for column in 0..first.columns {
                *first_grad.at_mut(row, column) += output_grad.at(row, column) * product.at(row, column);
            }
        }
        first_grad.round(rows);
    }

    pub(super) fn dot_forward(&self, operation: DotForward<'_, Self>) {
        let DotForward { rows, vectors, width, out } = operation;
        for row in 0..rows {
            for column in 0..width {
                *out.at_mut(row, column) = vectors.at(row, column);
            }
            let mut place = width..;
            for_each_pair(vectors.columns / width, |i, j| {
                let place = place.next().expect("no end");
                *out.at_mut(row, place) = vectors.product(row, width, i, j);
            });
        }
        out.round(rows);
    }

    pub(super) fn dot_backward(&self, operation: DotBackward<'_, Self>) {
        let DotBackward { rows, vectors, width, out_grad, vectors_grad } = operation;
        for row in 0..rows {
            for column in 0..vectors.columns {
                *vectors_grad.at_mut(row, column) =
                    if column < width { out_grad.at(row, column) } else { 0.0 };
            }
            let mut place = width..;
            for_each_pair(vectors.columns / width, |i, j| {
                let g = out_grad.at(row, place.next().expect("no end"));
                vectors.product_grad(row, width, (i, j), g, vectors_grad);
            });
        }
        vectors_grad.round(rows);
    }
}

impl ReferenceMatrix {
    /// The dot product of vectors `i` and `j` of a row, `width` columns each.
    fn product(&self, row: usize, width: usize, i: usize, j: usize) -> f64 {
        (0..width).map(|k| self.at(row, i * width + k) * self.at(row, j * width + k)).sum()
    }

    /// Adds the gradients of [`ReferenceMatrix::product`] with respect to both vectors to `gradient`, given the
    /// gradient `g` with respect to the product.
    fn product_grad(&self, row: usize, width: usize, (i, j): (usize, usize), g: f64, gradient: &mut Self) {
        for k in 0..width {
            *gradient.at_mut(row, i * width + k) += g * self.at(row, j * width + k);
            *gradient.at_mut(row, j * width + k) += g * self.at(row, i * width + k);
        }
    }
}

/// Calls `visit` with each pair of `count` vectors, the higher number first.
fn for_each_pair(count: usize, mut visit: impl FnMut(usize, usize)) {
    for i in 0..count {
        for j in 0..i {
            visit(i, j);
        }
    }
}
