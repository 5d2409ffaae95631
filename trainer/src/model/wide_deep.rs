//! Wide & Deep: a linear model and an MLP over embeddings, trained jointly.
//!
//! ```text
//! ids, dense --- linear --------------------------------- + --- logit --- sigmoid, or softmax of classes
//! ids ---------- embeddings | dense --- ReLU layers --- 1 /
//! ```
//!
//! Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016. Each part has its optimizer.

use millstream_backend::{Backend, Device};

use crate::gradients::GradientVisitor;
use crate::layers::Linear;
use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::deep::Deep;
use crate::model::error::ModelError;
use crate::parameter::parameters;
use crate::pass::Pass;
use crate::spec::WideDeepSpec;

/// The model.
pub(super) struct WideDeep<D: Device> {
    wide: Linear<D>,
    deep: Deep<D>,
}

impl<D: Device> WideDeep<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &WideDeepSpec) -> Result<Self, ModelError> {
        let WideDeepSpec { wide, deep } = spec;
        let features = builder.features("model.wide.features", &wide.features)?;
        let optimizer = builder.optimizer("model.wide.optimizer", &wide.optimizer)?;
        let wide = builder.linear("wide", &features, optimizer)?;
        let features = builder.some_features("model.deep.features", &deep.features)?;
        // First, because the embeddings may have the same optimizer: an error then names its key.
        let optimizer = builder.optimizer("model.deep.optimizer", &deep.optimizer)?;
        let embedding = builder.embedding("deep.", &deep.embedding(), features)?;
        let hidden = ("model.deep.hidden", deep.hidden.as_slice(), &deep.hidden_layer);
        let deep = Deep::new(builder, "deep", embedding, hidden, builder.outputs(), optimizer)?;
        Ok(Self { wide, deep })
    }
}

impl<B: Backend> Compute<B> for WideDeep<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        self.deep.forward(backend, batch, pass);
        self.wide.forward(backend, batch, pass, self.deep.logits_mut().0);
    }

    fn logits(&self) -> &B::Matrix {
        self.deep.logits()
    }

    fn backward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>, logits_grad: &mut B::Matrix) {
        self.wide.backward(backend, batch, pass, logits_grad);
        self.deep.backward(backend, pass, logits_grad);
        self.deep.keep(backend, pass);
    }

    fn visit_gradients(&mut self, logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        self.deep.visit_gradients(visitor);
        self.wide.visit_gradients(logits_grad, visitor);
    }
}

parameters!(WideDeep: wide, deep);
