//! Matrices and tables in a GPU's memory.

use super::driver::{Address, Memory};
use super::kernels::MatrixView;
use super::nccl::Summand;
use crate::device::{MatrixShape, TablePart, TableShape};
use crate::float::Float;

/// Alignment, in bytes, of the parts of an allocation.
pub(super) const ALIGNMENT: usize = 256;
/// Alignment of matrix rows in bytes: the size of one vector load of a thread, and what tensor cores require.
const ROW_BYTES: usize = 16;
/// Numbers of 16 bits in [`ROW_BYTES`]: the tensor cores' fast products need depths that are multiples of it.
pub(super) const DEPTH: usize = 8;

/// Size of a number of `float`, in bytes.
pub(super) fn number_bytes(float: Float) -> usize {
    match float {
        Float::F32 => 4,
        Float::Bf16 | Float::F16 => 2,
    }
}

/// The memory layout of a matrix.
///
/// Rows end in padding up to their stride, and the last row is followed by padding up to a multiple of [`DEPTH`] rows, so
/// that a product may sum over more columns of one factor and rows of the other than they have. Padding is zero in every
/// matrix that an operation writes element by element. Products of padded matrices also write padding: it is zero where
/// their factors are finite, and no operation reads it.
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
        let rows = if self.rows > 1 { self.rows.next_multiple_of(DEPTH) } else { self.rows };
        rows * self.stride() * number_bytes(self.float)
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
}

impl CudaMatrix {
    /// A matrix in `memory`, which has the bytes of `shape`.
    pub(super) fn new(shape: Shape, memory: Memory) -> Self {
        Self { memory, shape }
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn float(&self) -> Float {
        self.shape.float
    }

    /// All numbers, with their padding.
    pub(super) fn summand(&mut self) -> Summand {
        let float = self.float();
        Summand { address: self.memory.address(), count: self.shape.bytes() / number_bytes(float), float }
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
