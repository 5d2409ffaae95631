//! Job preparation, shared by all attempts: the plan, including the statistics learned from the data.
//!
//! Learning takes a pass over the training data, so its result is stored in the run directory, where a later
//! daemon that resumes the job finds it.

use std::num::NonZeroU32;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use millstream_batch::{BatchSchema, Count, Size};
use millstream_io::storage::Stores;
use millstream_job::Job;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::ingest::IngestPlan;
use millstream_trainer::model::ModelPlan;
use millstream_trainer::spec::DeviceSpec;
use millstream_worker::protocol::BeginningRole;
use millstream_worker::survey::HostSurvey;
use tokio::runtime::Handle;
use tracing::Level;

use super::JobRecorder;
use crate::access::Requester;
use crate::auto_batch::{self, Choice, LimitSource, gpu};
use crate::continuation::Continuation;
use crate::copies::Copies;
use crate::memory::{HostMemory, Room};
use crate::plan::{self, JobPlan, RowCount};
use crate::runs::{RunDirectory, SharedInputs};
use crate::scheduler::{Demand, Gpus};
use crate::traces::{JobEvent, Stage};
use crate::{ranks, runs, warm_start};

/// A job that is ready to run.
pub(crate) struct Prepared {
    /// The job, with its batch size resolved.
    pub(super) job: Job,
    pub(super) directory: RunDirectory,
    pub(super) schema: BatchSchema,
    pub(super) plan: IngestPlan,
    /// The plan for held-out rows, if they are fed separately.
    pub(super) eval_plan: Option<IngestPlan>,
    /// The name of the file of `job` in the run directory.
    pub(super) job_file: &'static str,
    /// What the run starts with, if it does not start from initial weights.
    pub(super) beginning: Option<BeginningRole>,
    /// Keeps the copy of a checkpoint that `beginning` names.
    pub(super) _copies: Copies,
    /// The run that the job continues, if it does.
    pub(super) continuation: Option<Continuation>,
    /// The automatically chosen batch size.
    pub(super) batch: Option<Choice>,
    pub(super) model: ModelPlan,
    /// The number of rows of an epoch, if known.
    pub(super) epoch_rows: Option<RowCount>,
    /// The least memory of the job.
    pub(super) memory: HostMemory,
}

impl Prepared {
    /// The number of workers.
    pub(super) fn ranks(&self) -> u32 {
        self.job.training.ranks()
    }

    /// Plans the next attempts with `workers` workers, on these GPUs if they use any. Batches stay the same.
    ///
    /// # Errors
    /// When the memory budget is too small for their rings.
    pub(super) fn set_workers(&mut self, workers: u32, gpus: Vec<u32>) -> Result<()> {
        let training = &mut self.job.training;
        training.workers = NonZeroU32::new(workers);
        if let Some(&first) = gpus.first() {
            training.device = DeviceSpec::Cuda(first);
        }
        training.gpus = gpus;
        let parts = training.parts();
        self.plan = self.plan.clone().with_ranks(parts)?;
        self.eval_plan = self.eval_plan.take().map(|plan| plan.with_ranks(parts)).transpose()?;
        self.model = ModelPlan::new(&self.job.model, &self.schema, &self.job.training)?;
        let ingest_bytes = plan::least_ingest_bytes(&self.plan, self.eval_plan.as_ref());
        self.memory = HostMemory { ingest_bytes, ..HostMemory::of_job(&self.model, &self.job) };
        if let Some(choice) = &mut self.batch {
            choice.workers = workers;
        }
        Ok(())
    }

    /// The least memory of the job if it had one worker.
    pub(super) fn worker_bytes(&self) -> u64 {
        let of_worker = HostMemory::of_worker(
            (&self.model, ranks::here(&self.job)),
            &self.job.training,
            self.job.workers.model_copies(),
        );
        HostMemory { ingest_bytes: self.memory.ingest_bytes, ..of_worker }.total_bytes()
    }

    /// Checks that the job fits into `room`, unless its batch size was chosen to fit.
    pub(super) fn check_memory(&self, room: Room) -> Result<()> {
        if self.batch.is_some() { Ok(()) } else { self.memory.check(&self.model, room) }
    }
}

/// What a job demands of the host: once it is prepared, or going by its job file.
pub(super) fn demand(job: &Job, prepared: Option<&Prepared>) -> Demand {
    let gpus: Gpus = ranks::gpus(&job.training).into_iter().collect();
    let memory_bytes = match prepared {
        // The least part of ingest is within the budget.
        Some(Prepared { memory, batch: None, .. }) => memory
            .total_bytes()
            .saturating_sub(memory.ingest_bytes)
            .saturating_add(job.data.memory_budget_bytes),
        Some(Prepared { batch: Some(choice), .. }) => {
            choice.limit.bytes.min(choice.needed_bytes.saturating_add(job.data.memory_budget_bytes))
        }
        // The batch size depends on the memory that is free: nothing else runs while it is measured.
        None if job.auto_batch.is_some() => u64::MAX,
        None => job.data.memory_budget_bytes,
    };
    // Ingest adapts to the threads that it gets.
    let of_ingest = job.data.threads.unwrap_or(1);
    let of_worker = if gpus.is_empty() { job.training.threads } else { Some(1) };
    let of_workers = of_worker.map(|threads| threads.saturating_mul(job.training.ranks()));
    let threads = of_workers.map(|threads| threads.saturating_add(of_ingest));
    Demand { memory_bytes, threads, gpus }
}

/// Prepares `job`, which must fit into `room`, with the rights of `requester`. Its run is in `directory`. `host` surveys the
/// host's GPUs if needed. Returns an error early once `cancel` is set.
pub(super) fn prepare(
    (job, requester): (&Job, &Requester),
    (stores, runtime): (&Stores, &Handle),
    directory: RunDirectory,
    room: Option<Room>,
    host: &dyn Fn() -> Result<HostSurvey>,
    recorder: &JobRecorder,
    cancel: &AtomicBool,
) -> Result<Prepared> {
    recorder.trace().record(JobEvent::Stage(Stage::Listing));
    let has_fixed_batch = job.auto_batch.is_none();
    let shared = SharedInputs::of_trial(job, &directory, cancel)?;
    let plan = JobPlan::with((job, requester), stores, Some(&directory), runtime, host, |train, smallest| {
        if has_fixed_batch {
            check_memory(HostMemory::of_job(smallest, job), smallest, room)?;
        }
        recorder.trace().record(JobEvent::Stage(Stage::Statistics));
        let learned = analysis(job, &directory, train, runtime, recorder, cancel)?;
        recorder.trace().record(JobEvent::Stage(Stage::Planning));
        Ok(Some(learned))
    });
    if let Some(shared) = shared {
        shared.keep()?;
    }
    let plan = plan?;
    // An automatic batch size was chosen to fit.
    if has_fixed_batch {
        check_memory(plan.host_memory(), &plan.model, room)?;
    }
    if let Some(choice) = &plan.batch {
        if choice.limit.source != LimitSource::Run {
            auto_batch::keep(&directory, choice.decided())?;
        }
        recorder.log(Level::INFO, &format!("{choice}; {}", auto_batch::format_rates(&plan.job)));
    }
    let mut text = format!(
        "{} parameters; ingest uses at most {} of {}",
        plan.model.parameters,
        Size(plan.ingest_bytes()),
        Size(job.data.memory_budget_bytes)
    );
    let gpus = ranks::gpus(&job.training);
    if !gpus.is_empty() {
        let numbers: Vec<_> = gpus.iter().map(u32::to_string).collect();
        let numbers = match &numbers[..] {
            [only] => format!("GPU {only}"),
            several => format!("each of GPUs {}", several.join(", ")),
        };
        text += &format!("; {} on {numbers}", Size(gpu::needed_bytes(&plan.model)));
    }
    recorder.log(Level::INFO, &text);
    let beginning = match &plan.continuation {
        Some(continuation) => {
            if let Some(analysis) = &plan.analysis
                && runs::get(&directory, runs::ANALYSIS)?.is_none()
            {
                runs::put(&directory, runs::ANALYSIS, analysis.to_json().as_bytes())?;
            }
            continuation.record(&directory)?;
            Some(BeginningRole::Continuation(continuation.role(&directory, &plan.copies)?))
        }
        None => {
            let warm_start = warm_start::decided(&directory, &plan, requester, |start| {
                let text = format!("warm start from {}: {}", start.checkpoint, start.report);
                recorder.log(Level::INFO, &text);
            })?;
            warm_start.map(BeginningRole::WarmStart)
        }
    };
    let job_file = runs::resolved_job(&directory, job, &plan.job)?;
    let memory = plan.host_memory();
    Ok(Prepared {
        job: plan.job,
        batch: plan.batch,
        memory,
        model: plan.model,
        epoch_rows: plan.epoch_rows,
        directory,
        job_file,
        schema: plan.schema,
        plan: plan.ingest.recorded_by(stores.recorder()),
        eval_plan: plan.eval_ingest.map(|plan| plan.recorded_by(stores.recorder())),
        beginning,
        continuation: plan.continuation,
        _copies: plan.copies,
    })
}

/// Checks that a job fits into `room`, if that is known.
fn check_memory(memory: HostMemory, model: &ModelPlan, room: Option<Room>) -> Result<()> {
    room.map_or(Ok(()), |room| memory.check(model, room))
}

/// The statistics learned from the job's data: stored from an earlier run, or computed now.
fn analysis(
    job: &Job,
    directory: &RunDirectory,
    train: &Dataset,
    runtime: &Handle,
    recorder: &JobRecorder,
    cancel: &AtomicBool,
) -> Result<Analysis> {
    if let Some(text) = runs::get_text(directory, runs::ANALYSIS)? {
        let here = || directory.file(runs::ANALYSIS);
        return Analysis::from_json(&text).with_context(here);
    }
    let analysis = plan::learn(job, train, runtime, cancel, &|_| {})?;
    runs::put(directory, runs::ANALYSIS, analysis.to_json().as_bytes())?;
    recorder.log(Level::INFO, &format!("learned from {}", Count(analysis.rows, "row")));
    Ok(analysis)
}
