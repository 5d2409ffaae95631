//! Matrices and tables in a GPU's memory.

use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::{Address, Memory};
use super::kernels::MatrixView;
use crate::device::{MatrixShape, TablePart, TableShape};
use crate::float::Float;

/// Alignment, in bytes, of the parts of an allocation.
pub(super) const ALIGNMENT: usize = 256;
/// Alignment of matrix rows in bytes: the size of one vector load of a thread, and what tensor cores require.
const ROW_BYTES: usize = 16;

/// Size of a number of `float`, in bytes.
pub(super) fn number_bytes(float: Float) -> usize {
    match float {
        Float::F32 => 4,
        Float::Bf16 | Float::F16 => 2,
    }
}

/// The memory layout of a matrix.
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

    /// Row stride, in elements. A matrix of one column is contiguous.
    pub(super) fn stride(self) -> usize {
        match self.columns {
            0 | 1 => self.columns,
            columns => columns.next_multiple_of(ROW_BYTES / number_bytes(self.float)),
        }
    }

    pub(super) fn bytes(self) -> usize {
        self.rows * self.stride() * number_bytes(self.float)
    }

    /// A view of this shape at `data`.
    pub(super) fn view(self, data: Address) -> MatrixView {
        MatrixView {
            data,
            stride: self.stride() as u64,
            format: self.float as u32,
            columns: self.columns as u32,
        }
    }
}

/// Divides an allocation into consecutive ranges, from an offset on.
#[derive(Default)]
pub(super) struct Rooms(pub(super) usize);

impl Rooms {
    /// Reserves `bytes` bytes and returns their start.
    pub(super) fn add(&mut self, bytes: usize) -> Address {
        let start = self.0;
        self.0 += bytes.next_multiple_of(ALIGNMENT);
        start as Address
    }

    pub(super) fn bytes(&self) -> usize {
        self.0
    }
}

/// A row-major matrix in GPU memory, in one number format.
pub struct CudaMatrix {
    memory: Memory,
    shape: Shape,
    signs: Option<Signs>,
}

/// Which elements of a matrix are positive, one bit each: the mask that cuBLASLt writes for ReLU and applies to
/// gradients.
struct Signs {
    memory: Memory,
    /// Whether the bits match the matrix's current values.
    are_valid: AtomicBool,
}

/// A matrix of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bits {
    pub(super) address: Address,
    /// Row stride, in bits.
    pub(super) stride: usize,
}

/// Row stride of sign bits, in bits: cuBLASLt requires a multiple of 128.
fn sign_stride(columns: usize) -> usize {
    columns.next_multiple_of(128)
}

/// Size of a matrix's sign bits, in bytes.
pub(super) fn sign_bytes(rows: usize, columns: usize) -> usize {
    rows * sign_stride(columns) / 8
}

impl CudaMatrix {
    /// A matrix in `memory`, with space for sign bits if `signs` is some.
    pub(super) fn new(shape: Shape, memory: Memory, signs: Option<Memory>) -> Self {
        let signs = signs.map(|memory| Signs { memory, are_valid: AtomicBool::new(false) });
        Self { memory, shape, signs }
    }

    /// Where to write sign bits, if there is space for them.
    pub(super) fn sign_room(&self) -> Option<Bits> {
        let address = self.signs.as_ref()?.memory.address();
        Some(Bits { address, stride: sign_stride(self.columns()) })
    }

    /// The sign bits, if they match the current values.
    pub(super) fn signs(&self) -> Option<Bits> {
        let are_valid = self.signs.as_ref()?.are_valid.load(Ordering::Relaxed);
        if are_valid { self.sign_room() } else { None }
    }

    /// Records that the matrix was written, and whether its sign bits were written with it.
    pub(super) fn set_signs_valid(&self, are_valid: bool) {
        if let Some(signs) = &self.signs {
            signs.are_valid.store(are_valid, Ordering::Relaxed);
        }
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

    /// A view of the rows from `first` on.
    pub(super) fn view_from(&self, first: usize) -> MatrixView {
        let before = first * self.shape.stride() * number_bytes(self.shape.float);
        self.shape.view(self.address() + before as Address)
    }

    /// The address of an fp32 matrix of one row, which kernels take as a pointer.
    pub(super) fn numbers(&self) -> Address {
        assert!(self.shape.float == Float::F32, "an fp32 matrix");
        self.address()
    }
}

/// The holders of the maxima of a batch's lookups, `[B, columns]`, in GPU memory: the index of the holder among the values
/// of its column, u32.
pub struct CudaMaxima {
    memory: Memory,
    rows: usize,
    columns: usize,
}

impl CudaMaxima {
    /// A record in `memory`, which has [`CudaMaxima::bytes`] bytes.
    pub(super) fn new(rows: usize, columns: usize, memory: Memory) -> Self {
        Self { memory, rows, columns }
    }

    /// The GPU memory that a record uses, in bytes.
    pub(super) fn bytes(rows: usize, columns: usize) -> usize {
        rows * columns * size_of::<u32>()
    }

    pub(super) fn shape(&self) -> MatrixShape {
        MatrixShape { rows: self.rows, columns: self.columns, number_bytes: size_of::<u32>() }
    }

    /// The address of column `column` of the first row.
    pub(super) fn column(&self, column: usize) -> Address {
        self.memory.address() + (column * size_of::<u32>()) as Address
    }
}

/// An embedding table in GPU memory: the weights in their format, then each per-weight state array, then the
/// per-row state arrays.
pub struct CudaTable {
    memory: Memory,
    shape: TableShape,
}

impl CudaTable {
    /// A table in `memory`, which has [`CudaTable::bytes`] bytes.
    pub(super) fn new(shape: TableShape, memory: Memory) -> Self {
        Self { memory, shape }
    }

    /// The GPU memory that a table uses, in bytes.
    pub(super) fn bytes(shape: TableShape) -> usize {
        shape.parts().map(|part| part_bytes(shape, part)).sum()
    }

    pub(super) fn shape(&self) -> TableShape {
        self.shape
    }

    /// The address of row `row` of `part`; 0 if the table has no such part.
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

/// The size of one row of `part`, in bytes; rows are contiguous.
fn row_bytes(shape: TableShape, part: TablePart) -> usize {
    shape.part_width(part) * number_bytes(part_float(shape, part))
}

/// The number format of `part`.
pub(super) fn part_float(shape: TableShape, part: TablePart) -> Float {
    match part {
        TablePart::Weights => shape.float,
        TablePart::State(_) | TablePart::RowState(_) => Float::F32,
    }
}
