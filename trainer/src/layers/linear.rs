//! A linear model over a batch's ids and dense columns.

use millstream_backend::{Backend, Device, GradientColumns, ops};

use crate::gradients::GradientVisitor;
use crate::init::Init;
use crate::layers::tables::Tables;
use crate::optimizer::Optimizer;
use crate::parameter::{MatrixParameter, ParameterSpec, ParameterTooLarge, parameters};
use crate::pass::Pass;

/// One weight for each id and each dense column, and a bias; with `K` outputs, `K` of each.
pub struct Linear<D: Device> {
    /// `[C, 1]` each, or `[C, K]`.
    pub tables: Tables<D>,
    /// `[dense columns, 1]`, or `[dense columns, K]`
    pub dense_weights: MatrixParameter<D>,
    /// `[1, 1]`, or `[1, K]`
    pub bias: MatrixParameter<D>,
    dense: Vec<usize>,
}

impl<D: Device> Linear<D> {
    /// A model over `tables` of `outputs` columns and the columns `dense` of the batch; `name` is the prefix
    /// of its parameters' names.
    ///
    /// # Errors
    /// When the weights of the dense columns do not fit in memory.
    pub fn new(
        device: &D,
        name: &str,
        tables: Tables<D>,
        dense: Vec<usize>,
        outputs: usize,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let weights = linear_weights(format!("{name}.dense"), dense.len(), outputs, optimizer)?;
        let bias = ParameterSpec::row(format!("{name}.bias"), outputs, Init::Zeros, optimizer)?;
        Ok(Self {
            tables,
            dense_weights: MatrixParameter::new(device, weights),
            bias: MatrixParameter::new(device, bias),
            dense,
        })
    }
}

/// Weights of `rows` ids or columns for each output, initialized with zeros; a vector for one output.
///
/// # Errors
/// When they do not fit in memory.
pub fn linear_weights(
    name: String,
    rows: usize,
    outputs: usize,
    optimizer: Optimizer,
) -> Result<ParameterSpec, ParameterTooLarge> {
    let spec = ParameterSpec::matrix(name, (rows, outputs), Init::Zeros, optimizer)?;
    Ok(if outputs == 1 { ParameterSpec { shape: vec![rows], ..spec } } else { spec })
}

impl<B: Backend> Linear<B> {
    /// Adds the model's output to `output`, `[B, 1]` or `[B, K]`.
    pub fn forward(&self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>, output: &mut B::Matrix) {
        backend.run(ops::LinearForward {
            batch,
            rows: pass.rows.clone(),
            lookups: &self.tables.lookups,
            tables: &self.tables.tables,
            dense: &self.dense,
            dense_weights: &self.dense_weights.value,
            bias: &self.bias.value,
            out: output,
        });
    }

    /// Computes the gradients of dense weights and bias from the gradient with respect to `output`.
    pub fn backward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>, output_grad: &B::Matrix) {
        let (weight_grad, bias_grad) = (&mut self.dense_weights.gradient, &mut self.bias.gradient);
        let (rows, sum) = (pass.rows.clone(), pass.sum());
        backend.run(ops::LinearBackward {
            batch,
            rows,
            dense: &self.dense,
            out_grad: output_grad,
            mode: sum,
            weight_grad,
            bias_grad,
        });
        pass.complete(backend, self);
    }

    /// Visits the parameters with the gradients of the last backward pass, and tables with the gradient with
    /// respect to the output.
    pub fn visit_gradients(&mut self, output_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        visitor.tables(&mut self.tables, output_grad, GradientColumns::Shared);
        visitor.layers(&mut self.dense_weights);
        visitor.layers(&mut self.bias);
    }
}

parameters!(Linear: tables, dense_weights, bias);
