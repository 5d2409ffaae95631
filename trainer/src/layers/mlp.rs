//! Fully connected layers in sequence.
//!
//! A hidden layer is a matrix product followed by ReLU, with an optional normalization between them. Dropout,
//! if any, zeroes some of its outputs in each step.

use millstream_backend::{Activation, Backend, Device, ops};

use crate::gradients::GradientVisitor;
use crate::init::{Init, key_of};
use crate::layers::dense::{Dense, Given};
use crate::layers::normalization::{Normalization, SavedMoments};
use crate::optimizer::Optimizer;
use crate::parameter::{ParameterTooLarge, parameters};
use crate::pass::{BufferSpec, Pass, Purpose};
use crate::spec::HiddenLayerSpec;

/// A stack of layers.
pub struct Mlp<D: Device> {
    /// The hidden layers, from the input on.
    pub hidden: Vec<HiddenLayer<D>>,
    /// The output layer.
    pub last: Dense<D>,
}

/// A hidden layer.
pub struct HiddenLayer<D: Device> {
    /// Product and ReLU; the product only, if the layer is normalized.
    pub dense: Dense<D>,
    /// The normalization, which includes ReLU.
    pub normalization: Option<Normalization<D>>,
    dropout: Option<Dropout>,
}

/// The dropout of a layer.
struct Dropout {
    /// The probability of keeping an output.
    keep: f64,
    /// The layer's random key.
    key: u64,
}

/// The activations of a forward pass, kept for the backward pass.
pub struct MlpActivations<D: Device> {
    hidden: Vec<SavedLayer<D>>,
    /// `[B, M]`
    output: D::Matrix,
}

struct SavedLayer<D: Device> {
    /// The input of the normalization, `[B, M]`, and its moments.
    normalized: Option<(D::Matrix, SavedMoments<D>)>,
    /// The input of the next layer, `[B, M]`.
    output: D::Matrix,
}

/// Workspace of a backward pass: the gradient with respect to the output of each layer except the last, `[B,
/// M]`.
pub struct MlpGradients<D: Device> {
    output_grads: Vec<D::Matrix>,
}

impl<D: Device> MlpActivations<D> {
    /// Allocates activations for `mlp`. If the last layer has no activation function, its outputs are logits,
    /// which are fp32.
    pub fn new(device: &D, buffers: BufferSpec, mlp: &Mlp<D>) -> Self {
        let saved = |layer: &HiddenLayer<D>| {
            layer.dense.reserve_workspace(device, buffers);
            let outputs = layer.dense.outputs();
            match &layer.normalization {
                None => SavedLayer { normalized: None, output: buffers.rectified(device, outputs) },
                Some(normalization) => {
                    let saved = (buffers.matrix(device, outputs), normalization.saved(device, buffers));
                    SavedLayer { normalized: Some(saved), output: buffers.matrix(device, outputs) }
                }
            }
        };
        let hidden = mlp.hidden.iter().map(saved).collect();
        mlp.last.reserve_workspace(device, buffers);
        let output = match mlp.last.activation() {
            Activation::Identity => buffers.fp32(device, mlp.last.outputs()),
            Activation::Relu => buffers.matrix(device, mlp.last.outputs()),
        };
        Self { hidden, output }
    }

    /// The last layer's output.
    pub fn output(&self) -> &D::Matrix {
        &self.output
    }

    /// The last layer's output, to add to it.
    pub fn output_mut(&mut self) -> &mut D::Matrix {
        &mut self.output
    }
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
    /// of `outputs` with activation `last`.
    ///
    /// # Errors
    /// When a layer's weights do not fit in memory.
    pub fn new(
        device: &D,
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
            layers.push(HiddenLayer::new(device, &name, shape, spec, optimizer)?);
            inputs = width as usize;
        }
        let name = format!("{name}.layer.{}", hidden.len());
        Ok(Self { hidden: layers, last: Dense::new(device, &name, (inputs, outputs), last, optimizer)? })
    }
}

impl<D: Device> HiddenLayer<D> {
    fn new(
        device: &D,
        name: &str,
        shape: (usize, usize),
        spec: &HiddenLayerSpec,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let mut dense = match spec.normalization {
            None => Dense::new(device, name, shape, Activation::Relu, optimizer)?,
            // Normalization would cancel a bias, or add a second shift.
            Some(_) => Dense::without_bias(device, name, shape, Activation::Identity, optimizer)?,
        };
        dense.weights.spec.init = Init::layer(spec.init, shape.0, shape.1);
        let normalization = spec.normalization.map(|kind| {
            let name = format!("{name}.normalization");
            Normalization::new(device, &name, shape.1, kind, optimizer)
        });
        let keep = 1.0 - f64::from(spec.dropout);
        let dropout = (keep < 1.0).then(|| Dropout { keep, key: key_of(0, name) });
        Ok(Self { dense, normalization: normalization.transpose()?, dropout })
    }
}

impl<B: Backend> HiddenLayer<B> {
    fn forward(&mut self, backend: &B, pass: &Pass, input: &B::Matrix, saved: &mut SavedLayer<B>) {
        let SavedLayer { normalized, output } = saved;
        match (&mut self.normalization, normalized) {
            (Some(normalization), Some((product, moments))) => {
                self.dense.forward(backend, pass, input, product);
                normalization.forward(backend, pass, product, moments, output);
            }
            _ => self.dense.forward(backend, pass, input, output),
        }
        self.drop_out(backend, pass, output);
    }

    /// The input of the next layer. That layer applies the ReLU mask to its gradient, unless a normalization
    /// does.
    fn given<'a>(&self, saved: &'a SavedLayer<B>) -> Given<'a, B> {
        Given { numbers: &saved.output, activation: self.dense.activation() }
    }

    fn backward(
        &mut self,
        backend: &B,
        pass: &Pass,
        input: Given<'_, B>,
        saved: &SavedLayer<B>,
        output_grad: &mut B::Matrix,
        input_grad: Option<&mut B::Matrix>,
    ) {
        // Dropout masks the same outputs whether or not the gradient is masked by ReLU.
        self.drop_out(backend, pass, output_grad);
        let SavedLayer { normalized, output } = saved;
        let product = match (&mut self.normalization, normalized) {
            (Some(normalization), Some((product, moments))) => {
                normalization.backward(backend, pass, (product, output), moments, output_grad);
                product
            }
            _ => output,
        };
        self.dense.backward_between(backend, pass, input, Given::whole(product), output_grad, input_grad);
    }

    /// Applies dropout to `numbers`, which are outputs or their gradient.
    fn drop_out(&self, backend: &B, pass: &Pass, numbers: &mut B::Matrix) {
        if let (Some(Dropout { keep, key }), Purpose::Training(step)) = (&self.dropout, pass.purpose) {
            backend.run(ops::Dropout {
                rows: pass.rows.clone(),
                keep: *keep,
                key: step ^ key,
                matrix: numbers,
            });
        }
    }

    fn visit_gradients(&mut self, visitor: &mut dyn GradientVisitor<B>) {
        self.dense.visit_gradients(visitor);
        if let Some(normalization) = &mut self.normalization {
            normalization.visit_gradients(visitor);
        }
    }
}

impl<B: Backend> Mlp<B> {
    /// Computes `saved` from `input` `[B, N]`; in training, updates running moments.
    pub fn forward(&mut self, backend: &B, pass: &Pass, input: &B::Matrix, saved: &mut MlpActivations<B>) {
        let mut input = input;
        for (layer, saved) in self.hidden.iter_mut().zip(&mut saved.hidden) {
            layer.forward(backend, pass, input, saved);
            input = &saved.output;
        }
        self.last.forward(backend, pass, input, &mut saved.output);
    }

    /// Computes every parameter's gradient and, if requested, the gradient with respect to (the first columns
    /// of) `input` from that with respect to the output, which is masked by the last layer's activation in
    /// place.
    #[allow(clippy::too_many_arguments, reason = "a backward pass reads and writes this much")]
    pub fn backward(
        &mut self,
        backend: &B,
        pass: &Pass,
        input: &B::Matrix,
        saved: &MlpActivations<B>,
        work: &mut MlpGradients<B>,
        output_grad: &mut B::Matrix,
        input_grad: Option<&mut B::Matrix>,
    ) {
        let (hidden, mut input_grad) = (&saved.hidden, input_grad);
        let input_of = |before: &[HiddenLayer<B>]| match (before.last(), before.len()) {
            (Some(layer), count) => layer.given(&hidden[count - 1]),
            (None, _) => Given::whole(input),
        };
        let last_input_grad =
            work.output_grads.last_mut().or_else(|| input_grad.take_if(|_| hidden.is_empty()));
        let output = Given { numbers: &saved.output, activation: self.last.activation() };
        let last_input = input_of(&self.hidden);
        self.last.backward_between(backend, pass, last_input, output, output_grad, last_input_grad);
        for number in (0..hidden.len()).rev() {
            let (before, from) = work.output_grads.split_at_mut(number);
            let layer_input_grad = before.last_mut().or_else(|| input_grad.take());
            let (layers, layer) = self.hidden.split_at_mut(number);
            let layer_input = input_of(layers);
            layer[0].backward(backend, pass, layer_input, &hidden[number], &mut from[0], layer_input_grad);
        }
    }

    /// Visits the parameters with the gradients of the last backward pass.
    pub fn visit_gradients(&mut self, visitor: &mut dyn GradientVisitor<B>) {
        for layer in &mut self.hidden {
            layer.visit_gradients(visitor);
        }
        self.last.visit_gradients(visitor);
    }
}

parameters!(Mlp: hidden, last);
parameters!(HiddenLayer: dense, normalization);
