//! Cross layers in sequence: each multiplies by the first input again.
//!
//! ```text
//! x_{l+1} = x_0 * (W_l x_l + b_l) + x_l
//! ```
//!
//! Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank
//! Systems", 2021, equation 1; with a low rank, `W = U V^T` as in equation 2.

use millstream_backend::{Activation, Backend, Device, ops};

use crate::layers::dense::Dense;
use crate::optimizer::Optimizer;
use crate::parameter::{ParameterTooLarge, parameters};
use crate::pass::{BufferSpec, Pass};
use crate::spec::CrossSpec;

/// A stack of cross layers.
pub struct Cross<D: Device> {
    layers: Vec<CrossLayer<D>>,
    /// Workspace of a backward pass, for one layer at a time: `[B, R]`.
    inner_grad: Option<D::Matrix>,
    /// `[B, N]`
    product_grad: D::Matrix,
    /// `[B, N]`
    input_grad: D::Matrix,
}

struct CrossLayer<D: Device> {
    /// `V^T x` for a low rank, `[N, R]`.
    down: Option<Dense<D>>,
    /// `W x + b`, before the product with `x_0`: `W` and `b`, `[N, N]`; or `U` and `b`, `[R, N]`.
    product: Dense<D>,
    /// `x_{l+1}` of the last forward pass, `[B, N]`.
    output: D::Matrix,
}

impl<D: Device> Cross<D> {
    /// Layers `cross.layer.0` and so on over `width` columns; at least one.
    ///
    /// # Errors
    /// When a layer's weights do not fit in memory.
    pub fn new(
        device: &D,
        buffers: BufferSpec,
        width: usize,
        spec: &CrossSpec,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        assert!(spec.layers > 0, "at least one layer");
        let (rank, none) = (spec.rank.map(|rank| rank as usize), Activation::Identity);
        let matrix = |columns| buffers.matrix(device, columns);
        let layer = |number| {
            let name = format!("cross.layer.{number}");
            let down = rank.map(|rank| {
                let (name, shape) = (format!("{name}.down"), (width, rank));
                Dense::without_bias(device, buffers, matrix(rank), &name, shape, none, optimizer)
            });
            let shape = (rank.unwrap_or(width), width);
            Ok(CrossLayer {
                down: down.transpose()?,
                product: Dense::new(device, buffers, matrix(width), &name, shape, none, optimizer)?,
                output: matrix(width),
            })
        };
        Ok(Self {
            layers: (0..spec.layers).map(layer).collect::<Result<_, _>>()?,
            inner_grad: rank.map(matrix),
            product_grad: matrix(width),
            input_grad: matrix(width),
        })
    }

    /// The output of the last layer in the last forward pass, `[B, N]`.
    pub fn output(&self) -> &D::Matrix {
        &self.layers.last().expect("at least one layer").output
    }
}

impl<B: Backend> Cross<B> {
    /// Computes the output from `first`, which is `x_0`, `[B, N]`.
    pub fn forward(&mut self, backend: &B, pass: &Pass<'_, B>, first: &B::Matrix) {
        let mut input = first;
        for CrossLayer { down, product, output } in &mut self.layers {
            let inner = match down {
                Some(down) => {
                    down.forward(backend, pass, input);
                    &down.output
                }
                None => input,
            };
            product.forward(backend, pass, inner);
            let product = &product.output;
            backend.run(ops::CrossForward { rows: pass.len(), first, product, input, output });
            input = output;
        }
    }

    /// Computes every parameter's gradient from the gradient with respect to the output, `[B, N]`, which is
    /// overwritten. Adds the gradient with respect to `first` to `first_grad`, `[B, N]`.
    pub fn backward(
        &mut self,
        backend: &B,
        pass: &Pass<'_, B>,
        first: &B::Matrix,
        output_grad: &mut B::Matrix,
        first_grad: &mut B::Matrix,
    ) {
        let Self { layers, inner_grad, product_grad, input_grad } = self;
        for number in (0..layers.len()).rev() {
            let (before, from) = layers.split_at_mut(number);
            let input = before.last().map_or(first, |layer| &layer.output);
            let CrossLayer { down, product, .. } = &mut from[0];
            backend.run(ops::CrossBackward {
                rows: pass.len(),
                first,
                product: &product.output,
                output_grad,
                product_grad,
                first_grad,
            });
            if let (Some(down), Some(inner_grad)) = (down, inner_grad.as_mut()) {
                product.backward(backend, pass, &down.output, product_grad, Some(inner_grad));
                down.backward(backend, pass, input, inner_grad, Some(input_grad));
            } else {
                product.backward(backend, pass, input, product_grad, Some(input_grad));
            }
            // From here on, the gradient with respect to this layer's input, which is the output of the
            // previous layer.
            backend.run(ops::Add { rows: pass.len(), from: input_grad, to: output_grad });
        }
        backend.run(ops::Add { rows: pass.len(), from: output_grad, to: first_grad });
    }
}

parameters!(Cross: layers);
parameters!(CrossLayer: down, product);
