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
use crate::layers::{Cross, CrossActivations, CrossGradients, Embedding, Mlp, MlpActivations, MlpGradients};
use crate::model::batch_gradient::BatchGradient;
use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::embeddings::EmbeddingKeys;
use crate::model::error::ModelError;
use crate::parameter::{ParameterSpec, Parameters, Stored, StoredMut, parameters};
use crate::pass::Pass;
use crate::spec::{DlrmInteraction, DlrmSpec, EmbeddingDim};

/// The model. `V` is the number of vectors: the embeddings and the bottom's output; `W` is their width.
pub(super) struct Dlrm<D: Device> {
    /// The dense columns.
    dense: Embedding<D>,
    bottom: Mlp<D>,
    embedding: Embedding<D>,
    interaction: Interaction<D>,
    top: Mlp<D>,
    width: usize,
    saved: Saved<D>,
    work: Work<D>,
}

/// The interaction of vectors, with its activations and workspace.
enum Interaction<D: Device> {
    /// Pairwise dot products.
    Dot(DotWork<D>),
    /// Concatenation and cross layers.
    Cross(Box<CrossWork<D>>),
}

struct DotWork<D: Device> {
    /// `[B, W + V (V - 1) / 2]`, both.
    output: D::Matrix,
    output_grad: D::Matrix,
}

struct CrossWork<D: Device> {
    layers: Cross<D>,
    saved: CrossActivations<D>,
    work: CrossGradients<D>,
    /// `[B, V W]`
    output_grad: D::Matrix,
}

struct Saved<D: Device> {
    /// `[B, D]`
    dense: D::Matrix,
    bottom: MlpActivations<D>,
    /// The bottom's output, then the embeddings; `[B, V W]`.
    vectors: D::Matrix,
    top: MlpActivations<D>,
}

struct Work<D: Device> {
    bottom: MlpGradients<D>,
    /// `[B, W]`
    bottom_grad: D::Matrix,
    /// `[B, V W]`
    vectors_grad: BatchGradient<D>,
    top: MlpGradients<D>,
}

impl<D: Device> Dlrm<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &DlrmSpec) -> Result<Self, ModelError> {
        let key = "model.features";
        let mut features = builder.some_features(key, &spec.features)?;
        if features.ids.is_empty() {
            return Err(ModelError::NoFeature { key, model: "DLRM", kind: "id" });
        }
        if features.dense.is_empty() {
            return Err(ModelError::NoFeature { key, model: "DLRM", kind: "numeric" });
        }
        let optimizer = builder.optimizer("model.optimizer", &spec.optimizer)?;
        let dense = builder.numbers(std::mem::take(&mut features.dense), optimizer);
        let (embedding, width) = match spec.interaction {
            DlrmInteraction::Dot => builder.embedding_of_one_width("DLRM", &spec.embedding, features)?,
            DlrmInteraction::Cross(_) => {
                let keys = EmbeddingKeys::MODEL;
                // The width of the bottom's output.
                let EmbeddingDim::Columns(width) = spec.embedding.dim else {
                    return Err(ModelError::Widths { key: keys.dim, model: "DLRM" });
                };
                (builder.embedding("", keys, &spec.embedding, features)?, width as usize)
            }
        };
        let (buffers, device) = (builder.buffers(), builder.device);
        let hidden = ("model.bottom", spec.bottom.as_slice(), &spec.hidden_layer);
        let bottom = builder.mlp("bottom", dense.outputs(), hidden, (width, Activation::Relu), optimizer)?;
        let columns = width + embedding.outputs();
        let (interaction, outputs) = match &spec.interaction {
            DlrmInteraction::Dot => {
                let vectors = 1 + embedding.tables.lookups.len();
                let outputs = width + vectors * (vectors - 1) / 2;
                let (output, output_grad) = (builder.matrix(outputs), builder.matrix(outputs));
                (Interaction::Dot(DotWork { output, output_grad }), outputs)
            }
            DlrmInteraction::Cross(spec) => {
                let layers = builder.cross(columns, spec, optimizer)?;
                let work = CrossWork {
                    saved: CrossActivations::new(device, buffers, &layers),
                    work: CrossGradients::new(device, buffers, &layers),
                    output_grad: builder.matrix(columns),
                    layers,
                };
                (Interaction::Cross(Box::new(work)), columns)
            }
        };
        let hidden = ("model.top", spec.top.as_slice(), &spec.hidden_layer);
        let top =
            builder.mlp("top", outputs, hidden, (builder.outputs(), Activation::Identity), optimizer)?;
        Ok(Self {
            saved: Saved {
                dense: builder.matrix(dense.outputs()),
                bottom: MlpActivations::new(device, buffers, &bottom),
                vectors: builder.matrix(columns),
                top: MlpActivations::new(device, buffers, &top),
            },
            work: Work {
                bottom: MlpGradients::new(device, buffers, &bottom),
                bottom_grad: builder.matrix(width),
                vectors_grad: builder.batch_gradient(columns),
                top: MlpGradients::new(device, buffers, &top),
            },
            dense,
            bottom,
            embedding,
            interaction,
            top,
            width,
        })
    }
}

impl<D: Device> Interaction<D> {
    /// The output of the last forward pass, and the buffer for its gradient.
    fn output(&mut self) -> (&D::Matrix, &mut D::Matrix) {
        match self {
            Self::Dot(DotWork { output, output_grad }) => (output, output_grad),
            Self::Cross(cross) => (cross.saved.output(), &mut cross.output_grad),
        }
    }
}

impl<B: Backend> Interaction<B> {
    fn forward(&mut self, backend: &B, pass: &Pass, vectors: &B::Matrix, width: usize) {
        match self {
            Self::Dot(DotWork { output, .. }) => {
                backend.run(ops::DotForward { rows: pass.len(), vectors, width, out: output });
            }
            Self::Cross(cross) => cross.layers.forward(backend, pass, vectors, &mut cross.saved),
        }
    }

    /// Computes the gradient with respect to the vectors from that with respect to the output.
    fn backward(
        &mut self,
        backend: &B,
        pass: &Pass,
        vectors: &B::Matrix,
        width: usize,
        vectors_grad: &mut B::Matrix,
    ) {
        match self {
            Self::Dot(DotWork { output_grad, .. }) => {
                backend.run(ops::DotBackward {
                    rows: pass.len(),
                    vectors,
                    width,
                    out_grad: output_grad,
                    vectors_grad,
                });
            }
            Self::Cross(cross) => {
                let CrossWork { layers, saved, work, output_grad } = &mut **cross;
                backend.run(ops::Clear { rows: pass.len(), matrix: vectors_grad });
                layers.backward(backend, pass, vectors, saved, work, output_grad, vectors_grad);
            }
        }
    }
}

impl<B: Backend> Compute<B> for Dlrm<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass) {
        let Saved { dense, bottom, vectors, top } = &mut self.saved;
        self.dense.forward(backend, batch, pass, dense, 0);
        self.bottom.forward(backend, pass, dense, bottom);
        backend.run(ops::CopyColumns {
            rows: pass.len(),
            from: (bottom.output(), 0),
            to: (vectors, 0),
            columns: self.width,
        });
        self.embedding.forward(backend, batch, pass, vectors, self.width);
        self.interaction.forward(backend, pass, vectors, self.width);
        self.top.forward(backend, pass, self.interaction.output().0, top);
    }

    fn logits(&self) -> &B::Matrix {
        self.saved.top.output()
    }

    fn backward(&mut self, backend: &B, _batch: &B::Batch, pass: &Pass, logits_grad: &mut B::Matrix) {
        let Saved { dense, bottom, vectors, top } = &self.saved;
        let Work { bottom: bottom_work, bottom_grad, vectors_grad: batch_grad, top: top_work } =
            &mut self.work;
        let vectors_grad = batch_grad.of_pass();
        let (output, output_grad) = self.interaction.output();
        self.top.backward(backend, pass, output, top, top_work, logits_grad, Some(output_grad));
        self.interaction.backward(backend, pass, vectors, self.width, vectors_grad);
        backend.run(ops::CopyColumns {
            rows: pass.len(),
            from: (vectors_grad, 0),
            to: (bottom_grad, 0),
            columns: self.width,
        });
        self.bottom.backward(backend, pass, dense, bottom, bottom_work, bottom_grad, None);
        batch_grad.keep(backend, pass);
    }

    fn visit_gradients(&mut self, _logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        self.top.visit_gradients(visitor);
        if let Interaction::Cross(cross) = &mut self.interaction {
            cross.layers.visit_gradients(visitor);
        }
        self.bottom.visit_gradients(visitor);
        self.embedding.visit_gradients(self.work.vectors_grad.of_batch(), self.width, visitor);
    }
}

parameters!(Dlrm: embedding, bottom, interaction, top);

impl<D: Device> Parameters<D> for Interaction<D> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        match self {
            Self::Dot(_) => Vec::new(),
            Self::Cross(cross) => cross.layers.stored(),
        }
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        match self {
            Self::Dot(_) => Vec::new(),
            Self::Cross(cross) => cross.layers.stored_mut(),
        }
    }
}
