//! Cross layers in sequence: each multiplies by the first input again.
//!
//! ```text
//! x_{l+1} = x_0 * (W_l x_l + b_l) + x_l
//! ```
//!
//! Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank
//! Systems", 2021, equation 1; with a low rank, `W = U V^T` as in equation 2.

use millstream_backend::{Activation, Backend, Device, ops};

use crate::gradients::GradientVisitor;
use crate::layers::dense::Dense;
use crate::optimizer::Optimizer;
use crate::parameter::{ParameterTooLarge, parameters};
use crate::pass::{BufferSpec, Pass};
use crate::spec::CrossSpec;

/// A stack of cross layers.
pub struct Cross<D: Device> {
    layers: Vec<CrossLayer<D>>,
}

/// `W x + b`, before the product with `x_0`.
struct CrossLayer<D: Device> {
    /// `V^T x` for a low rank, `[N, R]`.
    down: Option<Dense<D>>,
    /// `W` and `b`, `[N, N]`; or `U` and `b`, `[R, N]`.
    product: Dense<D>,
}

/// The activations of a forward pass, kept for the backward pass.
pub struct CrossActivations<D: Device> {
    layers: Vec<SavedLayer<D>>,
}

struct SavedLayer<D: Device> {
    /// `V^T x`, `[B, R]`.
    inner: Option<D::Matrix>,
    /// `W x + b`, `[B, N]`.
    product: D::Matrix,
    /// `x_{l+1}`, `[B, N]`.
    output: D::Matrix,
}

/// Workspace of a backward pass.
pub struct CrossGradients<D: Device> {
    /// `[B, R]`
    inner_grad: Option<D::Matrix>,
    /// `[B, N]`
    product_grad: D::Matrix,
    /// `[B, N]`
    input_grad: D::Matrix,
}

impl<D: Device> Cross<D> {
    /// Layers `cross.layer.0` and so on over `width` columns; at least one.
    ///
    /// # Errors
    /// When a layer's weights do not fit in memory.
    pub fn new(
        device: &D,
        width: usize,
        spec: &CrossSpec,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        assert!(spec.layers > 0, "at least one layer");
        let layer = |number| {
            let name = format!("cross.layer.{number}");
            let dense = |inputs| Dense::new(device, &name, (inputs, width), Activation::Identity, optimizer);
            let Some(rank) = spec.rank else { return Ok(CrossLayer { down: None, product: dense(width)? }) };
            let (down, shape) = (format!("{name}.down"), (width, rank as usize));
            let down = Dense::without_bias(device, &down, shape, Activation::Identity, optimizer)?;
            Ok(CrossLayer { down: Some(down), product: dense(rank as usize)? })
        };
        Ok(Self { layers: (0..spec.layers).map(layer).collect::<Result<_, _>>()? })
    }

    fn width(&self) -> usize {
        self.layers[0].product.outputs()
    }
}

impl<D: Device> CrossActivations<D> {
    /// Allocates activations for `cross`.
    pub fn new(device: &D, buffers: BufferSpec, cross: &Cross<D>) -> Self {
        let matrix = |columns| buffers.matrix(device, columns);
        let saved = |layer: &CrossLayer<D>| {
            layer
                .down
                .iter()
                .chain([&layer.product])
                .for_each(|dense| dense.reserve_workspace(device, buffers));
            SavedLayer {
                inner: layer.down.as_ref().map(|down| matrix(down.outputs())),
                product: matrix(cross.width()),
                output: matrix(cross.width()),
            }
        };
        Self { layers: cross.layers.iter().map(saved).collect() }
    }

    /// The output of the last layer, `[B, N]`.
    pub fn output(&self) -> &D::Matrix {
        &self.layers.last().expect("at least one layer").output
    }
}

impl<D: Device> CrossGradients<D> {
    /// Allocates the workspace for `cross`.
    pub fn new(device: &D, buffers: BufferSpec, cross: &Cross<D>) -> Self {
        let matrix = |columns| buffers.matrix(device, columns);
        Self {
            inner_grad: cross.layers[0].down.as_ref().map(|down| matrix(down.outputs())),
            product_grad: matrix(cross.width()),
            input_grad: matrix(cross.width()),
        }
    }
}

impl<B: Backend> Cross<B> {
    /// Computes `saved` from `first`, which is `x_0`, `[B, N]`.
    pub fn forward(&self, backend: &B, pass: &Pass, first: &B::Matrix, saved: &mut CrossActivations<B>) {
        for (number, layer) in self.layers.iter().enumerate() {
            let (before, from) = saved.layers.split_at_mut(number);
            let input = before.last().map_or(first, |before| &before.output);
            let SavedLayer { inner, product, output } = &mut from[0];
            if let (Some(down), Some(inner)) = (&layer.down, inner.as_mut()) {
                down.forward(backend, pass, input, inner);
            }
            layer.product.forward(backend, pass, inner.as_ref().unwrap_or(input), product);
            backend.run(ops::CrossForward { rows: pass.len(), first, product, input, output });
        }
    }

    /// Computes every parameter's gradient from the gradient with respect to the output, `[B, N]`, which is
    /// overwritten. Adds the gradient with respect to `first` to `first_grad`, `[B, N]`.
    #[allow(clippy::too_many_arguments, reason = "a backward pass reads and writes this much")]
    pub fn backward(
        &mut self,
        backend: &B,
        pass: &Pass,
        first: &B::Matrix,
        saved: &CrossActivations<B>,
        work: &mut CrossGradients<B>,
        output_grad: &mut B::Matrix,
        first_grad: &mut B::Matrix,
    ) {
        let CrossGradients { inner_grad, product_grad, input_grad } = work;
        for (number, layer) in self.layers.iter_mut().enumerate().rev() {
            let input = number.checked_sub(1).map_or(first, |before| &saved.layers[before].output);
            let SavedLayer { inner, product, .. } = &saved.layers[number];
            backend.run(ops::CrossBackward {
                rows: pass.len(),
                first,
                product,
                output_grad,
                product_grad,
                first_grad,
            });
            if let (Some(down), Some(inner), Some(inner_grad)) = (&mut layer.down, inner, inner_grad.as_mut())
            {
                layer.product.backward(backend, pass, inner, product, product_grad, Some(inner_grad));
                down.backward(backend, pass, input, inner, inner_grad, Some(input_grad));
            } else {
                layer.product.backward(backend, pass, input, product, product_grad, Some(input_grad));
            }
            // From here on, the gradient with respect to this layer's input, which is the output of the
            // previous layer.
            backend.run(ops::Add { rows: pass.len(), from: input_grad, to: output_grad });
        }
        backend.run(ops::Add { rows: pass.len(), from: output_grad, to: first_grad });
    }

    /// Visits the parameters with the gradients of the last backward pass.
    pub fn visit_gradients(&mut self, visitor: &mut dyn GradientVisitor<B>) {
        for layer in &mut self.layers {
            if let Some(down) = &mut layer.down {
                down.visit_gradients(visitor);
            }
            layer.product.visit_gradients(visitor);
        }
    }
}

parameters!(Cross: layers);
parameters!(CrossLayer: down, product);
