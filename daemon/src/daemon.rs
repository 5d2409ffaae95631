//! The daemon: accepts jobs, schedules them and answers queries.
//!
//! A [`Daemon`] is a handle; its clones share one daemon. `millstreamd` serves one over its socket.
//! `millstream train` hosts one in its own process if none is listening. Jobs wait in a bounded FIFO queue,
//! and at most `max_jobs` run at a time, each on its own thread ([`crate::supervisor`]). When a job ends, the
//! daemon drops it from memory; the store keeps its record.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use millstream_control::proto::{JobState, ScoreRequest, SubmitRequest};
use millstream_io::storage::Stores;
use millstream_job::{Job, JobError};
use millstream_pipeline::ingest::Explanation;
use millstream_trainer::metrics::Metrics;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::Level;

use crate::config::{Config, StateLocation};
use crate::runs;
use crate::scoring::{self, Scorer};
use crate::state::{History, JobRecord, JobSource, LogRecord, Store, StoreError, now_ms};
use crate::supervisor::{Control, JobRecorder, PendingProfile, StopReason, Supervisor};

pub use crate::scoring::Predictions;

/// Maximum number of queued jobs.
const MAX_QUEUED: usize = 10_000;

/// Time limit for running jobs to take a last checkpoint at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(75);

/// The file in the state directory that a daemon locks.
const LOCK_FILE: &str = "lock";
const DATABASE_FILE: &str = "state.sqlite";

/// A running daemon.
#[derive(Clone)]
pub struct Daemon {
    shared: Arc<Shared>,
}

/// Why a job was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The job file is invalid.
    #[error(transparent)]
    Invalid(#[from] JobError),
    /// The job file is valid, but the job cannot be accepted.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

struct Shared {
    config: Config,
    store: Arc<Store>,
    runtime: Handle,
    /// Storage shared by all jobs.
    stores: Stores,
    jobs: Mutex<Jobs>,
    /// The number of running jobs; shutdown waits for it to reach 0.
    running: watch::Sender<usize>,
    scorer: Scorer,
    /// The state directory's lock, held while the daemon lives.
    _lock: Option<File>,
}

#[derive(Default)]
struct Jobs {
    queued: VecDeque<QueuedJob>,
    running: Vec<ActiveJob>,
    draining: bool,
}

/// A queued or running job.
#[derive(Clone)]
struct ActiveJob {
    recorder: Arc<JobRecorder>,
    control: Arc<Control>,
}

/// A queued job.
struct QueuedJob {
    active: ActiveJob,
    supervisor: Supervisor,
}

impl Daemon {
    /// Starts a daemon, which resumes the unfinished jobs of an earlier one. Must be called within a tokio
    /// runtime that outlives the daemon.
    ///
    /// # Errors
    /// When another daemon uses the state directory, or the state cannot be read.
    pub fn start(config: Config) -> Result<Self> {
        let runtime = Handle::try_current().context("a daemon must be started within a tokio runtime")?;
        let (store, lock) = match &config.state {
            StateLocation::Memory => (Store::open_in_memory()?, None),
            StateLocation::Directory(directory) => open_state(directory)?,
        };
        let stores = Stores::new(config.storage.clone(), Stores::SHARED_BYTES);
        let scorer = Scorer::new(config.worker.clone(), runtime.clone(), stores.clone());
        let shared = Shared {
            config,
            store: Arc::new(store),
            runtime,
            stores,
            jobs: Mutex::default(),
            running: watch::Sender::new(0),
            scorer,
            _lock: lock,
        };
        let daemon = Self { shared: Arc::new(shared) };
        daemon.requeue_unfinished()?;
        Ok(daemon)
    }

    /// Starts a daemon embedded in another program, with its state in memory.
    ///
    /// # Errors
    /// As for [`Daemon::start`].
    pub fn start_embedded() -> Result<Self> {
        Self::start(Config::embedded())
    }

    /// Starts no further job, asks running ones to take a checkpoint and stop, and waits for them within a
    /// time limit. Unfinished jobs stay unfinished in the store, and the next daemon resumes them.
    pub async fn shutdown(&self) {
        {
            let mut jobs = self.shared.jobs();
            jobs.draining = true;
            jobs.queued.clear();
            for active in &jobs.running {
                active.control.stop(StopReason::Drain);
            }
        }
        let mut running = self.shared.running.subscribe();
        let drained = async {
            self.shared.scorer.close().await;
            // Cannot fail: the sender lives as long as `self`.
            let _ = running.wait_for(|&running| running == 0).await;
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!("jobs did not stop in time; they will resume from an earlier checkpoint");
        }
    }

    /// Accepts a job. With `resume`, resumes the newest unfinished run of the same job in its checkpoint directory.
    ///
    /// # Errors
    /// `Invalid` when the job file is invalid.
    pub async fn submit(&self, request: SubmitRequest) -> Result<JobRecord, SubmitError> {
        self.blocking(move |daemon| daemon.submit_now(request)).await
    }

    /// All jobs, newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn list(&self) -> Result<Vec<JobRecord>, StoreError> {
        let mut records = self.shared.store.jobs()?;
        for record in &mut records {
            if let Some(active) = self.shared.active(&record.id) {
                *record = active.recorder.record();
            }
        }
        Ok(records)
    }

    /// The job whose id is `id`, or the only job whose id starts with `id`.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn show(&self, id: &str) -> Result<JobRecord, StoreError> {
        Ok(self.watch(id)?.borrow().clone())
    }

    /// A job's log lines after position `after` (0 for all).
    ///
    /// # Errors
    /// As for [`Daemon::show`].
    pub fn logs(&self, id: &str, after: u64) -> Result<Vec<LogRecord>, StoreError> {
        self.shared.store.logs(&self.shared.store.find(id)?, after)
    }

    /// A job and its history.
    ///
    /// # Errors
    /// As for [`Daemon::show`].
    pub fn history(&self, id: &str) -> Result<(JobRecord, History), StoreError> {
        let record = self.show(id)?;
        let mut history = self.shared.store.history(&record.id)?;
        // Read after the store, so that a point stored in between is missing rather than duplicated.
        let latest = self.shared.active(&record.id).and_then(|active| active.recorder.latest_point());
        let stored = history.points.last().map_or(0, |point| point.step);
        history.points.extend(latest.filter(|latest| latest.step > stored));
        Ok((record, history))
    }

    /// Watches a job. The channel closes once the job has ended.
    ///
    /// # Errors
    /// As for [`Daemon::show`].
    pub fn watch(&self, id: &str) -> Result<watch::Receiver<JobRecord>, StoreError> {
        let id = self.shared.store.find(id)?;
        if let Some(active) = self.shared.active(&id) {
            return Ok(active.recorder.watch());
        }
        let record = self.shared.store.job(&id)?.ok_or(StoreError::UnknownJob { id })?;
        Ok(watch::Sender::new(record).subscribe())
    }

    /// Cancels a job after a checkpoint, and returns once it has ended. An ended job stays as it is.
    ///
    /// # Errors
    /// As for [`Daemon::show`].
    pub async fn cancel(&self, id: &str) -> Result<JobRecord> {
        let mut record = self.watch(id)?;
        let id = record.borrow().id.clone();
        if let Some(waiting) = self.shared.take_queued(&id) {
            waiting.active.recorder.enter(JobState::Cancelled, "cancelled before it started");
        } else if let Some(active) = self.shared.active(&id) {
            active.control.stop(StopReason::Cancel);
        }
        // If the channel is closed, the last record is final.
        let _ = record.wait_for(|record| record.state.is_final()).await;
        Ok(self.show(&id)?)
    }

    /// A running job's ingest rates, its bottleneck, and advice.
    ///
    /// # Errors
    /// When there is no such job, or it has no running ingest.
    pub fn explain(&self, id: &str) -> Result<Explanation> {
        let record = self.show(id)?;
        let active = self.shared.active(&record.id);
        let explanation = active.and_then(|active| active.control.explain());
        explanation
            .with_context(|| format!("job {} has no running ingest: it is {}", record.id, record.state))
    }

    /// Takes a checkpoint of a running job after its current step, and returns its directory and step once it
    /// is committed.
    ///
    /// # Errors
    /// When there is no such job, or it ends before there is one.
    pub async fn checkpoint(&self, id: &str) -> Result<(PathBuf, u64)> {
        let record = self.show(id)?;
        let active =
            self.shared.active(&record.id).filter(|active| !active.recorder.record().state.is_final());
        let active = active.with_context(|| format!("job {} is over: {}", record.id, record.state))?;
        if record.state == JobState::Queued {
            bail!("job {} is queued; it has nothing to save yet", record.id);
        }
        let committed = active.control.checkpoint()?;
        committed.await.map_err(|_| anyhow!("job {} ended before the checkpoint was taken", record.id))
    }

    /// Records the next `steps` steps of a training job and their ingest. Dropping the result cancels the
    /// recording.
    ///
    /// # Errors
    /// When there is no such job, or it is not training.
    pub(crate) fn profile(&self, id: &str, steps: u64) -> Result<(String, PendingProfile)> {
        let JobRecord { id, state, .. } = self.show(id)?;
        match state {
            JobState::Queued => bail!("job {id} is queued and not training yet"),
            JobState::Preparing => bail!("job {id} is being prepared and not training yet"),
            JobState::Running => {}
            _ => bail!("job {id} is over: {state}"),
        }
        let active = self.shared.active(&id).with_context(|| format!("job {id} is over"))?;
        let pending = active.control.profile(steps).with_context(|| format!("job {id}"))?;
        Ok((id, pending))
    }

    /// Evaluates a checkpoint on held-out data.
    ///
    /// # Errors
    /// When there is no such checkpoint, or the data cannot be scored.
    pub async fn evaluate(&self, request: ScoreRequest) -> Result<Vec<Metrics>> {
        self.shared.scorer.evaluate(self.scored(&request).await?, request).await
    }

    /// Scores each row with a checkpoint, in data order. Dropping the receiver stops the work.
    ///
    /// # Errors
    /// When there is no such checkpoint; later errors arrive as the last item.
    pub async fn predict(&self, request: ScoreRequest) -> Result<Predictions> {
        self.shared.scorer.predict(self.scored(&request).await?, request).await
    }

    /// The checkpoint of a job's best evaluation, if the job keeps it.
    pub async fn best_checkpoint(&self, record: &JobRecord) -> Option<PathBuf> {
        let directory = record.directory.clone();
        // An error counts as no best checkpoint.
        self.blocking(move |_| Ok::<_, anyhow::Error>(scoring::best_in(&directory)?)).await.ok().flatten()
    }

    async fn scored(&self, request: &ScoreRequest) -> Result<scoring::Scored> {
        let ScoreRequest { target, base, best, .. } = request.clone();
        let directory = Path::new(&base).join(&target);
        self.blocking(move |daemon| match daemon.show(&target) {
            Ok(JobRecord { checkpoint: None, .. }) => bail!("job {target} has no checkpoint yet"),
            Ok(record) => scoring::find(&record.directory, best),
            Err(StoreError::UnknownJob { .. }) if !directory.is_dir() => {
                bail!("`{target}` is neither a job nor a checkpoint's directory")
            }
            Err(StoreError::UnknownJob { .. }) => scoring::find(&directory, best),
            Err(error) => Err(error.into()),
        })
        .await
    }

    fn submit_now(&self, request: SubmitRequest) -> Result<JobRecord, SubmitError> {
        let SubmitRequest { text, path, set, resume } = request;
        let path = PathBuf::from(path);
        let (job, warnings) = Job::parse(&text, &path, &set)?;
        let run = if resume { runs::newest_unfinished(&job)? } else { runs::new(&job)? };
        if self.shared.active(&run.id).is_some() {
            return Err(anyhow!("job {} has not ended; there is nothing to resume", run.id).into());
        }
        let source = JobSource { text: job.text.clone(), path };
        let known = self.shared.store.job(&run.id).map_err(anyhow::Error::from)?;
        let mut record =
            known.clone().unwrap_or_else(|| JobRecord::new(&run.id, &job.name, run.directory.clone()));
        record.enter(JobState::Queued, "");
        let stored = match known {
            Some(_) => self.shared.store.save_job(&record),
            None => self.shared.store.insert_job(&record, &source),
        };
        stored.map_err(anyhow::Error::from)?;
        for warning in warnings {
            let logged = self.shared.store.append_log(&run.id, now_ms(), Level::WARN, &warning.to_string());
            logged.map_err(anyhow::Error::from)?;
        }
        self.enqueue(job, record.clone())?;
        Ok(record)
    }

    /// Queues the unfinished jobs of an earlier daemon.
    fn requeue_unfinished(&self) -> Result<()> {
        for mut record in self.shared.store.unfinished()? {
            let source = self.shared.store.source(&record.id)?;
            match Job::parse(&source.text, &source.path, &[]) {
                Ok((job, _)) => {
                    tracing::info!(job = record.id, "resuming");
                    record.enter(JobState::Queued, "resumed by a new daemon");
                    self.shared.store.save_job(&record)?;
                    self.enqueue(job, record)?;
                }
                Err(error) => {
                    tracing::error!(job = record.id, %error, "cannot be resumed");
                    record.enter(JobState::Failed, format!("cannot be resumed: {error}"));
                    self.shared.store.save_job(&record)?;
                }
            }
        }
        Ok(())
    }

    fn enqueue(&self, job: Job, record: JobRecord) -> Result<()> {
        let (control, events) = Control::new();
        let recorder = Arc::new(JobRecorder::new(Arc::clone(&self.shared.store), record));
        let active = ActiveJob { recorder: Arc::clone(&recorder), control: Arc::clone(&control) };
        let supervisor = Supervisor::new(
            job,
            self.shared.config.worker.clone(),
            self.shared.runtime.clone(),
            &self.shared.stores,
            recorder,
            (control, events),
        );
        {
            let mut jobs = self.shared.jobs();
            if jobs.draining {
                bail!("the daemon is stopping");
            }
            if jobs.active(active.recorder.id()).is_some() {
                bail!("job {} has not ended; there is nothing to resume", active.recorder.id());
            }
            if jobs.queued.len() >= MAX_QUEUED {
                bail!("the queue is full: {MAX_QUEUED} jobs are waiting");
            }
            jobs.queued.push_back(QueuedJob { active, supervisor });
        }
        self.start_next();
        Ok(())
    }

    /// Starts queued jobs while fewer than `max_jobs` are running.
    fn start_next(&self) {
        let mut jobs = self.shared.jobs();
        while jobs.running.len() < self.shared.config.max_jobs.get() && !jobs.draining {
            let Some(QueuedJob { active, supervisor }) = jobs.queued.pop_front() else { break };
            let daemon = self.clone();
            let mine = active.clone();
            // The thread's first access to `jobs` waits until this lock is released.
            let thread =
                std::thread::Builder::new().name(format!("job {}", active.recorder.id())).spawn(move || {
                    let guard = RunningGuard { daemon, active: mine };
                    supervisor.run();
                    drop(guard);
                });
            match thread {
                Ok(_) => {
                    jobs.running.push(active);
                    self.shared.running.send_replace(jobs.running.len());
                }
                Err(error) => {
                    active.recorder.enter(JobState::Failed, &format!("cannot start its thread: {error}"));
                }
            }
        }
    }

    async fn blocking<T: Send + 'static, E: From<anyhow::Error> + Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let daemon = self.clone();
        match tokio::task::spawn_blocking(move || work(&daemon)).await {
            Ok(result) => result,
            Err(error) => Err(anyhow::Error::from(error).into()),
        }
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queued or running job of this id.
    fn active(&self, id: &str) -> Option<ActiveJob> {
        self.jobs().active(id).cloned()
    }

    fn take_queued(&self, id: &str) -> Option<QueuedJob> {
        let mut jobs = self.jobs();
        let place = jobs.queued.iter().position(|waiting| waiting.active.recorder.id() == id)?;
        jobs.queued.remove(place)
    }
}

impl Jobs {
    fn active(&self, id: &str) -> Option<&ActiveJob> {
        let waiting = self.queued.iter().map(|waiting| &waiting.active);
        self.running.iter().chain(waiting).find(|active| active.recorder.id() == id)
    }
}

/// Marks a job as running. Dropped when the job's thread ends, even in a panic.
struct RunningGuard {
    daemon: Daemon,
    active: ActiveJob,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.active.recorder.enter(JobState::Failed, "internal error in the daemon; see its log");
        }
        {
            let mut jobs = self.daemon.shared.jobs();
            jobs.running.retain(|active| active.recorder.id() != self.active.recorder.id());
            self.daemon.shared.running.send_replace(jobs.running.len());
        }
        self.daemon.start_next();
    }
}

/// Opens and locks the state directory.
fn open_state(directory: &Path) -> Result<(Store, Option<File>)> {
    let here = || format!("state directory {}", directory.display());
    std::fs::create_dir_all(directory).with_context(here)?;
    let lock = File::create(directory.join(LOCK_FILE)).with_context(here)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => bail!("another daemon uses the {}", here()),
        Err(std::fs::TryLockError::Error(error)) => return Err(error).with_context(here),
    }
    Ok((Store::open(&directory.join(DATABASE_FILE))?, Some(lock)))
}
