//! Fully connected layers: cuBLASLt products and the kernels around them.

use super::Cuda;
use super::blas::{Epilogue, Factor, Product};
use super::buffers::{CudaMatrix, Rooms, Shape};
use super::driver::Address;
use super::kernels::{
    COLUMNS, FINISH_COLUMNS, FINISH_LAYER, Finish, FinishColumns, MASK_GRADIENT, Mask, MatrixView, QUAD,
    WARP, WEIGH_INPUTS, Weigh,
};
use super::moves::quads;
use crate::float::Float;
use crate::ops::{Activation, Clear, GradientMode, LayerBackward, LayerForward};

/// A sum over rows is split into shares of so many rows, or into this number of larger shares; into more, if these had more rows
/// than the last number.
const SHARE: usize = 256;
const MOST_SHARES: usize = 128;
const LARGEST_SHARE: usize = 4096;
/// Size of a pair of partial sums, in bytes.
pub(super) const PAIR_BYTES: usize = 8;

/// The number of shares that a sum over rows is split into.
pub(super) fn shares(rows: usize) -> usize {
    rows.div_ceil(SHARE).clamp(1, MOST_SHARES.max(rows.div_ceil(LARGEST_SHARE)))
}

/// Size of the partial sums over rows of `columns` columns, in bytes.
pub(super) fn partial_bytes(rows: usize, columns: usize) -> usize {
    shares(rows) * columns * PAIR_BYTES
}

/// The grid of a kernel that sums rows by column.
pub(super) fn column_blocks(rows: usize, columns: usize) -> [usize; 2] {
    [columns.div_ceil(COLUMNS as usize), shares(rows)]
}

/// Threads per row, each with four columns: a power of two, at most a warp.
fn lanes_of_row(columns: usize) -> usize {
    columns.div_ceil(QUAD as usize).next_power_of_two().min(WARP as usize)
}

/// The number of inputs that a layer's products work on: with the padding of its input's rows and of its weights, which is
/// zero. On an H200, products whose depth is no multiple of 16 bytes take 6 to 7 times as long.
fn padded(float: Float, inputs: usize) -> usize {
    Shape::of(float, 1, inputs).stride()
}

fn factor(view: MatrixView, float: Float, is_transposed: bool) -> Factor {
    Factor { address: view.data, float, stride: view.stride as usize, is_transposed }
}

impl Cuda {
    pub(super) fn layer_forward(&self, operation: LayerForward<'_, Self>) {
        let LayerForward { rows, input, weights, bias, activation, output } = operation;
        let (inputs, outputs) = (weights.rows(), weights.columns());
        let float = input.float();
        let work = ForwardWork::of(rows, [inputs, outputs], [weights.float(), float, output.float()]);
        let (scratch, depth) = (self.scratch(work.bytes), padded(float, inputs));
        let weights = self.in_format(weights, depth, float, scratch + work.weights);
        let bias = bias.map(|bias| self.in_format(bias, 1, output.float(), scratch + work.bias));
        let is_rectified = activation == Activation::Relu;
        let bias_address = bias.map(|bias| bias.data);
        let of_epilogue = |epilogue| Product {
            rows,
            depth,
            columns: outputs,
            left: factor(input.view(), float, false),
            right: factor(weights, float, false),
            out: factor(output.view(), output.float(), false),
            adds: false,
            epilogue,
        };
        let epilogue = match bias_address {
            _ if is_rectified => Epilogue::Rectified(bias_address),
            Some(bias) => Epilogue::Bias(bias),
            None => Epilogue::Plain,
        };
        // Where a row of the output is no whole number of vectors, the library adds the bias to the rounded product in a
        // separate pass.
        let is_rounded_once = epilogue == Epilogue::Plain
            || output.float() == Float::F32
            || padded(output.float(), outputs) == outputs;
        if rows == 0 || is_rounded_once && self.enqueue_product(&of_epilogue(epilogue)) {
            return;
        }
        let sums = Shape::of(Float::F32, rows, outputs).view(scratch + work.sums);
        let product = of_epilogue(Epilogue::Plain);
        self.must_multiply(&Product { out: factor(sums, Float::F32, false), ..product });
        let finish = Finish {
            sums,
            bias: bias.unwrap_or_default(),
            output: output.view(),
            rows: rows as u32,
            is_biased: u32::from(bias.is_some()),
            is_rectified: u32::from(is_rectified),
            unused: 0,
        };
        self.launch(FINISH_LAYER, quads(rows, outputs), &finish);
    }

    pub(super) fn layer_backward(&self, operation: LayerBackward<'_, Self>) {
        let LayerBackward { rows, layer, output_grad, mode, weight_grad, bias_grad, input_grad } = operation;
        let bias_grad = bias_grad.as_deref();
        let (inputs, outputs, float) = (layer.weights.rows(), layer.weights.columns(), layer.input.float());
        let floats = [layer.weights.float(), output_grad.float(), float];
        let work = BackwardWork::of(rows, [inputs, outputs], floats);
        let scratch = self.scratch(work.bytes);
        let (partials, depth) = (scratch + work.partials, padded(float, inputs));
        let is_rectified = layer.activation == Activation::Relu;
        if is_rectified || bias_grad.is_some() {
            self.mask(rows, Some(layer.output).filter(|_| is_rectified), output_grad, Some(partials));
        }
        if let Some(bias_grad) = bias_grad {
            self.finish_columns(rows, outputs, partials, [Some(bias_grad), None], mode, 1.0);
        }
        let grad_factor = self.in_format(output_grad, rows, float, scratch + work.output_grad);
        if rows == 0 {
            // cuBLASLt has no products of depth 0.
            if mode == GradientMode::Write {
                self.clear(Clear { rows: weight_grad.rows(), matrix: weight_grad });
            }
            return;
        }
        if outputs == 1 {
            let weigh = Weigh {
                input: layer.input.view(),
                gradient: grad_factor,
                partials,
                rows: rows as u32,
                unused: 0,
            };
            self.launch_blocks(WEIGH_INPUTS, column_blocks(rows, inputs), &weigh);
            self.finish_columns(rows, inputs, partials, [Some(weight_grad), None], mode, 1.0);
        } else {
            self.must_multiply(&Product {
                rows: depth,
                depth: rows,
                columns: outputs,
                left: factor(layer.input.view(), float, true),
                right: factor(grad_factor, float, false),
                out: factor(weight_grad.view(), weight_grad.float(), false),
                adds: mode == GradientMode::Accumulate,
                epilogue: Epilogue::Plain,
            });
        }
        let Some(input_grad) = input_grad else { return };
        let weights = self.in_format(layer.weights, depth, float, scratch + work.weights);
        let has_padding = input_grad.columns() == inputs && input_grad.shape().stride() >= depth;
        self.must_multiply(&Product {
            rows,
            depth: outputs,
            columns: if has_padding { depth } else { input_grad.columns() },
            left: factor(grad_factor, float, false),
            right: factor(weights, float, true),
            out: factor(input_grad.view(), input_grad.float(), false),
            adds: false,
            epilogue: Epilogue::Plain,
        });
        if layer.input_activation == Activation::Relu {
            self.mask(rows, Some(layer.input), input_grad, None);
        }
    }

    /// Applies the ReLU mask of `given` to `gradient`, if `given` is some; leaves the gradient's sums over rows in
    /// `partials`.
    fn mask(
        &self,
        rows: usize,
        given: Option<&CudaMatrix>,
        gradient: &CudaMatrix,
        partials: Option<Address>,
    ) {
        let columns = gradient.columns();
        let lanes = lanes_of_row(columns);
        let mask = Mask {
            output: given.map(CudaMatrix::view).unwrap_or_default(),
            gradient: gradient.view(),
            partials: partials.unwrap_or(0),
            rows: rows as u32,
            is_rectified: u32::from(given.is_some()),
            lanes: lanes as u32,
            unused: 0,
        };
        let across = columns.div_ceil(lanes * QUAD as usize);
        self.launch_blocks(MASK_GRADIENT, [across, shares(rows)], &mask);
    }

    /// Computes a product that has no fused alternative.
    pub(super) fn must_multiply(&self, product: &Product) {
        let Product { rows, depth, columns, .. } = product;
        if *rows > 0 && *columns > 0 {
            assert!(
                self.enqueue_product(product),
                "cuBLASLt has no algorithm for the product {rows} x {depth} x {columns}"
            );
        }
    }

    /// Adds up the partial sums over rows of `columns` columns and stores both sums where wanted.
    pub(super) fn finish_columns(
        &self,
        rows: usize,
        columns: usize,
        partials: Address,
        to: [Option<&CudaMatrix>; 2],
        mode: GradientMode,
        factor: f32,
    ) {
        let [first, second] = to.map(|to| to.map(CudaMatrix::view).unwrap_or_default());
        let finish = FinishColumns {
            partials,
            first,
            second,
            factor,
            columns: columns as u32,
            stride: columns as u32,
            shares: shares(rows) as u32,
            adds: u32::from(mode == GradientMode::Accumulate),
            unused: 0,
        };
        self.launch_blocks(FINISH_COLUMNS, [columns.div_ceil(COLUMNS as usize), 1], &finish);
    }
}

/// Workspace of a layer, in bytes. Assumes fp32 parameters and an fp32 gradient with respect to the output; hidden
/// layers, whose output gradients may have 16 bits, need no more.
pub(super) fn scratch_bytes(float: Float, rows: usize, inputs: usize, outputs: usize) -> usize {
    let (single, sizes) = (Float::F32, [inputs, outputs]);
    let forward = ForwardWork::of(rows, sizes, [single, float, float]);
    forward.bytes.max(BackwardWork::of(rows, sizes, [single, single, float]).bytes)
}

/// The workspace of a layer's forward pass.
struct ForwardWork {
    weights: Address,
    bias: Address,
    sums: Address,
    bytes: usize,
}

/// The workspace of a layer's backward pass.
struct BackwardWork {
    partials: Address,
    output_grad: Address,
    weights: Address,
    bytes: usize,
}

impl ForwardWork {
    /// The workspace for these sizes and the formats of parameters, products and output.
    fn of(rows: usize, [inputs, outputs]: [usize; 2], [parameters, float, output]: [Float; 3]) -> Self {
        let mut rooms = Rooms::default();
        Self {
            weights: rooms.add(cast_bytes(parameters, float, inputs, outputs)),
            bias: rooms.add(cast_bytes(parameters, output, 1, outputs)),
            sums: rooms.add(Shape::of(Float::F32, rows, outputs).bytes()),
            bytes: rooms.bytes(),
        }
    }
}

impl BackwardWork {
    /// The workspace for these sizes and the formats of weights, output gradient and products.
    fn of(rows: usize, [inputs, outputs]: [usize; 2], [weights, output_grad, float]: [Float; 3]) -> Self {
        let mut rooms = Rooms::default();
        Self {
            partials: rooms.add(partial_bytes(rows, if outputs == 1 { inputs.max(1) } else { outputs })),
            output_grad: rooms.add(cast_bytes(output_grad, float, rows, outputs)),
            weights: rooms.add(cast_bytes(weights, float, inputs, outputs)),
            bytes: rooms.bytes(),
        }
    }
}

/// Size of a matrix converted from one format to another, in bytes; 0 if the formats are equal.
fn cast_bytes(from: Float, to: Float, rows: usize, columns: usize) -> usize {
    if from == to { 0 } else { Shape::of(to, rows, columns).bytes() }
}
