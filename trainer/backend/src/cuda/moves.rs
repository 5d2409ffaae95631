//! Transfers to and from the host, copies between buffers, and elementwise changes.

use super::buffers::{CudaMatrix, CudaTable, Shape, number_bytes, part_float};
use super::driver::Address;
use super::kernels::{
    ADD, BLEND, Blend, CLEAR, COPY_COLUMNS, Change, CopyColumns, DROPOUT, Dropout, MULTIPLY, MatrixView,
    QUAD, READ_ROWS, Transfer, WRITE_ROWS,
};
use zerocopy::IntoBytes;

use super::Cuda;
use crate::device::TablePart;
use crate::float::Float;
use crate::ops::{self, Add, Clear, CopyTable, Multiply, ReadMatrix, ReadTable, WriteMatrix, WriteTable};

/// Counters of [`crate::philox`] that 64 columns consume.
const COUNTERS: usize = 16;

/// Values of a table converted from or to 16 bits per transfer.
const AT_ONCE: usize = 1 << 20;

/// Threads to process `rows` rows, one quad of columns each.
pub(super) fn quads(rows: usize, columns: usize) -> [usize; 2] {
    [rows * columns.div_ceil(QUAD as usize), 1]
}

impl Cuda {
    pub(super) fn write(&self, operation: WriteMatrix<'_, Self>) {
        let WriteMatrix { matrix, values } = operation;
        let dense = self.scratch(size_of_val(values));
        self.copy_to(dense, values.as_bytes());
        let rows = values.len() / matrix.columns().max(1);
        let transfer = Transfer { dense, matrix: matrix.view(), rows: rows as u32, unused: 0 };
        self.launch(WRITE_ROWS, [values.len(), 1], &transfer);
    }

    /// Reads the first rows, as many as fill `out`. Waits for all commands issued so far.
    pub(super) fn read(&self, operation: ReadMatrix<'_, Self>) {
        let ReadMatrix { matrix, out } = operation;
        let rows = out.len().div_ceil(matrix.columns().max(1));
        let dense = self.scratch(rows * matrix.columns() * size_of::<f32>());
        let transfer = Transfer { dense, matrix: matrix.view(), rows: rows as u32, unused: 0 };
        self.launch(READ_ROWS, [rows * matrix.columns(), 1], &transfer);
        self.copy_from(out.as_mut_bytes(), dense);
    }

    /// Writes values, rounded to the table's format during the transfer.
    pub(super) fn write_rows(&self, operation: WriteTable<'_, Self>) {
        let WriteTable { table, part, first_row, values } = operation;
        let shape = table.shape();
        let (mut at, float) = (table.part(part, first_row), part_float(shape, part));
        if float == Float::F32 {
            return self.copy_to(at, values.as_bytes());
        }
        let mut coded = Vec::with_capacity(values.len().min(AT_ONCE));
        for values in values.chunks(AT_ONCE) {
            coded.clear();
            coded.extend(values.iter().map(|&value| float.encode(float.round_finite(value))));
            self.copy_to(at, coded.as_bytes());
            at += size_of_val(coded.as_slice()) as Address;
        }
    }

    pub(super) fn read_rows(&self, operation: ReadTable<'_, Self>) {
        let ReadTable { table, part, first_row, out } = operation;
        self.read_part(table, part, first_row * table.shape().part_width(part), out);
    }

    pub(super) fn copy_table(&self, operation: CopyTable<'_, Self>) {
        let CopyTable { table, first, mut out } = operation;
        for (part, range) in table.shape().ranges_of_parts(first..first + out.len()) {
            let (numbers, rest) = out.split_at_mut(range.len());
            self.read_part(table, part, range.start, numbers);
            out = rest;
        }
    }

    /// Reads as many values as `out` holds, from number `first` of the part on. Waits for all commands issued so far.
    fn read_part(&self, table: &CudaTable, part: TablePart, first: usize, out: &mut [f32]) {
        let float = part_float(table.shape(), part);
        let mut at = table.part(part, 0) + (first * number_bytes(float)) as Address;
        if float == Float::F32 {
            return self.copy_from(out.as_mut_bytes(), at);
        }
        let mut coded = vec![0_u16; out.len().min(AT_ONCE)];
        for out in out.chunks_mut(AT_ONCE) {
            let coded = &mut coded[..out.len()];
            self.copy_from(coded.as_mut_bytes(), at);
            at += size_of_val(coded) as Address;
            out.iter_mut().zip(coded).for_each(|(number, bits)| *number = float.decode(*bits));
        }
    }

    pub(super) fn copy(
        &self,
        rows: usize,
        (from, from_first): (MatrixView, usize),
        (to, to_first): (MatrixView, usize),
        columns: usize,
    ) {
        let copy = CopyColumns {
            from,
            to,
            from_first: from_first as u32,
            to_first: to_first as u32,
            rows: rows as u32,
            columns: columns as u32,
        };
        self.launch(COPY_COLUMNS, quads(rows, columns), &copy);
    }

    /// The first `rows` rows of `matrix` in the format `float`: unchanged, or rounded into `room`, which has space
    /// for them.
    pub(super) fn in_format(
        &self,
        matrix: &CudaMatrix,
        rows: usize,
        float: Float,
        room: Address,
    ) -> MatrixView {
        if matrix.float() == float {
            return matrix.view();
        }
        let view = Shape::of(float, rows, matrix.columns()).view(room);
        self.copy(rows, (matrix.view(), 0), (view, 0), matrix.columns());
        view
    }

    pub(super) fn copy_columns(&self, operation: ops::CopyColumns<'_, Self>) {
        let ops::CopyColumns { rows, from: (from, first), to: (to, to_first), columns } = operation;
        self.copy(rows, (from.view(), first), (to.view(), to_first), columns);
    }

    pub(super) fn copy_rows(&self, operation: ops::CopyRows<'_, Self>) {
        let ops::CopyRows { rows, from: (from, first), to: (to, to_first) } = operation;
        self.copy(rows, (from.view_from(first), 0), (to.view_from(to_first), 0), from.columns());
    }

    pub(super) fn add(&self, operation: Add<'_, Self>) {
        let Add { rows, from, to } = operation;
        let blend = Blend { from: from.view(), to: to.view(), rows: rows as u32, ..Blend::default() };
        self.launch(ADD, quads(rows, to.columns()), &blend);
    }

    pub(super) fn blend(&self, operation: ops::Blend<'_, Self>) {
        let ops::Blend { share, factor, from, to } = operation;
        let blend = Blend {
            from: from.view(),
            to: to.view(),
            fault: self.fault(),
            rows: to.rows() as u32,
            share: share as f32,
            factor: factor as f32,
            unused: 0,
        };
        self.launch(BLEND, quads(to.rows(), to.columns()), &blend);
    }

    pub(super) fn multiply(&self, operation: Multiply<'_, Self>) {
        let Multiply { rows, factor, matrix } = operation;
        let change = Change { matrix: matrix.view(), factor: factor.numbers(), rows: rows as u32, unused: 0 };
        self.launch(MULTIPLY, quads(rows, matrix.columns()), &change);
    }

    pub(super) fn clear(&self, operation: Clear<'_, Self>) {
        let Clear { rows, matrix } = operation;
        let change = Change { matrix: matrix.view(), factor: 0, rows: rows as u32, unused: 0 };
        self.launch(CLEAR, quads(rows, matrix.columns()), &change);
    }

    pub(super) fn dropout(&self, operation: ops::Dropout<'_, Self>) {
        let ops::Dropout { rows, keep, key, matrix } = operation;
        let dropout = Dropout {
            matrix: matrix.view(),
            key,
            kept: (keep * 2.0_f64.powi(32)) as u64,
            first_row: rows.start as u32,
            rows: rows.len() as u32,
            factor: (1.0 / keep) as f32,
            unused: 0,
        };
        let counters = matrix.columns().div_ceil(64) * COUNTERS;
        self.launch(DROPOUT, [rows.len() * counters, 1], &dropout);
    }
}
