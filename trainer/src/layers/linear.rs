//! A linear model over a batch's ids and dense columns.

use millstream_backend::{Backend, Device, GradientColumns, ops};

use crate::gradients::GradientVisitor;
use crate::init::Init;
use crate::layers::tables::Tables;
use crate::optimizer::Optimizer;
use crate::parameter::{MatrixParameter, ParameterSpec, ParameterTooLarge, Parameters, Stored, StoredMut};
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
        let zeros = |part: &str, rows| linear_weights(format!("{name}.{part}"), rows, outputs, optimizer);
        let bias = match outputs {
            1 => zeros("bias", 1)?,
            _ => ParameterSpec::row(format!("{name}.bias"), outputs, Init::Zeros, optimizer)?,
        };
        Ok(Self {
            tables,
            dense_weights: MatrixParameter::new(device, zeros("dense", dense.len())?),
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
    match outputs {
        1 => ParameterSpec::column(name, rows, Init::Zeros, optimizer),
        _ => ParameterSpec::matrix(name, (rows, outputs), Init::Zeros, optimizer),
    }
}

impl<B: Backend> Linear<B> {
    /// Adds the model's output to `output`, `[B, 1]` or `[B, K]`.
    pub fn forward(&self, backend: &B, batch: &B::Batch, pass: &Pass, output: &mut B::Matrix) {
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
    pub fn backward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass, output_grad: &B::Matrix) {
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
    }

    /// Visits the parameters with the gradients of the last backward pass, and tables with the gradient with
    /// respect to the output.
    pub fn visit_gradients(&mut self, output_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        visitor.tables(&mut self.tables, output_grad, GradientColumns::Shared);
        visitor.matrix(&mut self.dense_weights);
        visitor.matrix(&mut self.bias);
    }
}

impl<D: Device> Parameters<D> for Linear<D> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        let dense = (!self.dense.is_empty()).then_some(&self.dense_weights);
        let matrices = dense.into_iter().chain([&self.bias]).flat_map(MatrixParameter::stored);
        self.tables.stored().into_iter().chain(matrices).collect()
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        let dense = (!self.dense.is_empty()).then_some(&mut self.dense_weights);
        let matrices = dense.into_iter().chain([&mut self.bias]).flat_map(MatrixParameter::stored_mut);
        self.tables.stored_mut().into_iter().chain(matrices).collect()
    }
}
