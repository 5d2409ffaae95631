//! Fully connected layers in sequence.
//!
//! A hidden layer is a matrix product followed by ReLU, with an optional normalization between them. Dropout,
//! if any, zeroes some of its outputs in each step.

use millstream_backend::{Activation, Backend, Device, ops};

use crate::init::{Init, key_of};
use crate::layers::dense::{Dense, Given};
use crate::layers::normalization::Normalization;
use crate::optimizer::Optimizer;
use crate::parameter::{ParameterTooLarge, parameters};
use crate::pass::{BufferSpec, Pass, Purpose};
use crate::spec::HiddenLayerSpec;

/// A stack of layers.
pub struct Mlp<D: Device> {
    /// The hidden layers, from the input on.
    hidden: Vec<HiddenLayer<D>>,
    /// The output layer.
    last: Dense<D>,
}

/// A hidden layer.
struct HiddenLayer<D: Device> {
    /// Product and ReLU; the product only, if the layer is normalized.
    dense: Dense<D>,
    /// The normalization, which includes ReLU.
    normalization: Option<Normalization<D>>,
    dropout: Option<Dropout>,
}

/// The dropout of a layer.
struct Dropout {
    /// The probability of keeping an output.
    keep: f64,
    /// The layer's random key.
    key: u64,
}

/// Workspace of a backward pass: the gradient with respect to the output of each layer except the last, `[B,
/// M]`.
pub struct MlpGradients<D: Device> {
    output_grads: Vec<D::Matrix>,
}

impl<D: Device> MlpGradients<D> {
    /// Allocates the workspace for `mlp`.
    pub fn new(device: &D, buffers: BufferSpec, mlp: &Mlp<D>) -> Self {
        let output_grads = mlp.hidden.iter().map(|layer| buffers.matrix(device, layer.dense.outputs()));
        Self { output_grads: output_grads.collect() }
    }
}

impl<D: Device> Mlp<D> {
    /// Layers `NAME.layer.0` and so on: hidden ones of widths `hidden` with the options of `spec`, then one
    /// of `outputs` with activation `last`. Without an activation function, its outputs are logits, which are fp32.
    ///
    /// # Errors
    /// When a layer's weights do not fit in memory.
    pub fn new(
        device: &D,
        buffers: BufferSpec,
        name: &str,
        inputs: usize,
        (hidden, spec): (&[u32], &HiddenLayerSpec),
        (outputs, last): (usize, Activation),
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let mut layers = Vec::new();
        let mut inputs = inputs;
        for (number, &width) in hidden.iter().enumerate() {
            let (name, shape) = (format!("{name}.layer.{number}"), (inputs, width as usize));
            layers.push(HiddenLayer::new(device, buffers, &name, shape, spec, optimizer)?);
            inputs = width as usize;
        }
        let output = match last {
            Activation::Identity => buffers.fp32(device, outputs),
            Activation::Relu => buffers.matrix(device, outputs),
        };
        let (name, shape) = (format!("{name}.layer.{}", hidden.len()), (inputs, outputs));
        let last = Dense::new(device, buffers, output, &name, shape, last, optimizer)?;
        Ok(Self { hidden: layers, last })
    }

    /// The number of output columns, `M`.
    pub fn outputs(&self) -> usize {
        self.last.outputs()
    }

    /// The output of the last forward pass, `[B, M]`.
    pub fn output(&self) -> &D::Matrix {
        &self.last.output
    }

    /// The same, to add to it.
    pub fn output_mut(&mut self) -> &mut D::Matrix {
        &mut self.last.output
    }
}

impl<D: Device> HiddenLayer<D> {
    fn new(
        device: &D,
        buffers: BufferSpec,
        name: &str,
        shape: (usize, usize),
        spec: &HiddenLayerSpec,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let mut dense = match spec.normalization {
            None => {
                let output = buffers.matrix(device, shape.1);
                Dense::new(device, buffers, output, name, shape, Activation::Relu, optimizer)?
            }
            // Normalization would cancel a bias, or add a second shift.
            Some(_) => {
                let output = buffers.matrix(device, shape.1);
                Dense::without_bias(device, buffers, output, name, shape, Activation::Identity, optimizer)?
            }
        };
        dense.weights.spec.init = Init::layer(spec.init, shape.0, shape.1);
        let normalization = spec.normalization.map(|kind| {
            let name = format!("{name}.normalization");
            Normalization::new(device, buffers, &name, shape.1, kind, optimizer)
        });
        let keep = 1.0 - f64::from(spec.dropout);
        let dropout = (keep < 1.0).then(|| Dropout { keep, key: key_of(0, name) });
        Ok(Self { dense, normalization: normalization.transpose()?, dropout })
    }

    /// The input of the next layer, `[B, M]`.
    fn output(&self) -> &D::Matrix {
        self.normalization.as_ref().map_or(&self.dense.output, |normalization| &normalization.output)
    }
}

impl<B: Backend> HiddenLayer<B> {
    fn forward(&mut self, backend: &B, pass: &Pass<'_, B>, input: &B::Matrix) {
        let Self { dense, normalization, dropout } = self;
        dense.forward(backend, pass, input);
        let output = match normalization {
            Some(normalization) => {
                normalization.forward(backend, pass, &dense.output);
                &mut normalization.output
            }
            None => &mut dense.output,
        };
        drop_out(dropout.as_ref(), backend, pass, output);
    }

    fn backward(
        &mut self,
        backend: &B,
        pass: &Pass<'_, B>,
        input: Given<'_, B>,
        output_grad: &mut B::Matrix,
        input_grad: Option<&mut B::Matrix>,
    ) {
        // Dropout masks the same outputs whether or not the gradient is masked by ReLU.
        drop_out(self.dropout.as_ref(), backend, pass, output_grad);
        if let Some(normalization) = &mut self.normalization {
            normalization.backward(backend, pass, &self.dense.output, output_grad);
        }
        let mask = if B::MASKS_INPUT_GRADIENTS { Activation::Identity } else { self.dense.activation() };
        self.dense.backward_between(backend, pass, input, mask, output_grad, input_grad);
    }
}

/// Applies dropout to `numbers`, which are outputs or their gradient.
fn drop_out<B: Backend>(dropout: Option<&Dropout>, backend: &B, pass: &Pass<'_, B>, numbers: &mut B::Matrix) {
    if let (Some(Dropout { keep, key }), Purpose::Training(step)) = (dropout, pass.purpose) {
        backend.run(ops::Dropout { rows: pass.global_rows(), keep: *keep, key: step ^ key, matrix: numbers });
    }
}

/// The input of the layer after `before`. The ReLU mask of a hidden layer is applied to the gradient by the next layer if
/// that is best on the backend, unless its normalization does that.
fn given<'a, B: Backend>(before: &'a [HiddenLayer<B>], first: &'a B::Matrix) -> Given<'a, B> {
    match before.last() {
        Some(layer) if B::MASKS_INPUT_GRADIENTS => {
            Given { numbers: layer.output(), activation: layer.dense.activation() }
        }
        Some(layer) => Given::whole(layer.output()),
        None => Given::whole(first),
    }
}

impl<B: Backend> Mlp<B> {
    /// Computes the output from `input` `[B, N]`; in training, updates running moments.
    pub fn forward(&mut self, backend: &B, pass: &Pass<'_, B>, input: &B::Matrix) {
        let mut input = input;
        for layer in &mut self.hidden {
            layer.forward(backend, pass, input);
            input = layer.output();
        }
        self.last.forward(backend, pass, input);
    }

    /// Computes every parameter's gradient and, if requested, the gradient with respect to (the first columns
    /// of) `input` from that with respect to the output, which is masked by the last layer's activation in
    /// place.
    pub fn backward(
        &mut self,
        backend: &B,
        pass: &Pass<'_, B>,
        input: &B::Matrix,
        work: &mut MlpGradients<B>,
        output_grad: &mut B::Matrix,
        mut input_grad: Option<&mut B::Matrix>,
    ) {
        let last_input_grad = work.output_grads.last_mut().or_else(|| input_grad.take());
        let (last_input, activation) = (given(&self.hidden, input), self.last.activation());
        self.last.backward_between(backend, pass, last_input, activation, output_grad, last_input_grad);
        for number in (0..self.hidden.len()).rev() {
            let (before, from) = work.output_grads.split_at_mut(number);
            let layer_input_grad = before.last_mut().or_else(|| input_grad.take());
            let (layers, layer) = self.hidden.split_at_mut(number);
            layer[0].backward(backend, pass, given(layers, input), &mut from[0], layer_input_grad);
        }
    }
}

parameters!(Mlp: hidden, last);
parameters!(HiddenLayer: dense, normalization);
