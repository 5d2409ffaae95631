//! A device that only counts: what the CPU backend would take.

use std::cell::Cell;

use millstream_batch::BatchSchema;

use crate::cpu::{Cpu, CpuMatrix};
use crate::device::{Device, IdColumn, TableShape};
use crate::float::Float;

/// Counts the bytes of what is asked of it.
///
/// A model built on it holds nothing, and tells what the same model takes on [`Cpu`].
#[derive(Debug, Default)]
pub struct Sizes {
    bytes: Cell<u64>,
    /// The most that a layer works in.
    work: Cell<u64>,
}

impl Sizes {
    /// All that was asked for so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.get().saturating_add(self.work.get())
    }

    fn add(&self, bytes: u64) {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }
}

impl Device for Sizes {
    type Scalar = f32;
    type Matrix = ();
    type Table = ();
    type Batch = ();
    type RowPlan = ();

    fn matrix_of(&self, _float: Float, rows: usize, columns: usize) {
        self.add(CpuMatrix::bytes(rows, columns));
    }

    fn table(&self, shape: TableShape) {
        self.add(Cpu::table_bytes(shape));
    }

    fn batch(&self, schema: &BatchSchema) {
        self.add(Cpu::batch_bytes(schema));
    }

    fn layer_work(&self, inputs: usize, outputs: usize) {
        self.work.set(self.work.get().max(Cpu::layer_bytes(inputs, outputs)));
    }

    fn softmax_work(&self, rows: usize, columns: usize) {
        self.matrix(1, Cpu::softmax_numbers(rows, columns));
    }

    fn row_plan(&self, schema: &BatchSchema, groups: &[Vec<IdColumn>]) {
        self.add(Cpu::row_plan_bytes(schema, groups));
    }
}
