//! Fully connected layers, one after the other.

use millstream_backend::{Activation, Backend, Device};

use crate::init::key_of;
use crate::layers::dense::Dense;
use crate::learner::Learner;
use crate::optimizer::Optimizer;
use crate::parameter::{ParameterSpec, Parameters, Stored, StoredMut, TooLarge};
use crate::pass::{Pass, Purpose};
use crate::spec::HiddenLayerSpec;

/// A stack of layers.
pub struct Mlp<D: Device> {
    /// From the input on; at least one.
    pub layers: Vec<Dense<D>>,
    dropout: Option<Dropout>,
}

/// What leaves outputs of hidden layers out.
struct Dropout {
    /// The probability that one is kept.
    keep: f64,
    /// What tells the layers apart, one from the other and from those of other stacks.
    keys: Vec<u64>,
}

/// What a forward pass leaves for the backward pass: each layer's output, `[B, M]`.
pub struct MlpActivations<D: Device> {
    outputs: Vec<D::Matrix>,
}

/// Workspace of a backward pass: the gradient by the output of each layer but the last, `[B, M]`.
pub struct MlpGradients<D: Device> {
    by_outputs: Vec<D::Matrix>,
}

impl<D: Device> MlpActivations<D> {
    /// Room for `rows` rows.
    pub fn new(device: &D, rows: usize, mlp: &Mlp<D>) -> Self {
        let outputs = mlp.layers.iter().map(|layer| device.matrix(rows, layer.outputs()));
        Self { outputs: outputs.collect() }
    }

    /// The last layer's output.
    pub fn output(&self) -> &D::Matrix {
        self.outputs.last().expect("at least one layer")
    }

    /// The last layer's output, for what is added to it.
    pub fn output_mut(&mut self) -> &mut D::Matrix {
        self.outputs.last_mut().expect("at least one layer")
    }
}

impl<D: Device> MlpGradients<D> {
    /// Room for `rows` rows.
    pub fn new(device: &D, rows: usize, mlp: &Mlp<D>) -> Self {
        let hidden = &mlp.layers[..mlp.layers.len() - 1];
        let by_outputs = hidden.iter().map(|layer| device.matrix(rows, layer.outputs()));
        Self { by_outputs: by_outputs.collect() }
    }
}

impl<D: Device> Mlp<D> {
    /// Layers `NAME.layer.0` and on: ReLU layers of widths `hidden`, which do what `hidden_layer` says, too, then one
    /// of `outputs` and `last`.
    ///
    /// # Errors
    /// When a layer's weights are too many.
    pub fn new(
        device: &D,
        name: &str,
        inputs: usize,
        (hidden, hidden_layer): (&[u32], &HiddenLayerSpec),
        (outputs, last): (usize, Activation),
        optimizer: Optimizer,
    ) -> Result<Self, TooLarge> {
        let (mut layers, mut keys) = (Vec::new(), Vec::new());
        let hidden = hidden.iter().map(|&width| (width as usize, Activation::Relu));
        let mut inputs = inputs;
        for (number, (width, activation)) in hidden.chain([(outputs, last)]).enumerate() {
            let name = format!("{name}.layer.{number}");
            keys.push(key_of(0, &name));
            layers.push(Dense::new(device, &name, (inputs, width), activation, optimizer)?);
            inputs = width;
        }
        let keep = 1.0 - f64::from(hidden_layer.dropout);
        Ok(Self { layers, dropout: (keep < 1.0).then_some(Dropout { keep, keys }) })
    }
}

impl<B: Backend> Mlp<B> {
    /// Fills `saved` from `input` `[B, N]`.
    pub fn forward(&self, backend: &B, pass: &Pass, input: &B::Matrix, saved: &mut MlpActivations<B>) {
        for (number, layer) in self.layers.iter().enumerate() {
            let (before, from) = saved.outputs.split_at_mut(number);
            layer.forward(backend, pass, before.last().unwrap_or(input), &mut from[0]);
            self.drop_out(backend, pass, number, &mut from[0]);
        }
    }

    /// Leaves out of `numbers`, which are outputs of layer `number` or the gradient by them, what the step does
    /// without.
    fn drop_out(&self, backend: &B, pass: &Pass, number: usize, numbers: &mut B::Matrix) {
        let is_hidden = number + 1 < self.layers.len();
        if let (Some(dropout), Purpose::Training(key), true) = (&self.dropout, pass.purpose, is_hidden) {
            backend.dropout(pass.rows.clone(), dropout.keep, key ^ dropout.keys[number], numbers);
        }
    }

    /// Fills every parameter's gradient and, where wanted, that by `input` (its first columns), from
    /// that by the output, which is masked by the last layer's activation in place.
    #[allow(clippy::too_many_arguments, reason = "a backward pass reads and writes this much")]
    pub fn backward(
        &mut self,
        backend: &B,
        pass: &Pass,
        input: &B::Matrix,
        saved: &MlpActivations<B>,
        work: &mut MlpGradients<B>,
        by_output: &mut B::Matrix,
        by_input: Option<&mut B::Matrix>,
    ) {
        let mut by_input = by_input;
        for number in (0..self.layers.len()).rev() {
            let output = &saved.outputs[number];
            let (before, from) = work.by_outputs.split_at_mut(number);
            let by_output = from.first_mut().unwrap_or(&mut *by_output);
            self.drop_out(backend, pass, number, by_output);
            let layer = &mut self.layers[number];
            match before.last_mut() {
                Some(by_layer_input) => {
                    let layer_input = &saved.outputs[number - 1];
                    layer.backward(backend, pass, layer_input, output, by_output, Some(by_layer_input));
                }
                None => layer.backward(backend, pass, input, output, by_output, by_input.take()),
            }
        }
    }

    /// Shows the parameters with the gradients of the last backward pass.
    pub fn learn(&mut self, learner: &mut dyn Learner<B>) {
        for layer in &mut self.layers {
            layer.learn(learner);
        }
    }
}

impl<D: Device> Parameters<D> for Mlp<D> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        self.layers.iter().flat_map(Dense::stored).collect()
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        self.layers.iter_mut().flat_map(Dense::stored_mut).collect()
    }
}
