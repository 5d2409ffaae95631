//! `millstream check`: what a job would do, without doing it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use millstream_daemon::auto_batch::{Choice, GpuChoice, Limit, gpu};
use millstream_daemon::job::Job;
use millstream_daemon::pipeline::spec::{FeatureKind, FeatureSpec, Terms};
use millstream_daemon::plan::{DataPlan, JobPlan, Learning};
use millstream_daemon::trainer::model::{ModelPlan, TensorRole};
use millstream_daemon::trainer::spec::{DeviceSpec, ModelSpec};
use millstream_daemon::trainer::warm_start;
use millstream_daemon::warm_start::Beginning;
use millstream_daemon::worker::device::{GpuSurvey, HostSurvey, LibrarySurvey};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::arguments::Check;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::job_file;
use crate::progress::Gauge;
use crate::table::Table;

/// Training data up to this many bytes is read for what features learn, without being asked: it takes
/// less than a second or so.
const READ_UNASKED: u64 = 64 << 20;

/// The plan, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    name: String,
    seed: u64,
    data: DataReport,
    features: Vec<FeatureReport>,
    batch: BatchReport,
    /// How the rows of a batch were found, where they are not given.
    auto_batch: Option<AutoBatch>,
    /// Of one epoch; null where the files do not say their rows.
    steps_per_epoch: Option<u64>,
    epochs: u32,
    precision: &'static str,
    embedding_precision: &'static str,
    /// What the job asks for.
    device: String,
    /// What this host has for it, where it is a GPU.
    host: Option<HostSurvey>,
    learning_rates: LearningRates,
    parameters: Parameters,
    memory: Memory,
    /// Null without one, and where what features learn is not known.
    warm_start: Option<WarmStart>,
}

#[derive(Debug, Serialize)]
struct DataReport {
    train: FilesReport,
    eval: Option<FilesReport>,
}

#[derive(Debug, Serialize)]
struct FilesReport {
    files: usize,
    splits: usize,
    bytes: u64,
    rows: Option<u64>,
}

#[derive(Debug, Serialize)]
struct FeatureReport {
    name: String,
    kind: &'static str,
    columns: Vec<String>,
    /// Ids are below this; null for a number.
    ids: Option<u32>,
    /// Whether `ids` is only the most there can be.
    bound: bool,
    /// The most values a row keeps, where a row may hold several.
    maximum: Option<u32>,
    /// The column that says how much each of them counts.
    weights: Option<String>,
    /// The parts of the model that read it; `model` where it has no parts.
    used_by: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct BatchReport {
    rows: u32,
    dense: usize,
    ids: usize,
    ragged: usize,
    slot_bytes: u64,
}

#[derive(Debug, Serialize)]
struct AutoBatch {
    /// What all of the job takes at least.
    needed_bytes: u64,
    /// The part of it that the worker's process takes besides its model.
    process_bytes: u64,
    limit_bytes: u64,
    /// Who says so.
    limit_of: String,
    /// The same of the GPU's memory; null on the CPU.
    gpu: Option<AutoBatchGpu>,
    /// Why batches have not twice the rows.
    why_not_more: Option<String>,
}

#[derive(Debug, Serialize)]
struct AutoBatchGpu {
    needed_bytes: u64,
    limit_bytes: u64,
    limit_of: String,
}

/// Of each optimizer, by its name in the model, as they are for the job's batches.
#[derive(Debug, Serialize)]
struct LearningRates {
    /// What they were multiplied by; null where the job asks for nothing of the kind.
    factor: Option<f64>,
    /// The rows that they are stated for.
    reference: Option<u32>,
    rule: Option<&'static str>,
    optimizers: BTreeMap<String, f64>,
}

#[derive(Debug, Serialize)]
struct Parameters {
    total: u64,
    /// Whether `total` is only the most there can be.
    bound: bool,
    parts: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct Memory {
    ring_bytes: u64,
    pool_bytes: u64,
    reading_bytes: u64,
    ahead_bytes: u64,
    fixed_bytes: u64,
    /// Evaluations, where their rows are read aside from those of training.
    evaluation_bytes: u64,
    budget_bytes: u64,
    /// Parameters and optimizer state.
    model_bytes: u64,
    /// Activations, gradients and workspaces.
    workspace_bytes: u64,
    /// The copy that a checkpoint is written from.
    checkpoint_bytes: u64,
    /// What the job takes of its GPU; null on the CPU.
    gpu: Option<GpuMemory>,
}

/// A GPU's memory, of which a job takes some. What it takes there it does not take of the host.
#[derive(Debug, Serialize)]
struct GpuMemory {
    number: u32,
    /// Parameters and optimizer state.
    model_bytes: u64,
    /// Batches, activations, gradients and workspaces.
    workspace_bytes: u64,
    /// All that the GPU has; null where this host has none of that number, as are the next two.
    memory_bytes: Option<u64>,
    /// What the driver and others leave of that, most likely.
    usable_bytes: Option<u64>,
    /// Whether the job fits that.
    fits: Option<bool>,
}

/// What the job begins with of another one's weights.
#[derive(Debug, Serialize)]
struct WarmStart {
    checkpoint: PathBuf,
    /// Parameters carried whole.
    whole: Vec<String>,
    /// Those that are carried as far as they were there.
    in_part: Vec<String>,
    /// Those that begin anew, each with why.
    anew: BTreeMap<String, String>,
    /// Those of the other model that are of no use.
    left: Vec<String>,
}

pub(crate) fn run(arguments: &Check, context: &Context) -> Result<(), Failure> {
    let job = job_file::resolve(&arguments.job, context)?;
    let host = match job.training.device {
        DeviceSpec::Cpu => None,
        DeviceSpec::Cuda(_) => Some(HostSurvey::from_current_exe()?),
    };
    let surveyed = || host.clone().context("a job for the CPU asks for no GPU");
    let runtime = Runtime::new()?;
    let plan = {
        let gauge = Gauge::rows(&context.screen, "learning");
        let most_bytes = if arguments.learn { u64::MAX } else { READ_UNASKED };
        let learning = Learning { most_bytes, progress: &|now| gauge.update(now.rows) };
        JobPlan::new(&job, &surveyed, learning, runtime.handle())
    };
    runtime.shutdown_background();
    let plan = plan?;
    let beginning = Beginning::of(&job, &plan)?;
    if job.warm_start.is_some() && beginning.is_none() {
        context.screen.note("what the warm start carries is known once the data was read: --learn");
    }
    let report = Report::of(&plan, host, beginning);
    context.answer(&report, || report.describe())
}

impl Report {
    fn of(plan: &JobPlan, host: Option<HostSurvey>, beginning: Option<Beginning>) -> Self {
        let job = &plan.job;
        let batches = |rows: u64| rows.div_ceil(u64::from(job.data.batch_size));
        Self {
            name: job.name.clone(),
            seed: job.training.seed,
            data: DataReport { train: plan.train.into(), eval: plan.eval.map(Into::into) },
            features: job.features.iter().map(|spec| FeatureReport::of(spec, job, plan)).collect(),
            batch: BatchReport {
                rows: plan.schema.rows,
                dense: plan.schema.dense.len(),
                ids: plan.schema.ids.len(),
                ragged: plan.schema.ragged.len(),
                slot_bytes: plan.slot_bytes,
            },
            auto_batch: plan.batch.as_ref().map(Into::into),
            steps_per_epoch: plan.train.rows.map(batches),
            epochs: job.data.epochs,
            precision: job.training.precision.name(),
            embedding_precision: job.training.embedding_precision.name(),
            device: job.training.device.to_string(),
            learning_rates: LearningRates::of(job),
            parameters: Parameters::of(plan),
            memory: Memory::of(plan, host.as_ref()),
            host,
            warm_start: beginning.map(Into::into),
        }
    }

    fn describe(&self) -> String {
        let bounded = self.parameters.bound;
        let note = if bounded { "\n<= learned from the data; --learn reads it to know\n" } else { "" };
        format!(
            "job {}, seed {}\n\n{}\n{}{note}\n{}{}",
            self.name,
            self.seed,
            self.data_table(),
            self.feature_table(),
            self.size_table(),
            self.warm_start_table(),
        )
    }

    fn warm_start_table(&self) -> String {
        let Some(WarmStart { checkpoint, whole, in_part, anew, left }) = &self.warm_start else {
            return String::new();
        };
        let mut table = Table::default();
        table.row(["warm start".to_owned(), checkpoint.display().to_string()]);
        let all = whole.len() + in_part.len() + anew.len();
        table.row(["  whole".to_owned(), format!("{} of {all} parameters", whole.len())]);
        let in_part = in_part.iter().map(|name| ("  in part", name.clone()));
        let anew = anew.iter().map(|(name, why)| ("  anew", format!("{name}: {why}")));
        let left = left.iter().map(|name| ("  left behind", name.clone()));
        for (what, name) in in_part.chain(anew).chain(left) {
            table.row([what.to_owned(), name]);
        }
        format!("\n{}", table.render())
    }

    fn data_table(&self) -> String {
        let mut table = Table::with_titles(&["DATA", ">FILES", ">SPLITS", ">SIZE", ">ROWS"]);
        let sets = [("train", Some(&self.data.train)), ("eval", self.data.eval.as_ref())];
        for (name, files) in sets {
            let Some(files) = files else { continue };
            table.row([
                name.to_owned(),
                figures::count(files.files as u64),
                figures::count(files.splits as u64),
                figures::bytes(files.bytes),
                files.rows.map_or("?".to_owned(), figures::count),
            ]);
        }
        table.render()
    }

    fn feature_table(&self) -> String {
        let mut table = Table::with_titles(&["FEATURE", "KIND", "COLUMNS", ">IDS", ">VALUES", "USED BY"]);
        for feature in &self.features {
            let bound = if feature.bound { "<= " } else { "" };
            table.row([
                feature.name.clone(),
                feature.kind.to_owned(),
                feature.columns_and_weights(),
                feature.ids.map_or("-".to_owned(), |ids| format!("{bound}{}", figures::count(ids.into()))),
                feature.maximum.map_or("1".to_owned(), |maximum| format!("<= {maximum}")),
                feature.used_by.join(", "),
            ]);
        }
        table.render()
    }

    fn size_table(&self) -> String {
        let Self { batch, parameters, memory, .. } = self;
        let bound = if parameters.bound { "at most " } else { "" };
        let parts = [
            memory.ring_bytes,
            memory.pool_bytes,
            memory.reading_bytes,
            memory.ahead_bytes,
            memory.fixed_bytes,
            memory.evaluation_bytes,
        ];
        let ingest: u64 = parts.iter().sum();
        let mut table = Table::default();
        let shape = format!(
            "{} rows: {} dense, {} single-id, {} multi-valued; {}",
            figures::count(batch.rows.into()),
            batch.dense,
            batch.ids,
            batch.ragged,
            figures::bytes(batch.slot_bytes)
        );
        table.row(["batch".to_owned(), shape]);
        if let Some(auto) = &self.auto_batch {
            let AutoBatch { needed_bytes, process_bytes, limit_bytes, limit_of, gpu, why_not_more } = auto;
            let [needed, process, limit] =
                [needed_bytes, process_bytes, limit_bytes].map(|&bytes| figures::bytes(bytes));
            let fits =
                format!("{bound}{needed}, {process} of it the worker's process, of {limit}: {limit_of}");
            table.row(["  found to fit".to_owned(), fits]);
            if let Some(AutoBatchGpu { needed_bytes, limit_bytes, limit_of }) = gpu {
                let [needed, limit] = [needed_bytes, limit_bytes].map(|&bytes| figures::bytes(bytes));
                table.row(["  on the GPU".to_owned(), format!("{bound}{needed} of {limit}: {limit_of}")]);
            }
            if let Some(why) = why_not_more {
                table.row(["  no more since".to_owned(), why.clone()]);
            }
        }
        let epochs = u64::from(self.epochs);
        let steps = match self.steps_per_epoch {
            Some(steps) => {
                let total = figures::count(steps.saturating_mul(epochs));
                format!("{total}: {epochs} epochs of {}", figures::count(steps))
            }
            None => format!("{epochs} epochs; the files do not say their rows"),
        };
        table.row(["steps".to_owned(), steps]);
        let precision = match self.embedding_precision {
            of_tables if of_tables == self.precision => of_tables.to_owned(),
            of_tables => format!("{}, embeddings {of_tables}", self.precision),
        };
        table.row(["precision".to_owned(), precision]);
        table.row(["device".to_owned(), self.device.clone()]);
        for (what, found) in self.host.iter().flat_map(describe_host) {
            table.row([format!("  {what}"), found]);
        }
        let LearningRates { factor, reference, rule, optimizers } = &self.learning_rates;
        if let (Some(factor), Some(reference), Some(rule)) = (factor, reference, rule) {
            let reference = figures::count((*reference).into());
            let scaled = format!("{factor:.4} times those for {reference} rows ({rule})");
            table.row(["learning rates".to_owned(), scaled]);
            for (optimizer, rate) in optimizers {
                table.row([format!("  {optimizer}"), rate.to_string()]);
            }
        }
        table.row(["parameters".to_owned(), format!("{bound}{}", figures::count(parameters.total))]);
        for (part, count) in &parameters.parts {
            table.row([format!("  {part}"), figures::count(*count)]);
        }
        let budget = figures::bytes(memory.budget_bytes);
        table.row(["ingest memory".to_owned(), format!("{} of {budget}", figures::bytes(ingest))]);
        table.row(["  ring".to_owned(), figures::bytes(memory.ring_bytes)]);
        table.row(["  shuffle pool".to_owned(), figures::bytes(memory.pool_bytes)]);
        table.row(["  reading".to_owned(), figures::bytes(memory.reading_bytes)]);
        table.row(["  reading ahead, at most".to_owned(), figures::bytes(memory.ahead_bytes)]);
        table.row(["  besides".to_owned(), figures::bytes(memory.fixed_bytes)]);
        if memory.evaluation_bytes > 0 {
            table.row(["  evaluations".to_owned(), figures::bytes(memory.evaluation_bytes)]);
        }
        let worker = memory.model_bytes + memory.workspace_bytes + memory.checkpoint_bytes;
        table.row(["worker memory".to_owned(), format!("{bound}{}", figures::bytes(worker))]);
        if memory.gpu.is_none() {
            table.row(["  model and optimizer".to_owned(), figures::bytes(memory.model_bytes)]);
        }
        table.row(["  workspace".to_owned(), figures::bytes(memory.workspace_bytes)]);
        table.row(["  copy for checkpoints".to_owned(), figures::bytes(memory.checkpoint_bytes)]);
        if let Some(gpu) = &memory.gpu {
            gpu.describe(bound, &mut table);
        }
        table.render()
    }
}

impl Memory {
    fn of(plan: &JobPlan, host: Option<&HostSurvey>) -> Self {
        let (need, model) = (plan.ingest.memory(), &plan.model);
        let gpu = match plan.job.training.device {
            DeviceSpec::Cpu => None,
            DeviceSpec::Cuda(number) => Some(GpuMemory::of(model, number, host)),
        };
        let (model_bytes, workspace_bytes) = match gpu {
            None => (model.parameter_bytes, model.workspace_bytes),
            Some(_) => (0, model.staging_bytes),
        };
        Self {
            ring_bytes: need.ring_bytes,
            pool_bytes: need.pool_bytes,
            reading_bytes: need.reading_bytes,
            ahead_bytes: need.ahead_bytes,
            fixed_bytes: need.fixed_bytes,
            evaluation_bytes: plan.eval_ingest.as_ref().map_or(0, |eval| eval.memory().total_bytes()),
            budget_bytes: plan.job.data.memory_budget_bytes,
            model_bytes,
            workspace_bytes,
            checkpoint_bytes: model.copy_bytes,
            gpu,
        }
    }
}

impl GpuMemory {
    fn of(model: &ModelPlan, number: u32, host: Option<&HostSurvey>) -> Self {
        let memory_bytes = host.and_then(|host| host.gpu(number).ok()).map(|gpu| gpu.memory_bytes);
        let usable_bytes = memory_bytes.map(gpu::usable_bytes);
        Self {
            number,
            model_bytes: model.parameter_bytes,
            workspace_bytes: model.workspace_bytes,
            memory_bytes,
            usable_bytes,
            fits: usable_bytes.map(|usable| gpu::needed_bytes(model) <= usable),
        }
    }

    /// `bound` stands before what may be less.
    fn describe(&self, bound: &str, table: &mut Table) {
        let Self { number, model_bytes, workspace_bytes, memory_bytes, usable_bytes, fits } = self;
        let mut takes = format!("{bound}{}", figures::bytes(model_bytes.saturating_add(*workspace_bytes)));
        if let Some((usable, all)) = usable_bytes.zip(*memory_bytes) {
            takes +=
                &format!(" of {}, which others leave of {}", figures::bytes(usable), figures::bytes(all));
        }
        table.row([format!("memory of GPU {number}"), takes]);
        table.row(["  model and optimizer".to_owned(), figures::bytes(*model_bytes)]);
        table.row(["  batch and workspace".to_owned(), figures::bytes(*workspace_bytes)]);
        if *fits == Some(false) {
            table.row(["  does not fit".to_owned(), self.advice().to_owned()]);
        }
    }

    /// What to change of a job that does not fit.
    fn advice(&self) -> &'static str {
        if self.usable_bytes.is_some_and(|usable| self.model_bytes >= usable) {
            "give the job smaller tables (fewer ids, a lower `embedding_dim`), or optimizers with less state"
        } else {
            "give the job a smaller `data.batch_size`, or a `training.micro_batch_size`"
        }
    }
}

/// What there is and what is wrong, each with its name.
fn describe_host(host: &HostSurvey) -> Vec<(String, String)> {
    let of_gpu = |gpu: &GpuSurvey| {
        let GpuSurvey { number, name, capability, multiprocessors, memory_bytes } = gpu;
        let memory = figures::bytes(*memory_bytes);
        let what =
            format!("{name}, compute capability {capability}, {multiprocessors} multiprocessors, {memory}");
        (format!("GPU {number}"), what)
    };
    let of_library = |found: &LibrarySurvey| {
        let LibrarySurvey { library, version, problem, for_several_gpus: _ } = found;
        (library.clone(), version.clone().or(problem.clone()).unwrap_or_default())
    };
    let of_problem = |problem: &String| ("GPUs".to_owned(), problem.clone());
    let problem = host.problem.iter().map(of_problem);
    host.gpus.iter().map(of_gpu).chain(problem).chain(host.libraries.iter().map(of_library)).collect()
}

impl From<Beginning> for WarmStart {
    fn from(Beginning { checkpoint, report }: Beginning) -> Self {
        let warm_start::WarmStartReport { full, partial, initialized, unused } = report;
        Self {
            checkpoint,
            whole: full,
            in_part: partial,
            anew: initialized.into_iter().collect(),
            left: unused,
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

impl From<DataPlan> for FilesReport {
    fn from(DataPlan { files, splits, bytes, rows }: DataPlan) -> Self {
        Self { files, splits, bytes, rows }
    }
}

impl FeatureReport {
    fn columns_and_weights(&self) -> String {
        let columns = self.columns.join(" x ");
        self.weights.as_ref().map_or(columns.clone(), |weights| format!("{columns} by {weights}"))
    }

    fn of(spec: &FeatureSpec, job: &Job, plan: &JobPlan) -> Self {
        let parts = job.model.features().into_iter().filter(|(_, names)| names.contains(&spec.name));
        let tells_items_apart = match &job.model {
            ModelSpec::TwoTower(model) => (model.item_id.as_ref() == Some(&spec.name)).then_some("item_id"),
            _ => None,
        };
        let single = plan.schema.ids.iter().find(|feature| feature.name == spec.name);
        let ragged = plan.schema.ragged.iter().find(|feature| feature.name == spec.name);
        let ids = single.map(|feature| feature.cardinality).or(ragged.map(|feature| feature.cardinality));
        Self {
            name: spec.name.clone(),
            kind: kind(&spec.kind),
            columns: spec.columns.clone(),
            ids,
            bound: plan.analysis.is_none() && is_learned(&spec.kind),
            maximum: spec.maximum,
            weights: spec.weights.clone(),
            used_by: parts.map(|(part, _)| part.unwrap_or("model")).chain(tells_items_apart).collect(),
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

/// The part of a model that a tensor is of: `wide`, `embedding`, or `deep` and which piece of it.
fn part(tensor: &str) -> &str {
    let pieces = if tensor.starts_with("deep.") { 2 } else { 1 };
    tensor.match_indices('.').nth(pieces - 1).map_or(tensor, |(end, _)| &tensor[..end])
}

fn kind(kind: &FeatureKind) -> &'static str {
    match kind {
        FeatureKind::Numeric { .. } => "numeric",
        FeatureKind::Bucketized { .. } => "bucketized",
        FeatureKind::Vocabulary { .. } => "vocabulary",
        FeatureKind::Hashed { .. } => "hashed",
        FeatureKind::Identity { .. } => "identity",
        FeatureKind::Crossed { .. } => "crossed",
    }
}

fn is_learned(kind: &FeatureKind) -> bool {
    matches!(kind, FeatureKind::Vocabulary { terms: Terms::Learned { .. }, .. })
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn tensors_count_towards_their_part() {
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
