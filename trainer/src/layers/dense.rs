//! A fully connected layer.

use millstream_backend::{Activation, Backend, Device, SavedLayer, WorkspaceUse, ops};

use crate::gradients::GradientVisitor;
use crate::init::Init;
use crate::optimizer::Optimizer;
use crate::parameter::{MatrixParameter, ParameterSpec, ParameterTooLarge, Parameters, Stored, StoredMut};
use crate::pass::{BufferSpec, Pass};
use crate::spec::LayerInit;

/// What a layer was given, or gave, and what the gradient by it is still to be masked by.
pub struct Given<'a, D: Device> {
    /// `[B, N]`
    pub numbers: &'a D::Matrix,
    /// What it came through.
    pub activation: Activation,
}

impl<'a, D: Device> Given<'a, D> {
    /// Numbers the gradient by which is not masked, or already is.
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
    /// A layer of `inputs` inputs and `outputs` outputs, its parameters named after it.
    ///
    /// # Errors
    /// When its weights are too many.
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

    /// The same without a bias.
    ///
    /// # Errors
    /// When its weights are too many.
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

    /// Makes ready what it works in, for activations that take `buffers`.
    pub fn reserve_workspace(&self, device: &D, BufferSpec { rows, float }: BufferSpec) {
        let ParameterSpec { rows: inputs, columns: outputs, .. } = self.weights.spec;
        device.reserve_workspace(&WorkspaceUse::Layer { float, rows, inputs, outputs });
    }

    /// What follows product and bias.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Columns of its output.
    pub fn outputs(&self) -> usize {
        self.weights.spec.columns
    }
}

impl<B: Backend> Dense<B> {
    /// Fills `output` `[B, M]` from `input` `[B, N]`.
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

    /// Fills the parameters' gradients and, where wanted, that by `input` (its first columns), from
    /// that by `output`, which is masked by the activation in place.
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

    /// The same between what other layers mask: the gradient by the output is masked by what is said of the output, and
    /// that by the input is by what is said of the input.
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

    /// Shows the parameters with the gradients of the last backward pass.
    pub fn visit_gradients(&mut self, visitor: &mut dyn GradientVisitor<B>) {
        visitor.matrix(&mut self.weights);
        if let Some(bias) = &mut self.bias {
            visitor.matrix(bias);
        }
    }
}

impl<D: Device> Parameters<D> for Dense<D> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        [&self.weights].into_iter().chain(&self.bias).map(MatrixParameter::stored).collect()
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        let parameters = [&mut self.weights].into_iter().chain(&mut self.bias);
        parameters.map(MatrixParameter::stored_mut).collect()
    }
}
