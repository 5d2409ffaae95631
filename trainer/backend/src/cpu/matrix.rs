//! Matrices and tables of the CPU backend, and their memory layout.

use crate::cpu::memory::{LINE, Memory};
use crate::cpu::parts::{Parts, Rows};
use crate::device::{TablePart, TablePlace, TableShape};
use crate::float::Float;

/// A row-major matrix.
///
/// Rows of a cache line or more are aligned to cache lines, so vector loads and the rows that a gather writes do
/// not straddle lines. The padding between rows is never read.
pub struct CpuMatrix {
    float: Float,
    rows: usize,
    columns: usize,
    stride: usize,
    memory: Memory,
}

impl CpuMatrix {
    pub(crate) fn new(float: Float, rows: usize, columns: usize) -> Self {
        let stride = Self::stride_of(columns);
        Self { float, rows, columns, stride, memory: Memory::zeroed(rows * stride) }
    }

    /// Size of a matrix, in bytes.
    pub(crate) fn bytes(rows: usize, columns: usize) -> u64 {
        (rows as u64).saturating_mul((Self::stride_of(columns) * size_of::<f32>()) as u64)
    }

    /// Row stride of a matrix of `columns` columns, in floats.
    pub(crate) fn stride_of(columns: usize) -> usize {
        if columns < LINE { columns } else { columns.next_multiple_of(LINE) }
    }

    /// The format that values are rounded to.
    pub(crate) fn float(&self) -> Float {
        self.float
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Row stride, in floats.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.as_slice()[row * self.stride..][..self.columns]
    }

    /// All rows, including the padding between them.
    pub(crate) fn as_slice(&self) -> &[f32] {
        self.memory.as_slice()
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        self.memory.as_mut_slice()
    }

    /// Divides the matrix among tasks by rows, including the padding between them.
    pub(crate) fn by_rows(&mut self) -> Rows<'_, f32> {
        Rows::of(self.memory.as_mut_slice(), self.stride)
    }

    pub(crate) fn write(&mut self, values: &[f32]) {
        assert!(values.len() <= self.rows * self.columns, "at most one value per element");
        let (float, stride, columns) = (self.float, self.stride, self.columns);
        for (row, values) in values.chunks_exact(columns.max(1)).enumerate() {
            let row = &mut self.as_mut_slice()[row * stride..][..columns];
            row.copy_from_slice(values);
            float.round_all(row);
        }
    }

    pub(crate) fn read(&self, out: &mut [f32]) {
        assert!(out.len().is_multiple_of(self.columns.max(1)), "whole rows");
        for (row, out) in out.chunks_exact_mut(self.columns.max(1)).enumerate() {
            out.copy_from_slice(self.row(row));
        }
    }
}

/// An embedding table.
///
/// A row's weights and their optimizer state are stored together: `[w; W] [state 0; W] [state 1; W]`, then any
/// per-row state. The step accesses both at a row that is in no cache. For narrow rows (an Adagrad row of 8
/// columns, an FTRL row of 1) that is one cache line instead of two or three; for wide rows it is as many lines but
/// one page instead of several. The price: where rows are narrower than a line, a gather's lines also carry state
/// that it does not need. Training accesses that state soon after.
///
/// Rows shorter than a cache line are padded to a power of two, so that none straddles two lines.
pub struct CpuTable {
    shape: TableShape,
    stride: usize,
    memory: Memory,
}

impl CpuTable {
    pub(crate) fn new(shape: TableShape) -> Self {
        let stride = Self::row_floats(shape);
        Self { shape, stride, memory: Memory::zeroed(shape.rows * stride) }
    }

    /// Floats that one row occupies.
    pub(crate) fn row_floats(shape: TableShape) -> usize {
        let floats = shape.width * (1 + shape.states) + shape.row_states;
        if floats < LINE { floats.next_power_of_two() } else { floats }
    }

    pub(crate) fn shape(&self) -> TableShape {
        self.shape
    }

    /// Row stride, in floats.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// All rows, including state.
    pub(crate) fn as_slice(&self) -> &[f32] {
        self.memory.as_slice()
    }

    /// Shares the tables among the tasks of one operation; each task writes to separate rows.
    pub(crate) fn share(tables: &mut [Self]) -> SharedTables<'_> {
        SharedTables(tables)
    }

    pub(crate) fn write(&mut self, part: TablePart, first_row: usize, values: &[f32]) {
        let (start, stride, width) = (self.part_start(part), self.stride, self.shape.part_width(part));
        assert!(values.len().is_multiple_of(width), "whole rows");
        let float = if part == TablePart::Weights { self.shape.float } else { Float::F32 };
        let rows = self.memory.as_mut_slice()[first_row * stride..].chunks_exact_mut(stride);
        for (row, values) in rows.zip(values.chunks_exact(width)) {
            let row = &mut row[start..start + width];
            row.copy_from_slice(values);
            if float != Float::F32 {
                row.iter_mut().for_each(|number| *number = float.round_finite(*number));
            }
        }
    }

    pub(crate) fn read(&self, part: TablePart, first_row: usize, out: &mut [f32]) {
        let (start, width) = (self.part_start(part), self.shape.part_width(part));
        assert!(out.len().is_multiple_of(width), "whole rows");
        let rows = self.as_slice()[first_row * self.stride..].chunks_exact(self.stride);
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&row[start..start + width]);
        }
    }

    /// The location of `part`.
    pub(crate) fn place(shape: TableShape, part: TablePart) -> TablePlace {
        TablePlace { first: part_start(shape, part), stride: Self::row_floats(shape) }
    }

    fn part_start(&self, part: TablePart) -> usize {
        part_start(self.shape, part)
    }
}

/// The offset of `part` within a row.
fn part_start(shape: TableShape, part: TablePart) -> usize {
    match part {
        TablePart::Weights => 0,
        TablePart::State(number) => {
            assert!(number < shape.states, "no state array {number}");
            (1 + number) * shape.width
        }
        TablePart::RowState(number) => {
            assert!(number < shape.row_states, "no per-row state {number}");
            (1 + shape.states) * shape.width + number
        }
    }
}

/// Exclusively borrowed tables whose rows are lent to tasks.
pub(crate) struct SharedTables<'a>(&'a mut [CpuTable]);

impl SharedTables<'_> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn shape(&self, table: usize) -> TableShape {
        self.0[table].shape
    }

    /// Row stride, in floats.
    pub(crate) fn stride(&self, table: usize) -> usize {
        self.0[table].stride
    }

    /// The rows of one table, [`SharedTables::stride`] apart.
    ///
    /// # Safety
    /// As for [`Parts::get`], across all results of this function for one table.
    pub(crate) unsafe fn rows(&self, table: usize) -> Parts<'_, f32> {
        let memory = &self.0[table].memory;
        // SAFETY: the memory is borrowed exclusively for as long as `self`, which creates no slice of it. The
        // caller guarantees that parts taken from several results for one table are disjoint.
        unsafe { Parts::from_raw(memory.start(), memory.len()) }
    }
}
