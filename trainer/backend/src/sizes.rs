//! A device that only counts: the memory that a model would use on a backend.

use std::cell::Cell;
use std::marker::PhantomData;

use millstream_batch::BatchSchema;

use crate::backend::Backend;
use crate::device::{Device, IdColumn, TableShape, WorkspaceUse};
use crate::float::Float;
use crate::merged_rows::PartRows;

/// Memory used by each kind of buffer that [`Device`] creates, in bytes: one function per constructor.
pub trait Layout: Backend<Scalar = f32> {
    /// Whether the device's memory is separate from the host's.
    const IS_APART: bool = false;

    /// Memory used before a model exists.
    fn base_bytes() -> u64 {
        0
    }
    /// A matrix.
    fn matrix_bytes(float: Float, rows: usize, columns: usize) -> u64;
    /// A table with its optimizer state.
    fn table_bytes(shape: TableShape) -> u64;
    /// A batch.
    fn batch_bytes(schema: &BatchSchema) -> u64;
    /// Host memory in which batches are staged.
    fn staging_bytes(_schema: &BatchSchema) -> u64 {
        0
    }
    /// A record of maxima.
    fn maxima_bytes(rows: usize, columns: usize) -> u64;
    /// Merged rows of the tables `shapes`.
    fn merged_rows_bytes(shapes: &[TableShape], rows: PartRows<'_>) -> u64;
    /// A row plan.
    fn row_plan_bytes(schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> u64;
    /// A report of `numbers` values.
    fn report_bytes(numbers: usize) -> u64;
    /// An operation's workspace.
    fn operation_bytes(operation: &WorkspaceUse<'_>) -> OperationBytes;
}

/// An operation's workspace, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationBytes {
    /// Reused by the next operation; all operations share the largest.
    pub shared: u64,
    /// Reserved for this operation.
    pub own: u64,
}

/// Counts the bytes that are requested from it.
///
/// A model built on it allocates nothing, and reports the memory that the same model uses on the backend `L`.
#[derive(Debug)]
pub struct Sizes<L> {
    bytes: Cell<u64>,
    /// The largest workspace shared by operations.
    shared: Cell<u64>,
    layout: PhantomData<L>,
}

impl<L> Default for Sizes<L> {
    fn default() -> Self {
        Self { bytes: Cell::default(), shared: Cell::default(), layout: PhantomData }
    }
}

impl<L: Layout> Sizes<L> {
    /// All bytes requested so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.get().saturating_add(self.shared.get())
    }

    fn add(&self, bytes: u64) {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }
}

impl<L: Layout> Device for Sizes<L> {
    type Scalar = f32;
    type Matrix = ();
    type Table = ();
    type Batch = ();
    type RowPlan = ();
    type Maxima = ();
    type MergedRows = ();
    type Report = ();

    const STEPS_AHEAD: usize = L::STEPS_AHEAD;

    fn matrix_of(&self, float: Float, rows: usize, columns: usize) {
        self.add(L::matrix_bytes(float, rows, columns));
    }

    fn table(&self, shape: TableShape) {
        self.add(L::table_bytes(shape));
    }

    fn batch(&self, schema: &BatchSchema) {
        self.add(L::batch_bytes(schema));
    }

    fn in_batch_numbers(queries: usize, items: usize, columns: usize) -> usize {
        L::in_batch_numbers(queries, items, columns)
    }

    fn maxima(&self, rows: usize, columns: usize) {
        self.add(L::maxima_bytes(rows, columns));
    }

    fn merged_rows(&self, shapes: &[TableShape], rows: PartRows<'_>) {
        self.add(L::merged_rows_bytes(shapes, rows));
    }

    fn report(&self, numbers: usize) {
        self.add(L::report_bytes(numbers));
    }

    fn reserve_workspace(&self, operation: &WorkspaceUse<'_>) {
        let OperationBytes { shared, own } = L::operation_bytes(operation);
        self.shared.set(self.shared.get().max(shared));
        self.add(own);
    }

    fn row_plan(&self, schema: &BatchSchema, groups: &[Vec<IdColumn>]) {
        self.add(L::row_plan_bytes(schema, groups));
    }
}
