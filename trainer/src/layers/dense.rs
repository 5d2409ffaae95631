//! A fully connected layer.

use millstream_backend::{Activation, Backend, Device, SavedLayer, WorkspaceUse, ops};

use crate::init::Init;
use crate::optimizer::Optimizer;
use crate::parameter::{MatrixParameter, ParameterSpec, ParameterTooLarge, parameters};
use crate::pass::{BufferSpec, Pass};
use crate::spec::LayerInit;

/// A layer's input, with the activation mask still to be applied to its gradient.
pub struct Given<'a, D: Device> {
    /// `[B, N]`
    pub numbers: &'a D::Matrix,
    /// The activation that produced it.
    pub activation: Activation,
}

impl<'a, D: Device> Given<'a, D> {
    /// Values whose gradient needs no mask, or is masked already.
    pub fn whole(numbers: &'a D::Matrix) -> Self {
        Self { numbers, activation: Activation::Identity }
    }
}

/// `activation(input . weights + bias)`
pub struct Dense<D: Device> {
    /// `[N, M]`
    pub weights: MatrixParameter<D>,
    /// `[1, M]`
    pub bias: Option<MatrixParameter<D>>,
    /// The output of the last forward pass, `[B, M]`.
    pub output: D::Matrix,
    activation: Activation,
}

impl<D: Device> Dense<D> {
    /// A layer with `inputs` inputs and `outputs` outputs, which are written to `output`; `name` is the prefix of its
    /// parameters' names. `buffers` are the dimensions of its input.
    ///
    /// # Errors
    /// When its weights do not fit in memory.
    pub fn new(
        device: &D,
        buffers: BufferSpec,
        output: D::Matrix,
        name: &str,
        (inputs, outputs): (usize, usize),
        activation: Activation,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let bias = ParameterSpec::row(format!("{name}.bias"), outputs, Init::Zeros, optimizer)?;
        let shape = (inputs, outputs);
        let layer = Self::without_bias(device, buffers, output, name, shape, activation, optimizer)?;
        Ok(Self { bias: Some(MatrixParameter::new(device, bias)), ..layer })
    }

    /// The same, without a bias.
    ///
    /// # Errors
    /// When its weights do not fit in memory.
    pub fn without_bias(
        device: &D,
        buffers: BufferSpec,
        output: D::Matrix,
        name: &str,
        (inputs, outputs): (usize, usize),
        activation: Activation,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let init = Init::layer(LayerInit::default(), inputs, outputs);
        let weights = ParameterSpec::matrix(format!("{name}.weight"), (inputs, outputs), init, optimizer)?;
        let BufferSpec { rows, float, .. } = buffers;
        device.reserve_workspace(&WorkspaceUse::Layer { float, rows, inputs, outputs });
        Ok(Self { weights: MatrixParameter::new(device, weights), bias: None, output, activation })
    }

    /// The activation that follows product and bias.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// The number of output columns.
    pub fn outputs(&self) -> usize {
        self.weights.spec.columns
    }
}

impl<B: Backend> Dense<B> {
    /// Computes the output from `input` `[B, N]`.
    pub fn forward(&mut self, backend: &B, pass: &Pass<'_, B>, input: &B::Matrix) {
        let bias = self.bias.as_ref().map(|bias| &bias.value);
        backend.run(ops::LayerForward {
            rows: pass.len(),
            input,
            weights: &self.weights.value,
            bias,
            activation: self.activation,
            output: &mut self.output,
        });
    }

    /// Computes the parameters' gradients and, if requested, the gradient with respect to (the first columns
    /// of) `input` from that with respect to the output, which is masked by the activation in place.
    pub fn backward(
        &mut self,
        backend: &B,
        pass: &Pass<'_, B>,
        input: &B::Matrix,
        output_grad: &mut B::Matrix,
        input_grad: Option<&mut B::Matrix>,
    ) {
        self.backward_between(backend, pass, Given::whole(input), self.activation, output_grad, input_grad);
    }

    /// The same, where other layers apply the activation masks: `activation` is the mask still to be applied to the
    /// output's gradient, and `input` names that for its own.
    pub fn backward_between(
        &mut self,
        backend: &B,
        pass: &Pass<'_, B>,
        input: Given<'_, B>,
        activation: Activation,
        output_grad: &mut B::Matrix,
        input_grad: Option<&mut B::Matrix>,
    ) {
        let layer = SavedLayer {
            input: input.numbers,
            input_activation: input.activation,
            weights: &self.weights.value,
            output: &self.output,
            activation,
        };
        let bias_grad = self.bias.as_mut().map(|bias| &mut bias.gradient);
        let (rows, weight_grad) = (pass.len(), &mut self.weights.gradient);
        backend.run(ops::LayerBackward {
            rows,
            layer: &layer,
            output_grad,
            mode: pass.sum(),
            weight_grad,
            bias_grad,
            input_grad,
        });
        pass.complete(backend, self);
    }
}

parameters!(Dense: weights, bias);
