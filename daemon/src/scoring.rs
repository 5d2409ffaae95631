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
use millstream_io::storage::Stores;
use millstream_job::Job;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::ingest::IngestPlan;
use millstream_pipeline::spec::DataSpec;
use millstream_pipeline::transform::Transform;
use millstream_trainer::checkpoint::store::parse_directory_name;
use millstream_trainer::checkpoint::{CheckpointError, CheckpointStore};
use millstream_trainer::metrics::Metrics;
use millstream_worker::protocol::{FromWorker, Role, ScoreOutput, ScoreRole, Start, ToWorker};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::feed::{self, Feed};
use crate::runs;
use crate::worker::WorkerProcess;

/// Concurrent runs; further ones wait.
const RUNS: u32 = 2;

/// Capacity of the queues of worker messages and of results.
const QUEUE: usize = 4;

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
pub(crate) struct Scorer {
    worker: PathBuf,
    runtime: Handle,
    stores: Stores,
    permits: Arc<Semaphore>,
    closing: Arc<AtomicBool>,
}

/// Receives the results of a run.
trait Sink: Send + 'static {
    /// The output requested from the worker.
    const OUTPUT: ScoreOutput;
    /// Receives a message; returns false if the caller is gone.
    fn take(&mut self, message: FromWorker) -> bool;
    /// Whether the caller still waits.
    fn is_wanted(&self) -> bool;
    /// Receives the end of the run.
    fn end(self, result: Result<()>);
}

/// A scoring run.
struct Run {
    worker: PathBuf,
    runtime: Handle,
    stores: Stores,
    closing: Arc<AtomicBool>,
    scored: Scored,
    /// The data to score instead of the job's held-out data, and the base of its relative paths.
    data: Vec<String>,
    base: PathBuf,
}

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
/// When there is none, or it is damaged.
pub(crate) fn find(directory: &Path, best: bool) -> Result<Scored> {
    let (home, step) = locate(directory, best)?;
    let store = CheckpointStore::local(&home)?;
    let manifest = store.manifest(step)?;
    let checkpoint = PathBuf::from(store.path(step));
    let part = |name: &str| {
        let bytes = store.part(&manifest, name)?;
        String::from_utf8(bytes.into()).with_context(|| checkpoint.join(name).display().to_string())
    };
    let (job, _) = Job::parse(&part(runs::JOB)?, &checkpoint.join(runs::JOB), &[])?;
    let analysis = Analysis::from_json(&part(runs::ANALYSIS)?)
        .with_context(|| checkpoint.join(runs::ANALYSIS).display().to_string())?;
    Ok(Scored { directory: home, step, job, analysis })
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
    pub(crate) fn new(worker: PathBuf, runtime: Handle, stores: Stores) -> Self {
        let permits = Arc::new(Semaphore::new(RUNS as usize));
        Self { worker, runtime, stores, permits, closing: Arc::default() }
    }

    /// Evaluates `scored` on `data`, or on its job's held-out data.
    pub(crate) async fn evaluate(
        &self,
        scored: Scored,
        data: Vec<String>,
        base: PathBuf,
    ) -> Result<Vec<Metrics>> {
        let (reply, metrics) = oneshot::channel();
        self.start(scored, data, base, ToEvaluate { reply, metrics: None }).await?;
        metrics.await.context("the evaluation ended without a result")?
    }

    /// Scores each row of `data`, or of the job's held-out data, with `scored`.
    pub(crate) async fn predict(
        &self,
        scored: Scored,
        data: Vec<String>,
        base: PathBuf,
    ) -> Result<Predictions> {
        let (sender, scores) = mpsc::channel(QUEUE);
        let (labels, classes) = (scored.job.label.names(), scored.job.label.first.classes.clone());
        self.start(scored, data, base, ToPredict { scores: sender }).await?;
        Ok(Predictions { labels, classes, scores })
    }

    /// Ends all runs and refuses further ones.
    pub(crate) async fn close(&self) {
        self.closing.store(true, Ordering::Release);
        // Waits until all runs have ended. Cannot fail: the semaphore is never closed.
        drop(self.permits.acquire_many(RUNS).await);
    }

    async fn start<S: Sink>(&self, scored: Scored, data: Vec<String>, base: PathBuf, sink: S) -> Result<()> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        if self.closing.load(Ordering::Acquire) {
            bail!("the daemon is stopping");
        }
        let run = Run {
            worker: self.worker.clone(),
            runtime: self.runtime.clone(),
            stores: self.stores.clone(),
            closing: Arc::clone(&self.closing),
            scored,
            data,
            base,
        };
        let thread = std::thread::Builder::new().name("scoring".into());
        thread.spawn(move || run.run(sink, permit)).context("starting the scoring thread")?;
        Ok(())
    }
}

impl Run {
    fn run<S: Sink>(self, mut sink: S, permit: OwnedSemaphorePermit) {
        let result = self.score(&mut sink);
        drop(permit);
        sink.end(result);
    }

    fn score<S: Sink>(&self, sink: &mut S) -> Result<()> {
        let Scored { directory, step, job, analysis } = &self.scored;
        let data = self.data(&job.data)?;
        let mut transform = Transform::resolve(&job.features, &job.label, &data.missing, analysis)?;
        if S::OUTPUT == ScoreOutput::Scores {
            transform = transform.without_label();
        }
        let schema = feed::schema(&transform, &data);
        let source = feed::source(
            feed::open(&data.eval, &data, &self.stores.for_job(&job.storage), None, &self.runtime)?,
            &Arc::new(transform),
            &data,
            &self.runtime,
        )?;
        let plan = IngestPlan::scoring(&data, schema.clone(), source)?;

        let (mut worker, messages) = self.spawn()?;
        let role = Role::Score(ScoreRole {
            directory: directory.clone(),
            step: *step,
            output: S::OUTPUT,
            device: job.training.device,
            threads: job.training.threads,
            group: job.evaluation.group.clone(),
        });
        worker.send(&ToWorker::Start(Box::new(Start { role, schema })))?;
        let mut feed = None;
        loop {
            if self.closing.load(Ordering::Acquire) {
                bail!("the daemon is stopping");
            }
            if !sink.is_wanted() {
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
                    if !sink.take(message) {
                        bail!("the client has disconnected");
                    }
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
        if !self.data.is_empty() {
            data.eval.clone_from(&self.data);
            data.base.clone_from(&self.base);
        }
        if data.eval.is_empty() {
            bail!("the job has no held-out data: give the data to score");
        }
        Ok(data)
    }

    fn spawn(&self) -> Result<(WorkerProcess, Receiver<FromWorker>)> {
        let log = |line: &str| tracing::warn!("scoring worker: {line}");
        let worker = WorkerProcess::spawn(&self.worker, log).context("the worker cannot be started")?;
        let (sender, messages) = sync_channel(QUEUE);
        worker.listen(move |message| sender.send(message).is_ok(), || {})?;
        Ok((worker, messages))
    }
}

struct ToEvaluate {
    reply: oneshot::Sender<Result<Vec<Metrics>>>,
    metrics: Option<Vec<Metrics>>,
}

impl Sink for ToEvaluate {
    const OUTPUT: ScoreOutput = ScoreOutput::Metrics;

    fn take(&mut self, message: FromWorker) -> bool {
        if let FromWorker::Evaluated { metrics, .. } = message {
            self.metrics = Some(metrics);
        }
        true
    }

    fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    fn end(self, result: Result<()>) {
        let metrics = result.and_then(|()| self.metrics.context("the worker returned no metrics"));
        // The caller may be gone.
        let _ = self.reply.send(metrics);
    }
}

struct ToPredict {
    scores: mpsc::Sender<Result<Vec<f32>>>,
}

impl Sink for ToPredict {
    const OUTPUT: ScoreOutput = ScoreOutput::Scores;

    fn take(&mut self, message: FromWorker) -> bool {
        match message {
            FromWorker::Scores { scores } => self.scores.blocking_send(Ok(scores)).is_ok(),
            _ => true,
        }
    }

    fn is_wanted(&self) -> bool {
        !self.scores.is_closed()
    }

    fn end(self, result: Result<()>) {
        if let Err(error) = result {
            // The caller may be gone.
            let _ = self.scores.blocking_send(Err(error));
        }
    }
}
