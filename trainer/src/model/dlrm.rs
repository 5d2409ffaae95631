//! DLRM: an MLP maps the dense columns to one vector, which interacts with the embeddings.
//!
//! ```text
//! dense --- bottom ReLU layers --- W -- | --- dot products, or cross layers --- top ReLU layers --- 1 --- logit
//! ids ----- embeddings ------- F * W -- /
//! ```
//!
//! Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019;
//! with low-rank cross layers, DLRM-DCNv2 of MLPerf Training 3.0.

use millstream_backend::{Activation, Backend, Device, ops};

use crate::gradients::GradientVisitor;
use crate::layers::{Cross, Embedding, Mlp, MlpGradients};
use crate::model::batch_gradient::BatchGradient;
use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::error::ModelError;
use crate::parameter::{Parameter, Parameters, parameters};
use crate::pass::Pass;
use crate::spec::{DlrmInteraction, DlrmSpec, EmbeddingDim};

/// The model. `V` is the number of vectors: the embeddings and the bottom's output; `W` is their width.
pub(super) struct Dlrm<D: Device> {
    numbers: Embedding<D>,
    bottom: Mlp<D>,
    embedding: Embedding<D>,
    interaction: Interaction<D>,
    top: Mlp<D>,
    width: usize,
    /// The dense columns, `[B, D]`.
    dense: D::Matrix,
    /// The bottom's output, then the embeddings; `[B, V W]`.
    vectors: D::Matrix,
    work: Work<D>,
}

/// The interaction of vectors.
enum Interaction<D: Device> {
    /// Pairwise dot products: `[B, W + V (V - 1) / 2]`.
    Dot(D::Matrix),
    /// Concatenation and cross layers.
    Cross(Cross<D>),
}

/// The workspace of a backward pass.
struct Work<D: Device> {
    bottom: MlpGradients<D>,
    /// `[B, W]`
    bottom_grad: D::Matrix,
    /// `[B, V W]`
    vectors_grad: BatchGradient<D>,
    /// With respect to the interaction's output.
    output_grad: D::Matrix,
    top: MlpGradients<D>,
}

impl<D: Device> Dlrm<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &DlrmSpec) -> Result<Self, ModelError> {
        let key = "model.features";
        let mut features = builder.some_features(key, &spec.features)?;
        if features.ids.is_empty() {
            return Err(ModelError::NoFeature { key: key.to_owned(), model: "DLRM", kind: "id" });
        }
        if features.dense.is_empty() {
            return Err(ModelError::NoFeature { key: key.to_owned(), model: "DLRM", kind: "numeric" });
        }
        let optimizer = builder.optimizer("model.optimizer", &spec.optimizer)?;
        let numbers = builder.numbers(std::mem::take(&mut features.dense), optimizer);
        let (embedding, width) = match spec.interaction {
            DlrmInteraction::Dot => builder.embedding_of_one_width("DLRM", &spec.embedding, features)?,
            DlrmInteraction::Cross(_) => {
                // The width of the bottom's output.
                let EmbeddingDim::Columns(width) = spec.embedding.dim else {
                    return Err(ModelError::widths("DLRM"));
                };
                (builder.embedding("", &spec.embedding, features)?, width as usize)
            }
        };
        let (buffers, device) = (builder.buffers(), builder.device);
        let hidden = ("model.bottom", spec.bottom.as_slice(), &spec.hidden_layer);
        let bottom =
            builder.mlp("bottom", numbers.outputs(), hidden, (width, Activation::Relu), optimizer)?;
        let columns = width + embedding.outputs();
        let (interaction, outputs) = match &spec.interaction {
            DlrmInteraction::Dot => {
                let vectors = 1 + embedding.tables.lookups.len();
                let outputs = width + vectors * (vectors - 1) / 2;
                (Interaction::Dot(builder.matrix(outputs)), outputs)
            }
            DlrmInteraction::Cross(spec) => {
                (Interaction::Cross(builder.cross(columns, spec, optimizer)?), columns)
            }
        };
        let hidden = ("model.top", spec.top.as_slice(), &spec.hidden_layer);
        let top =
            builder.mlp("top", outputs, hidden, (builder.outputs(), Activation::Identity), optimizer)?;
        Ok(Self {
            dense: builder.matrix(numbers.outputs()),
            vectors: builder.matrix(columns),
            work: Work {
                bottom: MlpGradients::new(device, buffers, &bottom),
                bottom_grad: builder.matrix(width),
                vectors_grad: builder.batch_gradient(columns),
                output_grad: builder.matrix(outputs),
                top: MlpGradients::new(device, buffers, &top),
            },
            numbers,
            bottom,
            embedding,
            interaction,
            top,
            width,
        })
    }
}

impl<D: Device> Interaction<D> {
    /// The output of the last forward pass.
    fn output(&self) -> &D::Matrix {
        match self {
            Self::Dot(output) => output,
            Self::Cross(layers) => layers.output(),
        }
    }
}

impl<B: Backend> Interaction<B> {
    fn forward(&mut self, backend: &B, pass: &Pass<'_, B>, vectors: &B::Matrix, width: usize) {
        match self {
            Self::Dot(out) => backend.run(ops::DotForward { rows: pass.len(), vectors, width, out }),
            Self::Cross(layers) => layers.forward(backend, pass, vectors),
        }
    }

    /// Computes the gradient with respect to the vectors from that with respect to the output.
    fn backward(
        &mut self,
        backend: &B,
        pass: &Pass<'_, B>,
        (vectors, width): (&B::Matrix, usize),
        out_grad: &mut B::Matrix,
        vectors_grad: &mut B::Matrix,
    ) {
        let rows = pass.len();
        match self {
            Self::Dot(_) => {
                backend.run(ops::DotBackward { rows, vectors, width, out_grad, vectors_grad });
            }
            Self::Cross(layers) => {
                backend.run(ops::Clear { rows, matrix: vectors_grad });
                layers.backward(backend, pass, vectors, out_grad, vectors_grad);
            }
        }
    }
}

impl<B: Backend> Compute<B> for Dlrm<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        let Self { bottom, interaction, dense, vectors, width, .. } = self;
        self.numbers.forward(backend, batch, pass, dense, 0);
        bottom.forward(backend, pass, dense);
        backend.run(ops::CopyColumns {
            rows: pass.len(),
            from: (bottom.output(), 0),
            to: (vectors, 0),
            columns: *width,
        });
        self.embedding.forward(backend, batch, pass, vectors, *width);
        interaction.forward(backend, pass, vectors, *width);
        self.top.forward(backend, pass, interaction.output());
    }

    fn logits(&self) -> &B::Matrix {
        self.top.output()
    }

    fn backward(&mut self, backend: &B, _batch: &B::Batch, pass: &Pass<'_, B>, logits_grad: &mut B::Matrix) {
        let Self { bottom, interaction, top, width, dense, vectors, .. } = self;
        let Work { bottom: bottom_work, bottom_grad, vectors_grad: batch_grad, output_grad, top: top_work } =
            &mut self.work;
        let vectors_grad = batch_grad.of_pass();
        top.backward(backend, pass, interaction.output(), top_work, logits_grad, Some(output_grad));
        interaction.backward(backend, pass, (vectors, *width), output_grad, vectors_grad);
        backend.run(ops::CopyColumns {
            rows: pass.len(),
            from: (vectors_grad, 0),
            to: (bottom_grad, 0),
            columns: *width,
        });
        bottom.backward(backend, pass, dense, bottom_work, bottom_grad, None);
        batch_grad.keep(backend, pass);
    }

    fn visit_gradients(&mut self, _logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        visitor.layers(&mut self.top);
        visitor.layers(&mut self.interaction);
        visitor.layers(&mut self.bottom);
        self.embedding.visit_gradients(self.work.vectors_grad.of_batch(), self.width, visitor);
    }
}

parameters!(Dlrm: embedding, bottom, interaction, top);

impl<D: Device> Parameters<D> for Interaction<D> {
    fn visit<'a>(&'a mut self, visit: &mut dyn FnMut(Parameter<'a, D>)) {
        if let Self::Cross(layers) = self {
            layers.visit(visit);
        }
    }
}
