//! Copies and elementwise changes of matrices.

use std::ops::Range;

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use crate::device::Shapes;

/// Copies `columns` columns of one matrix to another over the first `rows` rows.
pub struct CopyColumns<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The source, and its first column.
    pub from: (&'a D::Matrix, usize),
    /// The destination, and its first column.
    pub to: (&'a mut D::Matrix, usize),
    /// Number of columns.
    pub columns: usize,
}

impl<D: Shapes> CopyColumns<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        for (name, matrix, first) in [("from", self.from.0, self.from.1), ("to", &*self.to.0, self.to.1)] {
            let end = first.saturating_add(self.columns);
            checks.matrix::<D>(name, matrix).rows_at_least(self.rows).columns_at_least(end);
        }
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let bytes = D::matrix_shape(self.from.0).number_bytes + D::matrix_shape(self.to.0).number_bytes;
        cost::columns(self.rows, self.columns, bytes)
    }
}

/// Copies `rows` rows of one matrix to another with the same number of columns.
pub struct CopyRows<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The source, and its first row.
    pub from: (&'a D::Matrix, usize),
    /// The destination, and its first row.
    pub to: (&'a mut D::Matrix, usize),
}

impl<D: Shapes> CopyRows<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let columns = D::matrix_shape(self.from.0).columns;
        for (name, matrix, first) in [("from", self.from.0, self.from.1), ("to", &*self.to.0, self.to.1)] {
            let end = first.saturating_add(self.rows);
            checks.matrix::<D>(name, matrix).rows_at_least(end).columns(columns);
        }
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(self.rows, [D::matrix_shape(self.from.0), D::matrix_shape(self.to.0)], 0)
    }
}

/// Multiplies each number by `1 / keep`, or by 0 with probability `1 - keep`: inverted dropout (Srivastava et al.,
/// "Dropout", 2014, section 10). Its gradient is the same operation.
///
/// Row 0 is row `rows.start` of the pass that `key` identifies. Word `c / 16 % 4` of the [Philox](crate::philox) of
/// counter `(r, c / 64 * 16 + c % 16)` decides column `c` of row `r`: the number is kept if the word is below
/// `2^32 keep`.
pub struct Dropout<'a, D: Shapes> {
    /// Rows of the pass.
    pub rows: Range<usize>,
    /// The probability of keeping a number, above 0 and at most 1.
    pub keep: f64,
    /// The key of the random numbers.
    pub key: u64,
    /// `[B, N]`, changed in place.
    pub matrix: &'a mut D::Matrix,
}

impl<D: Shapes> Dropout<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        assert!(
            self.keep > 0.0 && self.keep <= 1.0,
            "dropout: operand `keep` is {}, not in (0, 1]",
            self.keep
        );
        checks.matrix::<D>("matrix", self.matrix).rows_at_least(self.rows.len());
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(self.rows.len(), [D::matrix_shape(self.matrix); 2], 1)
    }
}

/// `to += from`, over the columns of `to`; `from` may have more.
pub struct Add<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The summand.
    pub from: &'a D::Matrix,
    /// The sum.
    pub to: &'a mut D::Matrix,
}

impl<D: Shapes> Add<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let columns = D::matrix_shape(self.to).columns;
        checks.matrix::<D>("from", self.from).rows_at_least(self.rows).columns_at_least(columns);
        checks.matrix::<D>("to", self.to).rows_at_least(self.rows);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(self.rows, [D::matrix_shape(self.to); 3], 1)
    }
}

/// Sets the first `rows` rows to zero.
pub struct Clear<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The matrix.
    pub matrix: &'a mut D::Matrix,
}

impl<D: Shapes> Clear<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.matrix::<D>("matrix", self.matrix).rows_at_least(self.rows);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(self.rows, [D::matrix_shape(self.matrix)], 0)
    }
}

/// Multiplies the first `rows` rows by the first number of `factor`.
pub struct Multiply<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// `[1, 1]` or larger.
    pub factor: &'a D::Matrix,
    /// The matrix, changed in place.
    pub matrix: &'a mut D::Matrix,
}

impl<D: Shapes> Multiply<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.matrix::<D>("factor", self.factor).rows_at_least(1).columns_at_least(1);
        checks.matrix::<D>("matrix", self.matrix).rows_at_least(self.rows);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(self.rows, [D::matrix_shape(self.matrix); 2], 1)
    }
}
