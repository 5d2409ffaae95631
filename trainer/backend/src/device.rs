//! A device's buffers: opaque types, and the shapes and formats of their values.

use std::fmt::Debug;
use std::ops::Range;

use millstream_batch::{BatchRef, BatchSchema};

use crate::collective::Summand;
use crate::float::Float;
use crate::merged_rows::{MergedShape, PartRows};

/// Bits that identify an id's place, its column and its batch row, in a group of several columns: the number of
/// columns times the batch's rows, the latter rounded up to a power of two, is at most two to this power.
pub const PLACE_BITS: u32 = 32;

/// The scalar type that a backend computes with.
pub trait Scalar: Summand + Debug + Default + PartialEq {
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

/// The direction of a normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Each row over its columns: Ba, Kiros and Hinton, "Layer Normalization", 2016, section 3.
    Row,
    /// Each column over the rows: Ioffe and Szegedy, "Batch Normalization", 2015, Algorithm 1.
    Column,
}

/// A column of ids in a batch, by its index in the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdColumn {
    /// One id per row: `BatchSchema::ids`.
    Single(usize),
    /// Any number of ids per row: `BatchSchema::ragged`.
    Ragged(usize),
}

/// How the table rows of one batch row are combined into one vector, if they are. No ids give zeros.
///
/// In a weighted column, each id has a weight `w`. `Sum` computes the sum of `w * row`; `Mean` divides it by the
/// sum of `w`, and `SqrtN` by the square root of the sum of `w^2`. For the latter two, ids whose weight is not
/// positive are ignored, to avoid division by 0, as in TensorFlow's `safe_embedding_lookup_sparse`; the gradient
/// with respect to their table rows is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum, divided by the square root of their number.
    SqrtN,
    /// Their maximum in each column, of a multi-valued column's ids; weights are ignored. The gradient of an output column
    /// goes to the first id of the batch row that holds its maximum there: see [`Device::Maxima`].
    Max,
    /// Not combined: the rows of up to so many ids, one after the other, then zeros. The column is multi-valued, and this
    /// is the most ids that it can have in a batch row. Weights are ignored.
    Unpooled(u32),
}

impl Pooling {
    /// The code that CUDA kernels know it by.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Sum => 0,
            Self::Mean => 1,
            Self::SqrtN => 2,
            Self::Unpooled(_) => 3,
            Self::Max => 4,
        }
    }

    /// The number of vectors that it makes of a batch row.
    pub fn vectors(self) -> usize {
        match self {
            Self::Sum | Self::Mean | Self::SqrtN | Self::Max => 1,
            Self::Unpooled(most) => most as usize,
        }
    }

    /// The factor of each of `ids` ids.
    pub(crate) fn factor(self, ids: usize) -> f64 {
        match self {
            Self::Sum | Self::Max | Self::Unpooled(_) => 1.0,
            Self::Mean => 1.0 / ids.max(1) as f64,
            Self::SqrtN => 1.0 / (ids.max(1) as f64).sqrt(),
        }
    }
}

/// A column of ids looked up in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The column of ids.
    pub column: IdColumn,
    /// How several ids of a row are combined.
    pub pooling: Pooling,
    /// The table's number. Several columns may be looked up in one table. Lookups are ordered by table, and every
    /// table has at least one.
    pub table: usize,
    /// The lookup's first column in the concatenated output of all lookups.
    pub first: usize,
}

impl Lookup {
    /// The lookups in table `number`.
    pub(crate) fn of_table(all: &[Self], number: usize) -> &[Self] {
        let first = all.partition_point(|lookup| lookup.table < number);
        let count = all[first..].partition_point(|lookup| lookup.table == number);
        &all[first..first + count]
    }

    /// The number of columns of its output, given the table's width.
    pub fn columns(&self, width: usize) -> usize {
        width.saturating_mul(self.pooling.vectors())
    }

    /// The number of columns of all lookups, given the tables' widths.
    pub(crate) fn widths(all: &[Self], width: impl Fn(usize) -> usize) -> usize {
        all.iter().map(|lookup| lookup.columns(width(lookup.table))).sum()
    }

    /// Whether it takes maxima over several ids.
    pub(crate) fn has_maxima(&self) -> bool {
        self.pooling == Pooling::Max && matches!(self.column, IdColumn::Ragged(_))
    }

    /// The number of its columns in [`Device::Maxima`], given the table's width.
    pub(crate) fn maxima(&self, width: usize) -> usize {
        if self.has_maxima() { width } else { 0 }
    }

    /// The number of columns of all lookups in [`Device::Maxima`], given the tables' widths.
    pub fn all_maxima(all: &[Self], width: impl Fn(usize) -> usize) -> usize {
        all.iter().map(|lookup| lookup.maxima(width(lookup.table))).sum()
    }
}

/// The sizes of a batch on a device.
#[derive(Clone, Debug, Default)]
pub struct BatchShape {
    /// Rows.
    pub rows: usize,
    /// Labels per row.
    pub labels: usize,
    /// Dense columns.
    pub dense: usize,
    /// Single-valued features.
    pub single_ids: usize,
    /// Ids of each multi-valued feature, over all rows.
    pub ragged_ids: Vec<usize>,
    /// The most ids of each multi-valued feature in a row.
    pub maxima: Vec<u32>,
    /// The bound of ids of each single-valued feature, then of each multi-valued one.
    pub cardinalities: Vec<u32>,
}

impl BatchShape {
    /// The shape of an empty batch of `schema`.
    pub(crate) fn of(schema: &BatchSchema) -> Self {
        let single = schema.ids.iter().map(|feature| feature.cardinality);
        let cardinalities = single.chain(schema.ragged.iter().map(|feature| feature.cardinality));
        Self {
            rows: 0,
            labels: schema.label_count(),
            dense: schema.dense.len(),
            single_ids: schema.ids.len(),
            ragged_ids: vec![0; schema.ragged.len()],
            maxima: schema.ragged.iter().map(|feature| feature.maximum).collect(),
            cardinalities: cardinalities.collect(),
        }
    }

    /// Sets the sizes to those of `batch`, which has the same schema.
    pub(crate) fn set(&mut self, batch: BatchRef<'_>) {
        self.rows = batch.rows();
        for (feature, ids) in self.ragged_ids.iter_mut().enumerate() {
            *ids = batch.ragged(feature).1.len();
        }
    }

    /// The number of ids of a column in `rows` of the batch's rows; for a multi-valued feature, proportional to the
    /// rows.
    pub(crate) fn ids(&self, column: IdColumn, rows: usize) -> usize {
        match column {
            IdColumn::Single(_) => rows,
            IdColumn::Ragged(feature) => self.ragged_ids[feature] * rows / self.rows.max(1),
        }
    }

    /// The most ids of a multi-valued column in a row; `None` for a single-valued one.
    pub(crate) fn maximum(&self, column: IdColumn) -> Option<u32> {
        match column {
            IdColumn::Single(_) => None,
            IdColumn::Ragged(feature) => Some(self.maxima[feature]),
        }
    }

    /// The bound of a column's ids.
    pub(crate) fn cardinality(&self, column: IdColumn) -> u32 {
        match column {
            IdColumn::Single(feature) => self.cardinalities[feature],
            IdColumn::Ragged(feature) => self.cardinalities[self.single_ids + feature],
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
    /// Columns.
    pub columns: usize,
    /// Size of a value on the device, in bytes.
    pub number_bytes: usize,
}

/// The size of a table, and the format of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Its cardinality, `C`.
    pub rows: usize,
    /// Weights per row, `W`.
    pub width: usize,
    /// The format of the weights; state is fp32. See [`Float`].
    pub float: Float,
    /// Identifies the table in stochastic rounding: see [`StepRows`](crate::ops::StepRows).
    pub key: u64,
    /// State values that the optimizer keeps per weight: [`Formula::states`](crate::Formula::states).
    pub states: usize,
    /// State values that it keeps per row: [`Formula::row_states`](crate::Formula::row_states).
    pub row_states: usize,
}

/// A part of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TablePart {
    /// The weights.
    Weights,
    /// The optimizer's per-weight state array of this number.
    State(usize),
    /// The optimizer's per-row state array of this number.
    RowState(usize),
}

/// The location of a part in a copy of a table: the values of row `r` start at `first + r * stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePlace {
    /// The start of the first row.
    pub first: usize,
    /// Row stride.
    pub stride: usize,
}

impl TableShape {
    /// All parts of the table: weights, per-weight states, then per-row states.
    pub fn parts(self) -> impl Iterator<Item = TablePart> {
        let states = (0..self.states).map(TablePart::State);
        let row_states = (0..self.row_states).map(TablePart::RowState);
        std::iter::once(TablePart::Weights).chain(states).chain(row_states)
    }

    /// The number of values per row of `part`.
    pub fn part_width(&self, part: TablePart) -> usize {
        match part {
            TablePart::Weights | TablePart::State(_) => self.width,
            TablePart::RowState(_) => 1,
        }
    }

    /// Where the numbers `range` are, if all parts follow one another: each part that has some, and the range of its numbers.
    pub fn ranges_of_parts(self, range: Range<usize>) -> impl Iterator<Item = (TablePart, Range<usize>)> {
        let numbers = move |part| self.rows * self.part_width(part);
        let ranges = ranges_of(self.parts().map(numbers), range);
        self.parts().zip(ranges).filter(|(_, range)| !range.is_empty())
    }
}

/// Where the items `range` of consecutive pieces are, of which each has so many items: the range within each piece.
pub fn ranges_of(
    pieces: impl Iterator<Item = usize>,
    range: Range<usize>,
) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    pieces.map(move |len| {
        let [first, end] = [range.start, range.end].map(|at| at.clamp(start, start + len) - start);
        start += len;
        first..end
    })
}

/// A use of operations that need a workspace besides their operands. A model's uses are known when it is built, so
/// the workspace is reserved then.
#[derive(Clone, Copy, Debug)]
pub enum WorkspaceUse<'a> {
    /// A fully connected layer, forward and backward.
    Layer {
        /// The format of its input and its products' weights.
        float: Float,
        /// The most rows.
        rows: usize,
        /// `N`
        inputs: usize,
        /// `M`
        outputs: usize,
    },
    /// A normalization, forward and backward.
    Normalization {
        /// The direction.
        axis: Axis,
        /// The most rows.
        rows: usize,
        /// `N`
        columns: usize,
    },
    /// Concatenated lookups, and the steps of the tables' rows.
    Lookups {
        /// The schema of batches.
        schema: &'a BatchSchema,
        /// The lookups.
        lookups: &'a [Lookup],
        /// The shape of each table.
        shapes: &'a [TableShape],
        /// Dense columns concatenated with them.
        dense: usize,
    },
    /// The sums of gradients of the same tables' rows: [`Backend::sum_rows`](crate::Backend::sum_rows).
    RowSums {
        /// The schema of batches.
        schema: &'a BatchSchema,
        /// The lookups.
        lookups: &'a [Lookup],
        /// The shape of each table.
        shapes: &'a [TableShape],
    },
    /// The steps of the rows of tables that all parts of a batch touch.
    MergedRows {
        /// The shape of each table.
        shapes: &'a [TableShape],
        /// How many rows they touch.
        rows: PartRows<'a>,
    },
    /// The gradients of a linear model's dense weights and bias.
    Linear {
        /// The most rows.
        rows: usize,
        /// Dense columns.
        dense: usize,
        /// Columns of the output.
        outputs: usize,
    },
    /// A per-row loss.
    Loss {
        /// The most rows.
        rows: usize,
        /// Number of classes; 0 for other losses.
        classes: usize,
    },
    /// A loss that compares the rows of lists.
    Lists {
        /// The most rows.
        rows: usize,
    },
    /// The squared norm of a gradient.
    Squares,
    /// A transfer of a matrix from or to the host.
    Transfer {
        /// The most values.
        numbers: usize,
    },
}

/// A device's memory.
///
/// Buffers are allocated once, when a model is built. Building the model on [`crate::Sizes`] instead computes its
/// memory usage without allocating.
pub trait Device {
    /// The scalar type.
    type Scalar: Scalar;
    /// A row-major matrix.
    type Matrix: Send + 'static;
    /// An embedding table: rows of weights with their optimizer state.
    type Table: Send + 'static;
    /// A batch in device memory.
    type Batch: Send + 'static;
    /// The rows of each table that a batch touches, and the places that touch them.
    type RowPlan: Send + 'static;
    /// The ids that hold the maxima of a batch's lookups, `[B, columns of each lookup with Pooling::Max]`, in the order of
    /// the lookups. [`Gather`](crate::ops::Gather) records them, because the tables may have changed, and a table's
    /// rows are being stepped in parallel, when their gradients are summed.
    type Maxima: Send + 'static;
    /// The rows of tables that all parts of a batch touch: see [`Backend::merge_rows`](crate::Backend::merge_rows).
    type MergedRows: Send + 'static;
    /// Values on their way to the host: see [`Backend::send`](crate::Backend::send).
    type Report: Send + 'static;

    /// The number of steps to keep in flight, before receiving the first one's report, so that the device never
    /// idles.
    const STEPS_AHEAD: usize;

    /// Allocates a matrix of zeros that rounds written values to `float`.
    fn matrix_of(&self, float: Float, rows: usize, columns: usize) -> Self::Matrix;
    /// An fp32 matrix of zeros.
    fn matrix(&self, rows: usize, columns: usize) -> Self::Matrix {
        self.matrix_of(Float::F32, rows, columns)
    }
    /// Allocates a table of zeros.
    fn table(&self, shape: TableShape) -> Self::Table;
    /// Allocates a buffer for batches of `schema`.
    fn batch(&self, schema: &BatchSchema) -> Self::Batch;
    /// Allocates the workspace of [`InBatchInput`](crate::ops::InBatchInput), for up to `queries` queries and `items` items of
    /// `columns` columns.
    fn in_batch_work(&self, queries: usize, items: usize, columns: usize) -> Self::Matrix {
        self.matrix(1, Self::in_batch_numbers(queries, items, columns))
    }
    /// The size of this workspace, in values.
    fn in_batch_numbers(queries: usize, items: usize, columns: usize) -> usize;
    /// Allocates a record of maxima for batches of up to `rows` rows.
    fn maxima(&self, rows: usize, columns: usize) -> Self::Maxima;
    /// Allocates room for the `rows` of the tables `shapes` that all parts of a batch touch.
    fn merged_rows(&self, shapes: &[TableShape], rows: PartRows<'_>) -> Self::MergedRows;
    /// Allocates a report of `numbers` values.
    fn report(&self, numbers: usize) -> Self::Report;
    /// Reserves the workspace of a use.
    fn reserve_workspace(&self, _usage: &WorkspaceUse<'_>) {}
    /// Allocates a plan for batches of `schema` over `groups` of columns; each column is in one group. A group has
    /// the columns looked up in one table, in the order of its lookups; [`PLACE_BITS`] bounds its size.
    fn row_plan(&self, schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> Self::RowPlan;
}

/// The shapes of a device's buffers: all that an operation needs for its checks and its cost.
pub trait Shapes: Device {
    /// The size of a matrix.
    fn matrix_shape(matrix: &Self::Matrix) -> MatrixShape;
    /// The size of a record of maxima.
    fn maxima_shape(maxima: &Self::Maxima) -> MatrixShape;
    /// The size of a table.
    fn table_shape(table: &Self::Table) -> TableShape;
    /// The size of a batch.
    fn batch_shape(batch: &Self::Batch) -> &BatchShape;
    /// The shapes of merged rows, by table.
    fn merged_shapes(rows: &Self::MergedRows) -> &[MergedShape];
    /// The number of merged rows of table `table`; or, if only the device knows, the least that it can be.
    fn merged_count(rows: &Self::MergedRows, table: usize) -> usize;
    /// The columns of a plan's groups.
    fn planned_columns(plan: &Self::RowPlan) -> impl Iterator<Item = IdColumn>;
    /// Size of a table's weight on the device, in bytes.
    fn weight_bytes(_shape: TableShape) -> usize {
        size_of::<Self::Scalar>()
    }
    /// The number of table rows that a batch touches through `lookups`; `None` if only the device knows.
    fn touched_rows(&self, _plan: &Self::RowPlan, _lookups: &[Lookup]) -> Option<usize> {
        None
    }

    /// The location of `part` in a [`CopyTable`](crate::ops::CopyTable): by default, parts are stored one after the
    /// other.
    fn table_place(shape: TableShape, part: TablePart) -> TablePlace {
        let before = shape.parts().take_while(|&other| other != part);
        let first = before.map(|part| shape.rows * shape.part_width(part)).sum();
        TablePlace { first, stride: shape.part_width(part) }
    }
    /// The number of values that [`CopyTable`](crate::ops::CopyTable) copies.
    fn copied_numbers(shape: TableShape) -> usize {
        shape.parts().map(|part| shape.rows * shape.part_width(part)).sum()
    }
}
