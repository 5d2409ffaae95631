//! `millstream check`: prints the plan of a job without training.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use millstream_daemon::access::Requester;
use millstream_daemon::auto_batch::{Choice, GpuChoice, Limit, gpu};
use millstream_daemon::export;
use millstream_daemon::memory::{self, Room};
use millstream_daemon::plan::{DataPlan, JobPlan, Learning, RowCount};
use millstream_daemon::sources::SourcePlan;
use millstream_daemon::survey::survey_host_with_current_exe;
use millstream_daemon::warm_start::Beginning;
use millstream_job::Job;
use millstream_pipeline::spec::{FeatureKind, FeatureSpec, Terms};
use millstream_trainer::model::{ModelPlan, TensorRole};
use millstream_trainer::spec::ModelSpec;
use millstream_trainer::warm_start;
use millstream_worker::survey::{GpuSurvey, HostSurvey, LibrarySurvey};
use serde::Serialize;
use tokio::runtime::{Handle, Runtime};

use crate::arguments::Check;
use crate::context::Context;
use crate::failure::Failure;
use crate::progress::Gauge;
use crate::screen::output_width;
use crate::table::Table;
use crate::{figures, job_file};

/// Without `--learn`, training data of at most this size is still read: it takes about a second.
const LEARN_BY_DEFAULT_BYTES: u64 = 64 << 20;

/// The plan, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    name: String,
    seed: u64,
    data: DataReport,
    features: Vec<FeatureReport>,
    batch: BatchReport,
    /// How the batch size was chosen; null unless it is `"auto"`.
    auto_batch: Option<AutoBatch>,
    /// The number of training rows, exact or estimated.
    #[serde(skip)]
    rows: Option<RowCount>,
    /// The number of rows of an epoch, exact or expected; null if it is unknown.
    rows_per_epoch: Option<u64>,
    /// Null if the number of rows is unknown.
    steps_per_epoch: Option<u64>,
    /// Whether it is estimated from the size of the files, or varies between epochs.
    steps_are_estimated: bool,
    epochs: u32,
    precision: &'static str,
    embedding_precision: &'static str,
    device: String,
    /// The GPUs and CUDA libraries of this host; null for a job on the CPU.
    host: Option<HostSurvey>,
    learning_rates: LearningRates,
    parameters: Parameters,
    memory: Memory,
    /// Why the job does not fit into this host's memory; null if it does.
    memory_problem: Option<String>,
    /// Why the job cannot use its GPU on this host; null if it can.
    gpu_problem: Option<String>,
    /// Null without a warm start, and while vocabularies are unknown.
    warm_start: Option<WarmStart>,
    continuation: Option<ContinuationReport>,
}

#[derive(Debug, Serialize)]
struct DataReport {
    train: DataPlan,
    /// The sources of training data that is mixed by weight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<SourcePlan>,
    eval: Option<DataPlan>,
}

#[derive(Debug, Serialize)]
struct FeatureReport {
    name: String,
    kind: &'static str,
    columns: Vec<String>,
    /// The number of ids; null for a numeric feature.
    ids: Option<u32>,
    /// Whether `ids` is an upper bound.
    bound: bool,
    /// The maximum number of values per row; null for a single-valued feature.
    maximum: Option<u32>,
    /// The column with the weights of the values.
    weights: Option<String>,
    /// The parts of the model that read it, `model` if it has no parts; and `loss` if its ids identify lists.
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
    /// The minimum memory of the whole job.
    needed_bytes: u64,
    /// The part of it that the worker process uses in addition to its model.
    process_bytes: u64,
    limit_bytes: u64,
    /// The source of the limit.
    limit_of: String,
    /// GPU memory; null on the CPU.
    gpu: Option<AutoBatchGpu>,
    /// Why the batch size is not twice as large.
    why_not_more: Option<String>,
}

#[derive(Debug, Serialize)]
struct AutoBatchGpu {
    needed_bytes: u64,
    limit_bytes: u64,
    limit_of: String,
}

/// The learning rate of each optimizer at the job's batch size.
#[derive(Debug, Serialize)]
struct LearningRates {
    /// The scaling factor; null if the job does not scale learning rates.
    factor: Option<f64>,
    /// The batch size for which the job file states them.
    reference: Option<u32>,
    rule: Option<&'static str>,
    optimizers: BTreeMap<String, f64>,
}

#[derive(Debug, Serialize)]
struct Parameters {
    total: u64,
    /// Whether `total` is an upper bound.
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
    /// Evaluations whose rows are read separately from training rows.
    evaluation_bytes: u64,
    budget_bytes: u64,
    /// Parameters and optimizer state.
    model_bytes: u64,
    /// Activations, gradients and workspaces.
    workspace_bytes: u64,
    /// The copy of the model from which checkpoints are written.
    checkpoint_bytes: u64,
    host: HostUse,
    /// Null on the CPU.
    gpu: Option<GpuMemory>,
}

/// The job's memory on this host.
#[derive(Clone, Copy, Debug, Serialize)]
struct HostUse {
    /// The least memory of ingest and the worker together.
    needed_bytes: u64,
    /// What this host has available now; null if the kernel does not report it.
    available_bytes: Option<u64>,
    /// Whether the job fits.
    fits: Option<bool>,
}

/// The job's memory on its GPU. Host memory does not include it.
#[derive(Debug, Serialize)]
struct GpuMemory {
    number: u32,
    /// Parameters and optimizer state.
    model_bytes: u64,
    /// Batches, activations, gradients and workspaces.
    workspace_bytes: u64,
    /// The GPU's total memory. Null, like the next two fields, if this host lacks the GPU.
    memory_bytes: Option<u64>,
    /// The estimate of what the driver and other processes leave.
    usable_bytes: Option<u64>,
    /// Whether the job fits into `usable_bytes`.
    fits: Option<bool>,
}

/// What the job continues.
#[derive(Debug, Serialize)]
struct ContinuationReport {
    checkpoint: PathBuf,
    step: u64,
    /// Whether the epochs of the earlier run count.
    is_same_data: bool,
}

/// The parameters that a warm start carries over.
#[derive(Debug, Serialize)]
struct WarmStart {
    checkpoint: PathBuf,
    /// Parameters carried over completely.
    whole: Vec<String>,
    /// Parameters carried over partly.
    in_part: Vec<String>,
    /// Parameters initialized from scratch, each with the reason.
    initialized: BTreeMap<String, String>,
    /// Parameters of the other model that this one does not use.
    unused: Vec<String>,
}

pub(crate) fn run(arguments: &Check, context: &Context) -> Result<(), Failure> {
    let job = job_file::resolve(&arguments.job, context)?;
    let host = job.training.device.gpu().map(|_| survey_host_with_current_exe()).transpose()?;
    let surveyed = || host.clone().context("a CPU job does not survey GPUs");
    let runtime = Runtime::new()?;
    let plan = {
        let gauge = Gauge::rows(&context.screen, "learning");
        let most_bytes = if arguments.learn { u64::MAX } else { LEARN_BY_DEFAULT_BYTES };
        let learning = Learning { most_bytes, progress: &|now| gauge.update(now.rows) };
        JobPlan::new(&job, &surveyed, learning, runtime.handle())
    };
    runtime.shutdown_background();
    let plan = plan?;
    let beginning = Beginning::of(&plan, &Requester::Trusted)?;
    if job.warm_start.is_some() && beginning.is_none() && plan.continuation.is_none() {
        context.screen.note("--learn reads the data and shows which parameters the warm start carries over");
    }
    let report = Report::of(&plan, host, beginning);
    context.answer(&report, || report.describe())?;
    // With --json, the report contains them.
    for problem in [&report.gpu_problem, &report.memory_problem].into_iter().flatten() {
        context.screen.error(problem);
    }
    match (report.gpu_problem, report.memory_problem) {
        (Some(_), _) => Err(Failure::JobAlreadyReported),
        (None, Some(_)) => Err(Failure::AlreadyReported),
        (None, None) => Ok(()),
    }
}

/// Why the job cannot use its GPU on this host.
fn gpu_problem(job: &Job, host: Option<&HostSurvey>) -> Option<String> {
    let here = || format!("`training.device = \"{}\"`", job.training.device);
    let gpu = host?.gpu(job.training.device.gpu()?).with_context(here);
    gpu.err().map(|error| format!("{error:#}"))
}

/// Why the job does not fit into this host's memory.
fn memory_problem(plan: &JobPlan, memory: &Memory) -> Option<String> {
    // An automatic batch size is chosen to fit, and an upper bound may be far above what is needed.
    if plan.batch.is_some() || plan.analysis.is_none() {
        return None;
    }
    let room = Room::Available(memory.host.available_bytes?);
    plan.host_memory().check(&plan.model, room).err().map(|error| error.to_string())
}

/// Whether a job fits on this host.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    /// The least host memory.
    pub(crate) needed_bytes: u64,
    pub(crate) available_bytes: Option<u64>,
    /// Whether vocabularies are known; otherwise, `needed_bytes` is an upper bound.
    pub(crate) is_exact: bool,
    pub(crate) gpu_problem: Option<String>,
    pub(crate) memory_problem: Option<String>,
}

/// Plans `job` as `check` does without `--learn`. Blocks, so it must not be called from async code.
pub(crate) fn fit(job: &Job, runtime: &Handle) -> anyhow::Result<Fit> {
    let host = job.training.device.gpu().map(|_| survey_host_with_current_exe()).transpose()?;
    let gpu_problem = gpu_problem(job, host.as_ref());
    let surveyed = || host.clone().context("a CPU job does not survey GPUs");
    let learning = Learning { most_bytes: LEARN_BY_DEFAULT_BYTES, progress: &|_| {} };
    let plan = JobPlan::new(job, &surveyed, learning, runtime)?;
    let memory = Memory::of(&plan, host.as_ref());
    let HostUse { needed_bytes, available_bytes, .. } = memory.host;
    let memory_problem = memory_problem(&plan, &memory);
    let is_exact = plan.analysis.is_some();
    Ok(Fit { needed_bytes, available_bytes, is_exact, gpu_problem, memory_problem })
}

impl Report {
    fn of(plan: &JobPlan, host: Option<HostSurvey>, beginning: Option<Beginning>) -> Self {
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

    fn describe(&self) -> String {
        let bounded = self.parameters.bound;
        let note =
            if bounded { "\n<= upper bound; --learn reads the data for the exact number\n" } else { "" };
        format!(
            "job {}, seed {}\n\n{}{}\n{}{note}\n{}{}",
            self.name,
            self.seed,
            self.data_table(),
            self.source_table(),
            self.feature_table(),
            self.size_table(),
            self.warm_start_table(),
        )
    }

    fn warm_start_table(&self) -> String {
        let mut table = Table::default();
        if let Some(ContinuationReport { checkpoint, step, is_same_data }) = &self.continuation {
            table.row(["continues".to_owned(), checkpoint.display().to_string()]);
            table.row(["  from step", &figures::count(*step)]);
            table.row([
                "  data",
                if *is_same_data { "the same: its epochs count" } else { "other: from its start" },
            ]);
            return format!("\n{}", table.render());
        }
        let Some(WarmStart { checkpoint, whole, in_part, initialized, unused }) = &self.warm_start else {
            return String::new();
        };
        table.row(["warm start".to_owned(), checkpoint.display().to_string()]);
        let all = whole.len() + in_part.len() + initialized.len();
        table.row(["  carried over", &format!("{} of {all} parameters", whole.len())]);
        let in_part = in_part.iter().map(|name| ("  in part", name.clone()));
        let initialized = initialized.iter().map(|(name, why)| ("  initialized", format!("{name}: {why}")));
        let unused = unused.iter().map(|name| ("  unused", name.clone()));
        for (title, name) in in_part.chain(initialized).chain(unused) {
            table.row([title.to_owned(), name]);
        }
        format!("\n{}", table.render())
    }

    fn data_table(&self) -> String {
        let mut table = Table::with_titles(&["DATA", ">FILES", ">SPLITS", ">SIZE", ">ROWS"]);
        let DataReport { train, eval, .. } = self.data;
        // Of filtered data, the rows that pass; of records, an estimate unless they were read.
        let learned = self.rows.map(|RowCount { rows, is_estimate }| {
            format!("{}{}", if is_estimate { "~" } else { "" }, figures::count(rows))
        });
        let eval = eval.map(|eval| ("eval", eval, None));
        for (name, files, learned) in [("train", train, learned)].into_iter().chain(eval) {
            table.row([
                name.to_owned(),
                figures::count(files.files as u64),
                figures::count(files.splits as u64),
                figures::bytes(files.bytes),
                files.rows.map(figures::count).or(learned).unwrap_or_else(|| "?".to_owned()),
            ]);
        }
        table.render()
    }

    /// The sources of mixed training data.
    fn source_table(&self) -> String {
        if self.data.sources.is_empty() {
            return String::new();
        }
        let mut table =
            Table::with_titles(&["SOURCE", ">WEIGHT", ">FILES", ">SIZE", ">ROWS", ">OF AN EPOCH"]);
        for source in &self.data.sources {
            let about = if source.share_is_estimate { "~" } else { "" };
            table.row([
                source.pattern.clone(),
                source.weight.to_string(),
                figures::count(source.files as u64),
                figures::bytes(source.bytes),
                source.rows.map_or_else(|| "?".to_owned(), figures::count),
                format!("{about}{}", figures::percent(source.share)),
            ]);
        }
        format!("\n{}", table.render())
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
        table.fitted(output_width(), &["VALUES", "COLUMNS"]).render()
    }

    fn size_table(&self) -> String {
        let Self { batch, parameters, memory, .. } = self;
        let bound = if parameters.bound { "at most " } else { "" };
        let mut table = Table::default();
        let shape = format!(
            "{}: {} dense, {} single-id, {} multi-valued; {}",
            figures::counted(batch.rows.into(), "row"),
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
            let fits = format!("{bound}{needed} ({process} for the worker process) of {limit}: {limit_of}");
            table.row(["  auto: needs".to_owned(), fits]);
            if let Some(AutoBatchGpu { needed_bytes, limit_bytes, limit_of }) = gpu {
                let [needed, limit] = [needed_bytes, limit_bytes].map(|&bytes| figures::bytes(bytes));
                table.row(["  on the GPU", &format!("{bound}{needed} of {limit}: {limit_of}")]);
            }
            if let Some(why) = why_not_more {
                table.row(["  limited by".to_owned(), why.clone()]);
            }
        }
        let epochs = u64::from(self.epochs);
        let steps = match self.steps_per_epoch {
            Some(steps) => {
                let about = if self.steps_are_estimated { "about " } else { "" };
                let total = figures::count(steps.saturating_mul(epochs));
                let epochs = figures::counted(epochs, "epoch");
                format!("{about}{total}: {epochs} of {about}{}", figures::count(steps))
            }
            None => format!(
                "{}; the number of rows is unknown until the first has ended",
                figures::counted(epochs, "epoch")
            ),
        };
        table.row(["steps".to_owned(), steps]);
        let precision = match self.embedding_precision {
            of_tables if of_tables == self.precision => of_tables.to_owned(),
            of_tables => format!("{}, embeddings {of_tables}", self.precision),
        };
        table.row(["precision".to_owned(), precision]);
        table.row(["device".to_owned(), self.device.clone()]);
        for (name, description) in self.host.iter().flat_map(describe_host) {
            table.row([format!("  {name}"), description]);
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
        table.row(["parameters", &format!("{bound}{}", figures::count(parameters.total))]);
        for (part, count) in &parameters.parts {
            table.row([format!("  {part}"), figures::count(*count)]);
        }
        let parts = [
            ("  ring", memory.ring_bytes),
            ("  shuffle pool", memory.pool_bytes),
            ("  reading", memory.reading_bytes),
            ("  read-ahead, at most", memory.ahead_bytes),
            ("  other", memory.fixed_bytes),
        ];
        let evaluations = (memory.evaluation_bytes > 0).then_some(("  evaluations", memory.evaluation_bytes));
        let parts = parts.into_iter().chain(evaluations);
        let ingest = figures::bytes(parts.clone().map(|(_, bytes)| bytes).sum());
        table.row(["ingest memory", &format!("{ingest} of {}", figures::bytes(memory.budget_bytes))]);
        for (part, bytes) in parts {
            table.row([part, &figures::bytes(bytes)]);
        }
        let worker = memory.model_bytes + memory.workspace_bytes + memory.checkpoint_bytes;
        table.row(["worker memory", &format!("{bound}{}", figures::bytes(worker))]);
        if memory.gpu.is_none() {
            table.row(["  model and optimizer", &figures::bytes(memory.model_bytes)]);
        }
        table.row(["  workspace", &figures::bytes(memory.workspace_bytes)]);
        table.row(["  checkpoint copy", &figures::bytes(memory.checkpoint_bytes)]);
        let HostUse { needed_bytes, available_bytes, .. } = memory.host;
        let available = available_bytes.map(|bytes| format!(" of {} available now", figures::bytes(bytes)));
        let needed = format!("{bound}{}{}", figures::bytes(needed_bytes), available.unwrap_or_default());
        table.row(["host memory, at least".to_owned(), needed]);
        if let Some(gpu) = &memory.gpu {
            gpu.describe(bound, &mut table);
        }
        table.render()
    }
}

impl Memory {
    fn of(plan: &JobPlan, host: Option<&HostSurvey>) -> Self {
        let (need, model) = (plan.ingest.memory(), &plan.model);
        let gpu = plan.job.training.device.gpu().map(|number| GpuMemory::of(model, number, host));
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
            host: HostUse::of(plan.host_memory().total_bytes()),
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

    /// `bound` precedes upper bounds.
    fn describe(&self, bound: &str, table: &mut Table) {
        let Self { number, model_bytes, workspace_bytes, memory_bytes, usable_bytes, fits } = self;
        let mut used = format!("{bound}{}", figures::bytes(model_bytes.saturating_add(*workspace_bytes)));
        if let Some((usable, total)) = usable_bytes.zip(*memory_bytes) {
            used += &format!(" of {} usable ({} in total)", figures::bytes(usable), figures::bytes(total));
        }
        table.row([format!("GPU {number} memory"), used]);
        table.row(["  model and optimizer", &figures::bytes(*model_bytes)]);
        table.row(["  batch and workspace", &figures::bytes(*workspace_bytes)]);
        if *fits == Some(false) {
            table.row(["  does not fit".to_owned(), self.advice().to_owned()]);
        }
    }

    /// What to change if the job does not fit.
    fn advice(&self) -> &'static str {
        if self.usable_bytes.is_some_and(|usable| self.model_bytes >= usable) {
            "use smaller tables (fewer ids, a lower `embedding_dim`) or optimizers with less state"
        } else {
            "lower `data.batch_size`, or set `training.micro_batch_size`"
        }
    }
}

/// The GPUs, libraries and problems of a host: name and description.
fn describe_host(host: &HostSurvey) -> Vec<(String, String)> {
    let of_gpu = |gpu: &GpuSurvey| {
        let GpuSurvey { number, name, capability, multiprocessors, memory_bytes, opened: _ } = gpu;
        let memory = figures::bytes(*memory_bytes);
        let description =
            format!("{name}, compute capability {capability}, {multiprocessors} multiprocessors, {memory}");
        (format!("GPU {number}"), description)
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
    fn columns_and_weights(&self) -> String {
        let columns = self.columns.join(" x ");
        self.weights.as_ref().map_or(columns.clone(), |weights| format!("{columns} by {weights}"))
    }

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
