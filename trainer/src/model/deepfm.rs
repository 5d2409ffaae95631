//! DeepFM: a factorization machine and an MLP over the same embeddings.
//!
//! ```text
//! ids, dense --- linear ----------------------------------------- + --- logit --- sigmoid
//! ids ---------- embeddings --- sum of pairwise dot products ---- +
//!                embeddings | dense --- ReLU layers --- 1 ------- /
//! ```
//!
//! Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017, equations 1
//! to 4. A numeric feature has a first-order weight and enters the MLP directly; only ids have embeddings.

use millstream_backend::{Backend, Device, ops};

use crate::gradients::GradientVisitor;
use crate::layers::Linear;
use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::deep::Deep;
use crate::model::error::ModelError;
use crate::parameter::parameters;
use crate::pass::Pass;
use crate::spec::DeepFmSpec;

/// The model.
pub(super) struct DeepFm<D: Device> {
    linear: Linear<D>,
    deep: Deep<D>,
    /// The number of embeddings and their width.
    vectors: (usize, usize),
}

impl<D: Device> DeepFm<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &DeepFmSpec) -> Result<Self, ModelError> {
        let key = "model.features";
        let features = builder.some_features(key, &spec.features)?;
        if features.ids.is_empty() {
            return Err(ModelError::NoFeature { key: key.to_owned(), model: "DeepFM", kind: "id" });
        }
        let linear_optimizer = builder.optimizer("model.linear_optimizer", &spec.linear_optimizer)?;
        let linear = builder.linear("linear", &features, linear_optimizer)?;
        let (embedding, width) = builder.embedding_of_one_width("DeepFM", &spec.embedding, features)?;
        let optimizer = builder.optimizer("model.optimizer", &spec.optimizer)?;
        let vectors = (embedding.tables.lookups.len(), width);
        let hidden = ("model.hidden", spec.hidden.as_slice(), &spec.hidden_layer);
        let deep = Deep::new(builder, "deep", embedding, hidden, builder.outputs(), optimizer)?;
        Ok(Self { linear, deep, vectors })
    }
}

impl<B: Backend> Compute<B> for DeepFm<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        self.deep.forward(backend, batch, pass);
        let (logits, input) = self.deep.logits_mut();
        backend.run(ops::FmForward { rows: pass.len(), vectors: input, shape: self.vectors, out: logits });
        self.linear.forward(backend, batch, pass, logits);
    }

    fn logits(&self) -> &B::Matrix {
        self.deep.logits()
    }

    fn backward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>, logits_grad: &mut B::Matrix) {
        self.linear.backward(backend, batch, pass, logits_grad);
        self.deep.backward(backend, pass, logits_grad);
        let Deep { input, embedding_grad, .. } = &mut self.deep;
        if let Some(embedding_grad) = embedding_grad {
            backend.run(ops::FmBackward {
                rows: pass.len(),
                vectors: input,
                shape: self.vectors,
                out_grad: logits_grad,
                vectors_grad: embedding_grad.of_pass(),
            });
        }
        self.deep.keep(backend, pass);
    }

    fn visit_gradients(&mut self, logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        self.deep.visit_gradients(visitor);
        self.linear.visit_gradients(logits_grad, visitor);
    }
}

parameters!(DeepFm: linear, deep);
