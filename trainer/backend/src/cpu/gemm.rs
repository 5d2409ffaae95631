//! Single-threaded matrix products with the `gemm` crate, which dispatches at run time.
//!
//! Operations divide a product into blocks, one per task, which provides the parallelism. The order in which a
//! block's terms are summed depends on its shape only.

use std::ops::Range;

use gemm_common::Parallelism;

/// A matrix in a slice: element `(i, j)` at `i * row_stride + j * column_stride`.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row_stride: usize,
    pub(crate) column_stride: usize,
}

impl<'a> View<'a> {
    /// `rows` rows of `columns` numbers, `stride` apart.
    pub(crate) fn row_major(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// Some of the rows.
    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        Self { data: &self.data[rows.start * self.row_stride..], rows: rows.len(), ..self }
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// Whether every element lies within the slice.
    pub(crate) fn is_within(&self) -> bool {
        self.rows == 0
            || self.columns == 0
            || (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride < self.data.len()
    }
}

/// `out = lhs . rhs`, or `out += lhs . rhs` when `accumulate`; `out` is row-major, its rows
/// `out_stride` apart.
pub(crate) fn product(lhs: View<'_>, rhs: View<'_>, out: &mut [f32], out_stride: usize, accumulate: bool) {
    let (rows, columns, depth) = (lhs.rows, rhs.columns, lhs.columns);
    assert_eq!(depth, rhs.rows, "factors of equal depth");
    assert!(lhs.is_within() && rhs.is_within(), "factors within their slices");
    assert!(columns <= out_stride, "a row stride of at least the product's columns");
    if rows == 0 || columns == 0 {
        return;
    }
    assert!((rows - 1) * out_stride + columns <= out.len(), "a product within its slice");
    // The kernels expect a column-major result, so this computes out^T = rhs^T . lhs^T.
    //
    // SAFETY: by the assertions, each element of both factors and of the product that the strides address lies
    // within its slice. `out` is borrowed exclusively, so it overlaps neither factor.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            columns,
            rows,
            depth,
            out.as_mut_ptr(),
            out_stride.cast_signed(),
            1,
            accumulate,
            rhs.data.as_ptr(),
            rhs.row_stride.cast_signed(),
            rhs.column_stride.cast_signed(),
            lhs.data.as_ptr(),
            lhs.row_stride.cast_signed(),
            lhs.column_stride.cast_signed(),
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
