//! Gradient norms and optimizer steps.

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use super::lookup::RowGradients;
use crate::device::{Shapes, TableShape};
use crate::update::{Formula, LossScaling, Update};

/// `sum += sum of the squares of the gradient`
pub struct Squares<'a, D: Shapes> {
    /// The gradient.
    pub grad: &'a D::Matrix,
    /// `[1, 1]`
    pub sum: &'a mut D::Matrix,
}

impl<D: Shapes> Squares<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.matrix::<D>("sum", self.sum).rows(1).columns(1);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let shape = D::matrix_shape(self.grad);
        cost::elementwise(shape.rows, [shape], 2)
    }
}

/// As [`Squares`], over the touched rows of tables, after the gradients of each row are summed.
pub struct RowSquares<'a, D: Shapes> {
    /// The gradients.
    pub gradients: &'a RowGradients<'a, D>,
    /// The tables.
    pub tables: &'a [D::Table],
    /// `[1, 1]`
    pub sum: &'a mut D::Matrix,
}

impl<D: Shapes> RowSquares<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        self.gradients.check(checks, self.tables);
        checks.matrix::<D>("sum", self.sum).rows(1).columns(1);
    }

    pub(super) fn work(&self, backend: &D) -> Work {
        self.gradients.work(backend, self.tables, cost::row_squares)
    }
}

/// As [`RowSquares`], over the rows that all parts of a batch touch.
pub struct MergedRowSquares<'a, D: Shapes> {
    /// The rows.
    pub rows: &'a D::MergedRows,
    /// The tables.
    pub tables: &'a [D::Table],
    /// `[1, 1]`
    pub sum: &'a mut D::Matrix,
}

impl<D: Shapes> MergedRowSquares<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        check_merged::<D>(checks, self.rows, self.tables);
        checks.matrix::<D>("sum", self.sum).rows(1).columns(1);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let of_tables = self.tables.iter().enumerate().map(|(number, table)| {
            cost::merged_row_squares(D::merged_count(self.rows, number), D::table_shape(table).width)
        });
        cost::sum(0, of_tables)
    }
}

/// `scale = min(1, maximum / sqrt(squares))`, the factor that clips a gradient to the norm `maximum`. NaN if
/// `squares` is not finite.
///
/// Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013, Algorithm 1.
pub struct ClipScale<'a, D: Shapes> {
    /// The largest norm.
    pub maximum: f64,
    /// `[1, 1]`
    pub squares: &'a D::Matrix,
    /// `[1, 1]`
    pub scale: &'a mut D::Matrix,
}

impl<D: Shapes> ClipScale<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.matrix::<D>("squares", self.squares).rows_at_least(1).columns_at_least(1);
        checks.matrix::<D>("scale", self.scale).rows_at_least(1).columns_at_least(1);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::copied::<f32>(1)
    }
}

/// The factor for gradients of a scaled loss, and the update of the loss scale.
///
/// With `n = sqrt(squares) / loss scale`:
///
/// ```text
/// squares finite:  scale = min(1, maximum / n) / loss scale
///                  after growth_interval such steps in a row, loss scale *= growth, if that is finite
/// otherwise:       scale = 0, which skips the step
///                  loss scale *= backoff
/// ```
///
/// Micikevicius et al., "Mixed Precision Training", 2018, section 3.2. A gradient whose squares have no finite sum
/// in the device's numbers counts as an overflow, too.
pub struct Unscale<'a, D: Shapes> {
    /// How the loss scale changes.
    pub rule: &'a LossScaling,
    /// The largest norm; `None` does not clip.
    pub maximum: Option<f64>,
    /// `[1, 1]`, over all gradients.
    pub squares: &'a D::Matrix,
    /// `[1, 3]`: the loss scale, the number of steps without overflow since its last change, and the number of skipped
    /// steps.
    pub state: &'a mut D::Matrix,
    /// `[1, 1]`
    pub scale: &'a mut D::Matrix,
}

impl<D: Shapes> Unscale<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.matrix::<D>("squares", self.squares).rows_at_least(1).columns_at_least(1);
        checks.matrix::<D>("state", self.state).rows(1).columns(3);
        checks.matrix::<D>("scale", self.scale).rows_at_least(1).columns_at_least(1);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::copied::<f32>(4)
    }
}

/// One optimizer step on a matrix and its [`Formula::states`] state matrices, all of one shape.
pub struct Step<'a, D: Shapes> {
    /// The formula and how gradients are shaped.
    pub update: &'a Update,
    /// `[1, 1]`; see [`Update`].
    pub scale: &'a D::Matrix,
    /// Changed in place.
    pub weights: &'a mut D::Matrix,
    /// Changed in place.
    pub states: &'a mut [D::Matrix],
    /// The gradient.
    pub grad: &'a D::Matrix,
}

impl<D: Shapes> Step<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let (weights, formula) = (D::matrix_shape(self.weights), &self.update.formula);
        assert!(
            formula.row_states() == 0,
            "step: operand `update` keeps state for table rows, not for a matrix"
        );
        checks.matrix::<D>("scale", self.scale).rows_at_least(1).columns_at_least(1);
        checks.equal("states", self.states.len(), formula.states());
        for state in &*self.states {
            checks.matrix::<D>("states", state).rows(weights.rows).columns(weights.columns);
        }
        checks.matrix::<D>("grad", self.grad).rows(weights.rows).columns(weights.columns);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::step(D::matrix_shape(self.weights), self.states.len(), &self.update.formula)
    }
}

/// One optimizer step on those rows of each table that a batch touches.
///
/// A row's gradient is summed over the batch in the order of the table's lookups and the batch's rows, then applied
/// once. Summing and stepping are one operation so that the sums never go through memory.
///
/// New weights of a 16-bit table are rounded by [`Float::round_drawn`](crate::Float::round_drawn). Word `c % 4` of
/// the [Philox](crate::philox) of counter `(r, c / 4)` decides column `c` of row `r`. Its key is the exclusive or
/// of `draws`, which identifies the step, and [`TableShape::key`].
pub struct StepRows<'a, D: Shapes> {
    /// The formula and how gradients are shaped.
    pub update: &'a Update,
    /// `[1, 1]`; see [`Update`].
    pub scale: &'a D::Matrix,
    /// Identifies the step in the stochastic rounding of 16-bit tables.
    pub draws: u64,
    /// The gradients.
    pub gradients: &'a RowGradients<'a, D>,
    /// Changed in place.
    pub tables: &'a mut [D::Table],
}

impl<D: Shapes> StepRows<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        self.gradients.check(checks, self.tables);
        checks.matrix::<D>("scale", self.scale).rows_at_least(1).columns_at_least(1);
        for table in &*self.tables {
            check_states(checks, D::table_shape(table), &self.update.formula);
        }
    }

    pub(super) fn work(&self, backend: &D) -> Work {
        let formula: &Formula = &self.update.formula;
        self.gradients.work(backend, self.tables, |ids, touched, shape| {
            cost::step_rows(ids, touched, shape, D::weight_bytes(shape), formula)
        })
    }
}

/// As [`StepRows`], on the rows that all parts of a batch touch, with the sums of their gradients.
pub struct StepMergedRows<'a, D: Shapes> {
    /// The formula and how gradients are shaped.
    pub update: &'a Update,
    /// `[1, 1]`; see [`Update`].
    pub scale: &'a D::Matrix,
    /// Identifies the step in the stochastic rounding of 16-bit tables.
    pub draws: u64,
    /// The rows.
    pub rows: &'a D::MergedRows,
    /// Changed in place.
    pub tables: &'a mut [D::Table],
}

impl<D: Shapes> StepMergedRows<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        check_merged::<D>(checks, self.rows, self.tables);
        checks.matrix::<D>("scale", self.scale).rows_at_least(1).columns_at_least(1);
        for table in &*self.tables {
            check_states(checks, D::table_shape(table), &self.update.formula);
        }
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let of_tables = self.tables.iter().enumerate().map(|(number, table)| {
            let (touched, shape) = (D::merged_count(self.rows, number), D::table_shape(table));
            cost::step_merged_rows(touched, shape, D::weight_bytes(shape), &self.update.formula)
        });
        cost::sum(0, of_tables)
    }
}

/// Asserts that `tables` are those of merged rows.
fn check_merged<D: Shapes>(checks: Checks, rows: &D::MergedRows, tables: &[D::Table]) {
    let shapes = D::merged_shapes(rows);
    checks.equal("tables", tables.len(), shapes.len());
    for (table, of_rows) in tables.iter().zip(shapes) {
        let shape = D::table_shape(table);
        checks.at_least("tables", shape.rows, of_rows.rows);
        checks.equal("tables", shape.width, of_rows.width);
    }
}

/// Asserts that a table has the states of `formula`.
fn check_states(checks: Checks, shape: TableShape, formula: &Formula) {
    checks.equal("tables", shape.states, formula.states());
    checks.equal("tables", shape.row_states, formula.row_states());
}
