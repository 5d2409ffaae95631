//! DCN-v2: cross layers and an MLP, stacked or in parallel.
//!
//! ```text
//! stacked    embeddings | dense --- cross layers --- ReLU layers --- 1 --- logit --- sigmoid
//!
//! parallel   embeddings | dense --- cross layers --- 1 ----------------- + --- logit --- sigmoid
//!            embeddings | dense --- ReLU layers --- 1 ----------------- /
//! ```
//!
//! Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank
//! Systems", 2021, figure 1. An output layer over the concatenation of both parts is the sum of one over
//! each.

use millstream_backend::{Activation, Backend, Device, ops};

use crate::gradients::GradientVisitor;
use crate::layers::{
    Cross, CrossActivations, CrossGradients, Dense, Embedding, Mlp, MlpActivations, MlpGradients,
};
use crate::model::batch_gradient::BatchGradient;
use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::embeddings::EmbeddingKeys;
use crate::model::error::ModelError;
use crate::parameter::parameters;
use crate::pass::Pass;
use crate::spec::{DcnSpec, DcnStructure};

/// The model. `N` is the width of its input: embeddings plus dense columns.
pub(super) struct Dcn<D: Device> {
    embedding: Embedding<D>,
    cross: Cross<D>,
    deep: Mlp<D>,
    /// The contribution of the cross layers to the logit, if the MLP is parallel.
    output: Option<CrossOutput<D>>,
    saved: Saved<D>,
    work: Work<D>,
}

/// An output layer over the cross layers, with one output per logit.
struct CrossOutput<D: Device> {
    /// `[N, 1]`, or `[N, K]` for `K` classes. It has no bias, because the MLP's last layer has one.
    layer: Dense<D>,
    /// `[B, 1]`, or `[B, K]`
    logits: D::Matrix,
}

struct Saved<D: Device> {
    /// `[B, N]`
    input: D::Matrix,
    cross: CrossActivations<D>,
    deep: MlpActivations<D>,
}

struct Work<D: Device> {
    /// `[B, N]`
    input_grad: BatchGradient<D>,
    /// `[B, N]`
    cross_grad: D::Matrix,
    cross: CrossGradients<D>,
    deep: MlpGradients<D>,
}

impl<D: Device> Dcn<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &DcnSpec) -> Result<Self, ModelError> {
        let features = builder.some_features("model.features", &spec.features)?;
        let embedding = builder.embedding("", EmbeddingKeys::MODEL, &spec.embedding, features)?;
        let optimizer = builder.optimizer("model.optimizer", &spec.optimizer)?;
        let (buffers, width, device) = (builder.buffers(), embedding.outputs(), builder.device);
        let cross = builder.cross(width, &spec.cross, optimizer)?;
        let output = match spec.structure {
            DcnStructure::Stacked => None,
            DcnStructure::Parallel => {
                let (shape, activation) = ((width, builder.outputs()), Activation::Identity);
                let layer = Dense::without_bias(device, "cross.output", shape, activation, optimizer)?;
                layer.reserve_workspace(device, buffers);
                Some(CrossOutput { layer, logits: builder.logits() })
            }
        };
        let hidden = ("model.hidden", spec.hidden.as_slice(), &spec.hidden_layer);
        let last = (builder.outputs(), Activation::Identity);
        let deep = builder.mlp("deep", width, hidden, last, optimizer)?;
        Ok(Self {
            saved: Saved {
                input: builder.matrix(width),
                cross: CrossActivations::new(device, buffers, &cross),
                deep: MlpActivations::new(device, buffers, &deep),
            },
            work: Work {
                input_grad: builder.batch_gradient(width),
                cross_grad: builder.matrix(width),
                cross: CrossGradients::new(device, buffers, &cross),
                deep: MlpGradients::new(device, buffers, &deep),
            },
            embedding,
            cross,
            deep,
            output,
        })
    }
}

impl<B: Backend> Compute<B> for Dcn<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass) {
        let Saved { input, cross, deep } = &mut self.saved;
        self.embedding.forward(backend, batch, pass, input, 0);
        self.cross.forward(backend, pass, input, cross);
        match &mut self.output {
            None => self.deep.forward(backend, pass, cross.output(), deep),
            Some(CrossOutput { layer, logits }) => {
                self.deep.forward(backend, pass, input, deep);
                layer.forward(backend, pass, cross.output(), logits);
                backend.run(ops::Add { rows: pass.len(), from: logits, to: deep.output_mut() });
            }
        }
    }

    fn logits(&self) -> &B::Matrix {
        self.saved.deep.output()
    }

    fn backward(&mut self, backend: &B, _batch: &B::Batch, pass: &Pass, logits_grad: &mut B::Matrix) {
        let Saved { input, cross, deep } = &self.saved;
        let Work { input_grad: batch_grad, cross_grad, cross: cross_work, deep: deep_work } = &mut self.work;
        let input_grad = batch_grad.of_pass();
        match &mut self.output {
            None => {
                backend.run(ops::Clear { rows: pass.len(), matrix: input_grad });
                let cross_grad = Some(&mut *cross_grad);
                self.deep.backward(backend, pass, cross.output(), deep, deep_work, logits_grad, cross_grad);
            }
            Some(CrossOutput { layer, logits }) => {
                let input_grad = Some(&mut *input_grad);
                self.deep.backward(backend, pass, input, deep, deep_work, logits_grad, input_grad);
                layer.backward(backend, pass, cross.output(), logits, logits_grad, Some(cross_grad));
            }
        }
        self.cross.backward(backend, pass, input, cross, cross_work, cross_grad, input_grad);
        batch_grad.keep(backend, pass);
    }

    fn visit_gradients(&mut self, _logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        self.deep.visit_gradients(visitor);
        if let Some(CrossOutput { layer, .. }) = &mut self.output {
            layer.visit_gradients(visitor);
        }
        self.cross.visit_gradients(visitor);
        self.embedding.visit_gradients(self.work.input_grad.of_batch(), 0, visitor);
    }
}

parameters!(Dcn: embedding, cross, output, deep);
parameters!(CrossOutput: layer);
