//! Processes gradients after a backward pass.
//!
//! A model passes each parameter with its gradient to a visitor, in a fixed order. One visitor takes an
//! optimizer step; another computes the norm of all gradients before it. If several workers train together, two more
//! exchange gradients before both ([`exchange`](crate::exchange)).

use millstream_backend::{Backend, GradientColumns, RowGradients, ops};

use crate::layers::Tables;
use crate::optimizer::Optimizer;
use crate::parameter::{Parameter, Parameters, Storage};
use crate::schedule::Step;

/// Visits every parameter with its gradient.
pub trait GradientVisitor<B: Backend> {
    /// Visits the dense parameters of `layers` with the gradients of the last backward pass.
    fn layers(&mut self, layers: &mut dyn Parameters<B>);

    /// Visits tables. `gradient` is the gradient with respect to their outputs for each row of the batch, and
    /// `columns` are the tables' columns in it.
    fn tables(&mut self, tables: &mut Tables<B>, gradient: &B::Matrix, columns: GradientColumns);
}

/// Sums the squares of all gradients.
pub struct SumSquares<'a, B: Backend> {
    /// The device.
    pub backend: &'a B,
    /// The batch and its plan of touched table rows.
    pub touched: (&'a B::Batch, &'a B::RowPlan),
    /// The sum to add to, `[1, 1]`.
    pub squares: &'a mut B::Matrix,
}

/// Takes an optimizer step for each parameter.
pub struct ApplyUpdates<'a, B: Backend> {
    /// The device.
    pub backend: &'a B,
    /// The batch and its plan of touched table rows.
    pub touched: (&'a B::Batch, &'a B::RowPlan),
    /// The factor of gradients, `[1, 1]`.
    pub scale: &'a B::Matrix,
    /// The bound to which scaled gradients are clipped; may be infinite.
    pub clip: f64,
    /// The step.
    pub step: Step,
    /// The random key of this step's stochastic rounding of weights.
    pub draws: u64,
}

impl<B: Backend> GradientVisitor<B> for SumSquares<'_, B> {
    fn layers(&mut self, layers: &mut dyn Parameters<B>) {
        layers.visit(&mut |parameter| {
            if let Storage::Matrix { gradient: Some(grad), .. } = parameter.storage {
                self.backend.run(ops::Squares { grad, sum: self.squares });
            }
        });
    }

    fn tables(&mut self, tables: &mut Tables<B>, gradient: &B::Matrix, columns: GradientColumns) {
        let Self { backend, touched, squares } = self;
        for_each_table(tables, *touched, gradient, columns, |gradients, tables, _| {
            backend.run(ops::RowSquares { gradients, tables, sum: squares });
        });
    }
}

impl<B: Backend> GradientVisitor<B> for ApplyUpdates<'_, B> {
    fn layers(&mut self, layers: &mut dyn Parameters<B>) {
        layers.visit(&mut |Parameter { spec, storage }| {
            let Storage::Matrix { value: weights, states, gradient: Some(grad) } = storage else { return };
            let Some(optimizer) = spec.optimizer else { return };
            let update = &optimizer.update(self.step, self.clip);
            self.backend.run(ops::Step { update, scale: self.scale, weights, states, grad });
        });
    }

    fn tables(&mut self, tables: &mut Tables<B>, gradient: &B::Matrix, columns: GradientColumns) {
        let Self { backend, touched, scale, draws, clip, step } = *self;
        for_each_table(tables, touched, gradient, columns, |gradients, tables, optimizer| {
            let update = &optimizer.update(step, clip);
            backend.run(ops::StepRows { update, scale, draws, gradients, tables });
        });
    }
}

/// Calls `visit` with the gradients of all tables, or with those of one table after another if workers have merged them;
/// and with these tables and their optimizer.
fn for_each_table<B: Backend>(
    tables: &mut Tables<B>,
    touched: (&B::Batch, &B::RowPlan),
    gradient: &B::Matrix,
    columns: GradientColumns,
    mut visit: impl FnMut(&RowGradients<'_, B>, &mut [B::Table], &Optimizer),
) {
    let optimizer = &tables.optimizer;
    if let Some(merged) = &tables.merged {
        for (gradients, table) in merged.gradients().zip(tables.tables.chunks_exact_mut(1)) {
            visit(&gradients, table, optimizer);
        }
    } else if !tables.tables.is_empty() {
        let ((batch, plan), maxima) = (touched, tables.maxima.as_ref());
        let gradients = RowGradients { batch, plan, lookups: &tables.lookups, gradient, columns, maxima };
        visit(&gradients, &mut tables.tables, optimizer);
    }
}
