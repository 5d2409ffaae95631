//! DLRM: an MLP makes one vector of the dense columns, which meets the embeddings.
//!
//! ```text
//! dense --- bottom ReLU layers --- W -- | --- products of pairs, or cross layers --- top ReLU layers --- 1 --- logit
//! ids ----- embeddings ------- F * W -- /
//! ```
//!
//! Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019; with
//! cross layers of a low rank, DLRM-DCNv2 of MLPerf Training 3.0.

use millstream_backend::{Activation, Backend, Device};

use crate::layers::{Cross, CrossActivations, CrossGradients, Embedding, Mlp, MlpActivations, MlpGradients};
use crate::learner::Learner;
use crate::model::batch_gradient::BatchGradient;
use crate::model::builder::Builder;
use crate::model::embeddings::EmbeddingKeys;
use crate::model::error::ModelError;
use crate::model::network::Compute;
use crate::parameter::{ParameterSpec, Parameters, Stored, StoredMut};
use crate::pass::Pass;
use crate::spec::{DlrmInteraction, DlrmSpec, EmbeddingDim};

/// The model. `V` is the number of vectors, the embeddings' and one of the dense columns; `W` their width.
pub(super) struct Dlrm<D: Device> {
    /// Dense columns alone.
    dense: Embedding<D>,
    bottom: Mlp<D>,
    embedding: Embedding<D>,
    interaction: Interaction<D>,
    top: Mlp<D>,
    width: usize,
    saved: Saved<D>,
    work: Work<D>,
}

/// How vectors meet, with what that leaves for the backward pass and its workspace.
enum Interaction<D: Device> {
    /// By products of pairs.
    Dot(DotWork<D>),
    /// Side by side, through cross layers.
    Cross(Box<CrossWork<D>>),
}

struct DotWork<D: Device> {
    /// `[B, W + V (V - 1) / 2]`, both.
    output: D::Matrix,
    by_output: D::Matrix,
}

struct CrossWork<D: Device> {
    layers: Cross<D>,
    saved: CrossActivations<D>,
    work: CrossGradients<D>,
    /// `[B, V W]`
    by_output: D::Matrix,
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
    by_bottom: D::Matrix,
    /// `[B, V W]`
    by_vectors: BatchGradient<D>,
    top: MlpGradients<D>,
}

impl<D: Device> Dlrm<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &DlrmSpec) -> Result<Self, ModelError> {
        let key = "model.features";
        let mut features = builder.some_features(key, &spec.features)?;
        if features.ids.is_empty() {
            return Err(ModelError::NoFeature { key, model: "DLRM", kind: "of ids" });
        }
        if features.dense.is_empty() {
            return Err(ModelError::NoFeature { key, model: "DLRM", kind: "of numbers" });
        }
        let optimizer = builder.optimizer("model.optimizer", &spec.optimizer)?;
        let dense = builder.numbers(std::mem::take(&mut features.dense), optimizer);
        let (embedding, width) = match spec.interaction {
            DlrmInteraction::Dot => builder.embedding_of_one_width("DLRM", &spec.embedding, features)?,
            DlrmInteraction::Cross(_) => {
                let keys = EmbeddingKeys::MODEL;
                // That of what the dense columns become.
                let EmbeddingDim::Columns(width) = spec.embedding.dim else {
                    return Err(ModelError::Widths { key: keys.dim, model: "DLRM" });
                };
                (builder.embedding("", keys, &spec.embedding, features)?, width as usize)
            }
        };
        let (room, device) = (builder.room(), builder.device);
        let hidden = ("model.bottom", spec.bottom.as_slice(), &spec.hidden_layer);
        let bottom = builder.mlp("bottom", dense.outputs(), hidden, (width, Activation::Relu), optimizer)?;
        let columns = width + embedding.outputs();
        let (interaction, outputs) = match &spec.interaction {
            DlrmInteraction::Dot => {
                let vectors = 1 + embedding.tables.lookups.len();
                let outputs = width + vectors * (vectors - 1) / 2;
                let (output, by_output) = (builder.matrix(outputs), builder.matrix(outputs));
                (Interaction::Dot(DotWork { output, by_output }), outputs)
            }
            DlrmInteraction::Cross(spec) => {
                let layers = builder.cross(columns, spec, optimizer)?;
                let work = CrossWork {
                    saved: CrossActivations::new(device, room, &layers),
                    work: CrossGradients::new(device, room, &layers),
                    by_output: builder.matrix(columns),
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
                bottom: MlpActivations::new(device, room, &bottom),
                vectors: builder.matrix(columns),
                top: MlpActivations::new(device, room, &top),
            },
            work: Work {
                bottom: MlpGradients::new(device, room, &bottom),
                by_bottom: builder.matrix(width),
                by_vectors: builder.batch_gradient(columns),
                top: MlpGradients::new(device, room, &top),
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
    /// What the last forward pass gave, and room for the gradient by it.
    fn output(&mut self) -> (&D::Matrix, &mut D::Matrix) {
        match self {
            Self::Dot(DotWork { output, by_output }) => (output, by_output),
            Self::Cross(cross) => (cross.saved.output(), &mut cross.by_output),
        }
    }
}

impl<B: Backend> Interaction<B> {
    fn forward(&mut self, backend: &B, pass: &Pass, vectors: &B::Matrix, width: usize) {
        match self {
            Self::Dot(DotWork { output, .. }) => backend.dot_forward(pass.len(), vectors, width, output),
            Self::Cross(cross) => cross.layers.forward(backend, pass, vectors, &mut cross.saved),
        }
    }

    /// Fills the gradient by the vectors from that by the output.
    fn backward(
        &mut self,
        backend: &B,
        pass: &Pass,
        vectors: &B::Matrix,
        width: usize,
        by_vectors: &mut B::Matrix,
    ) {
        match self {
            Self::Dot(DotWork { by_output, .. }) => {
                backend.dot_backward(pass.len(), vectors, width, by_output, by_vectors);
            }
            Self::Cross(cross) => {
                let CrossWork { layers, saved, work, by_output } = &mut **cross;
                backend.clear(pass.len(), by_vectors);
                layers.backward(backend, pass, vectors, saved, work, by_output, by_vectors);
            }
        }
    }
}

impl<B: Backend> Compute<B> for Dlrm<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass) {
        let Saved { dense, bottom, vectors, top } = &mut self.saved;
        self.dense.forward(backend, batch, pass, dense, 0);
        self.bottom.forward(backend, pass, dense, bottom);
        backend.copy_columns(pass.len(), (bottom.output(), 0), (vectors, 0), self.width);
        self.embedding.forward(backend, batch, pass, vectors, self.width);
        self.interaction.forward(backend, pass, vectors, self.width);
        self.top.forward(backend, pass, self.interaction.output().0, top);
    }

    fn logits(&self) -> &B::Matrix {
        self.saved.top.output()
    }

    fn backward(&mut self, backend: &B, _batch: &B::Batch, pass: &Pass, by_logits: &mut B::Matrix) {
        let Saved { dense, bottom, vectors, top } = &self.saved;
        let Work { bottom: bottom_work, by_bottom, by_vectors: by_batch, top: top_work } = &mut self.work;
        let by_vectors = by_batch.of_pass();
        let (output, by_output) = self.interaction.output();
        self.top.backward(backend, pass, output, top, top_work, by_logits, Some(by_output));
        self.interaction.backward(backend, pass, vectors, self.width, by_vectors);
        backend.copy_columns(pass.len(), (by_vectors, 0), (by_bottom, 0), self.width);
        self.bottom.backward(backend, pass, dense, bottom, bottom_work, by_bottom, None);
        by_batch.keep(backend, pass);
    }

    fn learn(&mut self, _by_logits: &B::Matrix, learner: &mut dyn Learner<B>) {
        self.top.learn(learner);
        if let Interaction::Cross(cross) = &mut self.interaction {
            cross.layers.learn(learner);
        }
        self.bottom.learn(learner);
        self.embedding.learn(self.work.by_vectors.of_batch(), self.width, learner);
    }
}

impl<D: Device> Parameters<D> for Dlrm<D> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        let mut stored = self.embedding.stored();
        stored.extend(self.bottom.stored());
        if let Interaction::Cross(cross) = &self.interaction {
            stored.extend(cross.layers.stored());
        }
        stored.extend(self.top.stored());
        stored
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        let mut stored = self.embedding.stored_mut();
        stored.extend(self.bottom.stored_mut());
        if let Interaction::Cross(cross) = &mut self.interaction {
            stored.extend(cross.layers.stored_mut());
        }
        stored.extend(self.top.stored_mut());
        stored
    }
}
