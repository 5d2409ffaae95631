//! What a device holds: opaque buffers, and what their numbers mean.

use std::fmt::Debug;

use millstream_batch::{BatchRef, BatchSchema};

use crate::float::Float;

/// Bits that tell apart, in a group of several columns, the columns and, of each, the rows of a batch: their number
/// times the rows, rounded up to a power of two, is at most two to this power.
pub const PLACE_BITS: u32 = 32;

/// A number a backend computes with.
pub trait Scalar: Copy + Debug + Default + PartialEq + Send + Sync + 'static {
    /// The nearest value.
    fn from_f64(value: f64) -> Self;
    /// The same value.
    fn to_f64(self) -> f64;
}

impl Scalar for f32 {
    fn from_f64(value: f64) -> Self {
        value as Self
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Scalar for f64 {
    fn from_f64(value: f64) -> Self {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }
}

/// The direction of a normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Each row over its columns: Ba, Kiros and Hinton, "Layer Normalization", 2016, section 3.
    Row,
    /// Each column over the rows: Ioffe and Szegedy, "Batch Normalization", 2015, Algorithm 1.
    Column,
}

/// A column of ids in a batch, by its place in the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdColumn {
    /// One id a row: `BatchSchema::ids`.
    Single(usize),
    /// Any number of ids a row: `BatchSchema::ragged`.
    Ragged(usize),
}

/// How the table rows of one batch row become one vector. No ids give zeros.
///
/// In a weighted column each id counts by its weight `w`: the sum is that of `w * row`, the mean that over the sum of
/// `w`, and over the root is that over the root of the sum of `w^2`. In the latter two an id whose weight is not above 0
/// counts for nothing, so that nothing is divided by 0: TensorFlow's `safe_embedding_lookup_sparse`. The gradient by
/// its table row is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum over the square root of their number.
    SqrtN,
}

impl Pooling {
    /// What each of `ids` ids counts for.
    pub(crate) fn factor(self, ids: usize) -> f64 {
        match self {
            Self::Sum => 1.0,
            Self::Mean => 1.0 / ids.max(1) as f64,
            Self::SqrtN => 1.0 / (ids.max(1) as f64).sqrt(),
        }
    }
}

/// A column of ids looked up in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Where the ids are.
    pub column: IdColumn,
    /// What becomes of several ids in a row.
    pub pooling: Pooling,
    /// The table's number. Several columns may be looked up in one; all lookups are in the order of their tables, of
    /// which each has one at least.
    pub table: usize,
    /// Columns before its own, of those that all lookups give.
    pub first: usize,
}

impl Lookup {
    /// Those in table `number`.
    pub(crate) fn of_table(all: &[Self], number: usize) -> &[Self] {
        let first = all.partition_point(|lookup| lookup.table < number);
        let count = all[first..].partition_point(|lookup| lookup.table == number);
        &all[first..first + count]
    }

    /// Columns that all give, from tables of these widths.
    pub(crate) fn widths(all: &[Self], width: impl Fn(usize) -> usize) -> usize {
        all.iter().map(|lookup| width(lookup.table)).sum()
    }
}

/// The sizes of a batch on a device.
#[derive(Clone, Debug, Default)]
pub struct BatchShape {
    /// Rows.
    pub rows: usize,
    /// Labels of a row.
    pub labels: usize,
    /// Dense columns.
    pub dense: usize,
    /// Single-valued features.
    pub single_ids: usize,
    /// Ids of each multi-valued feature, over all rows.
    pub ragged_ids: Vec<usize>,
}

impl BatchShape {
    /// The shape of an empty batch of `schema`.
    pub(crate) fn of(schema: &BatchSchema) -> Self {
        Self {
            rows: 0,
            labels: schema.label_count(),
            dense: schema.dense.len(),
            single_ids: schema.ids.len(),
            ragged_ids: vec![0; schema.ragged.len()],
        }
    }

    /// Takes over the sizes of `batch`, which has the same schema.
    pub(crate) fn set(&mut self, batch: BatchRef<'_>) {
        self.rows = batch.rows();
        for (feature, ids) in self.ragged_ids.iter_mut().enumerate() {
            *ids = batch.ragged(feature).1.len();
        }
    }

    /// The ids of a column in `rows` of the batch's rows; of a multi-valued feature, the rows' share of all.
    pub(crate) fn ids(&self, column: IdColumn, rows: usize) -> usize {
        match column {
            IdColumn::Single(_) => rows,
            IdColumn::Ragged(feature) => self.ragged_ids[feature] * rows / self.rows.max(1),
        }
    }

    /// Calls `check` with the index of `column` and the number of such columns.
    pub(crate) fn check_column(&self, column: IdColumn, check: impl FnOnce(usize, usize)) {
        match column {
            IdColumn::Single(feature) => check(feature, self.single_ids),
            IdColumn::Ragged(feature) => check(feature, self.ragged_ids.len()),
        }
    }
}

/// The size of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Its rows.
    pub rows: usize,
    /// Numbers of a row.
    pub columns: usize,
    /// Bytes that a number takes on the device.
    pub number_bytes: usize,
}

/// What a table is: its size, and what its numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Its cardinality, `C`.
    pub rows: usize,
    /// Weights of a row, `W`.
    pub width: usize,
    /// What weights are rounded to; state has single precision. See [`Float`].
    pub float: Float,
    /// What tells it from other tables where weights are rounded at random: see [`StepRows`](crate::ops::StepRows).
    pub key: u64,
    /// State numbers that its optimizer keeps for each weight: [`Formula::states`](crate::Formula::states).
    pub states: usize,
    /// State numbers that it keeps for each row: [`Formula::row_states`](crate::Formula::row_states).
    pub row_states: usize,
}

/// Which numbers of a table are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TablePart {
    /// The weights.
    Weights,
    /// The optimizer's state array of this number.
    State(usize),
    /// The optimizer's numbers for whole rows, of this number.
    RowState(usize),
}

/// Where the numbers of a part lie in a copy of a table: those of row `r` begin at `first + r * stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePlace {
    /// Where the first row's begin.
    pub first: usize,
    /// Numbers from one row to the next.
    pub stride: usize,
}

impl TableShape {
    /// All that it has: weights, then states, then those of rows.
    pub fn parts(self) -> impl Iterator<Item = TablePart> {
        let states = (0..self.states).map(TablePart::State);
        let row_states = (0..self.row_states).map(TablePart::RowState);
        std::iter::once(TablePart::Weights).chain(states).chain(row_states)
    }

    /// Numbers of one row that `part` has.
    pub fn part_width(&self, part: TablePart) -> usize {
        match part {
            TablePart::Weights | TablePart::State(_) => self.width,
            TablePart::RowState(_) => 1,
        }
    }
}

/// A use of operations that need workspace besides their operands. A model's uses are known when it is built, so the
/// workspace is reserved then.
#[derive(Clone, Copy, Debug)]
pub enum WorkspaceUse<'a> {
    /// A fully connected layer, forward and backward.
    Layer {
        /// The format of its input and its products' weights.
        float: Float,
        /// At most.
        rows: usize,
        /// `N`
        inputs: usize,
        /// `M`
        outputs: usize,
    },
    /// A normalisation, forward and backward.
    Normalization {
        /// The direction.
        axis: Axis,
        /// At most.
        rows: usize,
        /// `N`
        columns: usize,
    },
    /// Lookups side by side, and the steps of the tables' rows.
    Lookups {
        /// The schema of batches.
        schema: &'a BatchSchema,
        /// The lookups.
        lookups: &'a [Lookup],
        /// The shape of each table.
        shapes: &'a [TableShape],
        /// Dense columns beside them.
        dense: usize,
    },
    /// The gradients of a linear model's dense weights and bias.
    Linear {
        /// At most.
        rows: usize,
        /// Dense columns.
        dense: usize,
        /// Columns of the output.
        outputs: usize,
    },
    /// The loss of rows.
    Loss {
        /// At most.
        rows: usize,
        /// Number of classes; 0 for other losses.
        classes: usize,
    },
    /// The squared norm of a gradient.
    Squares,
    /// A transfer of a matrix from or to the host.
    Transfer {
        /// At most.
        numbers: usize,
    },
}

/// A device's memory.
///
/// Memory is made once, when a model is built. What a model takes is known without any, by building it on
/// [`crate::Sizes`].
pub trait Device {
    /// What it computes with.
    type Scalar: Scalar;
    /// Numbers in rows and columns.
    type Matrix: Send + 'static;
    /// An embedding table: rows of weights with their optimizer state.
    type Table: Send + 'static;
    /// A batch in device memory.
    type Batch: Send + 'static;
    /// Which rows of which tables a batch touches, and from where.
    type RowPlan: Send + 'static;
    /// Numbers on their way to the host: see [`Backend::send`](crate::Backend::send).
    type Report: Send + 'static;

    /// So many steps may be asked for before the first one's report is received, for a device never to wait.
    const STEPS_AHEAD: usize;

    /// A matrix of zeros, which rounds what is written to it to `float`.
    fn matrix_of(&self, float: Float, rows: usize, columns: usize) -> Self::Matrix;
    /// The same for what ReLU gives: a device may keep beside it which numbers are above 0.
    fn rectified(&self, float: Float, rows: usize, columns: usize) -> Self::Matrix {
        self.matrix_of(float, rows, columns)
    }
    /// One of single precision.
    fn matrix(&self, rows: usize, columns: usize) -> Self::Matrix {
        self.matrix_of(Float::F32, rows, columns)
    }
    /// A table of zeros.
    fn table(&self, shape: TableShape) -> Self::Table;
    /// Room for a batch of `schema`.
    fn batch(&self, schema: &BatchSchema) -> Self::Batch;
    /// What [`SoftmaxInput`](crate::ops::SoftmaxInput) works in, for up to `rows` rows of `columns` columns.
    fn softmax_work(&self, rows: usize, columns: usize) -> Self::Matrix;
    /// Room for a report of so many numbers.
    fn report(&self, numbers: usize) -> Self::Report;
    /// Reserves the workspace of a use.
    fn reserve_workspace(&self, usage: &WorkspaceUse<'_>);
    /// Room for the plan of any batch of `schema` over `groups` of columns, each once: a group is what is looked up in
    /// one table, in the order of its lookups; [`PLACE_BITS`] bounds them.
    fn row_plan(&self, schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> Self::RowPlan;
}

/// The shapes of a device's buffers: all that an operation needs for its checks and its cost.
pub trait Shapes: Device {
    /// The size of a matrix.
    fn matrix_shape(matrix: &Self::Matrix) -> MatrixShape;
    /// The size of a table.
    fn table_shape(table: &Self::Table) -> TableShape;
    /// The size of a batch.
    fn batch_shape(batch: &Self::Batch) -> &BatchShape;
    /// The columns of a plan's groups.
    fn planned_columns(plan: &Self::RowPlan) -> impl Iterator<Item = IdColumn>;
    /// Bytes of a table's weight on the device.
    fn weight_bytes(_shape: TableShape) -> usize {
        size_of::<Self::Scalar>()
    }
    /// The number of table rows that a batch touches through `lookups`; `None` if only the device knows.
    fn touched_rows(&self, _plan: &Self::RowPlan, _lookups: &[Lookup]) -> Option<usize> {
        None
    }
    /// Numbers of the workspace of [`InBatchSoftmax`](crate::ops::InBatchSoftmax) for so many rows and columns.
    fn softmax_numbers(rows: usize, columns: usize) -> usize;

    /// Where [`CopyTable`](crate::ops::CopyTable) puts the numbers of `part`: by default, each part whole, one after the other.
    fn table_place(shape: TableShape, part: TablePart) -> TablePlace {
        let before = shape.parts().take_while(|&other| other != part);
        let first = before.map(|part| shape.rows * shape.part_width(part)).sum();
        TablePlace { first, stride: shape.part_width(part) }
    }
    /// Numbers that [`CopyTable`](crate::ops::CopyTable) copies.
    fn copied_numbers(shape: TableShape) -> usize {
        shape.parts().map(|part| shape.rows * shape.part_width(part)).sum()
    }
}
