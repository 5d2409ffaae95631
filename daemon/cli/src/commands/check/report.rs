//! The contents of a plan, as `--json` prints them.

use std::collections::BTreeMap;

use millstream_daemon::auto_batch::{Choice, GpuChoice, Limit, gpu};
use millstream_daemon::export;
use millstream_daemon::memory;
use millstream_daemon::plan::{DataPlan, JobPlan, RowCount};
use millstream_daemon::ranks;
use millstream_daemon::sources::SourcePlan;
use millstream_daemon::warm_start::Beginning;
use millstream_io::storage::Directory;
use millstream_job::Job;
use millstream_pipeline::spec::{FeatureKind, FeatureSpec, Terms};
use millstream_trainer::model::{ModelPlan, TensorRole};
use millstream_trainer::spec::ModelSpec;
use millstream_trainer::warm_start;
use millstream_worker::survey::HostSurvey;
use serde::Serialize;

use super::{gpu_problem, memory_problem};

/// The plan, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) name: String,
    pub(super) seed: u64,
    pub(super) data: DataReport,
    pub(super) features: Vec<FeatureReport>,
    pub(super) batch: BatchReport,
    /// How the batch size was chosen; null unless it is `"auto"`.
    pub(super) auto_batch: Option<AutoBatch>,
    /// The number of training rows, exact or estimated.
    #[serde(skip)]
    pub(super) rows: Option<RowCount>,
    /// The number of rows of an epoch, exact or expected; null if it is unknown.
    pub(super) rows_per_epoch: Option<u64>,
    /// Null if the number of rows is unknown.
    pub(super) steps_per_epoch: Option<u64>,
    /// Whether it is estimated from the size of the files, or varies between epochs.
    pub(super) steps_are_estimated: bool,
    pub(super) epochs: u32,
    pub(super) precision: &'static str,
    pub(super) embedding_precision: &'static str,
    pub(super) device: String,
    /// The number of workers, each of which trains on a part of every batch.
    pub(super) workers: u32,
    /// The GPUs and CUDA libraries of this host; null for a job on the CPU.
    pub(super) host: Option<HostSurvey>,
    pub(super) learning_rates: LearningRates,
    pub(super) parameters: Parameters,
    pub(super) memory: Memory,
    /// Why the job does not fit into this host's memory; null if it does.
    pub(super) memory_problem: Option<String>,
    /// Why the job cannot use its GPU on this host; null if it can.
    pub(super) gpu_problem: Option<String>,
    /// Null without a warm start, and while vocabularies are unknown.
    pub(super) warm_start: Option<WarmStart>,
    pub(super) continuation: Option<ContinuationReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct DataReport {
    pub(super) train: DataPlan,
    /// The sources of training data that is mixed by weight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sources: Vec<SourcePlan>,
    pub(super) eval: Option<DataPlan>,
}

#[derive(Debug, Serialize)]
pub(super) struct FeatureReport {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) columns: Vec<String>,
    /// The number of ids; null for a numeric feature.
    pub(super) ids: Option<u32>,
    /// Whether `ids` is an upper bound.
    pub(super) bound: bool,
    /// The maximum number of values per row; null for a single-valued feature.
    pub(super) maximum: Option<u32>,
    /// The column with the weights of the values.
    pub(super) weights: Option<String>,
    /// The parts of the model that read it, `model` if it has no parts; and `loss` if its ids identify lists.
    pub(super) used_by: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
pub(super) struct BatchReport {
    pub(super) rows: u32,
    pub(super) dense: usize,
    pub(super) ids: usize,
    pub(super) ragged: usize,
    pub(super) slot_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct AutoBatch {
    /// The minimum memory of the whole job.
    pub(super) needed_bytes: u64,
    /// The part of it that the worker processes use in addition to their models.
    pub(super) process_bytes: u64,
    pub(super) limit_bytes: u64,
    /// The source of the limit.
    pub(super) limit_of: String,
    /// GPU memory; null on the CPU.
    pub(super) gpu: Option<AutoBatchGpu>,
    /// Why the batch size is not twice as large.
    pub(super) why_not_more: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct AutoBatchGpu {
    pub(super) needed_bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) limit_of: String,
}

/// The learning rate of each optimizer at the job's batch size.
#[derive(Debug, Serialize)]
pub(super) struct LearningRates {
    /// The scaling factor; null if the job does not scale learning rates.
    pub(super) factor: Option<f64>,
    /// The batch size for which the job file states them.
    pub(super) reference: Option<u32>,
    pub(super) rule: Option<&'static str>,
    pub(super) optimizers: BTreeMap<String, f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Parameters {
    pub(super) total: u64,
    /// Whether `total` is an upper bound.
    pub(super) bound: bool,
    pub(super) parts: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Memory {
    pub(super) ring_bytes: u64,
    pub(super) pool_bytes: u64,
    pub(super) reading_bytes: u64,
    pub(super) ahead_bytes: u64,
    pub(super) fixed_bytes: u64,
    /// Evaluations whose rows are read separately from training rows.
    pub(super) evaluation_bytes: u64,
    pub(super) budget_bytes: u64,
    /// Parameters and optimizer state of all workers.
    pub(super) model_bytes: u64,
    /// Activations, gradients and workspaces of all workers.
    pub(super) workspace_bytes: u64,
    /// The copy of the model from which one of them writes checkpoints.
    pub(super) checkpoint_bytes: u64,
    pub(super) host: HostUse,
    /// Null on the CPU.
    pub(super) gpu: Option<GpuMemory>,
}

/// The job's memory on this host.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct HostUse {
    /// The least memory of ingest and the workers together.
    pub(super) needed_bytes: u64,
    /// What this host has available now; null if the kernel does not report it.
    pub(super) available_bytes: Option<u64>,
    /// Whether the job fits.
    pub(super) fits: Option<bool>,
}

/// The job's memory on its GPU; with several workers, on each of theirs. Host memory does not include it.
#[derive(Debug, Serialize)]
pub(super) struct GpuMemory {
    /// The number of the first worker's GPU.
    pub(super) number: u32,
    /// The number of GPUs.
    pub(super) count: u32,
    /// The numbers of the GPUs, by worker.
    pub(super) numbers: Vec<u32>,
    /// Parameters and optimizer state.
    pub(super) model_bytes: u64,
    /// Batches, activations, gradients and workspaces.
    pub(super) workspace_bytes: u64,
    /// The total memory of the smallest GPU. Null, like the next two fields, if this host lacks one.
    pub(super) memory_bytes: Option<u64>,
    /// The estimate of what the driver and other processes leave.
    pub(super) usable_bytes: Option<u64>,
    /// Whether the job fits into `usable_bytes`.
    pub(super) fits: Option<bool>,
}

/// What the job continues.
#[derive(Debug, Serialize)]
pub(super) struct ContinuationReport {
    pub(super) checkpoint: Directory,
    pub(super) step: u64,
    /// Whether the epochs of the earlier run count.
    pub(super) is_same_data: bool,
}

/// The parameters that a warm start carries over.
#[derive(Debug, Serialize)]
pub(super) struct WarmStart {
    pub(super) checkpoint: Directory,
    /// Parameters carried over completely.
    pub(super) whole: Vec<String>,
    /// Parameters carried over partly.
    pub(super) in_part: Vec<String>,
    /// Parameters initialized from scratch, each with the reason.
    pub(super) initialized: BTreeMap<String, String>,
    /// Parameters of the other model that this one does not use.
    pub(super) unused: Vec<String>,
}
impl Report {
    pub(super) fn of(plan: &JobPlan, host: Option<HostSurvey>, beginning: Option<Beginning>) -> Self {
        let job = &plan.job;
        let memory = Memory::of(plan, host.as_ref());
        let batches = |rows: RowCount| rows.batches(job.data.batch_size, job.data.drop_last);
        Self {
            name: job.name.clone(),
            seed: job.training.seed,
            data: DataReport { train: plan.train, sources: plan.sources.clone(), eval: plan.eval },
            features: job.features.iter().map(|spec| FeatureReport::of(spec, job, plan)).collect(),
            batch: BatchReport {
                rows: plan.schema.rows,
                dense: plan.schema.dense.len(),
                ids: plan.schema.ids.len(),
                ragged: plan.schema.ragged.len(),
                slot_bytes: plan.slot_bytes,
            },
            auto_batch: plan.batch.as_ref().map(Into::into),
            rows: plan.rows,
            rows_per_epoch: plan.epoch_rows.map(|count| count.rows),
            steps_per_epoch: plan.epoch_rows.map(batches),
            steps_are_estimated: plan.epoch_rows.is_some_and(|rows| rows.is_estimate),
            epochs: job.data.epochs,
            precision: job.training.precision.name(),
            embedding_precision: job.training.embedding_precision.name(),
            device: job.training.device.to_string(),
            workers: job.training.ranks(),
            learning_rates: LearningRates::of(job),
            parameters: Parameters::of(plan),
            memory_problem: memory_problem(plan, &memory),
            gpu_problem: gpu_problem(job, host.as_ref()),
            memory,
            host,
            warm_start: beginning.map(Into::into),
            continuation: plan.continuation.as_ref().map(|continuation| ContinuationReport {
                checkpoint: continuation.checkpoint.clone(),
                step: continuation.step,
                is_same_data: continuation.is_same_data,
            }),
        }
    }
}

impl Memory {
    pub(super) fn of(plan: &JobPlan, host: Option<&HostSurvey>) -> Self {
        let (need, model) = (plan.ingest.memory(), &plan.model);
        let gpus = ranks::gpus(&plan.job.training);
        let gpu = (!gpus.is_empty()).then(|| GpuMemory::of(model, gpus, host));
        let on_host = plan.host_memory();
        Self {
            ring_bytes: need.ring_bytes,
            pool_bytes: need.pool_bytes,
            reading_bytes: need.reading_bytes,
            ahead_bytes: need.ahead_bytes,
            fixed_bytes: need.fixed_bytes,
            evaluation_bytes: plan.eval_ingest.as_ref().map_or(0, |eval| eval.memory().total_bytes()),
            budget_bytes: plan.job.data.memory_budget_bytes,
            model_bytes: on_host.model_bytes,
            workspace_bytes: on_host.workspace_bytes,
            checkpoint_bytes: on_host.copy_bytes,
            host: HostUse::of(on_host.total_bytes()),
            gpu,
        }
    }
}

impl HostUse {
    fn of(needed_bytes: u64) -> Self {
        let available_bytes = memory::available_bytes();
        let fits = available_bytes.map(|available| needed_bytes <= available);
        Self { needed_bytes, available_bytes, fits }
    }
}

impl GpuMemory {
    fn of(model: &ModelPlan, numbers: Vec<u32>, host: Option<&HostSurvey>) -> Self {
        let of_gpu = |number| Some(host?.gpu(number).ok()?.memory_bytes);
        let all: Option<Vec<u64>> = numbers.iter().map(|&number| of_gpu(number)).collect();
        let memory_bytes = all.and_then(|all| all.into_iter().min());
        let usable_bytes = memory_bytes.map(gpu::usable_bytes);
        Self {
            number: numbers.first().copied().unwrap_or_default(),
            count: numbers.len() as u32,
            numbers,
            model_bytes: model.parameter_bytes,
            workspace_bytes: model.workspace_bytes,
            memory_bytes,
            usable_bytes,
            fits: usable_bytes.map(|usable| gpu::needed_bytes(model) <= usable),
        }
    }
}

impl From<Beginning> for WarmStart {
    fn from(Beginning { checkpoint, report, .. }: Beginning) -> Self {
        let warm_start::WarmStartReport { full, partial, initialized, unused } = report;
        Self {
            checkpoint,
            whole: full,
            in_part: partial,
            initialized: initialized.into_iter().collect(),
            unused,
        }
    }
}

impl From<&Choice> for AutoBatch {
    fn from(choice: &Choice) -> Self {
        let Choice { limit: Limit { bytes, source }, needed_bytes, process_bytes, gpu, why_not_more, .. } =
            choice;
        let of_gpu = |GpuChoice { limit, needed_bytes }: &GpuChoice| AutoBatchGpu {
            needed_bytes: *needed_bytes,
            limit_bytes: limit.bytes,
            limit_of: limit.source.to_string(),
        };
        Self {
            needed_bytes: *needed_bytes,
            process_bytes: *process_bytes,
            limit_bytes: *bytes,
            limit_of: source.to_string(),
            gpu: gpu.as_ref().map(of_gpu),
            why_not_more: why_not_more.clone(),
        }
    }
}

impl LearningRates {
    fn of(job: &Job) -> Self {
        let scaling = job.batch_scaling;
        Self {
            factor: scaling.map(|scaling| scaling.factor(job.data.batch_size)),
            reference: scaling.map(|scaling| scaling.reference),
            rule: scaling.map(|scaling| scaling.rule.name()),
            optimizers: job.learning_rates(),
        }
    }
}

impl FeatureReport {
    fn of(spec: &FeatureSpec, job: &Job, plan: &JobPlan) -> Self {
        let parts = job.model.features().into_iter().filter(|(_, names)| names.contains(&spec.name));
        let item_id = match &job.model {
            ModelSpec::TwoTower(model) => (model.item_id.as_ref() == Some(&spec.name)).then_some("item_id"),
            _ => None,
        };
        let loss = (job.training.loss.group() == Some(spec.name.as_str())).then_some("loss");
        Self {
            name: spec.name.clone(),
            kind: export::kind_name(&spec.kind),
            columns: spec.columns.clone(),
            ids: export::cardinality(&plan.schema, &spec.name),
            bound: plan.analysis.is_none() && is_learned(&spec.kind),
            maximum: spec.maximum,
            weights: spec.weights.clone(),
            used_by: parts.map(|(part, _)| part.unwrap_or("model")).chain(item_id).chain(loss).collect(),
        }
    }
}

impl Parameters {
    fn of(plan: &JobPlan) -> Self {
        let mut parts = BTreeMap::new();
        for tensor in plan.model.tensors.iter().filter(|tensor| tensor.role == TensorRole::Parameter) {
            *parts.entry(part(&tensor.name).to_owned()).or_default() += tensor.len() as u64;
        }
        Self { total: plan.model.parameters, bound: plan.analysis.is_none(), parts }
    }
}

/// The part of the model that a tensor belongs to: `wide`, `embedding`, `deep.layer`.
fn part(tensor: &str) -> &str {
    let pieces = if tensor.starts_with("deep.") { 2 } else { 1 };
    tensor.match_indices('.').nth(pieces - 1).map_or(tensor, |(end, _)| &tensor[..end])
}

fn is_learned(kind: &FeatureKind) -> bool {
    matches!(kind, FeatureKind::Vocabulary { terms: Terms::Learned { .. }, .. })
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn part_is_the_prefix_of_a_tensor_name() {
        let cases = [
            ("wide.education.weight", "wide"),
            ("wide", "wide"),
            ("deep.embedding.education", "deep.embedding"),
            ("deep.layer.0.weight", "deep.layer"),
            ("linear.bias", "linear"),
            ("embedding.education", "embedding"),
            ("cross.layer.0.weight", "cross"),
        ];
        for (tensor, wanted) in cases {
            assert_eq!(part(tensor), wanted);
        }
    }
}
