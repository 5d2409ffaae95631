//! What is done with gradients once a backward pass has made them.
//!
//! A model shows each of its parameters with its gradient, in a fixed order; what comes of that is the visitor's: a
//! step of each optimizer, or a measure of all gradients together before it.

use millstream_backend::{Backend, GradientColumns, RowGradients, ops};

use crate::layers::Tables;
use crate::parameter::MatrixParameter;
use crate::schedule::Step;

/// Sees every parameter with its gradient.
pub trait GradientVisitor<B: Backend> {
    /// A parameter that has its gradient beside it.
    fn matrix(&mut self, parameter: &mut MatrixParameter<B>);

    /// Tables, with the gradient by what they gave for each row of the batch, and which columns of it are theirs.
    fn tables(&mut self, tables: &mut Tables<B>, gradient: &B::Matrix, columns: GradientColumns);
}

/// Sums the squares of all gradients.
pub struct SumSquares<'a, B: Backend> {
    /// The device.
    pub backend: &'a B,
    /// The batch, and which rows of tables it touches.
    pub touched: (&'a B::Batch, &'a B::RowPlan),
    /// What is added to, `[1, 1]`.
    pub squares: &'a mut B::Matrix,
}

/// Takes a step of each parameter's optimizer.
pub struct ApplyUpdates<'a, B: Backend> {
    /// The device.
    pub backend: &'a B,
    /// The batch, and which rows of tables it touches.
    pub touched: (&'a B::Batch, &'a B::RowPlan),
    /// What gradients are multiplied by, `[1, 1]`.
    pub scale: &'a B::Matrix,
    /// What gradients are cut to after that; may be infinite.
    pub clip: f64,
    /// Which step.
    pub step: Step,
    /// What tells it from others where weights are rounded at random.
    pub draws: u64,
}

impl<B: Backend> GradientVisitor<B> for SumSquares<'_, B> {
    fn matrix(&mut self, parameter: &mut MatrixParameter<B>) {
        self.backend.run(ops::Squares { grad: &parameter.gradient, sum: self.squares });
    }

    fn tables(&mut self, tables: &mut Tables<B>, gradient: &B::Matrix, columns: GradientColumns) {
        if !tables.is_empty() {
            let (batch, plan) = self.touched;
            let gradients = RowGradients { batch, plan, lookups: &tables.lookups, gradient, columns };
            self.backend.run(ops::RowSquares {
                gradients: &gradients,
                tables: &tables.tables,
                sum: self.squares,
            });
        }
    }
}

impl<B: Backend> GradientVisitor<B> for ApplyUpdates<'_, B> {
    fn matrix(&mut self, parameter: &mut MatrixParameter<B>) {
        if let Some(optimizer) = parameter.spec.optimizer {
            let update = optimizer.update(self.step, self.clip);
            parameter.step(self.backend, &update, self.scale);
        }
    }

    fn tables(&mut self, tables: &mut Tables<B>, gradient: &B::Matrix, columns: GradientColumns) {
        if !tables.is_empty() {
            let (batch, plan) = self.touched;
            let gradients = RowGradients { batch, plan, lookups: &tables.lookups, gradient, columns };
            let update = tables.optimizer.update(self.step, self.clip);
            self.backend.run(ops::StepRows {
                update: &update,
                scale: self.scale,
                draws: self.draws,
                gradients: &gradients,
                tables: &mut tables.tables,
            });
        }
    }
}
