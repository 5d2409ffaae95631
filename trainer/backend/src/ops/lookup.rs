//! Lookups of ids in tables, concatenated or summed by a linear model.

use std::ops::Range;

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use crate::device::{BatchShape, Lookup, Pooling, Shapes};
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
pub struct PlanRows<'a, D: Shapes> {
    /// The batch.
    pub batch: &'a D::Batch,
    /// The plan, for batches of the same schema.
    pub plan: &'a mut D::RowPlan,
}

impl<D: Shapes> PlanRows<'_, D> {
    /// A plan is made for a schema, and a batch on the device has the schema that it was made for.
    pub(super) fn check(&self, _checks: Checks) {}

    pub(super) fn work(&self, _backend: &D) -> Work {
        let batch = D::batch_shape(self.batch);
        let ids = D::planned_columns(self.plan).map(|column| batch.ids(column, batch.rows));
        cost::plan(batch.rows, ids.sum())
    }
}

/// `out[b] = pooled rows of every table, then dense columns`, concatenated, for rows `rows` of the batch.
///
/// A lookup with [`Pooling::Unpooled`] has a vector for each id of a row, and zeros for the ids that the row lacks.
pub struct Gather<'a, D: Shapes> {
    /// The batch.
    pub batch: &'a D::Batch,
    /// Rows of the batch; the first is row 0 of `out`.
    pub rows: Range<usize>,
    /// The lookups; the columns of each start at `first_column` plus [`Lookup::first`].
    pub lookups: &'a [Lookup],
    /// The tables.
    pub tables: &'a [D::Table],
    /// Dense columns of the batch.
    pub dense: &'a [usize],
    /// `[B, first_column + columns of each lookup + dense.len()]`
    pub out: &'a mut D::Matrix,
    /// Columns of `out` before this stay as they are.
    pub first_column: usize,
    /// Where to record the ids that hold the maxima of lookups with [`Pooling::Max`]; a row of the batch is a row of it.
    /// None if no multi-valued column has this pooling.
    pub maxima: Option<&'a mut D::Maxima>,
}

impl<D: Shapes> Gather<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let rows = checks.rows_of_batch(&self.rows, D::batch_shape(self.batch).rows);
        let width = check_lookups::<D>(checks, self.batch, self.lookups, self.tables);
        for lookup in self.lookups {
            let columns = lookup.columns(D::table_shape(&self.tables[lookup.table]).width);
            let end = lookup.first.saturating_add(columns);
            checks.at_most("lookups", end, width);
        }
        check_dense(checks, D::batch_shape(self.batch), self.dense);
        let columns = self.first_column.saturating_add(width + self.dense.len());
        checks.matrix::<D>("out", self.out).rows_at_least(rows).columns(columns);
        check_maxima::<D>(checks, self.rows.end, self.lookups, self.tables, self.maxima.as_deref());
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let (rows, out) = (self.rows.len(), D::matrix_shape(self.out));
        let recorded = maxima_work::<D>(rows, self.maxima.as_deref());
        let written = cost::columns(rows, out.columns - self.first_column, out.number_bytes);
        let read = lookup_work::<D>(self.batch, rows, self.lookups, self.tables);
        cost::sum(rows, read.chain([cost::columns(rows, self.dense.len(), 4), written, recorded]))
    }
}

/// `out[b] += bias + sum of the looked-up weights + dense columns . dense_weights`, for rows `rows` of the batch.
pub struct LinearForward<'a, D: Shapes> {
    /// The batch.
    pub batch: &'a D::Batch,
    /// Rows of the batch; the first is row 0 of `out`.
    pub rows: Range<usize>,
    /// The lookups.
    pub lookups: &'a [Lookup],
    /// The tables: fp32, `K` columns each.
    pub tables: &'a [D::Table],
    /// Dense columns of the batch.
    pub dense: &'a [usize],
    /// `[dense.len(), K]`
    pub dense_weights: &'a D::Matrix,
    /// `[1, K]`
    pub bias: &'a D::Matrix,
    /// `[B, K]`
    pub out: &'a mut D::Matrix,
}

impl<D: Shapes> LinearForward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let batch = D::batch_shape(self.batch);
        let (rows, out) = (checks.rows_of_batch(&self.rows, batch.rows), D::matrix_shape(self.out));
        check_lookups::<D>(checks, self.batch, self.lookups, self.tables);
        for lookup in self.lookups {
            let shape = D::table_shape(&self.tables[lookup.table]);
            checks.equal("tables", shape.width, out.columns);
            checks.equal("lookups", lookup.pooling.vectors(), 1);
            assert!(
                lookup.pooling != Pooling::Max,
                "linear_forward: operand `lookups` has a maximum, but its terms are sums"
            );
            assert!(
                shape.float == Float::F32,
                "linear_forward: operand `tables` is {:?}, not fp32",
                shape.float
            );
        }
        check_dense(checks, batch, self.dense);
        let parameters = [("dense_weights", self.dense_weights), ("bias", self.bias)];
        check_linear::<D>(checks, self.dense.len(), out.columns, parameters);
        checks.matrix::<D>("out", self.out).rows_at_least(rows).columns_at_least(1);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let (rows, out) = (self.rows.len(), D::matrix_shape(self.out));
        let read = lookup_work::<D>(self.batch, rows, self.lookups, self.tables);
        let rest = [cost::linear(rows, self.dense.len(), out), cost::elementwise(rows, [out], 0)];
        cost::sum(rows, read.chain(rest))
    }
}

/// The gradient of [`LinearForward`] with respect to its dense weights and bias.
pub struct LinearBackward<'a, D: Shapes> {
    /// The batch.
    pub batch: &'a D::Batch,
    /// Rows of the batch; the first is row 0 of `out_grad`.
    pub rows: Range<usize>,
    /// Dense columns of the batch.
    pub dense: &'a [usize],
    /// `[B, K]`
    pub out_grad: &'a D::Matrix,
    /// Whether both gradients are written or accumulated.
    pub mode: GradientMode,
    /// `[dense.len(), K]`
    pub weight_grad: &'a mut D::Matrix,
    /// `[1, K]`
    pub bias_grad: &'a mut D::Matrix,
}

impl<D: Shapes> LinearBackward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let batch = D::batch_shape(self.batch);
        let (rows, out_grad) = (checks.rows_of_batch(&self.rows, batch.rows), D::matrix_shape(self.out_grad));
        check_dense(checks, batch, self.dense);
        checks.matrix::<D>("out_grad", self.out_grad).rows_at_least(rows).columns_at_least(1);
        let gradients = [("weight_grad", &*self.weight_grad), ("bias_grad", &*self.bias_grad)];
        check_linear::<D>(checks, self.dense.len(), out_grad.columns, gradients);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::linear(self.rows.len(), self.dense.len(), D::matrix_shape(self.out_grad))
    }
}

/// Gradients of the table rows that a batch looks up, before those of one table row are summed.
pub struct RowGradients<'a, D: Shapes> {
    /// The batch.
    pub batch: &'a D::Batch,
    /// Its plan, in which the columns of each table's lookups are a group.
    pub plan: &'a D::RowPlan,
    /// The lookups in the tables.
    pub lookups: &'a [Lookup],
    /// The gradient with respect to the output of [`Gather`] or [`LinearForward`].
    pub gradient: &'a D::Matrix,
    /// Which of its columns belong to a table.
    pub columns: GradientColumns,
    /// The record of maxima of the [`Gather`]s that looked up the batch's rows. None if no multi-valued column has
    /// [`Pooling::Max`].
    pub maxima: Option<&'a D::Maxima>,
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

impl<D: Shapes> RowGradients<'_, D> {
    /// Asserts the shapes of all operands of the operation with this name, which is not one of [`super::Operation`].
    pub(crate) fn check_for(&self, operation: &'static str, tables: &[D::Table]) {
        self.check(Checks { operation }, tables);
    }

    pub(super) fn check(&self, checks: Checks, tables: &[D::Table]) {
        check_lookups::<D>(checks, self.batch, self.lookups, tables);
        let end = |lookup: &Lookup| {
            let columns = lookup.columns(D::table_shape(&tables[lookup.table]).width);
            self.columns.first_of(lookup).saturating_add(columns)
        };
        if let Some(end) = self.lookups.iter().map(end).max() {
            let gradient = checks.matrix::<D>("gradient", self.gradient);
            gradient.rows_at_least(D::batch_shape(self.batch).rows).columns_at_least(end);
        }
        check_maxima::<D>(checks, D::batch_shape(self.batch).rows, self.lookups, tables, self.maxima);
    }

    /// The work of an operation on the table rows that the batch touches: `of_table` gives that of one table from its
    /// number of ids and of touched rows.
    pub(crate) fn work(
        &self,
        backend: &D,
        tables: &[D::Table],
        of_table: impl Fn(usize, usize, crate::device::TableShape) -> Work,
    ) -> Work {
        let (batch, columns) = (D::batch_shape(self.batch), D::matrix_shape(self.gradient));
        let gradient = cost::columns(batch.rows, columns.columns, columns.number_bytes);
        let of_tables = tables.iter().enumerate().map(|(number, table)| {
            let (shape, lookups) = (D::table_shape(table), Lookup::of_table(self.lookups, number));
            let ids = lookups.iter().map(|lookup| batch.ids(lookup.column, batch.rows)).sum::<usize>();
            let touched = backend.touched_rows(self.plan, lookups);
            of_table(ids, touched.unwrap_or(ids.min(shape.rows)), shape)
        });
        let maxima = maxima_work::<D>(batch.rows, self.maxima);
        cost::sum(batch.rows, of_tables.chain([gradient, maxima]))
    }
}

/// Asserts that lookups name columns of the batch, and tables with a row for every id; returns the sum of the tables'
/// widths.
fn check_lookups<D: Shapes>(
    checks: Checks,
    batch: &D::Batch,
    lookups: &[Lookup],
    tables: &[D::Table],
) -> usize {
    let batch = D::batch_shape(batch);
    for lookup in lookups {
        checks.index("tables", lookup.table, tables.len());
        batch.check_column(lookup.column, |index, bound| checks.index("lookups", index, bound));
        if let Pooling::Unpooled(most) = lookup.pooling {
            checks.equal("lookups", most as usize, batch.maximum(lookup.column).unwrap_or(0) as usize);
        }
        let rows = D::table_shape(&tables[lookup.table]).rows;
        checks.at_least("tables", rows, batch.cardinality(lookup.column) as usize);
    }
    let width = |table: usize| D::table_shape(&tables[table]).width;
    Lookup::widths(lookups, width)
}

/// Asserts that `maxima` has rows for the first `rows` rows of a batch, and a column for each maximum of the lookups.
fn check_maxima<D: Shapes>(
    checks: Checks,
    rows: usize,
    lookups: &[Lookup],
    tables: &[D::Table],
    maxima: Option<&D::Maxima>,
) {
    let columns = Lookup::all_maxima(lookups, |table| D::table_shape(&tables[table]).width);
    match maxima {
        Some(maxima) => {
            checks.maxima::<D>("maxima", maxima).rows_at_least(rows).columns(columns);
        }
        None => checks.equal("maxima", 0, columns),
    }
}

/// The work of writing or reading a record of maxima.
fn maxima_work<D: Shapes>(rows: usize, maxima: Option<&D::Maxima>) -> Work {
    let shape = maxima.map(D::maxima_shape);
    shape.map_or(Work::default(), |shape| cost::columns(rows, shape.columns, shape.number_bytes))
}

/// Asserts the shapes of the weights of `dense` dense columns, and of a bias.
fn check_linear<D: Shapes>(
    checks: Checks,
    dense: usize,
    columns: usize,
    [(weights, of_weights), (bias, of_bias)]: [(&'static str, &D::Matrix); 2],
) {
    let check = checks.matrix::<D>(weights, of_weights).rows(dense);
    if dense > 0 {
        check.columns(columns);
    }
    checks.matrix::<D>(bias, of_bias).rows_at_least(1).columns(columns);
}

fn check_dense(checks: Checks, batch: &BatchShape, dense: &[usize]) {
    for &column in dense {
        checks.index("dense", column, batch.dense);
    }
}

/// The work of lookups over `rows` rows.
fn lookup_work<'a, D: Shapes>(
    batch: &'a D::Batch,
    rows: usize,
    lookups: &'a [Lookup],
    tables: &'a [D::Table],
) -> impl Iterator<Item = Work> + 'a {
    lookups.iter().map(move |lookup| {
        let shape = D::table_shape(&tables[lookup.table]);
        cost::lookup(D::batch_shape(batch).ids(lookup.column, rows), shape, D::weight_bytes(shape))
    })
}
