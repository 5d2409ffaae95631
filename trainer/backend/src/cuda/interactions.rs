//! Feature interactions, gates over experts, and dot products of rows.

use super::Cuda;
use super::buffers::CudaMatrix;
use super::kernels::{
    CROSS_BACKWARD, CROSS_FORWARD, Cross, DOT_BACKWARD, DOT_BACKWARD_TENSOR, DOT_FORWARD, DOT_FORWARD_TENSOR,
    Dot, EIGHT, FM_BACKWARD, FM_FORWARD, Fm, MIXTURE_BACKWARD, MIXTURE_FORWARD, MOST_TENSOR_VECTORS, Mixture,
    ROW_PRODUCTS, UNIT_BACKWARD, UNIT_FORWARD, Vectors, WARP,
};
use super::moves::quads;
use super::programs::Entry;
use crate::float::Float;
use crate::ops::{
    CrossBackward, CrossForward, DotBackward, DotForward, FmBackward, FmForward, MixtureBackward,
    MixtureForward, MixtureShape, RowProducts, UnitBackward, UnitForward,
};

/// A grid with one warp per row.
pub(super) fn warps(rows: usize) -> [usize; 2] {
    [rows * WARP as usize, 1]
}

impl Cuda {
    pub(super) fn fm_forward(&self, operation: FmForward<'_, Self>) {
        let FmForward { rows, vectors, shape, out } = operation;
        self.launch(FM_FORWARD, warps(rows), &fm(rows, vectors, shape, out));
    }

    pub(super) fn fm_backward(&self, operation: FmBackward<'_, Self>) {
        let FmBackward { rows, vectors, shape, out_grad, vectors_grad } = operation;
        let fm = Fm { vectors_grad: vectors_grad.view(), ..fm(rows, vectors, shape, out_grad) };
        self.launch(FM_BACKWARD, [rows * shape.1, 1], &fm);
    }

    pub(super) fn cross_forward(&self, operation: CrossForward<'_, Self>) {
        let CrossForward { rows, first, product, input, output } = operation;
        let cross = Cross {
            first: first.view(),
            product: product.view(),
            input: input.view(),
            output: output.view(),
            rows: rows as u32,
            ..Cross::default()
        };
        self.launch(CROSS_FORWARD, quads(rows, first.columns()), &cross);
    }

    pub(super) fn cross_backward(&self, operation: CrossBackward<'_, Self>) {
        let CrossBackward { rows, first, product, output_grad, product_grad, first_grad } = operation;
        let cross = Cross {
            first: first.view(),
            product: product.view(),
            output_grad: output_grad.view(),
            product_grad: product_grad.view(),
            first_grad: first_grad.view(),
            rows: rows as u32,
            ..Cross::default()
        };
        self.launch(CROSS_BACKWARD, quads(rows, first.columns()), &cross);
    }

    pub(super) fn dot_forward(&self, operation: DotForward<'_, Self>) {
        let DotForward { rows, vectors, width, out } = operation;
        let float = (out.float() == vectors.float()).then_some(out.float());
        self.dot([DOT_FORWARD, DOT_FORWARD_TENSOR], float, dot(rows, vectors, width, out));
    }

    pub(super) fn dot_backward(&self, operation: DotBackward<'_, Self>) {
        let DotBackward { rows, vectors, width, out_grad, vectors_grad } = operation;
        let is_one = [out_grad, vectors_grad].iter().all(|matrix| matrix.float() == vectors.float());
        let dot = Dot { vectors_grad: vectors_grad.view(), ..dot(rows, vectors, width, out_grad) };
        self.dot([DOT_BACKWARD, DOT_BACKWARD_TENSOR], is_one.then_some(vectors.float()), dot);
    }

    /// Launches the plain kernel, or the one for tensor cores if they can compute it. `float` is the format of all
    /// matrices, if it is one.
    fn dot(&self, [plain, tensor]: [Entry<Dot>; 2], float: Option<Float>, dot: Dot) {
        let (rows, count, width) = (dot.rows as usize, dot.count as usize, dot.width as usize);
        let has_16_bits = float.is_some_and(|float| float != Float::F32);
        if has_16_bits && count <= MOST_TENSOR_VECTORS && width.is_multiple_of(EIGHT) {
            self.launch(tensor, warps(rows), &dot);
        } else {
            self.launch_blocks(plain, [rows, 1], &dot);
        }
    }

    pub(super) fn mixture_forward(&self, operation: MixtureForward<'_, Self>) {
        let MixtureForward { rows, shape, logits, experts, gates, output } = operation;
        let mixture =
            Mixture { logits: logits.view(), output: output.view(), ..mixture(rows, shape, gates, experts) };
        self.launch(MIXTURE_FORWARD, warps(rows), &mixture);
    }

    pub(super) fn mixture_backward(&self, operation: MixtureBackward<'_, Self>) {
        let MixtureBackward { rows, shape, gates, experts, output_grad, logits_grad, experts_grad } =
            operation;
        let mixture = Mixture {
            output_grad: output_grad.view(),
            logits_grad: logits_grad.view(),
            experts_grad: experts_grad.view(),
            ..mixture(rows, shape, gates, experts)
        };
        self.launch(MIXTURE_BACKWARD, warps(rows), &mixture);
    }

    pub(super) fn unit_forward(&self, operation: UnitForward<'_, Self>) {
        let UnitForward { rows, input, output } = operation;
        self.vectors(UNIT_FORWARD, rows, 1.0, [input, input, output]);
    }

    pub(super) fn unit_backward(&self, operation: UnitBackward<'_, Self>) {
        let UnitBackward { rows, input, grad } = operation;
        self.vectors(UNIT_BACKWARD, rows, 1.0, [input, input, grad]);
    }

    pub(super) fn row_products(&self, operation: RowProducts<'_, Self>) {
        let RowProducts { rows, factor, left, right, out } = operation;
        self.vectors(ROW_PRODUCTS, rows, factor, [left, right, out]);
    }

    fn vectors(&self, entry: Entry<Vectors>, rows: usize, factor: f64, matrices: [&CudaMatrix; 3]) {
        let [left, right, out] = matrices.map(CudaMatrix::view);
        let vectors = Vectors { left, right, out, factor: factor as f32, rows: rows as u32 };
        self.launch(entry, warps(rows), &vectors);
    }
}

/// `logits` has the result, or the gradient with respect to it.
fn fm(rows: usize, vectors: &CudaMatrix, (count, width): (usize, usize), logits: &CudaMatrix) -> Fm {
    Fm {
        vectors: vectors.view(),
        logits: logits.view(),
        rows: rows as u32,
        count: count as u32,
        width: width as u32,
        ..Fm::default()
    }
}

/// `out` has the result, or the gradient with respect to it.
fn dot(rows: usize, vectors: &CudaMatrix, width: usize, out: &CudaMatrix) -> Dot {
    Dot {
        vectors: vectors.view(),
        out: out.view(),
        rows: rows as u32,
        count: (vectors.columns() / width) as u32,
        width: width as u32,
        ..Dot::default()
    }
}

fn mixture(rows: usize, shape: MixtureShape, gates: &CudaMatrix, experts: &CudaMatrix) -> Mixture {
    Mixture {
        gates: gates.view(),
        experts: experts.view(),
        rows: rows as u32,
        tasks: shape.tasks as u32,
        count: shape.experts as u32,
        width: shape.width as u32,
        ..Mixture::default()
    }
}
