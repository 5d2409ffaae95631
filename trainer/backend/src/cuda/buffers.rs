//! Matrices and tables in a GPU's memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::{Address, Context, Fault, Memory};
use super::kernels::MatrixView;
use crate::device::{TablePart, TableShape};
use crate::float::Float;

/// Bytes to which parts of an allocation are aligned.
pub(super) const ALIGNMENT: usize = 256;
/// Rows of matrices begin at multiples of so many bytes: what one load of a thread takes, and tensor cores ask for.
const ROW_BYTES: usize = 16;

/// Bytes of a number of `float`.
pub(super) fn number_bytes(float: Float) -> usize {
    match float {
        Float::F32 => 4,
        Float::Bf16 | Float::F16 => 2,
    }
}

/// As kernels number formats.
pub(super) fn code(float: Float) -> u32 {
    match float {
        Float::F32 => 0,
        Float::Bf16 => 1,
        Float::F16 => 2,
    }
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) float: Float,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Shape {
    pub(super) fn of(float: Float, rows: usize, columns: usize) -> Self {
        Self { float, rows, columns }
    }

    /// Numbers from one row to the next. Numbers of one column follow on each other.
    pub(super) fn stride(self) -> usize {
        match self.columns {
            0 | 1 => self.columns,
            columns => columns.next_multiple_of(ROW_BYTES / number_bytes(self.float)),
        }
    }

    pub(super) fn bytes(self) -> usize {
        self.rows * self.stride() * number_bytes(self.float)
    }

    /// At `data`.
    pub(super) fn view(self, data: Address) -> MatrixView {
        MatrixView {
            data,
            stride: self.stride() as u64,
            format: code(self.float),
            columns: self.columns as u32,
        }
    }
}

/// Numbers in rows, in the memory of a GPU, each of its format's size.
pub struct CudaMatrix {
    memory: Memory,
    shape: Shape,
    signs: Option<Signs>,
}

/// Which numbers of a matrix are above 0, a bit each: what cuBLASLt notes of ReLU, and masks a gradient by.
struct Signs {
    memory: Memory,
    /// Whether they are those of the matrix.
    are_noted: AtomicBool,
}

/// Bits in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) address: Address,
    /// Bits from one row to the next.
    pub(super) stride: usize,
}

/// Bits from one row to the next of the signs of so many columns: cuBLASLt asks for a multiple of 128.
fn sign_stride(columns: usize) -> usize {
    columns.next_multiple_of(128)
}

/// Bytes of the signs of a matrix.
pub(super) fn sign_bytes(rows: usize, columns: usize) -> usize {
    rows * sign_stride(columns) / 8
}

impl CudaMatrix {
    /// Of any content.
    pub(super) fn new(context: &Arc<Context>, shape: Shape) -> Result<Self, Fault> {
        Ok(Self { memory: Memory::new(context, shape.bytes())?, shape, signs: None })
    }

    /// Gets room for signs.
    pub(super) fn add_signs(&mut self, context: &Arc<Context>) -> Result<(), Fault> {
        let memory = Memory::new(context, sign_bytes(self.rows(), self.columns()))?;
        self.signs = Some(Signs { memory, are_noted: AtomicBool::new(false) });
        Ok(())
    }

    /// Where signs are to be noted, if there is room for them.
    pub(super) fn sign_room(&self) -> Option<Bits> {
        let address = self.signs.as_ref()?.memory.address();
        Some(Bits { address, stride: sign_stride(self.columns()) })
    }

    /// Signs, if they are those of its numbers.
    pub(super) fn signs(&self) -> Option<Bits> {
        let are_noted = self.signs.as_ref()?.are_noted.load(Ordering::Relaxed);
        if are_noted { self.sign_room() } else { None }
    }

    /// Its numbers were written, and signs were noted or were not.
    pub(super) fn has_noted_signs(&self, are_noted: bool) {
        if let Some(signs) = &self.signs {
            signs.are_noted.store(are_noted, Ordering::Relaxed);
        }
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn float(&self) -> Float {
        self.shape.float
    }

    pub(super) fn rows(&self) -> usize {
        self.shape.rows
    }

    pub(super) fn columns(&self) -> usize {
        self.shape.columns
    }

    pub(super) fn address(&self) -> Address {
        self.memory.address()
    }

    pub(super) fn view(&self) -> MatrixView {
        self.shape.view(self.address())
    }

    /// From row `first` on.
    pub(super) fn view_from(&self, first: usize) -> MatrixView {
        let before = first * self.shape.stride() * number_bytes(self.shape.float);
        self.shape.view(self.address() + before as Address)
    }

    /// Where its numbers are, which are of single precision in one row: what kernels take as a pointer.
    pub(super) fn numbers(&self) -> Address {
        assert!(self.shape.float == Float::F32, "a matrix of single precision");
        self.address()
    }
}

/// An embedding table in the memory of a GPU: weights, each of its format's size, then each state array, then those of
/// rows.
pub struct CudaTable {
    memory: Memory,
    shape: TableShape,
}

impl CudaTable {
    /// Of any content.
    pub(super) fn new(context: &Arc<Context>, shape: TableShape) -> Result<Self, Fault> {
        Ok(Self { memory: Memory::new(context, Self::bytes(shape))?, shape })
    }

    /// Bytes that a table takes.
    pub(super) fn bytes(shape: TableShape) -> usize {
        shape.parts().map(|part| part_bytes(shape, part)).sum()
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(super) fn shape(&self) -> TableShape {
        self.shape
    }

    /// Where `part` begins, from row `row` on; 0 where there is no such part.
    pub(super) fn part(&self, part: TablePart, row: usize) -> Address {
        if !self.shape.parts().any(|other| other == part) {
            return 0;
        }
        let before: usize = self
            .shape
            .parts()
            .take_while(|&other| other != part)
            .map(|part| part_bytes(self.shape, part))
            .sum();
        self.memory.address() + (before + row * row_bytes(self.shape, part)) as Address
    }
}

fn part_bytes(shape: TableShape, part: TablePart) -> usize {
    (shape.rows * row_bytes(shape, part)).next_multiple_of(ALIGNMENT)
}

/// Bytes of a row's numbers of `part`: rows follow on each other.
fn row_bytes(shape: TableShape, part: TablePart) -> usize {
    shape.part_width(part) * number_bytes(part_float(shape, part))
}

/// The format of `part`.
pub(super) fn part_float(shape: TableShape, part: TablePart) -> Float {
    match part {
        TablePart::Weights => shape.float,
        TablePart::State(_) | TablePart::RowState(_) => Float::F32,
    }
}
