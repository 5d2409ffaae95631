//! MMoE: experts shared by all tasks, and a gate over them and a tower for each task.
//!
//! ```text
//!                              +- expert 0 -+
//! embeddings | dense  ---------+-    ...    +--- mixture of task 0 --- tower 0 --- logit 0
//!                     \        +- expert n -+ \- mixture of task 1 --- tower 1 --- logit 1
//!                      gates --- softmax -----/
//! ```
//!
//! Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", 2018,
//! figure 1c and section 4.2: experts and towers are MLPs with ReLU; gates are linear in the input, without a
//! bias. The gates of all tasks are one layer: columns `t E` to `(t + 1) E` belong to task `t`. Gates are
//! logits, so they are always fp32.

use millstream_backend::{Activation, Backend, Device, MixtureShape, ops};

use crate::gradients::GradientVisitor;
use crate::layers::{Dense, Embedding, Mlp, MlpGradients};
use crate::model::batch_gradient::BatchGradient;
use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::error::ModelError;
use crate::optimizer::Optimizer;
use crate::parameter::parameters;
use crate::pass::Pass;
use crate::spec::MmoeSpec;

/// The model. `N` is the width of its input, embeddings plus dense columns; `M` is the width of an expert's
/// output.
pub(super) struct Mmoe<D: Device> {
    embedding: Embedding<D>,
    experts: Vec<Mlp<D>>,
    /// `[N, T * E]`
    gate: Dense<D>,
    /// One for each task.
    towers: Vec<Mlp<D>>,
    shape: MixtureShape,
    saved: Saved<D>,
    work: Work<D>,
}

struct Saved<D: Device> {
    /// `[B, N]`
    input: D::Matrix,
    /// The concatenated outputs of the experts, `[B, E * M]`.
    given: D::Matrix,
    /// `[B, T * E]`
    gates: D::Matrix,
    /// `[B, T * M]`
    mixtures: D::Matrix,
    /// The input of each tower, `[B, M]`.
    tower_inputs: Vec<D::Matrix>,
    /// `[B, T]`
    logits: D::Matrix,
}

struct Work<D: Device> {
    /// For one tower at a time: the gradients with respect to its logit `[B, 1]`, its layers, and its input
    /// `[B, M]`.
    logit_grad: D::Matrix,
    tower: MlpGradients<D>,
    mixture_grad: D::Matrix,
    /// `[B, T * M]`
    mixtures_grad: D::Matrix,
    /// `[B, T * E]`
    gate_logits_grad: D::Matrix,
    /// `[B, E * M]`
    expert_outputs_grad: D::Matrix,
    /// For one expert at a time: the gradients with respect to its output `[B, M]` and its layers.
    expert_grad: D::Matrix,
    expert: MlpGradients<D>,
    /// The gradient with respect to the embeddings' columns, and one expert's contribution to it; `None`
    /// without embeddings.
    embedding_grad: Option<(BatchGradient<D>, D::Matrix)>,
}

impl<D: Device> Mmoe<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &MmoeSpec) -> Result<Self, ModelError> {
        let features = builder.some_features("model.features", &spec.features)?;
        let embedding = builder.embedding("", &spec.embedding, features)?;
        let optimizer = builder.optimizer("model.optimizer", &spec.optimizer)?;
        let experts = experts(builder, embedding.outputs(), spec, optimizer)?;
        let [first, ..] = experts.as_slice() else {
            let expected = "at least one expert is needed";
            return Err(ModelError::Empty { key: "model.experts".to_owned(), expected });
        };
        let (tasks, width) = (builder.label_count(), first.outputs());
        let mixture = MixtureShape { tasks, experts: experts.len(), width };
        let (device, buffers, gates) = (builder.device, builder.buffers(), tasks * experts.len());
        let (logits, shape) = (buffers.fp32(device, gates), (embedding.outputs(), gates));
        let none = Activation::Identity;
        let gate = Dense::without_bias(device, buffers, logits, "gate", shape, none, optimizer)?;
        let towers = towers(builder, width, spec, optimizer)?;
        let gradients = |mlp| MlpGradients::new(device, buffers, mlp);
        let embedded = embedding.embedded();
        Ok(Self {
            saved: Saved {
                input: builder.matrix(embedding.outputs()),
                given: builder.matrix(experts.len() * width),
                gates: buffers.fp32(device, gates),
                mixtures: builder.matrix(tasks * width),
                tower_inputs: towers.iter().map(|_| builder.matrix(width)).collect(),
                logits: builder.logits(),
            },
            work: Work {
                logit_grad: buffers.fp32(device, 1),
                tower: gradients(&towers[0]),
                mixture_grad: builder.matrix(width),
                mixtures_grad: builder.matrix(tasks * width),
                gate_logits_grad: buffers.fp32(device, gates),
                expert_outputs_grad: builder.matrix(experts.len() * width),
                expert_grad: builder.matrix(width),
                expert: gradients(&experts[0]),
                embedding_grad: (embedded > 0)
                    .then(|| (builder.batch_gradient(embedded), builder.matrix(embedded))),
            },
            embedding,
            experts,
            gate,
            towers,
            shape: mixture,
        })
    }
}

/// Experts `expert.0` and so on.
fn experts<D: Device>(
    builder: &Builder<'_, D>,
    inputs: usize,
    spec: &MmoeSpec,
    optimizer: Optimizer,
) -> Result<Vec<Mlp<D>>, ModelError> {
    let key = "model.expert";
    let Some((&last, hidden)) = spec.expert.split_last().filter(|(last, _)| **last > 0) else {
        let expected = "an expert has at least one layer of one output";
        return Err(ModelError::Empty { key: key.to_owned(), expected });
    };
    let expert = |number: u32| {
        let (hidden, last) = ((key, hidden, &spec.hidden_layer), (last as usize, Activation::Relu));
        builder.mlp(&format!("expert.{number}"), inputs, hidden, last, optimizer)
    };
    (0..spec.experts).map(expert).collect()
}

/// Towers named after their labels.
fn towers<D: Device>(
    builder: &Builder<'_, D>,
    inputs: usize,
    spec: &MmoeSpec,
    optimizer: Optimizer,
) -> Result<Vec<Mlp<D>>, ModelError> {
    let tower = |label: &str| {
        let name = tower_name(label);
        let hidden = ("model.tower", spec.tower.as_slice(), &spec.hidden_layer);
        builder.mlp(&name, inputs, hidden, (1, Activation::Identity), optimizer)
    };
    builder.labels().into_iter().map(tower).collect()
}

/// The prefix of the names of a label's tower.
pub(crate) fn tower_name(label: &str) -> String {
    if label.is_empty() { "tower".to_owned() } else { format!("tower.{label}") }
}

impl<B: Backend> Compute<B> for Mmoe<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        let (rows, width) = (pass.len(), self.shape.width);
        let Saved { input, given, gates, mixtures, tower_inputs, logits } = &mut self.saved;
        self.embedding.forward(backend, batch, pass, input, 0);
        for (number, expert) in self.experts.iter_mut().enumerate() {
            expert.forward(backend, pass, input);
            backend.run(ops::CopyColumns {
                rows,
                from: (expert.output(), 0),
                to: (given, number * width),
                columns: width,
            });
        }
        self.gate.forward(backend, pass, input);
        backend.run(ops::MixtureForward {
            rows,
            shape: self.shape,
            logits: &self.gate.output,
            experts: given,
            gates,
            output: mixtures,
        });
        for (task, (tower, mixture)) in self.towers.iter_mut().zip(tower_inputs).enumerate() {
            backend.run(ops::CopyColumns {
                rows,
                from: (mixtures, task * width),
                to: (mixture, 0),
                columns: width,
            });
            tower.forward(backend, pass, mixture);
            backend.run(ops::CopyColumns { rows, from: (tower.output(), 0), to: (logits, task), columns: 1 });
        }
    }

    fn logits(&self) -> &B::Matrix {
        &self.saved.logits
    }

    fn backward(&mut self, backend: &B, _batch: &B::Batch, pass: &Pass<'_, B>, logits_grad: &mut B::Matrix) {
        self.towers_backward(backend, pass, logits_grad);
        let (rows, width) = (pass.len(), self.shape.width);
        let Saved { input, given, gates, .. } = &self.saved;
        let Work {
            mixtures_grad,
            gate_logits_grad,
            expert_outputs_grad,
            expert_grad,
            expert: work,
            embedding_grad,
            ..
        } = &mut self.work;
        backend.run(ops::MixtureBackward {
            rows,
            shape: self.shape,
            gates,
            experts: given,
            output_grad: mixtures_grad,
            logits_grad: gate_logits_grad,
            experts_grad: expert_outputs_grad,
        });
        let mut embedding_grad = embedding_grad.as_mut();
        let input_grad = embedding_grad.as_mut().map(|(whole, _)| whole.of_pass());
        self.gate.backward(backend, pass, input, gate_logits_grad, input_grad);
        for (number, expert) in self.experts.iter_mut().enumerate() {
            backend.run(ops::CopyColumns {
                rows,
                from: (expert_outputs_grad, number * width),
                to: (expert_grad, 0),
                columns: width,
            });
            let part = embedding_grad.as_mut().map(|(_, part)| part);
            expert.backward(backend, pass, input, work, expert_grad, part);
            if let Some((whole, part)) = &mut embedding_grad {
                backend.run(ops::Add { rows, from: part, to: whole.of_pass() });
            }
        }
        if let Some((whole, _)) = embedding_grad {
            whole.keep(backend, pass);
        }
    }

    fn visit_gradients(&mut self, _logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        visitor.layers(&mut self.towers);
        visitor.layers(&mut self.gate);
        visitor.layers(&mut self.experts);
        if let Some((embedding_grad, _)) = &self.work.embedding_grad {
            self.embedding.visit_gradients(embedding_grad.of_batch(), 0, visitor);
        }
    }
}

impl<B: Backend> Mmoe<B> {
    /// Computes the gradients of the towers and the gradient with respect to the mixtures.
    fn towers_backward(&mut self, backend: &B, pass: &Pass<'_, B>, logits_grad: &B::Matrix) {
        let (rows, width) = (pass.len(), self.shape.width);
        let Work { logit_grad, tower: work, mixture_grad, mixtures_grad, .. } = &mut self.work;
        for (task, (tower, mixture)) in self.towers.iter_mut().zip(&self.saved.tower_inputs).enumerate() {
            backend.run(ops::CopyColumns {
                rows,
                from: (logits_grad, task),
                to: (logit_grad, 0),
                columns: 1,
            });
            tower.backward(backend, pass, mixture, work, logit_grad, Some(mixture_grad));
            backend.run(ops::CopyColumns {
                rows,
                from: (mixture_grad, 0),
                to: (mixtures_grad, task * width),
                columns: width,
            });
        }
    }
}

parameters!(Mmoe: embedding, experts, gate, towers);
