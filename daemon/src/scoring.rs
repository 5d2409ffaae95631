//! Scoring: runs a checkpoint's model over data once, in data order.
//!
//! Like an attempt at a job, a run has a worker, a ring and an ingest, but it is not stored and ends with its caller.
//! It needs only the checkpoint, which contains the job and the statistics learned from its data.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use millstream_control::proto::ScoreRequest;
use millstream_io::storage::Stores;
use millstream_job::Job;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::dataset::Absent;
use millstream_pipeline::ingest::IngestPlan;
use millstream_pipeline::spec::{DataSpec, Purpose};
use millstream_pipeline::transform::Transform;
use millstream_trainer::checkpoint::store::parse_directory_name;
use millstream_trainer::checkpoint::{CheckpointError, CheckpointStore};
use millstream_trainer::metrics::Metrics;
use millstream_worker::protocol::{FromWorker, Role, ScoreOutput, ScoreRole, Start, ToWorker};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use crate::access::Requester;
use crate::feed::{self, Feed};
use crate::priority::Launcher;
use crate::worker::WorkerProcess;
use crate::{plan, runs};

/// Concurrent runs; further ones wait.
const RUNS: u32 = 2;

/// Capacity of the queues of worker messages and of results.
const QUEUE: usize = 4;

/// What stands for a secret in the addresses of a checkpoint's job.
const REDACTED: &str = "***";

/// Interval between checks of whether the caller still waits.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Time limit for a worker to exit after its last message.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// A checkpoint to score with.
pub(crate) struct Scored {
    /// The directory that contains the checkpoint: the run's, or a copy.
    pub(crate) directory: PathBuf,
    pub(crate) step: u64,
    pub(crate) job: Job,
    pub(crate) analysis: Analysis,
}

/// The scores of a prediction, as they arrive.
pub struct Predictions {
    /// The names of the labels; empty if there is one unnamed label.
    pub labels: Vec<String>,
    /// The classes, if the label is one of several classes.
    pub classes: Vec<String>,
    /// The scores of the next rows, column-major: a score per row for the first label or class, then for the next.
    /// Dropping the receiver ends the run.
    pub scores: mpsc::Receiver<Result<Vec<f32>>>,
}

/// Runs scoring workers.
#[derive(Clone)]
pub(crate) struct Scorer {
    worker: PathBuf,
    launcher: Launcher,
    runtime: Handle,
    stores: Stores,
    permits: Arc<Semaphore>,
    closing: Arc<AtomicBool>,
}

/// A scoring run.
struct Run {
    scorer: Scorer,
    scored: Scored,
    request: ScoreRequest,
    requester: Requester,
}

/// Selects the results that a caller needs among a worker's messages.
type Select<T> = fn(FromWorker) -> Option<T>;

/// Locates a checkpoint and returns its parent directory and step. `directory` is a checkpoint's directory,
/// or a run's; for a run, this selects its newest checkpoint, or its best one.
///
/// # Errors
/// When a run has no such checkpoint.
pub(crate) fn locate(directory: &Path, best: bool) -> Result<(PathBuf, u64)> {
    let given = directory.file_name().and_then(|name| name.to_str()).and_then(parse_directory_name);
    let here = || directory.display();
    match (given, directory.parent()) {
        (Some(_), Some(_)) if best => {
            bail!("{} is a checkpoint already: only a run directory has a best checkpoint", here())
        }
        (Some(step), Some(parent)) => Ok((parent.to_owned(), step)),
        _ if best => {
            let best = CheckpointStore::local(directory)?.best()?.first().copied();
            let best = best
                .with_context(|| format!("{} has no best checkpoint: set `checkpoint.keep_best`", here()))?;
            Ok((directory.to_owned(), best))
        }
        _ => {
            let newest = CheckpointStore::local(directory)?.steps()?.pop();
            Ok((directory.to_owned(), newest.with_context(|| format!("{} has no checkpoint", here()))?))
        }
    }
}

/// Opens the checkpoint that [`locate`] finds.
///
/// # Errors
/// When there is none, `requester` may not read it, or it is damaged.
pub(crate) fn find(directory: &Path, best: bool, requester: &Requester) -> Result<Scored> {
    requester.check_run(directory)?;
    let (home, step) = locate(directory, best)?;
    let store = CheckpointStore::local(&home)?;
    let checkpoint = PathBuf::from(store.path(step));
    requester.check_run(&checkpoint)?;
    let manifest = store.manifest(step)?;
    let part = |name: &str| {
        let bytes = store.part(&manifest, name)?;
        String::from_utf8(bytes.into()).with_context(|| checkpoint.join(name).display().to_string())
    };
    let (job, _) = Job::parse(&part(runs::JOB)?, &checkpoint.join(runs::JOB), &[])?;
    let analysis = Analysis::from_json(&part(runs::ANALYSIS)?)
        .with_context(|| checkpoint.join(runs::ANALYSIS).display().to_string())?;
    Ok(Scored { directory: home, step, job, analysis })
}

/// Whether `directory` is that of a run or of a checkpoint.
fn is_run(directory: &Path) -> bool {
    directory.join(runs::JOB).is_file()
}

/// The checkpoint of the best evaluation in the run directory `directory`, if there is one.
///
/// # Errors
/// When its checkpoints cannot be read.
pub(crate) fn best_in(directory: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    let store = CheckpointStore::local(directory)?;
    Ok(store.best()?.first().map(|&step| PathBuf::from(store.path(step))))
}

impl Scorer {
    /// A scorer that starts workers from `worker` and reads on `runtime`.
    pub(crate) fn new(worker: PathBuf, launcher: Launcher, runtime: Handle, stores: Stores) -> Self {
        let permits = Arc::new(Semaphore::new(RUNS as usize));
        Self { worker, launcher, runtime, stores, permits, closing: Arc::default() }
    }

    /// Evaluates `scored` on the data of `request`, or on its job's held-out data.
    pub(crate) async fn evaluate(
        &self,
        scored: Scored,
        request: ScoreRequest,
        requester: Requester,
    ) -> Result<Vec<Metrics>> {
        let select: Select<_> = |message| match message {
            FromWorker::Evaluated { metrics, .. } => Some(metrics),
            _ => None,
        };
        let mut results = self.start(scored, (request, requester), ScoreOutput::Metrics, select).await?;
        let mut metrics = None;
        // The channel closes when the run has ended.
        while let Some(result) = results.recv().await {
            metrics = Some(result?);
        }
        metrics.context("the evaluation ended without metrics")
    }

    /// Scores each row of the data of `request`, or of the job's held-out data, with `scored`.
    pub(crate) async fn predict(
        &self,
        scored: Scored,
        request: ScoreRequest,
        requester: Requester,
    ) -> Result<Predictions> {
        let select: Select<_> = |message| match message {
            FromWorker::Scores { scores } => Some(scores),
            _ => None,
        };
        let (labels, classes) = (scored.job.label.names(), scored.job.label.first.classes.clone());
        let scores = self.start(scored, (request, requester), ScoreOutput::Scores, select).await?;
        Ok(Predictions { labels, classes, scores })
    }

    /// Ends all runs and refuses further ones.
    pub(crate) async fn close(&self) {
        self.closing.store(true, Ordering::Release);
        // Waits until all runs have ended. Cannot fail: the semaphore is never closed.
        drop(self.permits.acquire_many(RUNS).await);
    }

    /// Starts a run. Its error, if any, is the last result; dropping the receiver ends it.
    async fn start<T: Send + 'static>(
        &self,
        scored: Scored,
        (request, requester): (ScoreRequest, Requester),
        output: ScoreOutput,
        select: Select<T>,
    ) -> Result<mpsc::Receiver<Result<T>>> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        if self.closing.load(Ordering::Acquire) {
            bail!("the daemon is stopping");
        }
        let run = Run { scorer: self.clone(), scored, request, requester };
        let (sender, results) = mpsc::channel(QUEUE);
        let work = move || {
            let ended = run.score(output, select, &sender);
            drop(permit);
            if let Err(error) = ended {
                // The caller may be gone.
                let _ = sender.blocking_send(Err(error));
            }
        };
        self.launcher.spawn("scoring".to_owned(), work).context("starting the scoring thread")?;
        Ok(results)
    }
}

impl Run {
    fn score<T>(
        &self,
        output: ScoreOutput,
        select: Select<T>,
        results: &mpsc::Sender<Result<T>>,
    ) -> Result<()> {
        let Scored { directory, step, job, analysis } = &self.scored;
        let Scorer { runtime, stores, closing, .. } = &self.scorer;
        let data = self.data(&job.data)?;
        let mut transform = Transform::resolve(&job.features, &job.label, &data.missing, analysis)?;
        if output == ScoreOutput::Scores {
            transform = transform.without_label();
        }
        let schema = feed::schema(&transform, &data);
        let who = (&stores.for_job(&job.storage), &self.requester);
        let dataset = feed::open(data.eval_files(), &data, who, None, runtime)?;
        let purpose = if self.request.data.is_empty() { Purpose::Evaluation } else { Purpose::Scoring };
        let dataset = Arc::new(dataset.filtered(&data.rows(purpose)));
        let (transform, needed) = (Arc::new(transform), job.label.columns());
        let source = feed::source(dataset, &transform, &data, Absent::AllowedExcept(&needed), runtime)
            .map_err(|error| plan::with_key(job, error))?;
        let plan = IngestPlan::scoring(&data, schema.clone(), source)?;

        let (mut worker, messages) = self.spawn()?;
        let role = Role::Score(ScoreRole {
            directory: directory.clone(),
            step: *step,
            output,
            device: job.training.device,
            threads: job.training.threads,
            group: job.evaluation.group.clone(),
        });
        worker.send(&ToWorker::Start(Box::new(Start { role, schema })))?;
        let mut feed = None;
        loop {
            if closing.load(Ordering::Acquire) {
                bail!("the daemon is stopping");
            }
            if results.is_closed() {
                bail!("the client has disconnected");
            }
            match messages.recv_timeout(POLL_INTERVAL) {
                Ok(FromWorker::Ready { .. }) => {
                    let (started, ring) = Feed::start(&plan, None)?;
                    feed = Some(started);
                    worker.send_ring(ring)?;
                }
                Ok(FromWorker::Done { .. }) => return Ok(()),
                Ok(FromWorker::Failed { message } | FromWorker::DeviceFailed { message, .. }) => {
                    bail!(message)
                }
                Ok(FromWorker::InputLost | FromWorker::Stopped) | Err(RecvTimeoutError::Disconnected) => {
                    break;
                }
                Ok(message) => {
                    // A closed channel ends the run above.
                    let _ = select(message).map(|result| results.blocking_send(Ok(result)));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        match feed.map(Feed::stop) {
            Some(Err(error)) if !feed::is_echo(&error) => Err(error.into()),
            _ => Err(anyhow!("{}", worker.wait(EXIT_LIMIT)?)),
        }
    }

    /// The data section for scoring, in which the data to score is the held-out data.
    fn data(&self, of_job: &DataSpec) -> Result<DataSpec> {
        let mut data = of_job.clone();
        let ScoreRequest { data: given, base, .. } = &self.request;
        if !given.is_empty() {
            data.eval.clone_from(given);
            data.validation = None;
            data.base = PathBuf::from(base);
        }
        for given in given {
            let directory = data.base.join(given);
            if is_run(&directory) && self.requester.check_read(&directory).is_ok() {
                bail!(
                    "{given} is a run or a checkpoint, not data: the first argument is the model, the others are data"
                );
            }
        }
        if !data.has_eval() {
            bail!("the job has no held-out data: give the data to score");
        }
        if given.is_empty() && data.eval_files().iter().any(|pattern| pattern.contains(REDACTED)) {
            bail!(
                "checkpoints do not keep the passwords and signatures of the job's data: give the data to score"
            );
        }
        Ok(data)
    }

    fn spawn(&self) -> Result<(WorkerProcess, Receiver<FromWorker>)> {
        let log = |line: &str| tracing::warn!("scoring worker: {line}");
        let worker =
            WorkerProcess::spawn(&self.scorer.worker, log).context("the worker cannot be started")?;
        let (sender, messages) = sync_channel(QUEUE);
        worker.listen(move |message| sender.send(message).is_ok(), || {})?;
        Ok((worker, messages))
    }
}
