//! What all attempts at a job share: the plan, with what the job's features have learned.
//!
//! Learning is a pass over the training data, so what came out is kept in the job's directory and read from
//! there by every later daemon that takes the job up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use millstream_batch::BatchSchema;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::ingest::IngestPlan;
use millstream_pipeline::storage::Stores;
use millstream_trainer::spec::DeviceSpec;
use tokio::runtime::Handle;

use super::Book;
use crate::auto_batch::{self, Choice, LimitSource, gpu};
use crate::job::Job;
use crate::plan::{self, JobPlan};
use crate::runs;
use crate::state::LogLevel;
use crate::warm_start::{self, Beginning};
use crate::worker::device::HostSurvey;

/// A job that is ready to run.
pub(crate) struct Prepared {
    /// The job, with the batch size that was found for it, where one was to be.
    pub(super) job: Job,
    pub(super) directory: PathBuf,
    pub(super) schema: BatchSchema,
    pub(super) plan: IngestPlan,
    /// Of the held-out rows, where they come aside.
    pub(super) eval_plan: Option<IngestPlan>,
    /// The checkpoint whose weights training begins with, if not with its own.
    pub(super) warm_start: Option<PathBuf>,
    /// How large batches are, where that was found.
    pub(super) batch: Option<Choice>,
}

/// Prepares `job`, whose directory the record in `book` names; `host` says what there is of GPUs, if asked. Ends early, in an error, once `cancel` is set.
pub(super) fn prepare(
    job: &Job,
    stores: &Stores,
    runtime: &Handle,
    host: &dyn Fn() -> Result<HostSurvey>,
    book: &Book,
    cancel: &AtomicBool,
) -> Result<Prepared> {
    let directory = book.record().directory;
    let plan = JobPlan::with(job, stores, Some(&directory), runtime, host, |train| {
        analysis(job, &directory, train, runtime, book, cancel).map(Some)
    })?;
    if let Some(choice) = &plan.batch {
        if choice.limit.source != LimitSource::Run {
            auto_batch::keep(&directory, choice.decided())?;
        }
        book.log(LogLevel::Info, &format!("{choice}; {}", auto_batch::told_rates(&plan.job)));
    }
    let mut text = format!(
        "{} parameters; ingest holds at most {} of {} bytes",
        plan.model.parameters,
        plan.ingest_bytes(),
        job.data.memory_budget_bytes
    );
    if let DeviceSpec::Cuda(number) = job.training.device {
        text += &format!("; GPU {number} holds {} bytes", gpu::needed_bytes(&plan.model));
    }
    book.log(LogLevel::Info, &text);
    let warm_start = warm_start::decided(&directory, || {
        let beginning = Beginning::of(job, &plan)?;
        Ok(beginning.map(|Beginning { checkpoint, report }| {
            let text = format!("begins with the weights of {}: {report}", checkpoint.display());
            book.log(LogLevel::Info, &text);
            checkpoint
        }))
    })?;
    Ok(Prepared {
        job: plan.job,
        batch: plan.batch,
        directory,
        schema: plan.schema,
        plan: plan.ingest.recorded_by(stores.recorder()),
        eval_plan: plan.eval_ingest.map(|plan| plan.recorded_by(stores.recorder())),
        warm_start,
    })
}

/// What the job's features learned, from an earlier time or now.
fn analysis(
    job: &Job,
    directory: &Path,
    train: &Dataset,
    runtime: &Handle,
    book: &Book,
    cancel: &AtomicBool,
) -> Result<Analysis> {
    let path = directory.join(runs::ANALYSIS);
    match fs::read_to_string(&path) {
        Ok(text) => return Analysis::from_json(&text).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    }
    let analysis = plan::learn(job, train, runtime, cancel, &|_| {})?;
    runs::put(directory, runs::ANALYSIS, analysis.to_json().as_bytes())
        .with_context(|| path.display().to_string())?;
    book.log(LogLevel::Info, &format!("learned from {} rows", analysis.rows));
    Ok(analysis)
}
