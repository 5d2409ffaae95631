//! A fully connected layer.

use millstream_backend::{Activation, Backend, Device, SavedLayer, WorkspaceUse, ops};

use crate::gradients::GradientVisitor;
use crate::init::Init;
use crate::optimizer::Optimizer;
use crate::parameter::{MatrixParameter, ParameterSpec, ParameterTooLarge, parameters};
use crate::pass::{BufferSpec, Pass};
use crate::spec::LayerInit;

/// A layer's input or output, with the activation mask still to be applied to its gradient.
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
    activation: Activation,
}

impl<D: Device> Dense<D> {
    /// A layer with `inputs` inputs and `outputs` outputs; `name` is the prefix of its parameters' names.
    ///
    /// # Errors
    /// When its weights do not fit in memory.
    pub fn new(
        device: &D,
        name: &str,
        (inputs, outputs): (usize, usize),
        activation: Activation,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let bias = ParameterSpec::row(format!("{name}.bias"), outputs, Init::Zeros, optimizer)?;
        let bias = Some(MatrixParameter::new(device, bias));
        Ok(Self { bias, ..Self::without_bias(device, name, (inputs, outputs), activation, optimizer)? })
    }

    /// The same, without a bias.
    ///
    /// # Errors
    /// When its weights do not fit in memory.
    pub fn without_bias(
        device: &D,
        name: &str,
        (inputs, outputs): (usize, usize),
        activation: Activation,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let init = Init::layer(LayerInit::default(), inputs, outputs);
        let weights = ParameterSpec::matrix(format!("{name}.weight"), (inputs, outputs), init, optimizer)?;
        Ok(Self { weights: MatrixParameter::new(device, weights), bias: None, activation })
    }

    /// Reserves its workspace, for activations of the given size and format.
    pub fn reserve_workspace(&self, device: &D, BufferSpec { rows, float }: BufferSpec) {
        let ParameterSpec { rows: inputs, columns: outputs, .. } = self.weights.spec;
        device.reserve_workspace(&WorkspaceUse::Layer { float, rows, inputs, outputs });
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
    /// Computes `output` `[B, M]` from `input` `[B, N]`.
    pub fn forward(&self, backend: &B, pass: &Pass, input: &B::Matrix, output: &mut B::Matrix) {
        let bias = self.bias.as_ref().map(|bias| &bias.value);
        backend.run(ops::LayerForward {
            rows: pass.len(),
            input,
            weights: &self.weights.value,
            bias,
            activation: self.activation,
            output,
        });
    }

    /// Computes the parameters' gradients and, if requested, the gradient with respect to (the first columns
    /// of) `input` from that with respect to `output`, which is masked by the activation in place.
    pub fn backward(
        &mut self,
        backend: &B,
        pass: &Pass,
        input: &B::Matrix,
        output: &B::Matrix,
        output_grad: &mut B::Matrix,
        input_grad: Option<&mut B::Matrix>,
    ) {
        let (input, output) = (Given::whole(input), Given { numbers: output, activation: self.activation });
        self.backward_between(backend, pass, input, output, output_grad, input_grad);
    }

    /// The same, where other layers apply the activation masks: each [`Given`] names the mask for its own
    /// gradient.
    pub fn backward_between(
        &mut self,
        backend: &B,
        pass: &Pass,
        input: Given<'_, B>,
        output: Given<'_, B>,
        output_grad: &mut B::Matrix,
        input_grad: Option<&mut B::Matrix>,
    ) {
        let layer = SavedLayer {
            input: input.numbers,
            input_activation: input.activation,
            weights: &self.weights.value,
            output: output.numbers,
            activation: output.activation,
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
    }

    /// Visits the parameters with the gradients of the last backward pass.
    pub fn visit_gradients(&mut self, visitor: &mut dyn GradientVisitor<B>) {
        visitor.matrix(&mut self.weights);
        if let Some(bias) = &mut self.bias {
            visitor.matrix(bias);
        }
    }
}

parameters!(Dense: weights, bias);
