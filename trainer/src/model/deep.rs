//! Embeddings beside dense columns, and an MLP over them: what most models have, alone or as a part.

use millstream_backend::{Activation, Backend, Device};

use crate::layers::{Embedding, Mlp, MlpActivations, MlpGradients};
use crate::learner::Learner;
use crate::model::batch_gradient::BatchGradient;
use crate::model::builder::Builder;
use crate::model::error::ModelError;
use crate::optimizer::Optimizer;
use crate::parameter::{ParameterSpec, Parameters, Stored, StoredMut};
use crate::pass::Pass;
use crate::spec::HiddenLayerSpec;

/// The part, with what a step of it needs.
pub(super) struct Deep<D: Device> {
    embedding: Embedding<D>,
    mlp: Mlp<D>,
    /// Embeddings, then dense columns; `[B, E + D]`.
    pub(super) input: D::Matrix,
    saved: MlpActivations<D>,
    work: MlpGradients<D>,
    /// The gradient by the embeddings, `[B, E]`; none without any.
    pub(super) by_embedding: Option<BatchGradient<D>>,
}

impl<D: Device> Deep<D> {
    /// Layers `deep.layer.0` and on, of widths `hidden`, then the logits of a row.
    pub(super) fn new(
        builder: &Builder<'_, D>,
        embedding: Embedding<D>,
        hidden: (&'static str, &[u32], &HiddenLayerSpec),
        optimizer: Optimizer,
    ) -> Result<Self, ModelError> {
        Self::named(builder, "deep", embedding, hidden, builder.outputs(), optimizer)
    }

    /// Layers `NAME.layer.0` and on, of widths `hidden`, then one of `outputs` in the logit's place.
    pub(super) fn named(
        builder: &Builder<'_, D>,
        name: &str,
        embedding: Embedding<D>,
        hidden: (&'static str, &[u32], &HiddenLayerSpec),
        outputs: usize,
        optimizer: Optimizer,
    ) -> Result<Self, ModelError> {
        let (room, embedded) = (builder.room(), embedding.embedded());
        let last = (outputs, Activation::Identity);
        let mlp = builder.mlp(name, embedding.outputs(), hidden, last, optimizer)?;
        Ok(Self {
            input: builder.matrix(embedding.outputs()),
            saved: MlpActivations::new(builder.device, room, &mlp),
            work: MlpGradients::new(builder.device, room, &mlp),
            by_embedding: (embedded > 0).then(|| builder.batch_gradient(embedded)),
            embedding,
            mlp,
        })
    }

    /// What the last forward pass gave, `[B, 1]`, or `[B, K]` of classes.
    pub(super) fn logits(&self) -> &D::Matrix {
        self.saved.output()
    }
}

impl<B: Backend> Deep<B> {
    pub(super) fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass) {
        self.embedding.forward(backend, batch, pass, &mut self.input, 0);
        self.mlp.forward(backend, pass, &self.input, &mut self.saved);
    }

    /// The logits, for what is added to them; and the input, `[B, E + D]`.
    pub(super) fn logits_mut(&mut self) -> (&mut B::Matrix, &B::Matrix) {
        (self.saved.output_mut(), &self.input)
    }

    /// Fills the layers' gradients, and that by the embeddings.
    pub(super) fn backward(&mut self, backend: &B, pass: &Pass, by_logits: &mut B::Matrix) {
        let (input, by_input) = (&self.input, self.by_embedding.as_mut().map(BatchGradient::of_pass));
        self.mlp.backward(backend, pass, input, &self.saved, &mut self.work, by_logits, by_input);
    }

    /// Keeps the gradient by the embeddings, once it is whole.
    pub(super) fn keep(&mut self, backend: &B, pass: &Pass) {
        if let Some(by_embedding) = &mut self.by_embedding {
            by_embedding.keep(backend, pass);
        }
    }

    pub(super) fn learn(&mut self, learner: &mut dyn Learner<B>) {
        self.mlp.learn(learner);
        if let Some(by_embedding) = &self.by_embedding {
            self.embedding.learn(by_embedding.of_batch(), 0, learner);
        }
    }
}

impl<D: Device> Parameters<D> for Deep<D> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        self.embedding.stored().into_iter().chain(self.mlp.stored()).collect()
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        self.embedding.stored_mut().into_iter().chain(self.mlp.stored_mut()).collect()
    }
}
