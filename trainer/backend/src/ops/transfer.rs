//! Transfers between host and device memory.

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use crate::backend::Backend;
use crate::device::TablePart;

/// Fills a matrix with values from the host.
pub struct WriteMatrix<'a, B: Backend> {
    /// The matrix.
    pub matrix: &'a mut B::Matrix,
    /// All its numbers, row-major.
    pub values: &'a [B::Scalar],
}

impl<B: Backend> WriteMatrix<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        let shape = B::matrix_shape(self.matrix);
        checks.equal("values", self.values.len(), shape.rows * shape.columns);
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        cost::copied::<B::Scalar>(self.values.len())
    }
}

/// Copies the first rows of a matrix to the host.
pub struct ReadMatrix<'a, B: Backend> {
    /// The matrix.
    pub matrix: &'a B::Matrix,
    /// As many numbers as it holds, row-major.
    pub out: &'a mut [B::Scalar],
}

impl<B: Backend> ReadMatrix<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        let shape = B::matrix_shape(self.matrix);
        checks.at_most("out", self.out.len(), shape.rows * shape.columns);
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        cost::copied::<B::Scalar>(self.out.len())
    }
}

/// Fills rows of a table, from `first_row` on, with values from the host.
pub struct WriteTable<'a, B: Backend> {
    /// The table.
    pub table: &'a mut B::Table,
    /// Weights or state.
    pub part: TablePart,
    /// The first row.
    pub first_row: usize,
    /// The numbers of the rows, row-major.
    pub values: &'a [B::Scalar],
}

impl<B: Backend> WriteTable<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        check_part::<B>(checks, self.table, self.part, self.first_row, ("values", self.values.len()));
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        cost::copied::<B::Scalar>(self.values.len())
    }
}

/// Copies rows of a table, from `first_row` on, to the host.
pub struct ReadTable<'a, B: Backend> {
    /// The table.
    pub table: &'a B::Table,
    /// Weights or state.
    pub part: TablePart,
    /// The first row.
    pub first_row: usize,
    /// As many numbers as it holds, row-major.
    pub out: &'a mut [B::Scalar],
}

impl<B: Backend> ReadTable<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        check_part::<B>(checks, self.table, self.part, self.first_row, ("out", self.out.len()));
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        cost::copied::<B::Scalar>(self.out.len())
    }
}

/// Copies a whole table to the host, in the order that is fastest on the device, because training waits for it. Numbers are
/// placed as [`Backend::table_place`] says.
pub struct CopyTable<'a, B: Backend> {
    /// The table.
    pub table: &'a B::Table,
    /// [`Backend::copied_numbers`] numbers.
    pub out: &'a mut [B::Scalar],
}

impl<B: Backend> CopyTable<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        checks.equal("out", self.out.len(), B::copied_numbers(B::table_shape(self.table)));
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        cost::copied::<B::Scalar>(self.out.len())
    }
}

fn check_part<B: Backend>(
    checks: Checks,
    table: &B::Table,
    part: TablePart,
    first_row: usize,
    (name, numbers): (&'static str, usize),
) {
    let shape = B::table_shape(table);
    match part {
        TablePart::Weights => {}
        TablePart::State(state) => checks.index("part", state, shape.states),
        TablePart::RowState(state) => checks.index("part", state, shape.row_states),
    }
    checks.at_most("first_row", first_row, shape.rows);
    checks.at_most(name, numbers, (shape.rows - first_row) * shape.part_width(part));
}
