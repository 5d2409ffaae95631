//! What a job is going to do, found out without doing it.
//!
//! Data is listed and held against the job, batches are laid out, the model is sized; nothing is written.
//! The supervisor prepares a job so, and `millstream check` and `bench ingest` look at one. What features
//! learn takes a pass over the training data, which comes last, and only where it is asked for; otherwise a
//! vocabulary counts with the most terms it may have.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use millstream_batch::{BatchSchema, SlotLayout};
use millstream_pipeline::analysis::{Analysis, AnalysisPass, AnalysisProgress};
use millstream_pipeline::cache::{Cache, CacheOptions, Specification};
use millstream_pipeline::dataset::{BadRecords, Dataset};
use millstream_pipeline::ingest::{ChunkSource, IngestPlan};
use millstream_pipeline::spec::{DataSpec, FeatureKind, FeatureSpec, MissingNumber, Normalize, Terms};
use millstream_pipeline::storage::Stores;
use millstream_pipeline::transform::Transform;
use millstream_trainer::model::ModelPlan;
use tokio::runtime::Handle;

use crate::auto_batch::{self, Choice, Decided, GpuChoice, Limit, LimitSource, gpu};
use crate::feed;
use crate::runs;
use millstream_job::{AutoBatchSpec, Job};
use millstream_worker::survey::HostSurvey;

/// What a job would do.
pub struct JobPlan {
    /// The job, with the batch size that was found for it, where one was to be.
    pub job: Job,
    /// How that was found.
    pub batch: Option<Choice>,
    /// The training data.
    pub train: DataPlan,
    /// The held-out data, if the job has any.
    pub eval: Option<DataPlan>,
    /// What a batch holds. Without an analysis, cardinalities of learned vocabularies are the most
    /// they can be.
    pub schema: BatchSchema,
    /// Bytes of one batch in the ring.
    pub slot_bytes: u64,
    /// The feed, ready to start once everything was learned.
    pub ingest: IngestPlan,
    /// The feed of an evaluation, where held-out rows do not come between those of training.
    pub eval_ingest: Option<IngestPlan>,
    /// The model.
    pub model: ModelPlan,
    /// What the features learned from the data; `None` where it was not read for that.
    pub analysis: Option<Analysis>,
}

/// What was found for one of a job's data sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPlan {
    /// Files.
    pub files: usize,
    /// Parts that are read for themselves.
    pub splits: usize,
    /// Bytes in storage.
    pub bytes: u64,
    /// Rows, where the files say so before they are read.
    pub rows: Option<u64>,
}

/// What to do about what features learn.
#[derive(Clone, Copy)]
pub struct Learning<'a> {
    /// Training data of more bytes is not read: shapes and bounds are right then, values are not known.
    pub most_bytes: u64,
    /// Called with how far reading is, from any thread.
    pub progress: &'a (dyn Fn(AnalysisProgress) + Sync),
}

impl JobPlan {
    /// Plans `job`. Blocks: to be called outside of async code. `host` says what there is of GPUs, where that matters.
    ///
    /// # Errors
    /// When data is absent, is not what the job says, or does not fit its memory budget; those of `host`.
    pub fn new(
        job: &Job,
        host: &dyn Fn() -> Result<HostSurvey>,
        learning: Learning<'_>,
        runtime: &Handle,
    ) -> Result<Self> {
        let never = AtomicBool::new(false);
        let stores = Stores::default().for_job(&job.storage);
        Self::with(job, &stores, None, runtime, host, |train| {
            let reads = DataPlan::of(train).bytes <= learning.most_bytes;
            reads.then(|| learn(job, train, runtime, &never, learning.progress)).transpose()
        })
    }

    /// Plans `job` with what `learned` says that its features learn from the training data; `None` to go
    /// without. What its patterns name is frozen in `directory`, if one is given.
    ///
    /// # Errors
    /// As [`JobPlan::new`], and those of `learned`.
    pub(crate) fn with(
        job: &Job,
        stores: &Stores,
        directory: Option<&Path>,
        runtime: &Handle,
        host: &dyn Fn() -> Result<HostSurvey>,
        learned: impl FnOnce(&Dataset) -> Result<Option<Analysis>>,
    ) -> Result<Self> {
        let data = &job.data;
        let open = |patterns: &[String], name: &str| {
            let frozen = directory.map(|directory| directory.join(name));
            feed::open(patterns, data, stores, frozen.as_deref(), runtime)
        };
        let train = open(&data.train, runs::TRAIN_LISTING)?;
        let eval = (!data.eval.is_empty()).then(|| open(&data.eval, runs::EVAL_LISTING)).transpose()?;
        let (train_plan, eval_plan) = (DataPlan::of(&train), eval.as_deref().map(DataPlan::of));

        let options = CacheOptions::of_budget(data.memory_budget_bytes);
        let cache = data.cache.as_ref().map(|spec| Arc::new(Cache::new(spec, options)));
        let fit = |features: &[FeatureSpec], analysis: &Analysis| -> Result<Fitted> {
            let transform = Arc::new(Transform::resolve(features, &job.label, &data.missing, analysis)?);
            let schema = feed::schema(&transform, data);
            let specification = Specification::of(features, &job.label, data, analysis);
            let source = |dataset: &Arc<Dataset>| {
                let source = feed::source(Arc::clone(dataset), &transform, data, runtime)?;
                Ok::<_, anyhow::Error>(match &cache {
                    Some(cache) => feed::cached(source, cache, dataset, &schema, &specification, data),
                    None => source,
                })
            };
            let (train, eval) = (source(&train)?, eval.as_ref().map(source).transpose()?);
            Ok(Fitted { schema, train, eval })
        };
        // A column that is not there, and a batch that has no room, are told before all the data is read to
        // learn from it.
        let shape = fit(&unlearned(&job.features), &Analysis::default())?;
        feeds(job, data, shape.schema.clone(), &shape)?;
        let decided = directory.map(auto_batch::decided).transpose()?.flatten();
        let analysis = learned(&train)?;
        let analysis = analysis.or_else(|| (!Analysis::needed(&job.features)).then(Analysis::default));
        let fitted = match &analysis {
            Some(analysis) => fit(&job.features, analysis)?,
            None => shape,
        };
        let (whole, batch) = match &job.auto_batch {
            Some(auto) => {
                let counted = analysis.as_ref().filter(|analysis| analysis.label.is_some());
                let rows = train_plan.rows.or(counted.map(|analysis| analysis.rows));
                let (whole, choice) = Whole::found(job, auto, &fitted, rows, decided, host)?;
                (whole, Some(choice))
            }
            None => (Whole::new(job, &fitted, data.batch_size, None)?, None),
        };
        let Whole { schema, feeds: (ingest, eval_ingest), model } = whole;
        Ok(Self {
            job: job.with_batch_size(schema.rows),
            batch,
            train: train_plan,
            eval: eval_plan,
            slot_bytes: SlotLayout::of(&schema)?.slot_bytes() as u64,
            schema,
            ingest,
            eval_ingest,
            model,
            analysis,
        })
    }
}

/// What a job reads, as its features see it.
struct Fitted {
    /// What a batch holds, of the least rows that it may have.
    schema: BatchSchema,
    train: Arc<dyn ChunkSource>,
    eval: Option<Arc<dyn ChunkSource>>,
}

/// What all of a job may take, in bytes.
#[derive(Clone, Copy)]
struct Limits {
    host: u64,
    /// Of its GPU, if it has one.
    gpu: Option<u64>,
}

/// All that depends on the rows of a batch.
struct Whole {
    schema: BatchSchema,
    feeds: Feeds,
    model: ModelPlan,
}

impl Whole {
    /// Plans batches of `rows` rows, all of which is to fit `limits`, if there are any.
    fn new(job: &Job, fitted: &Fitted, rows: u32, limits: Option<Limits>) -> Result<Self> {
        let schema = BatchSchema { rows, ..fitted.schema.clone() };
        let model = ModelPlan::new(&job.model, &schema, &job.training)?;
        let Some(Limits { host: limit, gpu: gpu_limit }) = limits else {
            return Ok(Self { feeds: feeds(job, &job.data, schema.clone(), fitted)?, schema, model });
        };
        let worker = auto_batch::worker_bytes(&model, &job.training);
        let ModelPlan { parameter_bytes, workspace_bytes, staging_bytes, copy_bytes, .. } = &model;
        let of_model = format!(
            "{parameter_bytes} for parameters and optimizer state, {workspace_bytes} for activations, gradients and \
             workspaces"
        );
        let on_gpu = gpu::needed_bytes(&model);
        if let Some(limit) = gpu_limit.filter(|&limit| on_gpu > limit) {
            bail!(
                "batches of {rows} rows take {on_gpu} bytes of the GPU ({of_model}), of a limit of {limit} bytes"
            );
        }
        let of_worker = match job.training.device.gpu() {
            None => of_model,
            Some(_) => format!("{staging_bytes} for what comes from the GPU and goes there"),
        };
        let takes = format!(
            "batches of {rows} rows take {worker} bytes in the worker ({of_worker}, {copy_bytes} for a checkpoint's copy)"
        );
        if worker >= limit {
            bail!("{takes}, of a memory limit of {limit} bytes");
        }
        let memory_budget_bytes = job.data.memory_budget_bytes.min(limit - worker);
        let data = DataSpec { memory_budget_bytes, ..job.data.clone() };
        let feeds = feeds(job, &data, schema.clone(), fitted);
        let feeds = feeds.with_context(|| {
            format!("{takes}, which leaves {} of a memory limit of {limit} bytes", limit - worker)
        })?;
        Ok(Self { schema, feeds, model })
    }

    /// Plans the batches that were `decided` on, or else the largest that the limit has room for, and that there are
    /// rows for.
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
                // A host of more cores takes somewhat more for their threads, and batches stay what they are.
                let gpu = gpu_limit_bytes.filter(|_| job.training.device.gpu().is_some());
                let limits = Limits { host: limit_bytes, gpu };
                let within = Self::new(job, fitted, rows, Some(limits));
                let whole = within.or_else(|_| Self::new(job, fitted, rows, None))?;
                let of_run = |bytes| Limit { bytes, source: LimitSource::Run };
                (whole, of_run(limit_bytes), gpu.map(of_run), None)
            }
            None => {
                let limit = Limit::of(auto)?;
                let of_gpu = job.training.device.gpu();
                let of_gpu = of_gpu.map(|number| gpu::limit(auto, number, host)).transpose()?;
                let limits = Limits { host: limit.bytes, gpu: of_gpu.map(|limit| limit.bytes) };
                let of_data = rows.and_then(|rows| u32::try_from(rows).ok()).filter(|&rows| rows < auto.most);
                let most = of_data.unwrap_or(auto.most);
                let (_, whole, why) =
                    auto_batch::largest(most, |rows| Self::new(job, fitted, rows, Some(limits)))?;
                let why = why.map(|error| format!("{error:#}")).unwrap_or_else(|| match of_data {
                    Some(rows) => format!("the training data has {rows} rows"),
                    None => format!("`data.auto_batch.most` is {most}"),
                });
                (whole, limit, of_gpu, Some(why))
            }
        };
        let (training, eval) = &whole.feeds;
        let needs = std::iter::once(training).chain(eval).map(|plan| plan.memory());
        let ingest: u64 = needs.map(|need| need.total_bytes() - need.ahead_bytes).sum();
        let choice = Choice {
            rows: whole.schema.rows,
            limit,
            needed_bytes: ingest + auto_batch::worker_bytes(&whole.model, &job.training),
            process_bytes: auto_batch::process_bytes(&job.training),
            worker_bytes: job.training.device.gpu().is_none().then(|| limit.bytes.saturating_sub(ingest)),
            gpu: of_gpu.map(|limit| GpuChoice { limit, needed_bytes: gpu::needed_bytes(&whole.model) }),
            why_not_more,
        };
        Ok((whole, choice))
    }
}

/// The feed of a job, and that of its evaluations, where they are apart.
type Feeds = (IngestPlan, Option<IngestPlan>);

/// Slots of the ring of an evaluation that is fed aside: enough for one to be filled while one is used.
const EVAL_SLOTS: u32 = 2;

/// What an evaluation that is fed aside may take of the memory budget, beyond what it cannot do without: one in so
/// many bytes.
const EVAL_SHARE: u64 = 8;

/// Plans the feeds of `job` within the memory budget of `data`, its data section. While an evaluation is fed aside, the
/// feed of the training waits and keeps what it has read; so the budget is divided.
fn feeds(job: &Job, data: &DataSpec, schema: BatchSchema, fitted: &Fitted) -> Result<Feeds> {
    let (seed, train, eval) = (job.training.seed, Arc::clone(&fitted.train), fitted.eval.clone());
    let Some(eval) = eval.as_ref().filter(|_| job.evaluation.is_aside()) else {
        return Ok((IngestPlan::training(data, seed, &job.label, schema, train, eval)?, None));
    };
    let scoring = |memory_budget_bytes| {
        let data = DataSpec { memory_budget_bytes, prefetch: EVAL_SLOTS, ..data.clone() };
        IngestPlan::scoring(&data, schema.clone(), Arc::clone(eval))
    };
    let need = scoring(data.memory_budget_bytes)?.memory();
    let budget = (need.total_bytes() - need.ahead_bytes).max(data.memory_budget_bytes / EVAL_SHARE);
    let eval = scoring(budget)?;
    let rest = data.memory_budget_bytes.saturating_sub(eval.memory().total_bytes());
    let data = DataSpec { memory_budget_bytes: rest, ..data.clone() };
    let training = IngestPlan::training(&data, seed, &job.label, schema, train, None);
    Ok((training.context("beside the held-out data, which is read aside")?, Some(eval)))
}

impl JobPlan {
    /// The most memory that ingest comes to hold.
    pub fn ingest_bytes(&self) -> u64 {
        let aside = self.eval_ingest.as_ref().map_or(0, |plan| plan.memory().total_bytes());
        self.ingest.memory().total_bytes() + aside
    }
}

impl DataPlan {
    fn of(dataset: &Dataset) -> Self {
        let splits = dataset.splits();
        Self {
            files: splits.last().map_or(0, |split| split.object + 1),
            splits: splits.len(),
            bytes: splits.iter().map(|split| split.bytes).sum(),
            rows: dataset.rows(),
        }
    }
}

/// Reads the training data for what the job's features learn from it, until `cancel` is set.
///
/// # Errors
/// When the data is not what the job says, and `Cancelled`.
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
        runtime,
        cancel,
        progress,
    };
    Ok(pass.run()?)
}

/// Features of the same columns and shapes that learn nothing.
fn unlearned(features: &[FeatureSpec]) -> Vec<FeatureSpec> {
    let kind = |kind: &FeatureKind| match kind {
        FeatureKind::Numeric { .. } => {
            FeatureKind::Numeric { normalize: Normalize::None, missing: MissingNumber::Error }
        }
        FeatureKind::Vocabulary { terms: Terms::Learned { max_terms, .. }, oov_buckets } => {
            FeatureKind::Hashed { buckets: max_terms.saturating_add(*oov_buckets) }
        }
        other => other.clone(),
    };
    features.iter().map(|spec| FeatureSpec { kind: kind(&spec.kind), ..spec.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_for_a_learned_feature_has_its_shape() {
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
        let stand_ins = unlearned(&features);
        assert!(!Analysis::needed(&stand_ins));
        assert_eq!(stand_ins[1].kind, FeatureKind::Hashed { buckets: 9 });
        assert_eq!(stand_ins[2].kind, given);
        assert!(
            stand_ins
                .iter()
                .all(|spec| spec.columns == ["c"] && spec.maximum == Some(3) && spec.weights.is_some())
        );
    }
}
