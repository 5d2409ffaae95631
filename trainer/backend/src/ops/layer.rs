//! Fully connected layers.

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use super::lookup::GradientMode;
use crate::device::{MatrixShape, Shapes};

/// The activation that follows a layer's product and bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// None.
    Identity,
    /// `max(x, 0)`
    Relu,
}

/// `output = activation(input . weights + bias)` over the first `rows` rows: `[B, N] . [N, M] + [1, M] -> [B, M]`.
///
/// Weights are rounded to the format of `input`, and the bias to that of `output`.
pub struct LayerForward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// `[B, N]`
    pub input: &'a D::Matrix,
    /// `[N, M]`
    pub weights: &'a D::Matrix,
    /// `[1, M]`
    pub bias: Option<&'a D::Matrix>,
    /// The activation.
    pub activation: Activation,
    /// `[B, M]`
    pub output: &'a mut D::Matrix,
}

impl<D: Shapes> LayerForward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let weights = D::matrix_shape(self.weights);
        checks.matrix::<D>("input", self.input).rows_at_least(self.rows).columns(weights.rows);
        if let Some(bias) = self.bias {
            checks.matrix::<D>("bias", bias).rows_at_least(1).columns(weights.columns);
        }
        checks.matrix::<D>("output", self.output).rows_at_least(self.rows).columns(weights.columns);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let [input, weights] = [self.input, self.weights].map(D::matrix_shape);
        cost::layer_forward(self.rows, input, weights, D::matrix_shape(self.output))
    }

    pub(super) fn weight_shape(&self) -> [u32; 2] {
        counts(D::matrix_shape(self.weights))
    }
}

/// The operands of a forward pass that the backward pass of a layer reads.
pub struct SavedLayer<'a, M> {
    /// Its input, `[B, N]`.
    pub input: &'a M,
    /// The activation that produced this input. The backward pass continues through it: `input_grad` is the
    /// gradient with respect to that activation's own input.
    pub input_activation: Activation,
    /// Its weights, `[N, M]`.
    pub weights: &'a M,
    /// Its output, `[B, M]`.
    pub output: &'a M,
    /// Its activation, unless `output_grad` is already masked by it.
    pub activation: Activation,
}

/// The gradient of [`LayerForward`] over the first `rows` rows.
pub struct LayerBackward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The operands of the forward pass.
    pub layer: &'a SavedLayer<'a, D::Matrix>,
    /// `[B, M]`, masked by the activation in place.
    pub output_grad: &'a mut D::Matrix,
    /// Whether `weight_grad` and `bias_grad` are written or accumulated.
    pub mode: GradientMode,
    /// `[N, M]`
    pub weight_grad: &'a mut D::Matrix,
    /// `[1, M]`
    pub bias_grad: Option<&'a mut D::Matrix>,
    /// `[B, K]`, written: the gradient of the first `K <= N` columns. A model's input ends in dense columns, whose
    /// gradient nothing needs.
    pub input_grad: Option<&'a mut D::Matrix>,
}

impl<D: Shapes> LayerBackward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let (rows, layer) = (self.rows, self.layer);
        let weights = D::matrix_shape(layer.weights);
        let (inputs, outputs) = (weights.rows, weights.columns);
        checks.matrix::<D>("input", layer.input).rows_at_least(rows).columns(inputs);
        checks.matrix::<D>("output", layer.output).rows_at_least(rows).columns(outputs);
        checks.matrix::<D>("output_grad", self.output_grad).rows_at_least(rows).columns(outputs);
        checks.matrix::<D>("weight_grad", self.weight_grad).rows(inputs).columns(outputs);
        if let Some(bias_grad) = &self.bias_grad {
            checks.matrix::<D>("bias_grad", bias_grad).rows_at_least(1).columns(outputs);
        }
        if let Some(input_grad) = &self.input_grad {
            checks.matrix::<D>("input_grad", input_grad).rows_at_least(rows).columns_at_most(inputs);
        }
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let [input, weights] = [self.layer.input, self.layer.weights].map(D::matrix_shape);
        let input_grad = self.input_grad.as_deref().map(D::matrix_shape);
        cost::layer_backward(self.rows, input, weights, D::matrix_shape(self.output_grad), input_grad)
    }

    pub(super) fn weight_shape(&self) -> [u32; 2] {
        counts(D::matrix_shape(self.layer.weights))
    }
}

fn counts(MatrixShape { rows, columns, .. }: MatrixShape) -> [u32; 2] {
    [rows, columns].map(|count| u32::try_from(count).unwrap_or(u32::MAX))
}
