//! The shape checks of operands.

use std::ops::Range;

use crate::device::{MatrixShape, Shapes};

/// Checks of the operands of one operation.
///
/// Sums and products of wanted sizes saturate, because device code relies on the checks: a size that wraps around would
/// accept any operand.
#[derive(Clone, Copy)]
pub(super) struct Checks {
    pub(super) operation: &'static str,
}

/// A matrix operand under check.
#[derive(Clone, Copy)]
pub(super) struct MatrixCheck {
    operation: &'static str,
    operand: &'static str,
    shape: MatrixShape,
}

impl Checks {
    #[inline]
    pub(super) fn matrix<D: Shapes>(self, operand: &'static str, matrix: &D::Matrix) -> MatrixCheck {
        MatrixCheck { operation: self.operation, operand, shape: D::matrix_shape(matrix) }
    }

    #[inline]
    pub(super) fn maxima<D: Shapes>(self, operand: &'static str, maxima: &D::Maxima) -> MatrixCheck {
        MatrixCheck { operation: self.operation, operand, shape: D::maxima_shape(maxima) }
    }

    /// Asserts that all matrices have at least `rows` rows, and as many columns as the first.
    pub(super) fn alike<D: Shapes>(self, rows: usize, matrices: &[(&'static str, &D::Matrix)]) {
        let columns = matrices.first().map_or(0, |(_, first)| D::matrix_shape(first).columns);
        for &(operand, matrix) in matrices {
            self.matrix::<D>(operand, matrix).rows_at_least(rows).columns(columns);
        }
    }

    /// Asserts that `index` is below `bound`.
    #[inline]
    pub(super) fn index(self, operand: &'static str, index: usize, bound: usize) {
        if index >= bound {
            wrong_value(self.operation, operand, index, "below", bound);
        }
    }

    /// Asserts that `value` is at most `maximum`.
    #[inline]
    pub(super) fn at_most(self, operand: &'static str, value: usize, maximum: usize) {
        if value > maximum {
            wrong_value(self.operation, operand, value, "at most", maximum);
        }
    }

    /// Asserts that `value` is at least `minimum`.
    #[inline]
    pub(super) fn at_least(self, operand: &'static str, value: usize, minimum: usize) {
        if value < minimum {
            wrong_value(self.operation, operand, value, "at least", minimum);
        }
    }

    /// Asserts that `value` equals `wanted`.
    #[inline]
    pub(super) fn equal(self, operand: &'static str, value: usize, wanted: usize) {
        if value != wanted {
            wrong_value(self.operation, operand, value, "", wanted);
        }
    }

    /// Asserts that `rows` lie within a batch of `batch_rows` rows, and returns their number.
    #[inline]
    pub(super) fn rows_of_batch(self, rows: &Range<usize>, batch_rows: usize) -> usize {
        self.at_most("rows", rows.end, batch_rows);
        rows.len()
    }
}

impl MatrixCheck {
    #[inline]
    pub(super) fn rows(self, rows: usize) -> Self {
        self.assert(self.shape.rows == rows, rows, "rows");
        self
    }

    #[inline]
    pub(super) fn rows_at_least(self, rows: usize) -> Self {
        self.assert(self.shape.rows >= rows, rows, "rows or more");
        self
    }

    #[inline]
    pub(super) fn columns(self, columns: usize) -> Self {
        self.assert(self.shape.columns == columns, columns, "columns");
        self
    }

    #[inline]
    pub(super) fn columns_at_least(self, columns: usize) -> Self {
        self.assert(self.shape.columns >= columns, columns, "columns or more");
        self
    }

    #[inline]
    pub(super) fn columns_at_most(self, columns: usize) -> Self {
        self.assert(self.shape.columns <= columns, columns, "columns or fewer");
        self
    }

    #[inline]
    fn assert(self, holds: bool, wanted: usize, of: &'static str) {
        if !holds {
            wrong_shape(self, wanted, of);
        }
    }
}

#[cold]
#[inline(never)]
fn wrong_shape(check: MatrixCheck, wanted: usize, of: &str) -> ! {
    let MatrixCheck { operation, operand, shape: MatrixShape { rows, columns, .. } } = check;
    panic!("{operation}: operand `{operand}` is [{rows}, {columns}], but must have {wanted} {of}");
}

#[cold]
#[inline(never)]
fn wrong_value(operation: &str, operand: &str, value: usize, relation: &str, wanted: usize) -> ! {
    let space = if relation.is_empty() { "" } else { " " };
    panic!("{operation}: operand `{operand}` is {value}, but must be {relation}{space}{wanted}");
}
