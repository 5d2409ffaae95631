//! Job preparation, shared by all attempts: the plan, including the statistics learned from the data.
//!
//! Learning takes a pass over the training data, so its result is stored in the run directory, where a later
//! daemon that resumes the job finds it.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::{fs, io};

use anyhow::{Context, Result};
use millstream_batch::BatchSchema;
use millstream_io::storage::Stores;
use millstream_job::Job;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::ingest::IngestPlan;
use millstream_worker::protocol::WarmStartRole;
use millstream_worker::survey::HostSurvey;
use tokio::runtime::Handle;

use super::JobRecorder;
use crate::auto_batch::{self, Choice, LimitSource, gpu};
use crate::plan::{self, JobPlan};
use crate::state::LogLevel;
use crate::{runs, warm_start};

/// A job that is ready to run.
pub(crate) struct Prepared {
    /// The job, with its batch size resolved.
    pub(super) job: Job,
    pub(super) directory: PathBuf,
    pub(super) schema: BatchSchema,
    pub(super) plan: IngestPlan,
    /// The plan for held-out rows, if they are fed separately.
    pub(super) eval_plan: Option<IngestPlan>,
    /// The file of `job`.
    pub(super) job_file: PathBuf,
    /// The source of the initial weights, for a warm start.
    pub(super) warm_start: Option<WarmStartRole>,
    /// The automatically chosen batch size.
    pub(super) batch: Option<Choice>,
}

/// Prepares `job`, whose run directory is in the record of `recorder`. `host` surveys the host's GPUs if
/// needed. Returns an error early once `cancel` is set.
pub(super) fn prepare(
    job: &Job,
    stores: &Stores,
    runtime: &Handle,
    host: &dyn Fn() -> Result<HostSurvey>,
    recorder: &JobRecorder,
    cancel: &AtomicBool,
) -> Result<Prepared> {
    let directory = recorder.record().directory;
    let plan = JobPlan::with(job, stores, Some(&directory), runtime, host, |train| {
        analysis(job, &directory, train, runtime, recorder, cancel).map(Some)
    })?;
    if let Some(choice) = &plan.batch {
        if choice.limit.source != LimitSource::Run {
            auto_batch::keep(&directory, choice.decided())?;
        }
        recorder.log(LogLevel::Info, &format!("{choice}; {}", auto_batch::format_rates(&plan.job)));
    }
    let mut text = format!(
        "{} parameters; ingest uses at most {} of {} bytes",
        plan.model.parameters,
        plan.ingest_bytes(),
        job.data.memory_budget_bytes
    );
    if let Some(number) = job.training.device.gpu() {
        text += &format!("; {} bytes on GPU {number}", gpu::needed_bytes(&plan.model));
    }
    recorder.log(LogLevel::Info, &text);
    let warm_start = warm_start::decided(&directory, &plan, |start| {
        let text = format!("warm start from {}: {}", start.checkpoint.display(), start.report);
        recorder.log(LogLevel::Info, &text);
    })?;
    let job_file = runs::resolved_job(&directory, job, &plan.job)?;
    Ok(Prepared {
        job: plan.job,
        batch: plan.batch,
        directory,
        job_file,
        schema: plan.schema,
        plan: plan.ingest.recorded_by(stores.recorder()),
        eval_plan: plan.eval_ingest.map(|plan| plan.recorded_by(stores.recorder())),
        warm_start,
    })
}

/// The statistics learned from the job's data: stored from an earlier run, or computed now.
fn analysis(
    job: &Job,
    directory: &Path,
    train: &Dataset,
    runtime: &Handle,
    recorder: &JobRecorder,
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
    recorder.log(LogLevel::Info, &format!("learned from {} rows", analysis.rows));
    Ok(analysis)
}
