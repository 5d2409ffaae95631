//! Lookups of ids in tables, side by side or summed by a linear model.

use std::ops::Range;

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use crate::backend::Backend;
use crate::device::{BatchShape, Lookup};
use crate::float::Float;

/// Whether sums over rows are written or accumulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientMode {
    /// The previous content is overwritten.
    Write,
    /// The sums are added to the previous content.
    Accumulate,
}

/// Sorts the ids of each of the plan's groups of columns by table row, and equal ids by column, then by batch row.
pub struct PlanRows<'a, B: Backend> {
    /// The batch.
    pub batch: &'a B::Batch,
    /// The plan, for batches of the same schema.
    pub plan: &'a mut B::RowPlan,
}

impl<B: Backend> PlanRows<'_, B> {
    /// A plan is made for a schema, and a batch on the device has the schema that it was made for.
    pub(super) fn check(&self, _checks: Checks) {}

    pub(super) fn work(&self, _backend: &B) -> Work {
        let batch = B::batch_shape(self.batch);
        let ids = B::planned_columns(self.plan).map(|column| batch.ids(column, batch.rows));
        cost::plan(batch.rows, ids.sum())
    }
}

/// `out[b] = pooled rows of every table, then dense columns`, side by side, for rows `rows` of the batch.
pub struct Gather<'a, B: Backend> {
    /// The batch.
    pub batch: &'a B::Batch,
    /// Rows of the batch; the first is row 0 of `out`.
    pub rows: Range<usize>,
    /// The lookups, whose columns begin at [`Lookup::first`] behind `first_column`.
    pub lookups: &'a [Lookup],
    /// The tables.
    pub tables: &'a [B::Table],
    /// Dense columns of the batch.
    pub dense: &'a [usize],
    /// `[B, first_column + W of each lookup + dense.len()]`
    pub out: &'a mut B::Matrix,
    /// Columns of `out` before this stay as they are.
    pub first_column: usize,
}

impl<B: Backend> Gather<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        let rows = checks.rows_of_batch(&self.rows, B::batch_shape(self.batch).rows);
        let width = check_lookups::<B>(checks, self.batch, self.lookups, self.tables);
        for lookup in self.lookups {
            let end = lookup.first + B::table_shape(&self.tables[lookup.table]).width;
            checks.at_most("lookups", end, width);
        }
        check_dense(checks, B::batch_shape(self.batch), self.dense);
        let columns = self.first_column + width + self.dense.len();
        checks.matrix("out", B::matrix_shape(self.out)).rows_at_least(rows).columns(columns);
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        let (rows, out) = (self.rows.len(), B::matrix_shape(self.out));
        let written = cost::columns(rows, out.columns - self.first_column, out.number_bytes);
        let read = lookup_work::<B>(self.batch, rows, self.lookups, self.tables);
        cost::sum(rows, read.chain([cost::columns(rows, self.dense.len(), 4), written]))
    }
}

/// `out[b] += bias + sum of the looked-up weights + dense columns . dense_weights`, for rows `rows` of the batch.
pub struct LinearForward<'a, B: Backend> {
    /// The batch.
    pub batch: &'a B::Batch,
    /// Rows of the batch; the first is row 0 of `out`.
    pub rows: Range<usize>,
    /// The lookups.
    pub lookups: &'a [Lookup],
    /// The tables: fp32, `K` columns each.
    pub tables: &'a [B::Table],
    /// Dense columns of the batch.
    pub dense: &'a [usize],
    /// `[dense.len(), K]`
    pub dense_weights: &'a B::Matrix,
    /// `[1, K]`
    pub bias: &'a B::Matrix,
    /// `[B, K]`
    pub out: &'a mut B::Matrix,
}

impl<B: Backend> LinearForward<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        let batch = B::batch_shape(self.batch);
        let (rows, out) = (checks.rows_of_batch(&self.rows, batch.rows), B::matrix_shape(self.out));
        check_lookups::<B>(checks, self.batch, self.lookups, self.tables);
        for lookup in self.lookups {
            let shape = B::table_shape(&self.tables[lookup.table]);
            checks.equal("tables", shape.width, out.columns);
            assert!(
                shape.float == Float::F32,
                "linear_forward: operand `tables` is {:?}, not fp32",
                shape.float
            );
        }
        check_dense(checks, batch, self.dense);
        let dense_weights = checks.matrix("dense_weights", B::matrix_shape(self.dense_weights));
        dense_weights.rows(self.dense.len());
        if !self.dense.is_empty() {
            dense_weights.columns(out.columns);
        }
        checks.matrix("bias", B::matrix_shape(self.bias)).rows_at_least(1).columns(out.columns);
        checks.matrix("out", out).rows_at_least(rows).columns_at_least(1);
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        let (rows, out) = (self.rows.len(), B::matrix_shape(self.out));
        let read = lookup_work::<B>(self.batch, rows, self.lookups, self.tables);
        let rest = [cost::linear(rows, self.dense.len(), out), cost::elementwise(rows, [out], 0)];
        cost::sum(rows, read.chain(rest))
    }
}

/// The gradient of [`LinearForward`] with respect to its dense weights and bias.
pub struct LinearBackward<'a, B: Backend> {
    /// The batch.
    pub batch: &'a B::Batch,
    /// Rows of the batch; the first is row 0 of `out_grad`.
    pub rows: Range<usize>,
    /// Dense columns of the batch.
    pub dense: &'a [usize],
    /// `[B, K]`
    pub out_grad: &'a B::Matrix,
    /// Whether both gradients are written or accumulated.
    pub mode: GradientMode,
    /// `[dense.len(), K]`
    pub weight_grad: &'a mut B::Matrix,
    /// `[1, K]`
    pub bias_grad: &'a mut B::Matrix,
}

impl<B: Backend> LinearBackward<'_, B> {
    pub(super) fn check(&self, checks: Checks) {
        let batch = B::batch_shape(self.batch);
        let (rows, out_grad) = (checks.rows_of_batch(&self.rows, batch.rows), B::matrix_shape(self.out_grad));
        check_dense(checks, batch, self.dense);
        checks.matrix("out_grad", out_grad).rows_at_least(rows).columns_at_least(1);
        let weight_grad = checks.matrix("weight_grad", B::matrix_shape(self.weight_grad));
        weight_grad.rows(self.dense.len());
        if !self.dense.is_empty() {
            weight_grad.columns(out_grad.columns);
        }
        checks
            .matrix("bias_grad", B::matrix_shape(self.bias_grad))
            .rows_at_least(1)
            .columns(out_grad.columns);
    }

    pub(super) fn work(&self, _backend: &B) -> Work {
        cost::linear(self.rows.len(), self.dense.len(), B::matrix_shape(self.out_grad))
    }
}

/// Gradients of the table rows that a batch looks up, before those of one table row are summed.
pub struct RowGradients<'a, B: Backend> {
    /// The batch.
    pub batch: &'a B::Batch,
    /// Its plan, in which the columns of each table's lookups are a group.
    pub plan: &'a B::RowPlan,
    /// The lookups in the tables.
    pub lookups: &'a [Lookup],
    /// The gradient with respect to the output of [`Gather`] or [`LinearForward`].
    pub gradient: &'a B::Matrix,
    /// Which of its columns belong to a table.
    pub columns: GradientColumns,
}

/// Which columns of a gradient belong to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientColumns {
    /// Each lookup has its own columns, from [`Lookup::first`] on.
    Apart {
        /// Columns before those of all lookups.
        first: usize,
    },
    /// All lookups share the same columns, from the first on.
    Shared,
}

impl GradientColumns {
    /// The first column of `lookup`.
    pub(crate) fn first_of(self, lookup: &Lookup) -> usize {
        match self {
            Self::Apart { first } => first + lookup.first,
            Self::Shared => 0,
        }
    }
}

impl<B: Backend> RowGradients<'_, B> {
    pub(super) fn check(&self, checks: Checks, tables: &[B::Table]) {
        check_lookups::<B>(checks, self.batch, self.lookups, tables);
        let end =
            |lookup: &Lookup| self.columns.first_of(lookup) + B::table_shape(&tables[lookup.table]).width;
        if let Some(end) = self.lookups.iter().map(end).max() {
            let gradient = checks.matrix("gradient", B::matrix_shape(self.gradient));
            gradient.rows_at_least(B::batch_shape(self.batch).rows).columns_at_least(end);
        }
    }

    /// The work of an operation on the table rows that the batch touches: `of_table` gives that of one table from its
    /// number of ids and of touched rows.
    pub(super) fn work(
        &self,
        backend: &B,
        tables: &[B::Table],
        of_table: impl Fn(usize, usize, crate::device::TableShape) -> Work,
    ) -> Work {
        let (batch, columns) = (B::batch_shape(self.batch), B::matrix_shape(self.gradient));
        let gradient = cost::columns(batch.rows, columns.columns, columns.number_bytes);
        let of_tables = tables.iter().enumerate().map(|(number, table)| {
            let (shape, lookups) = (B::table_shape(table), Lookup::of_table(self.lookups, number));
            let ids = lookups.iter().map(|lookup| batch.ids(lookup.column, batch.rows)).sum::<usize>();
            let touched = backend.touched_rows(self.plan, lookups);
            of_table(ids, touched.unwrap_or(ids.min(shape.rows)), shape)
        });
        cost::sum(batch.rows, of_tables.chain([gradient]))
    }
}

/// Asserts that lookups name columns of the batch and tables that exist, and returns the sum of their tables' widths.
fn check_lookups<B: Backend>(
    checks: Checks,
    batch: &B::Batch,
    lookups: &[Lookup],
    tables: &[B::Table],
) -> usize {
    let batch = B::batch_shape(batch);
    for lookup in lookups {
        checks.index("tables", lookup.table, tables.len());
        batch.check_column(lookup.column, |index, bound| checks.index("lookups", index, bound));
    }
    let width = |table: usize| B::table_shape(&tables[table]).width;
    Lookup::widths(lookups, width)
}

fn check_dense(checks: Checks, batch: &BatchShape, dense: &[usize]) {
    for &column in dense {
        checks.index("dense", column, batch.dense);
    }
}

/// The work of lookups over `rows` rows.
fn lookup_work<'a, B: Backend>(
    batch: &'a B::Batch,
    rows: usize,
    lookups: &'a [Lookup],
    tables: &'a [B::Table],
) -> impl Iterator<Item = Work> + 'a {
    lookups.iter().map(move |lookup| {
        let shape = B::table_shape(&tables[lookup.table]);
        cost::lookup(B::batch_shape(batch).ids(lookup.column, rows), shape, B::weight_bytes(shape))
    })
}
