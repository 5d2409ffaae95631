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
use crate::layers::{Cross, Dense, Embedding, Mlp, MlpGradients};
use crate::model::batch_gradient::BatchGradient;
use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::error::ModelError;
use crate::parameter::parameters;
use crate::pass::Pass;
use crate::spec::{DcnSpec, DcnStructure};

/// The model. `N` is the width of its input: embeddings plus dense columns.
pub(super) struct Dcn<D: Device> {
    embedding: Embedding<D>,
    cross: Cross<D>,
    deep: Mlp<D>,
    /// The contribution of the cross layers to the logit, if the MLP is parallel: `[N, 1]`, or `[N, K]` for `K`
    /// classes. It has no bias, because the MLP's last layer has one.
    output: Option<Dense<D>>,
    /// `[B, N]`
    input: D::Matrix,
    /// `[B, N]`
    input_grad: BatchGradient<D>,
    /// `[B, N]`
    cross_grad: D::Matrix,
    work: MlpGradients<D>,
}

impl<D: Device> Dcn<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &DcnSpec) -> Result<Self, ModelError> {
        let features = builder.some_features("model.features", &spec.features)?;
        let embedding = builder.embedding("", &spec.embedding, features)?;
        let optimizer = builder.optimizer("model.optimizer", &spec.optimizer)?;
        let (buffers, width, device) = (builder.buffers(), embedding.outputs(), builder.device);
        let cross = builder.cross(width, &spec.cross, optimizer)?;
        let output = match spec.structure {
            DcnStructure::Stacked => None,
            DcnStructure::Parallel => {
                let (shape, activation) = ((width, builder.outputs()), Activation::Identity);
                let (logits, name) = (builder.logits(), "cross.output");
                Some(Dense::without_bias(device, buffers, logits, name, shape, activation, optimizer)?)
            }
        };
        let hidden = ("model.hidden", spec.hidden.as_slice(), &spec.hidden_layer);
        let last = (builder.outputs(), Activation::Identity);
        let deep = builder.mlp("deep", width, hidden, last, optimizer)?;
        Ok(Self {
            input: builder.matrix(width),
            input_grad: builder.batch_gradient(width),
            cross_grad: builder.matrix(width),
            work: MlpGradients::new(device, buffers, &deep),
            embedding,
            cross,
            deep,
            output,
        })
    }
}

impl<B: Backend> Compute<B> for Dcn<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        let Self { embedding, cross, deep, output, input, .. } = self;
        embedding.forward(backend, batch, pass, input, 0);
        cross.forward(backend, pass, input);
        match output {
            None => deep.forward(backend, pass, cross.output()),
            Some(layer) => {
                deep.forward(backend, pass, input);
                layer.forward(backend, pass, cross.output());
                backend.run(ops::Add { rows: pass.len(), from: &layer.output, to: deep.output_mut() });
            }
        }
    }

    fn logits(&self) -> &B::Matrix {
        self.deep.output()
    }

    fn backward(&mut self, backend: &B, _batch: &B::Batch, pass: &Pass<'_, B>, logits_grad: &mut B::Matrix) {
        let Self { cross, deep, output, input, cross_grad, work, .. } = self;
        let input_grad = self.input_grad.of_pass();
        match output {
            None => {
                backend.run(ops::Clear { rows: pass.len(), matrix: input_grad });
                deep.backward(backend, pass, cross.output(), work, logits_grad, Some(cross_grad));
            }
            Some(layer) => {
                deep.backward(backend, pass, input, work, logits_grad, Some(input_grad));
                layer.backward(backend, pass, cross.output(), logits_grad, Some(cross_grad));
            }
        }
        cross.backward(backend, pass, input, cross_grad, input_grad);
        self.input_grad.keep(backend, pass);
    }

    fn visit_gradients(&mut self, _logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        visitor.layers(&mut self.deep);
        visitor.layers(&mut self.output);
        visitor.layers(&mut self.cross);
        self.embedding.visit_gradients(self.input_grad.of_batch(), 0, visitor);
    }
}

parameters!(Dcn: embedding, cross, output, deep);
