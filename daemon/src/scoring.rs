//! Scoring: runs a checkpoint's model over data once, in data order.
//!
//! Like an attempt at a job, a run has a worker, a ring and an ingest, but it is not stored and ends with its caller.
//! It needs only the checkpoint, which contains the job and the statistics learned from its data.

mod source;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use millstream_control::proto::ScoreRequest;
use millstream_format::rows;
use millstream_io::storage::{Directory, StorageSpec, Stores};
use millstream_job::Job;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::ingest::{IngestPlan, KeptRows};
use millstream_pipeline::transform::Transform;
use millstream_trainer::checkpoint::CheckpointStore;
use millstream_trainer::checkpoint::store::{directory_name, parse_directory_name};
use millstream_trainer::metrics::Metrics;
use millstream_worker::protocol::{FromWorker, Role, ScoreOutput, ScoreRole, Start, ToWorker};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::access::Requester;
use crate::copies::{Contents, Copies};
use crate::feed::{self, Feed};
use crate::priority::Launcher;
use crate::runs::RunDirectory;
use crate::worker::{WorkerProcess, WorkerProgram};
use crate::{copies, runs};

use source::{Opening, Rows};

/// Concurrent runs; further ones wait.
const RUNS: u32 = 2;

/// Capacity of the queues of worker messages and of results.
const QUEUE: usize = 4;

/// The maximum bytes of kept columns in a message, unless a single row has more.
const MOST_KEPT_BYTES: usize = 16 << 20;

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
    /// What keeps `directory`, if it is a copy.
    pub(crate) _copies: Option<Copies>,
}

/// The scores of a prediction, as they arrive.
pub struct Predictions {
    /// The names of the labels; empty if there is one unnamed label.
    pub labels: Vec<String>,
    /// The classes, if the label is one of several classes.
    pub classes: Vec<String>,
    /// What arrives, in the order of the data. Dropping the receiver ends the run.
    pub rows: mpsc::Receiver<Result<Predicted>>,
}

/// A part of a prediction.
#[derive(Clone, Debug, PartialEq)]
pub enum Predicted {
    /// The names of the columns to keep; the first part, once the data is open.
    Columns(Vec<String>),
    /// The next rows.
    Rows {
        /// Column-major: a score per row for the first label or class, then for the next.
        scores: Vec<f32>,
        /// The kept columns, as a stream of Arrow IPC; empty without any.
        kept: Vec<u8>,
    },
    /// The number of skipped rows; the last part.
    Skipped(u64),
}

/// Runs scoring workers.
#[derive(Clone)]
pub(crate) struct Scorer {
    worker: WorkerProgram,
    launcher: Launcher,
    runtime: Handle,
    stores: Stores,
    permits: Arc<Semaphore>,
    closing: Arc<AtomicBool>,
}

/// Stores that are cancelled when their user does not wait any more.
pub(crate) struct CancelOnDrop(pub(crate) Stores);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// A scoring run.
struct Run {
    scorer: Scorer,
    scored: Scored,
    request: ScoreRequest,
    requester: Requester,
    /// Receives the columns to keep.
    kept: Arc<KeptRows>,
    /// What it reads with; cancelled when nobody waits for the results.
    stores: Stores,
}

/// What a run returns.
trait Output: Send + 'static {
    /// What the worker computes.
    const KIND: ScoreOutput;
    type Item: Send + 'static;

    /// Returns the names of the columns to keep, before any row is scored.
    fn start(&mut self, _columns: Vec<String>) -> Option<Self::Item> {
        None
    }

    /// The results in a message of the worker.
    fn of(&mut self, message: FromWorker) -> Result<Vec<Self::Item>>;

    /// Returns the number of skipped rows, after all results.
    fn end(&mut self, _skipped_rows: u64) -> Option<Self::Item> {
        None
    }
}

/// The metrics of all rows.
struct Evaluating;

/// The scores of each row.
struct Predicting {
    /// Labels or classes.
    columns: usize,
    /// The kept columns, if there are any.
    kept: Option<Arc<KeptRows>>,
}

/// Locates a checkpoint and returns its parent directory and step. `directory` is a checkpoint's directory,
/// or a run's; for a run, this selects its newest checkpoint, or its best one.
///
/// # Errors
/// When a run has no such checkpoint.
pub(crate) fn locate(directory: &Path, best: bool) -> Result<(PathBuf, u64)> {
    let here = || directory.display();
    match runs::of_checkpoint(&Directory::local(directory)) {
        Some(_) if best => {
            bail!("{} is a checkpoint already: only a run directory has a best checkpoint", here())
        }
        Some((home, step)) => Ok((home.as_local().unwrap_or(directory).to_owned(), step)),
        None if best => {
            let best = CheckpointStore::local(directory)?.best()?.first().copied();
            Ok((directory.to_owned(), best.ok_or_else(|| no_checkpoint(here(), true))?))
        }
        None => {
            let newest = CheckpointStore::local(directory)?.steps()?.pop();
            Ok((directory.to_owned(), newest.ok_or_else(|| no_checkpoint(here(), false))?))
        }
    }
}

/// The error for a run without any checkpoint, or without a `best` one.
pub(crate) fn no_checkpoint(directory: impl Display, best: bool) -> anyhow::Error {
    match best {
        true => anyhow!("{directory} has no best checkpoint: set `checkpoint.keep_best`"),
        false => anyhow!("{directory} has no checkpoint"),
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
    Ok(Scored { directory: home, step, job, analysis, _copies: None })
}

/// As [`find`], of a directory that may be in a bucket: then the checkpoint, with `contents`, is one of `copies`, which this process
/// has made with its own rights.
///
/// # Errors
/// As of [`find`], and when storage fails.
pub(crate) fn find_in(
    directory: &Directory,
    (best, contents): (bool, Contents),
    requester: &Requester,
    copies: &Copies,
) -> Result<Scored> {
    match directory.as_local() {
        Some(path) => find(path, best, requester),
        None => {
            let copy = copies.local(directory, best, contents)?;
            let found = find(&copy, best, &Requester::Trusted);
            let found = found.with_context(|| format!("the copy of {directory}"))?;
            Ok(Scored { _copies: Some(copies.clone()), ..found })
        }
    }
}

impl Scored {
    /// The directory of the checkpoint, which was found in `given`, that of a run or of the checkpoint: not that of a copy.
    pub(crate) fn checkpoint(&self, given: &Directory) -> Directory {
        if given.as_local().is_some() {
            let path = self.directory.join(directory_name(self.step));
            // A link may lead elsewhere later.
            return Directory::local(path.canonicalize().unwrap_or(path));
        }
        let is_checkpoint = given.name().and_then(parse_directory_name).is_some();
        if is_checkpoint { given.clone() } else { given.join(&directory_name(self.step)) }
    }
}

/// Whether `directory` is that of a run or of a checkpoint: each has its job.
fn has_job(directory: &Path) -> bool {
    directory.join(runs::JOB).is_file()
}

/// The checkpoint of the best evaluation in the run directory `directory`, if there is one.
///
/// # Errors
/// When its checkpoints cannot be read.
pub(crate) fn best_in(directory: &RunDirectory) -> Result<Option<Directory>> {
    let best = directory.checkpoints()?.best()?.first().copied();
    Ok(best.map(|step| directory.address().join(&directory_name(step))))
}

impl Scorer {
    /// A scorer that starts workers from `worker` and reads on `runtime`.
    pub(crate) fn new(worker: WorkerProgram, launcher: Launcher, runtime: Handle, stores: Stores) -> Self {
        let permits = Arc::new(Semaphore::new(RUNS as usize));
        copies::remove_left();
        // Cancelled when the scorer is closed.
        let stores = stores.for_job(&StorageSpec::default());
        Self { worker, launcher, runtime, stores, permits, closing: Arc::default() }
    }

    /// Calls `find` with what makes copies of checkpoints in buckets, which are read as `spec` says: where it may block, as one of
    /// at most [`RUNS`]. If the caller does not wait any more, requests of storage end.
    pub(crate) async fn find<T: Send + 'static>(
        &self,
        spec: &StorageSpec,
        find: impl FnOnce(&Copies) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = self.permit().await?;
        let stores = self.stores.for_job(spec);
        let _cancelled = CancelOnDrop(stores.clone());
        let copies = Copies::new(stores, self.runtime.clone());
        // The permit comes back after what was found is dropped, if nobody waits for it: a stop of the daemon waits for all permits.
        let found = move || (find(&copies), permit);
        let (found, _permit) = tokio::task::spawn_blocking(found).await?;
        found
    }

    /// Evaluates `scored` on the data of `request`, or on its job's held-out data.
    pub(crate) async fn evaluate(
        &self,
        scored: Scored,
        request: ScoreRequest,
        requester: Requester,
    ) -> Result<Vec<Metrics>> {
        let mut results = self.start(scored, (request, requester), Evaluating, Arc::default()).await?;
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
        let (labels, classes) = (scored.job.label.names(), scored.job.label.first.classes.clone());
        let columns = labels.len().max(classes.len()).max(1);
        let kept: Arc<KeptRows> = Arc::default();
        let output = Predicting { columns, kept: (!request.keep.is_empty()).then(|| Arc::clone(&kept)) };
        let rows = self.start(scored, (request, requester), output, kept).await?;
        Ok(Predictions { labels, classes, rows })
    }

    /// Ends all runs and refuses further ones.
    pub(crate) async fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.stores.cancel();
        // Waits until all runs have ended. Cannot fail: the semaphore is never closed.
        drop(self.permits.acquire_many(RUNS).await);
    }

    /// Waits until one more run may start.
    async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        if self.closing.load(Ordering::Acquire) {
            bail!("the daemon is stopping");
        }
        Ok(permit)
    }

    /// Starts a run. Its error, if any, is the last result; dropping the receiver ends it.
    async fn start<O: Output>(
        &self,
        scored: Scored,
        (request, requester): (ScoreRequest, Requester),
        output: O,
        kept: Arc<KeptRows>,
    ) -> Result<mpsc::Receiver<Result<O::Item>>> {
        let permit = self.permit().await?;
        let stores = self.stores.for_job(&scored.job.storage);
        let (sender, results) = mpsc::channel(QUEUE);
        let (ending, ended) = oneshot::channel::<()>();
        let (waiting, cancelled) = (sender.clone(), stores.clone());
        self.runtime.spawn(async move {
            tokio::select! {
                () = waiting.closed() => cancelled.cancel(),
                _ = ended => {}
            }
        });
        let run = Run { scorer: self.clone(), scored, request, requester, kept, stores };
        let work = move || {
            let ended = run.score(output, &sender);
            // A copy of the checkpoint is removed before a stop of the daemon goes on.
            drop(run);
            drop(permit);
            drop(ending);
            if let Err(error) = ended {
                // The caller may be gone.
                let _ = sender.blocking_send(Err(error));
            }
        };
        self.launcher.spawn("scoring".to_owned(), work).context("starting the scoring thread")?;
        Ok(results)
    }
}

impl Output for Evaluating {
    const KIND: ScoreOutput = ScoreOutput::Metrics;
    type Item = Vec<Metrics>;

    fn of(&mut self, message: FromWorker) -> Result<Vec<Self::Item>> {
        Ok(match message {
            FromWorker::Evaluated { metrics, .. } => vec![metrics],
            _ => Vec::new(),
        })
    }
}

impl Output for Predicting {
    const KIND: ScoreOutput = ScoreOutput::Scores;
    type Item = Predicted;

    fn start(&mut self, columns: Vec<String>) -> Option<Predicted> {
        Some(Predicted::Columns(columns))
    }

    fn of(&mut self, message: FromWorker) -> Result<Vec<Predicted>> {
        let FromWorker::Scores { scores } = message else { return Ok(Vec::new()) };
        let Some(kept) = &self.kept else { return Ok(vec![Predicted::Rows { scores, kept: Vec::new() }]) };
        let rows = scores.len() / self.columns;
        let mut pieces = Vec::new();
        for batch in kept.take(rows)? {
            pieces.extend(rows::encode(&batch, MOST_KEPT_BYTES).context("the kept columns cannot be sent")?);
        }
        let mut first = 0;
        let piece = |(count, kept)| {
            let range = first..first + count;
            first += count;
            let scores = scores.chunks_exact(rows.max(1)).flat_map(|column| &column[range.clone()]);
            Predicted::Rows { scores: scores.copied().collect(), kept }
        };
        Ok(pieces.into_iter().map(piece).collect())
    }

    fn end(&mut self, skipped_rows: u64) -> Option<Predicted> {
        Some(Predicted::Skipped(skipped_rows))
    }
}

impl Run {
    fn score<O: Output>(&self, mut output: O, results: &mpsc::Sender<Result<O::Item>>) -> Result<()> {
        let Scored { directory, step, job, analysis, .. } = &self.scored;
        let Scorer { runtime, closing, .. } = &self.scorer;
        let data = source::data(&job.data, &self.request, &self.requester)?;
        let mut transform = Transform::resolve(&job.features, &job.label, &data.missing, analysis)?;
        if O::KIND == ScoreOutput::Scores {
            transform = transform.without_label();
        }
        let schema = transform.batch_schema(&data);
        let opening = Opening {
            scored: &self.scored,
            request: &self.request,
            requester: &self.requester,
            stores: &self.stores,
            runtime,
            kept: &self.kept,
        };
        let Rows { source, kept } = opening.open(&data, Arc::new(transform))?;
        // A closed channel ends the run below.
        let send = |item: O::Item| drop(results.blocking_send(Ok(item)));
        output.start(kept).into_iter().for_each(send);
        let plan = IngestPlan::scoring(&data, schema.clone(), source)?;

        let (mut worker, messages) = self.spawn()?;
        let role = Role::Score(ScoreRole {
            directory: directory.clone(),
            step: *step,
            output: O::KIND,
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
                    let (started, ring) = Feed::start_single(&plan, None)?;
                    feed = Some(started);
                    worker.send_ring(ring)?;
                }
                Ok(FromWorker::Done { .. }) => {
                    let skipped = feed.as_ref().map_or(0, Feed::skipped);
                    output.end(skipped).into_iter().for_each(send);
                    return Ok(());
                }
                Ok(
                    FromWorker::Failed { message }
                    | FromWorker::DeviceUnusable { message }
                    | FromWorker::DeviceFailed { message, .. },
                ) => bail!(message),
                Ok(FromWorker::InputLost | FromWorker::Stopped) | Err(RecvTimeoutError::Disconnected) => {
                    break;
                }
                Ok(message) => output.of(message)?.into_iter().for_each(send),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        match feed.map(Feed::stop) {
            Some(Err(error)) if !feed::is_echo(&error) => Err(error.into()),
            _ => Err(anyhow!("{}", worker.wait(EXIT_LIMIT)?)),
        }
    }

    fn spawn(&self) -> Result<(WorkerProcess, Receiver<FromWorker>)> {
        let log = |line: &str| tracing::warn!("scoring worker: {line}");
        let worker =
            WorkerProcess::spawn(&self.scorer.worker, None, log).context("the worker cannot be started")?;
        let (sender, messages) = sync_channel(QUEUE);
        worker.listen(move |message| sender.send(message).is_ok(), || {})?;
        Ok((worker, messages))
    }
}
