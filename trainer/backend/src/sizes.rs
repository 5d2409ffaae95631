//! A device that only counts: what a model would take of a backend's memory.

use std::cell::Cell;
use std::marker::PhantomData;

use millstream_batch::BatchSchema;

use crate::backend::Backend;
use crate::device::{Device, IdColumn, TableShape, WorkspaceUse};
use crate::float::Float;

/// What a backend takes for each thing that [`Device`] makes, in bytes: by the functions that it makes them by.
pub trait Layout: Backend<Scalar = f32> {
    /// Whether its memory is another than the host's.
    const IS_APART: bool;

    /// What it takes before there is a model.
    fn base_bytes() -> u64;
    /// A matrix.
    fn matrix_bytes(float: Float, rows: usize, columns: usize) -> u64;
    /// The same for what ReLU gives.
    fn rectified_bytes(float: Float, rows: usize, columns: usize) -> u64 {
        Self::matrix_bytes(float, rows, columns)
    }
    /// A table with its optimizer state.
    fn table_bytes(shape: TableShape) -> u64;
    /// A batch.
    fn batch_bytes(schema: &BatchSchema) -> u64;
    /// What batches come through, of the host's memory; nothing where they are not staged.
    fn staging_bytes(schema: &BatchSchema) -> u64;
    /// What [`Device::softmax_work`] gives.
    fn softmax_bytes(rows: usize, columns: usize) -> u64;
    /// The plan of a batch's rows.
    fn row_plan_bytes(schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> u64;
    /// A report of so many numbers.
    fn report_bytes(numbers: usize) -> u64;
    /// What an operation works in.
    fn operation_bytes(operation: &WorkspaceUse<'_>) -> OperationBytes;
}

/// What an operation works in, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationBytes {
    /// One operation's until the next: they share what the largest takes.
    pub shared: u64,
    /// Its own.
    pub own: u64,
}

/// Counts the bytes of what is asked of it.
///
/// A model built on it holds nothing, and tells what the same model takes on the backend `L`.
#[derive(Debug)]
pub struct Sizes<L> {
    bytes: Cell<u64>,
    /// The most that an operation shares with others.
    shared: Cell<u64>,
    layout: PhantomData<L>,
}

impl<L> Default for Sizes<L> {
    fn default() -> Self {
        Self { bytes: Cell::default(), shared: Cell::default(), layout: PhantomData }
    }
}

impl<L: Layout> Sizes<L> {
    /// All that was asked for so far.
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
    type Report = ();

    const STEPS_AHEAD: usize = L::STEPS_AHEAD;

    fn matrix_of(&self, float: Float, rows: usize, columns: usize) {
        self.add(L::matrix_bytes(float, rows, columns));
    }

    fn rectified(&self, float: Float, rows: usize, columns: usize) {
        self.add(L::rectified_bytes(float, rows, columns));
    }

    fn table(&self, shape: TableShape) {
        self.add(L::table_bytes(shape));
    }

    fn batch(&self, schema: &BatchSchema) {
        self.add(L::batch_bytes(schema));
    }

    fn softmax_work(&self, rows: usize, columns: usize) {
        self.add(L::softmax_bytes(rows, columns));
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
