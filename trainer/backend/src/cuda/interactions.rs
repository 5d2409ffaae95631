//! Feature interactions, gates over experts, and dot products of rows.

use super::Cuda;
use super::buffers::CudaMatrix;
use super::kernels::{
    CROSS_BACKWARD, CROSS_FORWARD, Cross, DOT_BACKWARD, DOT_BACKWARD_TENSOR, DOT_FORWARD, DOT_FORWARD_TENSOR,
    Dot, EIGHT, FM_BACKWARD, FM_FORWARD, Fm, MIXTURE_BACKWARD, MIXTURE_FORWARD, MOST_TENSOR_VECTORS,
    MatrixView, Mixture, ROW_PRODUCTS, UNIT_BACKWARD, UNIT_FORWARD, Vectors, WARP,
};
use super::moves::quads;
use super::programs::Entry;
use crate::float::Float;
use crate::ops::MixtureShape;

/// A grid with one warp per row.
pub(super) fn warps(rows: usize) -> [usize; 2] {
    [rows * WARP as usize, 1]
}

fn view(matrix: Option<&CudaMatrix>) -> MatrixView {
    matrix.map_or(MatrixView::NULL, CudaMatrix::view)
}

/// The operands of a cross layer, forward or backward.
#[derive(Default)]
pub(super) struct CrossParts<'a> {
    pub(super) input: Option<&'a CudaMatrix>,
    pub(super) output: Option<&'a CudaMatrix>,
    pub(super) output_grad: Option<&'a CudaMatrix>,
    pub(super) product_grad: Option<&'a CudaMatrix>,
    pub(super) first_grad: Option<&'a CudaMatrix>,
}

/// The operands of a mixture, forward or backward.
#[derive(Default)]
pub(super) struct MixtureParts<'a> {
    pub(super) logits: Option<&'a CudaMatrix>,
    pub(super) output: Option<&'a CudaMatrix>,
    pub(super) output_grad: Option<&'a CudaMatrix>,
    pub(super) logits_grad: Option<&'a CudaMatrix>,
    pub(super) experts_grad: Option<&'a CudaMatrix>,
}

impl Cuda {
    /// Adds the result to `logits`.
    pub(super) fn fm(
        &self,
        rows: usize,
        vectors: &CudaMatrix,
        (count, width): (usize, usize),
        logits: &CudaMatrix,
        vectors_grad: Option<&CudaMatrix>,
    ) {
        let fm = Fm {
            vectors: vectors.view(),
            logits: logits.view(),
            vectors_grad: view(vectors_grad),
            rows: rows as u32,
            count: count as u32,
            width: width as u32,
            unused: 0,
        };
        match vectors_grad {
            None => self.launch(FM_FORWARD, warps(rows), &fm),
            Some(_) => self.launch(FM_BACKWARD, [rows * width, 1], &fm),
        }
    }

    pub(super) fn cross(
        &self,
        rows: usize,
        first: &CudaMatrix,
        product: &CudaMatrix,
        parts: &CrossParts<'_>,
    ) {
        let all = [parts.input, parts.output, parts.output_grad, parts.product_grad, parts.first_grad];
        let all = all.into_iter().flatten().chain([first, product]);
        all.for_each(|matrix| assert!(matrix.columns() == first.columns() && rows <= matrix.rows()));
        let cross = Cross {
            first: first.view(),
            product: product.view(),
            input: view(parts.input),
            output: view(parts.output),
            output_grad: view(parts.output_grad),
            product_grad: view(parts.product_grad),
            first_grad: view(parts.first_grad),
            rows: rows as u32,
            unused: 0,
        };
        let entry = if parts.output.is_some() { CROSS_FORWARD } else { CROSS_BACKWARD };
        self.launch(entry, quads(rows, first.columns()), &cross);
    }

    /// Fills `out`, or `vectors_grad` if `out` holds the gradient with respect to the output.
    pub(super) fn dot(
        &self,
        rows: usize,
        vectors: &CudaMatrix,
        width: usize,
        out: &CudaMatrix,
        vectors_grad: Option<&CudaMatrix>,
    ) {
        let count = vectors.columns() / width;
        let dot = Dot {
            vectors: vectors.view(),
            out: out.view(),
            vectors_grad: view(vectors_grad),
            rows: rows as u32,
            count: count as u32,
            width: width as u32,
            unused: 0,
        };
        let float = vectors.float();
        let is_all = [Some(out), vectors_grad].into_iter().flatten().all(|other| other.float() == float);
        if float != Float::F32 && is_all && count <= MOST_TENSOR_VECTORS && width.is_multiple_of(EIGHT) {
            let entry = if vectors_grad.is_some() { DOT_BACKWARD_TENSOR } else { DOT_FORWARD_TENSOR };
            self.launch(entry, warps(rows), &dot);
        } else {
            let entry = if vectors_grad.is_some() { DOT_BACKWARD } else { DOT_FORWARD };
            self.launch_blocks(entry, [rows, 1], &dot);
        }
    }

    pub(super) fn mix(
        &self,
        rows: usize,
        MixtureShape { tasks, experts: count, width }: MixtureShape,
        gates: &CudaMatrix,
        experts: &CudaMatrix,
        parts: &MixtureParts<'_>,
    ) {
        let mixture = Mixture {
            logits: view(parts.logits),
            experts: experts.view(),
            gates: gates.view(),
            output: view(parts.output),
            output_grad: view(parts.output_grad),
            logits_grad: view(parts.logits_grad),
            experts_grad: view(parts.experts_grad),
            rows: rows as u32,
            tasks: tasks as u32,
            count: count as u32,
            width: width as u32,
        };
        let entry = if parts.output.is_some() { MIXTURE_FORWARD } else { MIXTURE_BACKWARD };
        self.launch(entry, warps(rows), &mixture);
    }

    pub(super) fn unit(&self, rows: usize, input: &CudaMatrix, output: &CudaMatrix) {
        self.vectors(UNIT_FORWARD, rows, 1.0, [input, input, output]);
    }

    /// Updates `gradient` in place.
    pub(super) fn unit_gradient(&self, rows: usize, input: &CudaMatrix, gradient: &CudaMatrix) {
        self.vectors(UNIT_BACKWARD, rows, 1.0, [input, input, gradient]);
    }

    pub(super) fn products_of_rows(
        &self,
        rows: usize,
        factor: f64,
        left: &CudaMatrix,
        right: &CudaMatrix,
        out: &CudaMatrix,
    ) {
        self.vectors(ROW_PRODUCTS, rows, factor, [left, right, out]);
    }

    fn vectors(&self, entry: Entry<Vectors>, rows: usize, factor: f64, matrices: [&CudaMatrix; 3]) {
        matrices.iter().for_each(|matrix| assert!(rows <= matrix.rows()));
        let [left, right, out] = matrices;
        let vectors = Vectors {
            left: left.view(),
            right: right.view(),
            out: out.view(),
            factor: factor as f32,
            rows: rows as u32,
        };
        self.launch(entry, warps(rows), &vectors);
    }
}
