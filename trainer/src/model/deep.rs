//! Embeddings, dense columns and an MLP over them: a component of most models.

use millstream_backend::{Activation, Backend, Device};

use crate::gradients::GradientVisitor;
use crate::layers::{Embedding, Mlp, MlpGradients};
use crate::model::batch_gradient::BatchGradient;
use crate::model::builder::Builder;
use crate::model::error::ModelError;
use crate::optimizer::Optimizer;
use crate::parameter::parameters;
use crate::pass::Pass;
use crate::spec::HiddenLayerSpec;

/// The component, with the buffers of a step.
pub(super) struct Deep<D: Device> {
    embedding: Embedding<D>,
    mlp: Mlp<D>,
    /// Embeddings, then dense columns; `[B, E + D]`.
    pub(super) input: D::Matrix,
    work: MlpGradients<D>,
    /// The gradient with respect to the embeddings, `[B, E]`; `None` without embeddings.
    pub(super) embedding_grad: Option<BatchGradient<D>>,
}

impl<D: Device> Deep<D> {
    /// Layers `NAME.layer.0` and so on with widths `hidden`, then an output layer of width `outputs`.
    pub(super) fn new(
        builder: &Builder<'_, D>,
        name: &str,
        embedding: Embedding<D>,
        hidden: (&str, &[u32], &HiddenLayerSpec),
        outputs: usize,
        optimizer: Optimizer,
    ) -> Result<Self, ModelError> {
        let (embedded, last) = (embedding.embedded(), (outputs, Activation::Identity));
        let mlp = builder.mlp(name, embedding.outputs(), hidden, last, optimizer)?;
        Ok(Self {
            input: builder.matrix(embedding.outputs()),
            work: MlpGradients::new(builder.device, builder.buffers(), &mlp),
            embedding_grad: (embedded > 0).then(|| builder.batch_gradient(embedded)),
            embedding,
            mlp,
        })
    }

    /// The logits of the last forward pass, `[B, 1]`, or `[B, K]` for classes.
    pub(super) fn logits(&self) -> &D::Matrix {
        self.mlp.output()
    }
}

impl<B: Backend> Deep<B> {
    pub(super) fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        self.embedding.forward(backend, batch, pass, &mut self.input, 0);
        self.mlp.forward(backend, pass, &self.input);
    }

    /// The logits, to add to them, and the input, `[B, E + D]`.
    pub(super) fn logits_mut(&mut self) -> (&mut B::Matrix, &B::Matrix) {
        (self.mlp.output_mut(), &self.input)
    }

    /// Computes the layers' gradients and the gradient with respect to the embeddings.
    pub(super) fn backward(&mut self, backend: &B, pass: &Pass<'_, B>, logits_grad: &mut B::Matrix) {
        let (input, input_grad) = (&self.input, self.embedding_grad.as_mut().map(BatchGradient::of_pass));
        self.mlp.backward(backend, pass, input, &mut self.work, logits_grad, input_grad);
    }

    /// Keeps the gradient with respect to the embeddings, once it is complete.
    pub(super) fn keep(&mut self, backend: &B, pass: &Pass<'_, B>) {
        if let Some(embedding_grad) = &mut self.embedding_grad {
            embedding_grad.keep(backend, pass);
        }
    }

    pub(super) fn visit_gradients(&mut self, visitor: &mut dyn GradientVisitor<B>) {
        visitor.layers(&mut self.mlp);
        if let Some(embedding_grad) = &self.embedding_grad {
            self.embedding.visit_gradients(embedding_grad.of_batch(), 0, visitor);
        }
    }
}

parameters!(Deep: embedding, mlp);
