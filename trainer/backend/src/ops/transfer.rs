//! Transfers between host and device memory.

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use crate::device::{Shapes, TablePart};

/// Fills a matrix with values from the host.
pub struct WriteMatrix<'a, D: Shapes> {
    /// The matrix.
    pub matrix: &'a mut D::Matrix,
    /// The values of its first rows, row-major.
    pub values: &'a [D::Scalar],
}

impl<D: Shapes> WriteMatrix<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let shape = D::matrix_shape(self.matrix);
        checks.at_most("values", self.values.len(), shape.rows * shape.columns);
        checks.equal("values", self.values.len() % shape.columns.max(1), 0);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::copied::<D::Scalar>(self.values.len())
    }
}

/// Copies the first rows of a matrix to the host.
pub struct ReadMatrix<'a, D: Shapes> {
    /// The matrix.
    pub matrix: &'a D::Matrix,
    /// As many numbers as it holds, row-major.
    pub out: &'a mut [D::Scalar],
}

impl<D: Shapes> ReadMatrix<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let shape = D::matrix_shape(self.matrix);
        checks.at_most("out", self.out.len(), shape.rows * shape.columns);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::copied::<D::Scalar>(self.out.len())
    }
}

/// Fills rows of a table, from `first_row` on, with values from the host.
pub struct WriteTable<'a, D: Shapes> {
    /// The table.
    pub table: &'a mut D::Table,
    /// Weights or state.
    pub part: TablePart,
    /// The first row.
    pub first_row: usize,
    /// The numbers of the rows, row-major.
    pub values: &'a [D::Scalar],
}

impl<D: Shapes> WriteTable<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        check_part::<D>(checks, self.table, self.part, self.first_row, ("values", self.values.len()));
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::copied::<D::Scalar>(self.values.len())
    }
}

/// Copies rows of a table, from `first_row` on, to the host.
pub struct ReadTable<'a, D: Shapes> {
    /// The table.
    pub table: &'a D::Table,
    /// Weights or state.
    pub part: TablePart,
    /// The first row.
    pub first_row: usize,
    /// As many numbers as it holds, row-major.
    pub out: &'a mut [D::Scalar],
}

impl<D: Shapes> ReadTable<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        check_part::<D>(checks, self.table, self.part, self.first_row, ("out", self.out.len()));
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::copied::<D::Scalar>(self.out.len())
    }
}

/// Copies a table to the host, or a range of it, in the order that is fastest on the device, because training waits for it.
/// [`Backend::table_place`] returns the location of each part.
pub struct CopyTable<'a, D: Shapes> {
    /// The table.
    pub table: &'a D::Table,
    /// The first of the table's [`Backend::copied_numbers`] numbers to copy.
    pub first: usize,
    /// Gets as many numbers as it holds.
    pub out: &'a mut [D::Scalar],
}

impl<D: Shapes> CopyTable<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let all = D::copied_numbers(D::table_shape(self.table));
        checks.at_most("first", self.first, all);
        checks.at_most("out", self.out.len(), all - self.first);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::copied::<D::Scalar>(self.out.len())
    }
}

fn check_part<D: Shapes>(
    checks: Checks,
    table: &D::Table,
    part: TablePart,
    first_row: usize,
    (name, numbers): (&'static str, usize),
) {
    let shape = D::table_shape(table);
    match part {
        TablePart::Weights => {}
        TablePart::State(state) => checks.index("part", state, shape.states),
        TablePart::RowState(state) => checks.index("part", state, shape.row_states),
    }
    checks.at_most("first_row", first_row, shape.rows);
    checks.at_most(name, numbers, (shape.rows - first_row) * shape.part_width(part));
}
