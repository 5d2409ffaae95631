//! The models: upload, forward, loss, backward, update. Each kind of model has a file.
//!
//! A model is built on a device. Built on [`Sizes`], which has no memory, it reports the memory that it needs; so the
//! plan of a model cannot differ from the model.

mod batch_gradient;
mod builder;
mod compared;
mod compute;
mod dcn;
mod deep;
mod deepfm;
pub(crate) mod din;
mod dlrm;
pub(crate) mod embeddings;
mod error;
pub(crate) mod features;
mod linear;
mod mlp;
pub(crate) mod mmoe;
mod network;
mod scaling;
mod step;
mod steps;
mod two_tower;
mod wide_deep;

use millstream_backend::{
    Backend, BatchError, Cpu, Cuda, Device, Float, Layout, Loss, PinError, Scalar, Sizes, TablePart,
    TablePlace, Task, WorkspaceUse, ops, ranges_of,
};
use millstream_batch::{BatchRef, BatchSchema, RingMapping};

use crate::exchange::{self, Exchange, LayerSums};
use crate::loss::rate;
pub use crate::parameter::{NamedTensor, TensorRole};
use crate::parameter::{Parameter, ParameterSpec};
use crate::pass::{Pass, Purpose};
use crate::spec::{ClipSpec, DeviceSpec, LossSpec, ModelSpec, Precision, Prediction, TaskSpec, TrainingSpec};
use batch_gradient::BatchGradient;
use builder::Builder;
use compared::ComparedRows;
pub(crate) use compute::Compute;
pub use error::{ModelError, StepError};
use network::Network;
pub use scaling::LossScale;
use scaling::Scaling;
use steps::{Steps, reported_numbers};

/// A model of any kind.
pub struct Model<B: Backend> {
    backend: B,
    parts: Parts<B>,
    /// Every tensor, in the order of [`Model::read_tensors`].
    tensors: Vec<NamedTensor>,
    seed: u64,
    /// The task of each label.
    tasks: Vec<Task>,
    /// How logits become scores.
    scoring: Scoring,
    clip: ClipSpec,
    /// Scores of a pass on the host, `[B, T]`, or `[B, K]` for the `K` classes of one label.
    host: Vec<B::Scalar>,
    steps: Steps<B>,
    /// The number of workers that train the model together, and of the parts of a batch that each has.
    ranks: usize,
    parts_each: usize,
    /// Whether gradients are exchanged, if only with itself.
    exchanges: bool,
    /// Whether devices that can be connected add the gradients of layers.
    sums_on_devices: bool,
    /// The format in which workers exchange gradients.
    wire: Float,
    /// The devices of the other workers, once they are connected.
    peers: Option<B::Peers>,
    /// How they add the gradients of layers.
    layer_sums: LayerSums<B>,
    /// The exchange with the others, once this one has joined them.
    exchange: Option<Exchange<B::Scalar>>,
}

/// How logits become scores.
enum Scoring {
    /// By a sigmoid for each label, except for `numbers`, whose scores are their logits, and for those of them in
    /// `rates`, whose logits are the logarithms of their scores.
    Labels { numbers: Vec<usize>, rates: Vec<usize> },
    /// By a softmax over the classes of the one label.
    Classes,
}

/// The buffers of a model of any kind.
struct Parts<D: Device> {
    network: Network<D>,
    batch: D::Batch,
    plan: D::RowPlan,
    /// Whether the passes of several workers with their parts of a batch depend on each other.
    is_joint: bool,
    /// What the loss compares of the parts of all of them.
    compared: Option<ComparedRows<D>>,
    /// `[B, T]`, or `[B, K]` for classes.
    logits_grad: BatchGradient<D>,
    /// Maximum number of rows per pass.
    rows: usize,
    /// Sum of losses and of weights, by label: `[T, 2]`.
    sums: D::Matrix,
    /// Buffers of steps in flight.
    reports: Vec<D::Report>,
    /// The loss scale, if there is one.
    scaling: Option<Scaling<D>>,
    /// The factor of the gradients, `[1, 1]`; 0 skips the step.
    scale: D::Matrix,
    /// The squared norm of all gradients, `[1, 1]`.
    squares: D::Matrix,
    /// The gradients of the logits, of the same shape.
    scores: D::Matrix,
    /// The most ids and gradients that workers send of the rows of their tables, all together.
    row_numbers: u64,
    /// The same of the rows that a part touches.
    part_row_numbers: u64,
    /// The numbers of tables that they sum as a whole.
    whole_numbers: usize,
    /// The most numbers that they sum in the middle of a pass.
    summed_numbers: u64,
}

/// The size of a model on its device, known before it is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// Every tensor, in the order of [`Model::read_tensors`].
    pub tensors: Vec<NamedTensor>,
    /// Number of trained parameters.
    pub parameters: u64,
    /// Bytes of parameters and optimizer state, as laid out on the device.
    pub parameter_bytes: u64,
    /// Bytes of batches, activations, gradients and workspaces for the schema's rows, on the device.
    pub workspace_bytes: u64,
    /// Host memory for batches and scores, if the device has its own memory; otherwise included in `workspace_bytes`.
    pub staging_bytes: u64,
    /// Host memory for a copy of parameters and optimizer state, from which checkpoints are written.
    pub copy_bytes: u64,
}

/// The place of a tensor in a copy of a model: row `r` starts at `first + r * stride`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedTensor {
    /// The tensor.
    pub tensor: NamedTensor,
    /// The start of its first row.
    pub first: usize,
    /// Distance between rows.
    pub stride: usize,
    /// Length of a row.
    pub row: usize,
}

impl CopiedTensor {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.tensor.len() / self.row.max(1)
    }
}

impl<D: Device> Parts<D> {
    /// The parts for a worker's share of batches of `schema`.
    fn new(
        device: &D,
        spec: &ModelSpec,
        schema: &BatchSchema,
        training: &TrainingSpec,
    ) -> Result<Self, ModelError> {
        let (global, schema) = (schema, &training.part_schema(schema));
        let even_rows = training.even_rows(global.rows);
        let in_parts = training.micro_batch_rows.is_some_and(|rows| rows < even_rows);
        if in_parts && spec.uses_in_batch_loss() {
            return Err(ModelError::PartsChoose);
        }
        if in_parts && spec.uses_batch_normalization() {
            return Err(ModelError::PartsNormalized);
        }
        if training.uneven_parts && training.ranks() > 1 && spec.uses_batch_normalization() {
            return Err(ModelError::UnevenNormalized);
        }
        let labels = schema.label_count();
        let tasks = training.tasks(labels);
        let losses = tasks.len();
        check_losses(spec, &tasks, in_parts)?;
        check_shards(spec, &tasks, training)?;
        check_gradient_precision(training)?;
        if labels > 1 && !spec.supports_multiple_labels() {
            return Err(ModelError::SeveralLabels { kind: spec.kind(), labels });
        }
        if labels != losses {
            return Err(ModelError::Losses { losses, labels });
        }
        let mut builder = Builder::new(device, schema, global.rows, training);
        let network = Network::new(&mut builder, spec)?;
        let compared = ComparedRows::new(&mut builder, spec, &tasks, global)?;
        let (rows, outputs) = (builder.buffers().rows, builder.outputs());
        let reported = reported_numbers(labels, training.precision.scales_loss());
        for (label, task) in tasks.iter().enumerate() {
            device.reserve_workspace(&match task.as_task(label, schema)?.loss {
                Loss::CrossEntropy { class_weights, .. } => {
                    WorkspaceUse::Loss { rows, classes: class_weights.len() }
                }
                Loss::Listwise { .. } | Loss::Pairwise { .. } => {
                    WorkspaceUse::Lists { rows: builder.global_rows().unwrap_or(rows) }
                }
                _ => WorkspaceUse::Loss { rows, classes: 0 },
            });
        }
        if training.clip.norm.is_some() || training.precision.scales_loss() {
            device.reserve_workspace(&WorkspaceUse::Squares);
        }
        device.reserve_workspace(&WorkspaceUse::Transfer { numbers: (rows * outputs).max(2 * labels) });
        Ok(Self {
            network,
            batch: device.batch(schema),
            is_joint: training.ranks() > 1 && (compared.is_some() || spec.uses_batch_normalization()),
            compared,
            logits_grad: builder.logits_grad(),
            rows,
            sums: device.matrix(labels, 2),
            reports: (0..=D::STEPS_AHEAD).map(|_| device.report(reported)).collect(),
            scaling: training.precision.scales_loss().then(|| Scaling::new(device, &training.loss_scale)),
            scale: device.matrix(1, 1),
            squares: device.matrix(1, 1),
            scores: builder.logits(),
            row_numbers: builder.row_numbers(),
            part_row_numbers: builder.part_row_numbers(),
            whole_numbers: builder.whole_numbers(),
            summed_numbers: builder.summed_numbers(),
            plan: device.row_plan(schema, &builder.id_columns()),
        })
    }
}

/// Constants are in range. Classes need a model that predicts them, and one label; lists need one label and, as batches
/// are trained in parts if `in_parts`, whole batches.
fn check_losses(spec: &ModelSpec, tasks: &[TaskSpec], in_parts: bool) -> Result<(), ModelError> {
    for task in tasks {
        if let Some((key, value, expected)) = task.loss.invalid_constant() {
            return Err(ModelError::LossConstant { key, value, expected });
        }
        if task.loss.group().is_some() {
            let (loss, labels) = (task.loss.kind(), tasks.len());
            if in_parts {
                return Err(ModelError::PartsOfLists { loss });
            }
            if labels > 1 {
                return Err(ModelError::ListsOfLabels { loss, labels });
            }
        }
        let LossSpec::CrossEntropy { classes, class_weights, .. } = &task.loss else { continue };
        if tasks.len() > 1 || !spec.supports_classes() {
            return Err(ModelError::Classes { kind: spec.kind() });
        }
        let weights = class_weights.len();
        if *classes < 2 || ![0, *classes as usize].contains(&weights) {
            return Err(ModelError::ClassWeights { classes: *classes, weights });
        }
    }
    Ok(())
}

/// Gradients in half precision need a loss scale, and shards need sums that are rounded once.
fn check_gradient_precision(training: &TrainingSpec) -> Result<(), ModelError> {
    let gradients = training.gradient_precision;
    if gradients.scales_loss() && !training.precision.scales_loss() {
        return Err(ModelError::UnscaledGradients);
    }
    if gradients != Precision::Fp32 && training.shards.is_some() {
        return Err(ModelError::RoundedGradients { gradients: gradients.name() });
    }
    Ok(())
}

/// The parameters of layers that have gradients.
fn gradients<'a, D: Device>(
    parameters: &[Parameter<'a, D>],
) -> impl Iterator<Item = &'a ParameterSpec> + Clone {
    let of_layers = parameters.iter().filter(|parameter| parameter.has_gradient_matrix());
    of_layers.map(|parameter| parameter.spec)
}

/// Shards of a batch are computed one after another, so nothing may depend on the rows of several.
fn check_shards(spec: &ModelSpec, tasks: &[TaskSpec], training: &TrainingSpec) -> Result<(), ModelError> {
    let (ranks, shards) = (training.ranks(), training.parts());
    if training.shards.is_none() {
        return Ok(());
    }
    if !(shards.is_power_of_two() && shards.is_multiple_of(ranks)) {
        return Err(ModelError::Shards { shards, ranks });
    }
    let what = match tasks.iter().find(|task| task.loss.group().is_some()) {
        Some(task) => format!("the loss \"{}\"", task.loss.kind()),
        None if spec.uses_in_batch_loss() => format!("the in-batch loss of a \"{}\" model", spec.kind()),
        None if spec.uses_batch_normalization() => "`normalization = \"batch\"`".to_owned(),
        None => return Ok(()),
    };
    Err(ModelError::WholeBatches { what })
}

impl Scoring {
    fn of(spec: &ModelSpec, tasks: &[TaskSpec]) -> Self {
        let predicted: Vec<_> = tasks.iter().map(|task| spec.prediction(&task.loss)).collect();
        if let [Prediction::Classes(_)] = predicted[..] {
            return Self::Classes;
        }
        let labels_where = |is: &dyn Fn(Prediction) -> bool| {
            (0..predicted.len()).filter(|&label| is(predicted[label])).collect()
        };
        Self::Labels {
            numbers: labels_where(&|it| it != Prediction::Probability),
            rates: labels_where(&|it| it == Prediction::Rate),
        }
    }
}

impl<B: Backend> Model<B> {
    /// Builds a model for batches of `schema`, with initial weights fixed by the seed. If several workers train it, each
    /// has a part of every batch: [`TrainingSpec::part_schema`].
    ///
    /// # Errors
    /// When `schema` lacks a feature of `spec`, or the model is invalid.
    pub fn new(
        backend: B,
        spec: &ModelSpec,
        schema: &BatchSchema,
        training: &TrainingSpec,
    ) -> Result<Self, ModelError> {
        let mut parts = Parts::new(&backend, spec, schema, training)?;
        backend.allow_tf32(training.precision == Precision::Tf32);
        let mut parameters = parts.network.parameters();
        parameters.iter_mut().for_each(|parameter| parameter.initialise(&backend, training.seed));
        let tensors = parameters.iter().flat_map(|parameter| parameter.spec.tensors()).collect();
        let wire = training.gradient_precision.gradients();
        let layer_sums = match B::CONNECTS && training.may_sum_on_devices() {
            true => LayerSums::new(&backend, gradients(&parameters), wire),
            false => LayerSums::none(),
        };
        backend.write_matrix(&mut parts.scale, &[B::Scalar::from_f64(1.0)]);
        let specs = training.tasks(schema.label_count());
        let tasks = specs.iter().zip(0..).map(|(spec, label)| spec.as_task(label, schema));
        let outputs = training.outputs(schema.label_count());
        if let Some(scaling) = &mut parts.scaling {
            scaling.set(&backend, scaling.known);
        }
        Ok(Self {
            host: vec![B::Scalar::default(); parts.rows * outputs],
            steps: Steps::new(specs.len(), &mut parts),
            tensors,
            seed: training.seed,
            tasks: tasks.collect::<Result<_, _>>()?,
            scoring: Scoring::of(spec, &specs),
            clip: training.clip,
            ranks: training.ranks() as usize,
            parts_each: (training.parts() / training.ranks()) as usize,
            exchanges: training.exchanges(),
            sums_on_devices: training.may_sum_on_devices(),
            wire,
            peers: None,
            layer_sums,
            exchange: None,
            backend,
            parts,
        })
    }

    /// How many steps should be in flight when another one is submitted, so that the device never waits:
    /// [`Backend::STEPS_AHEAD`]. It is 0 if an optimizer counts steps and a loss scale may skip some, because the
    /// outcome of each step must be known before the next.
    pub fn steps_ahead(&self) -> usize {
        self.steps.ahead
    }

    /// Number of steps in flight.
    pub fn steps_in_flight(&self) -> usize {
        self.steps.in_flight.len()
    }

    /// As [`Backend::pin`].
    ///
    /// # Errors
    /// As there.
    pub fn pin(&self, pages: &RingMapping) -> Result<B::Pinned, PinError> {
        self.backend.pin(pages)
    }

    /// The scores of each row, label by label: `scores` starts with the first label's, `[rows]`. A score is the
    /// probability of a 1, or the predicted number, or the rate of a Poisson distribution; for a two-tower model it is
    /// the dot product divided by the temperature, and for a loss of lists the logit, both of any size. A label with
    /// classes has scores for each class instead.
    ///
    /// # Errors
    /// When the batch does not have the model's schema, or an id is out of range.
    ///
    /// # Panics
    /// When `scores` is shorter than that.
    pub fn predict(&mut self, batch: BatchRef<'_>, scores: &mut [f32]) -> Result<(), BatchError> {
        let Self { backend, parts, host, scoring, .. } = self;
        let outputs = host.len() / parts.rows;
        backend.upload(batch, &mut parts.batch)?;
        let rows = batch.rows();
        let network = parts.network.compute();
        for pass in Pass::all(rows, parts.rows, 0, Purpose::Scoring) {
            network.forward(backend, &parts.batch, &pass);
            let (logits, out) = (network.logits(), &mut parts.scores);
            match scoring {
                Scoring::Classes => backend.run(ops::Softmax { rows: pass.len(), logits, out }),
                Scoring::Labels { numbers, .. } => {
                    backend.run(ops::Sigmoid { rows: pass.len(), logits, out });
                    for &label in &*numbers {
                        backend.run(ops::CopyColumns {
                            rows: pass.len(),
                            from: (logits, label),
                            to: (&mut *out, label),
                            columns: 1,
                        });
                    }
                }
            }
            backend.read_matrix(out, &mut host[..pass.len() * outputs]);
            backend.check(&parts.batch)?;
            for (output, scores) in scores.chunks_exact_mut(rows).take(outputs).enumerate() {
                let is_rate = matches!(scoring, Scoring::Labels { rates, .. } if rates.contains(&output));
                let of_output = host.iter().skip(output).step_by(outputs).map(|score| score.to_f64());
                for (out, score) in scores[pass.rows.clone()].iter_mut().zip(of_output) {
                    *out = if is_rate { rate(score) as f32 } else { score as f32 };
                }
            }
        }
        Ok(())
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The loss scale, if there is one.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.parts.scaling.as_ref().map(|scaling| scaling.known)
    }

    /// Sets the loss scale, if there is one.
    pub fn set_loss_scale(&mut self, scale: LossScale) {
        if let Some(scaling) = &mut self.parts.scaling {
            scaling.set(&self.backend, scale);
        }
    }

    /// Every tensor, in the order of [`Model::read_tensors`].
    pub fn tensors(&self) -> &[NamedTensor] {
        &self.tensors
    }

    /// Calls `visit` with every tensor, in a fixed order, until its first error. One tensor at a time is in host
    /// memory.
    ///
    /// `B::Scalar` is `f32` on every backend but `Reference`.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn read_tensors<E>(
        &mut self,
        mut visit: impl FnMut(&NamedTensor, &[B::Scalar]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut values = Vec::new();
        for parameter in self.parts.network.parameters() {
            for part in parameter.spec.parts() {
                let tensor = parameter.spec.tensor(part);
                values.resize(tensor.len(), B::Scalar::default());
                parameter.read(&self.backend, part, &mut values);
                visit(&tensor, &values)?;
            }
        }
        Ok(())
    }

    /// The place of each tensor in a copy of the model, in the order of [`Model::read_tensors`], and the length of a
    /// copy.
    pub fn copy_layout(&mut self) -> (Vec<CopiedTensor>, usize) {
        let mut base = 0;
        let mut places = Vec::new();
        for parameter in self.parts.network.parameters() {
            let spec = parameter.spec;
            for part in spec.parts() {
                let TablePlace { first, stride } = parameter.place(part);
                let (tensor, row) = (spec.tensor(part), spec.table_shape().part_width(part));
                places.push(CopiedTensor { tensor, first: base + first, stride, row });
            }
            base += parameter.copy_len::<B>();
        }
        (places, base)
    }

    /// Copies as many numbers of the model as `out` holds, from number `first` of a copy on, while training waits.
    pub fn copy(&mut self, first: usize, mut out: &mut [B::Scalar]) {
        let parameters = self.parts.network.parameters();
        let ranges = ranges_of(parameters.iter().map(Parameter::copy_len::<B>), first..first + out.len());
        for (parameter, range) in parameters.iter().zip(ranges).filter(|(_, range)| !range.is_empty()) {
            let (this, rest) = out.split_at_mut(range.len());
            parameter.copy(&self.backend, range.start, this);
            out = rest;
        }
    }

    /// Replaces every tensor, in the order of [`Model::read_tensors`], with what `fill` writes.
    ///
    /// # Errors
    /// The first error of `fill`. The model is then partly replaced and must be dropped.
    pub fn write_tensors<E>(
        &mut self,
        mut fill: impl FnMut(&NamedTensor, &mut [B::Scalar]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut values = Vec::new();
        for mut parameter in self.parts.network.parameters() {
            for part in parameter.spec.parts() {
                let tensor = parameter.spec.tensor(part);
                values.clear();
                values.resize(tensor.len(), B::Scalar::default());
                fill(&tensor, &mut values)?;
                parameter.write(&self.backend, part, &values);
            }
        }
        Ok(())
    }

    /// Calls `change` with the weights of every parameter of a newly built model; `change` returns whether it changed
    /// them. If weights are a function of the optimizer state, the state is set accordingly.
    ///
    /// # Errors
    /// The first error of `change`.
    pub(crate) fn update_weights<E>(
        &mut self,
        mut change: impl FnMut(&NamedTensor, &mut [B::Scalar]) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut weights = Vec::new();
        for mut parameter in self.parts.network.parameters() {
            let tensor = parameter.spec.tensor(TablePart::Weights);
            weights.resize(tensor.len(), B::Scalar::default());
            parameter.read(&self.backend, TablePart::Weights, &mut weights);
            if !change(&tensor, &mut weights)? {
                continue;
            }
            parameter.write(&self.backend, TablePart::Weights, &weights);
            let Some(optimizer) = parameter.spec.optimizer else { continue };
            if let Some((part, state_of)) = optimizer.state_by_weight() {
                for weight in &mut weights {
                    *weight = B::Scalar::from_f64(state_of(weight.to_f64()));
                }
                parameter.write(&self.backend, part, &weights);
            }
        }
        Ok(())
    }
}

impl ModelPlan {
    /// The size of the model `spec` with this training, for batches of `schema`.
    ///
    /// # Errors
    /// As of [`Model::new`], which then succeeds if memory suffices.
    pub fn new(spec: &ModelSpec, schema: &BatchSchema, training: &TrainingSpec) -> Result<Self, ModelError> {
        match training.device {
            DeviceSpec::Cpu => Self::on::<Cpu>(spec, schema, training),
            DeviceSpec::Cuda(_) => Self::on::<Cuda>(spec, schema, training),
        }
    }

    fn on<L: Layout>(
        spec: &ModelSpec,
        schema: &BatchSchema,
        training: &TrainingSpec,
    ) -> Result<Self, ModelError> {
        let sizes = Sizes::<L>::default();
        let mut parts = Parts::new(&sizes, spec, schema, training)?;
        let parameters = parts.network.parameters();
        let parameter_bytes = parameters.iter().map(Parameter::bytes).sum();
        let each = (training.parts() / training.ranks()) as usize;
        // Devices with their own memory exchange gradients there.
        let on_devices = L::IS_APART && training.may_sum_on_devices();
        let wire = training.gradient_precision.gradients();
        let exchange_bytes = match training.exchanges() && !on_devices {
            false => 0,
            true => {
                let of_layers: usize = gradients(&parameters).map(ParameterSpec::len).sum();
                let numbers = of_layers.saturating_add(parts.whole_numbers);
                let own = parts.part_row_numbers.saturating_mul(each as u64);
                let of_rows = (parts.row_numbers, own);
                exchange::bytes(each, (numbers, wire), parts.summed_numbers, of_rows, L::IS_APART)
            }
        };
        if on_devices && wire != Float::F32 {
            gradients(&parameters).for_each(|spec| sizes.matrix_of(wire, spec.rows, spec.columns));
        }
        // The rows of a pass plus the rows of a batch.
        let part = &training.part_schema(schema);
        let rows = parts.rows as u64 + u64::from(part.rows);
        let scores = rows * (training.outputs(schema.label_count()) * size_of::<f32>()) as u64;
        let on_host = scores.saturating_add(L::staging_bytes(part)).saturating_add(exchange_bytes);
        let (beside, staging_bytes) = if L::IS_APART { (0, on_host) } else { (on_host, 0) };
        let on_device = L::base_bytes().saturating_add(sizes.bytes());
        let copied: usize = parameters.iter().map(Parameter::copy_len::<L>).sum();
        let specs = || parameters.iter().map(|parameter| parameter.spec);
        let trained = specs().filter(|spec| spec.optimizer.is_some());
        Ok(Self {
            tensors: specs().flat_map(ParameterSpec::tensors).collect(),
            parameters: trained.map(|spec| spec.len() as u64).sum(),
            parameter_bytes,
            workspace_bytes: (on_device - parameter_bytes).saturating_add(beside),
            staging_bytes,
            copy_bytes: (copied * size_of::<f32>()) as u64,
        })
    }
}
