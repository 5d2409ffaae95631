//! Plans a job without side effects.
//!
//! The plan lists the data and checks it against the job, lays out batches and sizes the model; it writes
//! nothing. The supervisor prepares jobs with it, and `millstream check` and `bench ingest` print it.
//! Statistics are learned last, and only on request, because this takes a pass over the training data.
//! Without them, each learned vocabulary counts with its maximum size.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use millstream_batch::{BatchSchema, Size, SlotLayout};
use millstream_format::Error as FormatError;
use millstream_io::storage::Stores;
use millstream_job::{AutoBatchSpec, Job};
use millstream_pipeline::Error;
use millstream_pipeline::analysis::{Analysis, AnalysisPass, AnalysisProgress};
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::cache::{Cache, CacheOptions, Specification};
use millstream_pipeline::dataset::{Absent, Dataset, Negatives};
use millstream_pipeline::ingest::{ChunkSource, DatasetSource, IngestPlan};
use millstream_pipeline::order::Mix;
use millstream_pipeline::spec::{
    DataSpec, FeatureKind, FeatureSpec, MissingNumber, Normalize, Purpose, Terms,
};
use millstream_pipeline::transform::Transform;
use millstream_trainer::model::ModelPlan;
use millstream_worker::survey::HostSurvey;
use serde::Serialize;
use tokio::runtime::Handle;

use crate::access::Requester;
use crate::auto_batch::{self, Choice, Decided, GpuChoice, Limit, LimitSource, gpu};
use crate::continuation::{Continuation, Source};
use crate::copies::Copies;
use crate::memory::HostMemory;
use crate::runs::RunDirectory;
use crate::sources::SourcePlan;
use crate::{feed, ranks, runs};

/// The plan of a job.
pub struct JobPlan {
    /// The job, with its batch size resolved.
    pub job: Job,
    /// The automatically chosen batch size.
    pub batch: Option<Choice>,
    /// The training data.
    pub train: DataPlan,
    /// The held-out data, if the job has any.
    pub eval: Option<DataPlan>,
    /// The sources of the training data, if it is mixed by weight.
    pub sources: Vec<SourcePlan>,
    /// The number of training rows; `None` if unknown.
    pub rows: Option<RowCount>,
    /// The number of rows of an epoch, in which weights make rows occur repeatedly or not at all.
    pub epoch_rows: Option<RowCount>,
    /// The contents of a batch. Without an analysis, learned vocabularies have their maximum cardinality.
    pub schema: BatchSchema,
    /// Bytes of one batch in the ring.
    pub slot_bytes: u64,
    /// The ingest plan, ready to start if the plan has an analysis.
    pub ingest: IngestPlan,
    /// The ingest plan of an evaluation, if held-out rows are fed separately.
    pub eval_ingest: Option<IngestPlan>,
    /// The model.
    pub model: ModelPlan,
    /// The statistics learned from the data; `None` if it was not read.
    pub analysis: Option<Analysis>,
    /// The run that the job continues, if it does.
    pub continuation: Option<Continuation>,
    /// The copies of the checkpoint in a bucket that the job starts with.
    pub(crate) copies: Copies,
}

/// One of a job's datasets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DataPlan {
    /// Files.
    pub files: usize,
    /// Number of parts that are read independently.
    pub splits: usize,
    /// Bytes in storage.
    pub bytes: u64,
    /// Number of rows, if the files' metadata contain it.
    pub rows: Option<u64>,
    /// An estimate of it otherwise: of a held-out share by its fraction, of TFRecord files by their size.
    pub estimated_rows: Option<u64>,
}

/// A number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowCount {
    /// The number.
    pub rows: u64,
    /// Whether it is estimated from the size of the files, or varies between epochs.
    pub is_estimate: bool,
}

impl RowCount {
    /// The number of batches of `batch_rows` rows in a pass, without a short last one if `drop_last`.
    pub fn batches(self, batch_rows: u32, drop_last: bool) -> u64 {
        let batch_rows = u64::from(batch_rows);
        if drop_last { self.rows / batch_rows } else { self.rows.div_ceil(batch_rows) }
    }
}

/// How a plan learns from the data.
#[derive(Clone, Copy)]
pub struct Learning<'a> {
    /// Training data above this size is not read. Shapes and bounds are still correct.
    pub most_bytes: u64,
    /// Called with the progress, from any thread.
    pub progress: &'a (dyn Fn(AnalysisProgress) + Sync),
}

impl JobPlan {
    /// Plans `job`, whose data `stores` read. Blocks, so it must not be called from async code. `host` surveys the host's GPUs if
    /// needed.
    ///
    /// # Errors
    /// When data is absent, does not match the job or does not fit its memory budget; errors of `host`.
    pub fn new(
        job: &Job,
        host: &dyn Fn() -> Result<HostSurvey>,
        learning: Learning<'_>,
        (stores, runtime): (&Stores, &Handle),
    ) -> Result<Self> {
        let never = AtomicBool::new(false);
        Self::with((job, &Requester::Trusted), stores, None, runtime, host, |train, _| {
            try_first_rows(job, train, runtime)?;
            let reads = DataPlan::of(train).bytes <= learning.most_bytes;
            reads.then(|| learn(job, train, runtime, &never, learning.progress)).transpose()
        })
    }

    /// Plans `job`, whose data `requester` must be allowed to read. `learned` returns the statistics of the training data,
    /// or `None` to plan without; it is given the model in case nothing is learned, the smallest that is possible. If
    /// `directory` is given, the listings of the data are frozen in it.
    ///
    /// # Errors
    /// As for [`JobPlan::new`], and those of `learned`.
    pub(crate) fn with(
        (job, requester): (&Job, &Requester),
        stores: &Stores,
        directory: Option<&RunDirectory>,
        runtime: &Handle,
        host: &dyn Fn() -> Result<HostSurvey>,
        learned: impl FnOnce(&Dataset, &ModelPlan) -> Result<Option<Analysis>>,
    ) -> Result<Self> {
        let data = &job.data;
        let copies = Copies::new(stores.clone(), runtime.clone());
        let frozen = |name| directory.map(|directory| (directory, name));
        let open = |patterns: &[String], name| {
            feed::open(patterns, data, (stores, requester), frozen(name), runtime)
        };
        let (train, sources) = if data.is_mixed() {
            let frozen = frozen(runs::TRAIN_LISTING);
            let (train, sources) = feed::open_sources(data, (stores, requester), frozen, runtime)?;
            (train, Some(sources))
        } else {
            (open(&data.train, runs::TRAIN_LISTING)?, None)
        };
        let mix = sources.as_ref().map(|sources| sources.mix(&train)).transpose()?;
        let eval = match data.validation {
            Some(_) => Some(train.clone()),
            None => data.has_eval().then(|| open(&data.eval, runs::EVAL_LISTING)).transpose()?,
        };
        let dataset_of = |dataset: &Dataset, purpose| dataset.filtered(&data.rows(purpose));
        let eval = eval.map(|eval| Arc::new(dataset_of(&eval, Purpose::Evaluation)));
        let mut train = dataset_of(&train, Purpose::Training);
        if let Some(fraction) = data.negatives {
            train = train.sampled(Negatives::new(&job.label.first, &data.missing, fraction));
        }
        let train = Arc::new(train);

        let options = CacheOptions::of_budget(data.memory_budget_bytes);
        let cache = data.cache.as_ref().map(|spec| Arc::new(Cache::new(spec, options)));
        let fit = |features: &[FeatureSpec], analysis: &Analysis| -> Result<Fitted> {
            let transform = Arc::new(Transform::resolve(features, &job.label, &data.missing, analysis)?);
            let schema = transform.batch_schema(data);
            let source = |dataset: &Arc<Dataset>, purpose, absent| {
                let source = DatasetSource::open(Arc::clone(dataset), &transform, data, absent, runtime)
                    .map_err(|error| with_key(job, error))?;
                let Some(cache) = &cache else { return Ok::<Arc<dyn ChunkSource>, anyhow::Error>(source) };
                let specification = Specification::of(features, &job.label, (data, purpose), analysis);
                Ok(feed::cached(source, cache, dataset, &schema, &specification, data)?)
            };
            let labels = job.label.columns();
            let train = source(&train, Purpose::Training, Absent::Rejected)?;
            let held_out = |eval| source(eval, Purpose::Evaluation, Absent::AllowedExcept(&labels));
            let eval = eval.as_ref().map(held_out).transpose()?;
            Ok(Fitted { schema, train: (train, mix.clone()), eval })
        };
        // Reports missing columns and batches that do not fit before the pass over the data.
        let shape = fit(&unlearned(&job.features, u32::MAX), &Analysis::default())?;
        feeds(job, data, shape.schema.clone(), &shape)?;
        let decided = directory.map(auto_batch::decided).transpose()?.flatten();
        let smallest = unlearned(&job.features, 1);
        let smallest = Transform::resolve(&smallest, &job.label, &data.missing, &Analysis::default())?;
        let smallest = ModelPlan::new(&job.model, &smallest.batch_schema(data), &ranks::planned(job))?;
        let recorded = directory.map(|run| Continuation::recorded(run, requester)).transpose()?.flatten();
        let source = match recorded {
            Some(_) => None,
            None => Source::of(job, requester, &copies)?,
        };
        let analysis = match &source {
            Some(source) => Some(source.analysis()),
            None => learned(&train, &smallest)?,
        };
        let analysis = analysis.or_else(|| (!Analysis::needed(&job.features)).then(Analysis::default));
        let fitted = match &analysis {
            Some(analysis) => fit(&job.features, analysis)?,
            None => shape,
        };
        // The statistics of a continued job are of other data.
        let is_own = recorded.is_none() && source.is_none();
        let counted = analysis.as_ref().filter(|analysis| is_own && analysis.label.is_some());
        let rows = train.rows().or(counted.map(|analysis| analysis.rows));
        let estimate = || Some(RowCount { rows: train.estimated_rows()?, is_estimate: true });
        let row_count = rows.map(|rows| RowCount { rows, is_estimate: false }).or_else(estimate);
        let epoch_rows = match &sources {
            Some(sources) => row_count.map(|rows| sources.epoch_rows(&train, rows)),
            None => row_count,
        };
        let of_epoch = rows.and(epoch_rows).map(|count| count.rows);
        let (whole, batch) = match &job.auto_batch {
            Some(auto) => {
                let (whole, choice) = Whole::found(job, auto, &fitted, of_epoch, decided, host)?;
                (whole, Some(choice))
            }
            None => (Whole::new(job, &fitted, data.batch_size, None)?, None),
        };
        let Whole { schema, feeds: (ingest, eval_ingest), model } = whole;
        let continued = |source: Source| source.continued(job, &train, &ingest);
        let continuation = recorded.map_or_else(|| source.map(continued).transpose(), |it| Ok(Some(it)))?;
        Ok(Self {
            job: job.with_batch_size(schema.rows),
            batch,
            train: DataPlan::of(&train),
            eval: eval.as_deref().map(DataPlan::of),
            sources: sources.map_or_else(Vec::new, |sources| sources.plans(&train)),
            rows: row_count,
            epoch_rows,
            slot_bytes: SlotLayout::of(&schema)?.slot_bytes() as u64,
            schema,
            ingest,
            eval_ingest,
            model,
            analysis,
            continuation,
            copies,
        })
    }
}

/// The datasets of a job, as its features read them.
struct Fitted {
    /// The contents of a batch with the minimum number of rows.
    schema: BatchSchema,
    /// With the mix of its splits, if it is mixed.
    train: (Arc<dyn ChunkSource>, Option<Arc<Mix>>),
    eval: Option<Arc<dyn ChunkSource>>,
}

/// The memory limits of a job, in bytes.
#[derive(Clone, Copy)]
struct Limits {
    host: u64,
    /// The limit of its GPU, if it has one.
    gpu: Option<u64>,
}

/// The parts of a plan that depend on the batch size.
struct Whole {
    schema: BatchSchema,
    feeds: Feeds,
    model: ModelPlan,
}

impl Whole {
    /// Plans batches of `rows` rows within `limits`, if there are any.
    fn new(job: &Job, fitted: &Fitted, rows: u32, limits: Option<Limits>) -> Result<Self> {
        let schema = BatchSchema { rows, ..fitted.schema.clone() };
        let model = ModelPlan::new(&job.model, &schema, &ranks::planned(job))?;
        let Some(Limits { host: limit, gpu: gpu_limit }) = limits else {
            return Ok(Self { feeds: feeds(job, &job.data, schema.clone(), fitted)?, schema, model });
        };
        let of_workers = HostMemory::of_job(&model, job);
        let worker = of_workers.total_bytes();
        let ModelPlan { parameter_bytes, workspace_bytes, staging_bytes, .. } = &model;
        let of_model = format!(
            "{} for parameters and optimizer state, {} for activations, gradients and workspaces",
            Size(*parameter_bytes),
            Size(*workspace_bytes)
        );
        let on_gpu = gpu::needed_bytes(&model);
        if let Some(limit) = gpu_limit.filter(|&limit| on_gpu > limit) {
            bail!(
                "batches of {rows} rows need {} of GPU memory ({of_model}), above the limit of {}",
                Size(on_gpu),
                Size(limit)
            );
        }
        let of_worker = match job.training.device.gpu() {
            None => of_model,
            Some(_) => format!("{} for transfers to and from the GPU", Size(*staging_bytes)),
        };
        let takes = format!(
            "batches of {rows} rows need {} in {}{of_worker}, {} for copies for checkpoints)",
            Size(worker),
            match job.training.ranks() {
                1 => "the worker (".to_owned(),
                ranks => format!("{ranks} workers (in each "),
            },
            Size(of_workers.copy_bytes)
        );
        if worker >= limit {
            bail!("{takes}, above the memory limit of {}", Size(limit));
        }
        let memory_budget_bytes = job.data.memory_budget_bytes.min(limit - worker);
        let data = DataSpec { memory_budget_bytes, ..job.data.clone() };
        let feeds = feeds(job, &data, schema.clone(), fitted);
        let feeds = feeds.with_context(|| {
            format!("{takes}, which leaves {} of the memory limit of {}", Size(limit - worker), Size(limit))
        })?;
        Ok(Self { schema, feeds, model })
    }

    /// Plans batches of the recorded size `decided`. Without one, plans the largest batches that fit the
    /// limits and have enough data.
    fn found(
        job: &Job,
        auto: &AutoBatchSpec,
        fitted: &Fitted,
        rows: Option<u64>,
        decided: Option<Decided>,
        host: &dyn Fn() -> Result<HostSurvey>,
    ) -> Result<(Self, Choice)> {
        let (whole, limit, of_gpu, why_not_more) = match decided {
            Some(Decided { rows, limit_bytes, gpu_limit_bytes }) => {
                // A host with more cores uses slightly more memory for threads; the size stays the same.
                let gpu = gpu_limit_bytes.filter(|_| job.training.device.gpu().is_some());
                let limits = Limits { host: limit_bytes, gpu };
                let within = Self::new(job, fitted, rows, Some(limits));
                let whole = within.or_else(|_| Self::new(job, fitted, rows, None))?;
                let of_run = |bytes| Limit { bytes, source: LimitSource::Run };
                (whole, of_run(limit_bytes), gpu.map(of_run), None)
            }
            None => {
                let limit = Limit::of(auto)?;
                let of_gpu = gpu::limit(auto, &ranks::gpus(&job.training), host)?;
                let limits = Limits { host: limit.bytes, gpu: of_gpu.map(|limit| limit.bytes) };
                let of_data = rows.and_then(|rows| u32::try_from(rows).ok()).filter(|&rows| rows < auto.most);
                let most = of_data.unwrap_or(auto.most);
                let (_, whole, why) =
                    auto_batch::largest(auto.least, most, |rows| Self::new(job, fitted, rows, Some(limits)))?;
                let why = why.map(|error| format!("{error:#}")).unwrap_or_else(|| match of_data {
                    Some(rows) => format!("an epoch has {rows} rows"),
                    None => format!("`data.auto_batch.most` is {most}"),
                });
                (whole, limit, of_gpu, Some(why))
            }
        };
        let ingest = least_ingest_bytes(&whole.feeds.0, whole.feeds.1.as_ref());
        let of_workers = HostMemory::of_job(&whole.model, job);
        let choice = Choice {
            rows: whole.schema.rows,
            limit,
            needed_bytes: ingest + of_workers.total_bytes(),
            process_bytes: of_workers.process_bytes,
            workers_bytes: job.training.device.gpu().is_none().then(|| limit.bytes.saturating_sub(ingest)),
            workers: ranks::here(job),
            copy_bytes: of_workers.copy_bytes,
            gpu: of_gpu.map(|limit| GpuChoice { limit, needed_bytes: gpu::needed_bytes(&whole.model) }),
            why_not_more,
        };
        Ok((whole, choice))
    }
}

/// The ingest plans of a job and of its separate evaluations.
type Feeds = (IngestPlan, Option<IngestPlan>);

/// Ring slots of a separate evaluation: one is filled while another is read.
const EVAL_SLOTS: u32 = 2;

/// The share of the memory budget that a separate evaluation may use beyond its minimum: one in this many bytes.
const EVAL_SHARE: u64 = 8;

/// Plans ingest of `job` within the memory budget of `data`, its data section. During a separate evaluation the
/// training ingest waits and keeps its buffers, so the budget is divided.
fn feeds(job: &Job, data: &DataSpec, schema: BatchSchema, fitted: &Fitted) -> Result<Feeds> {
    let seed = job.training.seed;
    let dealt = |plan| ranks::dealt(plan, job);
    let (train, eval) = (fitted.train.clone(), fitted.eval.clone());
    let Some(eval) = eval.as_ref().filter(|_| job.evaluation.is_aside()) else {
        let plan = IngestPlan::training(data, seed, &job.label, schema, train, eval)?;
        return Ok((dealt(plan)?, None));
    };
    let scoring = |memory_budget_bytes| {
        let data = DataSpec { memory_budget_bytes, prefetch: EVAL_SLOTS, ..data.clone() };
        dealt(IngestPlan::scoring(&data, schema.clone(), Arc::clone(eval))?)
    };
    let need = scoring(data.memory_budget_bytes)?.memory();
    let budget = need.least_bytes().max(data.memory_budget_bytes / EVAL_SHARE);
    let eval = scoring(budget)?;
    let rest = data.memory_budget_bytes.saturating_sub(eval.memory().total_bytes());
    let data = DataSpec { memory_budget_bytes: rest, ..data.clone() };
    let training = IngestPlan::training(&data, seed, &job.label, schema, train, None).and_then(dealt);
    Ok((training.context("next to the separate ingest of the held-out data")?, Some(eval)))
}

impl JobPlan {
    /// The maximum memory of ingest.
    pub fn ingest_bytes(&self) -> u64 {
        let aside = self.eval_ingest.as_ref().map_or(0, |plan| plan.memory().total_bytes());
        self.ingest.memory().total_bytes() + aside
    }

    /// The least memory of the job on the host.
    pub fn host_memory(&self) -> HostMemory {
        let ingest_bytes = least_ingest_bytes(&self.ingest, self.eval_ingest.as_ref());
        HostMemory { ingest_bytes, ..HostMemory::of_job(&self.model, &self.job) }
    }
}

/// The memory of ingest without read-ahead.
pub(crate) fn least_ingest_bytes(training: &IngestPlan, eval: Option<&IngestPlan>) -> u64 {
    std::iter::once(training).chain(eval).map(|plan| plan.memory().least_bytes()).sum()
}

impl DataPlan {
    fn of(dataset: &Dataset) -> Self {
        let splits = dataset.splits();
        Self {
            files: splits.last().map_or(0, |split| split.object + 1),
            splits: splits.len(),
            bytes: splits.iter().map(|split| split.bytes).sum(),
            rows: dataset.rows(),
            estimated_rows: dataset.rows().map_or_else(|| dataset.estimated_rows(), |_| None),
        }
    }
}

/// Learns statistics from the training data until `cancel` is set.
///
/// # Errors
/// When the data does not match the job; `Cancelled`.
pub(crate) fn learn(
    job: &Job,
    train: &Dataset,
    runtime: &Handle,
    cancel: &AtomicBool,
    progress: &(dyn Fn(AnalysisProgress) + Sync),
) -> Result<Analysis> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let pass = AnalysisPass {
        dataset: train,
        features: &job.features,
        label: &job.label,
        missing: &job.data.missing,
        bad: &BadRecords::new(job.data.on_bad_record),
        threads: job.training.threads.map_or_else(cores, |threads| threads as usize),
        vocabulary_bytes: AnalysisPass::vocabulary_bytes(&job.data, &job.features),
        reader_bytes: AnalysisPass::reader_bytes(&job.data),
        runtime,
        cancel,
        progress,
    };
    Ok(Analysis { stored_types: train.stored_types(), ..pass.run()? })
}

/// Reads the first rows as training would. What is wrong with a column is often wrong with all of its values.
fn try_first_rows(job: &Job, train: &Dataset, runtime: &Handle) -> Result<()> {
    const MOST_ROWS: usize = 4_096;
    // A filter may exclude the rows of any number of splits.
    const MOST_SPLITS: usize = 4;
    let features = unlearned(&job.features, 1);
    let transform = Transform::resolve(&features, &job.label, &job.data.missing, &Analysis::default())?;
    let bad = BadRecords::new(job.data.on_bad_record);
    for split in 0..train.splits().len().min(MOST_SPLITS) {
        let mut reader = train.read(split, transform.projection(), &bad, runtime)?;
        if let Some(rows) = reader.next_chunk(MOST_ROWS)? {
            transform.apply(&rows, &bad).map_err(|error| with_key(job, error))?;
            break;
        }
    }
    Ok(())
}

/// Names the keys of the job that use the column of an error.
pub(crate) fn with_key(job: &Job, error: Error) -> anyhow::Error {
    let column = match &error {
        Error::Format(FormatError::MissingColumn { column, .. } | FormatError::WrongType { column, .. }) => {
            column
        }
        _ => return error.into(),
    };
    let keys = job.keys_of(column);
    if keys.is_empty() { error.into() } else { anyhow::Error::from(error).context(keys.join(", ")) }
}

/// Features with the same columns and shapes that need no statistics, with at most `most_terms` terms in each vocabulary.
fn unlearned(features: &[FeatureSpec], most_terms: u32) -> Vec<FeatureSpec> {
    let kind = |kind: &FeatureKind| match kind {
        FeatureKind::Numeric { missing, .. } => {
            let missing = match missing {
                MissingNumber::Mean => MissingNumber::Value(0.0),
                MissingNumber::Error | MissingNumber::Value(_) => *missing,
            };
            FeatureKind::Numeric { normalize: Normalize::None, missing }
        }
        FeatureKind::Vocabulary { terms: Terms::Learned { max_terms, .. }, oov_buckets } => {
            FeatureKind::Hashed { buckets: most_terms.min(*max_terms).saturating_add(*oov_buckets) }
        }
        other => other.clone(),
    };
    features.iter().map(|spec| FeatureSpec { kind: kind(&spec.kind), ..spec.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_of_learned_features_have_their_shapes() {
        let spec = |kind| FeatureSpec {
            name: "f".into(),
            columns: vec!["c".into()],
            kind,
            maximum: Some(3),
            weights: Some("w".into()),
        };
        let learned = Terms::Learned { max_terms: 7, min_count: 1 };
        let given = FeatureKind::Vocabulary { terms: Terms::Given(vec!["a".into()]), oov_buckets: 2 };
        let features = [
            spec(FeatureKind::Numeric { normalize: Normalize::Zscore, missing: MissingNumber::Mean }),
            spec(FeatureKind::Vocabulary { terms: learned, oov_buckets: 2 }),
            spec(given.clone()),
        ];
        assert!(Analysis::needed(&features));
        let stand_ins = unlearned(&features, u32::MAX);
        assert!(!Analysis::needed(&stand_ins));
        assert_eq!(stand_ins[1].kind, FeatureKind::Hashed { buckets: 9 });
        assert_eq!(unlearned(&features, 1)[1].kind, FeatureKind::Hashed { buckets: 3 });
        assert_eq!(stand_ins[2].kind, given);
        assert!(
            stand_ins
                .iter()
                .all(|spec| spec.columns == ["c"] && spec.maximum == Some(3) && spec.weights.is_some())
        );
    }
}
