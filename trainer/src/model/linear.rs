//! Logistic regression: one weight for each id and each dense column, and a bias.

use millstream_backend::{Backend, Device, ops};

use crate::gradients::GradientVisitor;
use crate::layers::Linear;
use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::error::ModelError;
use crate::parameter::parameters;
use crate::pass::Pass;
use crate::spec::LinearSpec;

/// The model.
pub(super) struct LinearModel<D: Device> {
    linear: Linear<D>,
    /// `[B, 1]`, or `[B, K]` for classes.
    logits: D::Matrix,
}

impl<D: Device> LinearModel<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &LinearSpec) -> Result<Self, ModelError> {
        let features = builder.some_features("model.features", &spec.features)?;
        let optimizer = builder.optimizer("model.optimizer", &spec.optimizer)?;
        Ok(Self { linear: builder.linear("linear", &features, optimizer)?, logits: builder.logits() })
    }
}

impl<B: Backend> Compute<B> for LinearModel<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        backend.run(ops::Clear { rows: pass.len(), matrix: &mut self.logits });
        self.linear.forward(backend, batch, pass, &mut self.logits);
    }

    fn logits(&self) -> &B::Matrix {
        &self.logits
    }

    fn backward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>, logits_grad: &mut B::Matrix) {
        self.linear.backward(backend, batch, pass, logits_grad);
    }

    fn visit_gradients(&mut self, logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        self.linear.visit_gradients(logits_grad, visitor);
    }
}

parameters!(LinearModel: linear);
