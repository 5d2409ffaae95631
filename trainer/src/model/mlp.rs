//! An MLP over the concatenation of embeddings and dense columns; Covington, Adams and Sargin, "Deep Neural
//! Networks for YouTube Recommendations", 2016, section 4.

use millstream_backend::{Backend, Device};

use crate::gradients::GradientVisitor;
use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::deep::Deep;
use crate::model::error::ModelError;
use crate::parameter::parameters;
use crate::pass::Pass;
use crate::spec::MlpSpec;

/// The model.
pub(super) struct MlpModel<D: Device> {
    deep: Deep<D>,
}

impl<D: Device> MlpModel<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &MlpSpec) -> Result<Self, ModelError> {
        let features = builder.some_features("model.features", &spec.features)?;
        let embedding = builder.embedding("", &spec.embedding, features)?;
        let optimizer = builder.optimizer("model.optimizer", &spec.optimizer)?;
        let hidden = ("model.hidden", spec.hidden.as_slice(), &spec.hidden_layer);
        Ok(Self { deep: Deep::new(builder, "deep", embedding, hidden, builder.outputs(), optimizer)? })
    }
}

impl<B: Backend> Compute<B> for MlpModel<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        self.deep.forward(backend, batch, pass);
    }

    fn logits(&self) -> &B::Matrix {
        self.deep.logits()
    }

    fn backward(&mut self, backend: &B, _batch: &B::Batch, pass: &Pass<'_, B>, logits_grad: &mut B::Matrix) {
        self.deep.backward(backend, pass, logits_grad);
        self.deep.keep(backend, pass);
    }

    fn visit_gradients(&mut self, _logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        self.deep.visit_gradients(visitor);
    }
}

parameters!(MlpModel: deep);
