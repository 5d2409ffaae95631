//! Processes gradients after a backward pass.
//!
//! A model passes each parameter with its gradient to a visitor, in a fixed order. One visitor takes an
//! optimizer step; another computes the norm of all gradients before it. If several workers train together, two more
//! exchange gradients before both ([`exchange`](crate::exchange)).

use millstream_backend::{Backend, GradientColumns, RowGradients, ops};

use crate::layers::Tables;
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

/// Takes gradients of layers as soon as a backward pass has completed them.
pub(crate) trait CompletedGradients<B: Backend> {
    /// Takes those of `layers`, which no later operation of the pass uses.
    fn take(&self, backend: &B, layers: &mut dyn Parameters<B>);
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
        let Self { backend, touched, .. } = *self;
        let sum = &mut *self.squares;
        let Tables { lookups, tables, maxima, merged, .. } = &*tables;
        match (merged, touched) {
            _ if tables.is_empty() => {}
            (Some(rows), _) => backend.run(ops::MergedRowSquares { rows, tables, sum }),
            (None, (batch, plan)) => {
                let maxima = maxima.as_ref();
                let gradients = &RowGradients { batch, plan, lookups, gradient, columns, maxima };
                backend.run(ops::RowSquares { gradients, tables, sum });
            }
        }
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
        let Tables { lookups, tables, maxima, merged, optimizer, .. } = tables;
        let update = &optimizer.update(step, clip);
        match (merged, touched) {
            _ if tables.is_empty() => {}
            (Some(rows), _) => backend.run(ops::StepMergedRows { update, scale, draws, rows, tables }),
            (None, (batch, plan)) => {
                let maxima = maxima.as_ref();
                let gradients = &RowGradients { batch, plan, lookups, gradient, columns, maxima };
                backend.run(ops::StepRows { update, scale, draws, gradients, tables });
            }
        }
    }
}
