//! The daemon: accepts jobs, schedules them and answers queries.
//!
//! A [`Daemon`] is a handle; its clones share one daemon. `millstreamd` serves one over its socket.
//! `millstream train` hosts one in its own process if none is listening. Jobs wait in a bounded queue until the
//! [scheduler](crate::scheduler) starts them, each on its own thread ([`crate::supervisor`]). When a job ends, the daemon
//! drops it from memory; the store keeps its record.

mod about;
mod admission;
mod audit;
mod buckets;
mod joining;
mod ownership;
mod peers;
mod removal;
mod searches;
mod shutdown;
mod snapshot;
mod start;
mod status;

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use millstream_control::proto::{JobState, ScoreRequest, SubmitRequest};
use millstream_document::problems::DocumentError;
use millstream_feed::host::Host;
use millstream_io::storage::{Directory, StorageSpec, Stores};
use millstream_peers::HostName;
use millstream_peers::etcd::Etcd;
use millstream_pipeline::ingest::Explanation;
use millstream_trainer::metrics::Metrics;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tracing::Level;

use crate::access::Requester;
use crate::actor::{Action, Actor};
use crate::audit::Throttle;
use crate::config::{Config, Settings, StateLocation};
use crate::copies::{Contents, Copies};
use crate::devices::DevicesError;
use crate::gpus::GpuWatch;
use crate::memory;
use crate::outcomes::Outcomes;
use crate::peers::Peers;
use crate::priority::{Launcher, thread_time};
use crate::queue::{ActiveJob, Jobs, QueuedJob};
use crate::runs::{self, RunDirectory, Storage};
use crate::scheduler::UserId;
use crate::scoring::{self, CancelOnDrop, Scorer};
use crate::state::{History, JobFilter, JobRecord, LogRecord, OpenState, Owner, Store, StoreError, now_ms};
use crate::supervisor::{PendingProfile, StopReason};
use crate::traces::{JobEvent, Traces};
use crate::turns::{Answers, Turns};
use crate::worker::WorkerProgram;

pub(crate) use self::searches::{ShownTrial, Trials};
pub(crate) use ownership::NotOwner;

pub use crate::scoring::{Predicted, Predictions};

/// The number of requests that wait for the store at a time; more would not be answered sooner.
const MAX_TURNS: usize = 2;

/// The number of log lines read at a time: the store's thread is busy with them for about a millisecond.
pub(crate) const LOG_PAGE: usize = 250;

/// The number of job files that are read at a time: each may need a few hundred MB.
const MAX_SUBMISSIONS: usize = 2;

/// After a submission, its turn rests for this many times the processor time that it took, within the limit: submissions
/// one after another use a tenth of a core, however many there are.
const SUBMISSION_REST_FACTOR: u32 = 19;
const MAX_SUBMISSION_REST: Duration = Duration::from_secs(2);

/// How long a submission may read buckets, which have all runs of its job.
const SUBMISSION_TIMEOUT: Duration = Duration::from_secs(600);

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
    Invalid(#[from] DocumentError),
    /// The job file is valid, but the job cannot be accepted.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

impl From<DevicesError> for SubmitError {
    fn from(error: DevicesError) -> Self {
        match error {
            DevicesError::Invalid(error) => Self::Invalid(error),
            DevicesError::Other(error) => Self::Other(error),
        }
    }
}

/// Whose queue a job waits in: that of the user who submitted it, or of this process.
fn user_of(owner: Option<&Owner>) -> UserId {
    owner.map_or_else(|| rustix::process::geteuid().as_raw(), |owner| owner.uid)
}

/// The memory that all feeds may use.
fn feeds_memory(settings: &Settings) -> u64 {
    let half = || memory::limit_bytes().map_or(u64::MAX, |bytes| bytes / 2);
    settings.feeds_memory_bytes.unwrap_or_else(half)
}

struct Shared {
    /// The program of workers.
    worker: WorkerProgram,
    settings: watch::Sender<Settings>,
    state: StateLocation,
    store: Arc<Store>,
    runtime: Handle,
    /// Starts the threads of jobs.
    launcher: Launcher,
    /// Storage shared by all jobs.
    storage: Storage,
    jobs: Mutex<Jobs>,
    /// Notified when the thread of a job has ended.
    thread_ended: Condvar,
    /// The job files that may be read at a time.
    submissions: Arc<Semaphore>,
    /// Permits to look into a bucket.
    looks: Arc<Semaphore>,
    /// Held while a job is added, resumed or removed, in the store and in the queue.
    membership: Mutex<()>,
    /// When the daemon started.
    began: Instant,
    /// The number of running jobs; shutdown waits for it to reach 0.
    running: watch::Sender<usize>,
    scorer: Scorer,
    /// Turns of the requests that wait for the store.
    turns: Arc<Turns>,
    /// Bounds the records of attempts that changed nothing.
    audit: Mutex<Throttle>,
    /// Sends what happens to jobs to a collector, if one is configured.
    traces: Traces,
    gpus: GpuWatch,
    /// The name of this host for others, if it has peers.
    host_name: Option<HostName>,
    /// Their daemons.
    peers: Arc<OnceLock<Arc<Peers>>>,
    /// Reads data for trainers of other programs.
    feeds: Host,
    /// Ends of jobs since the start.
    outcomes: Arc<Outcomes>,
    /// When the daemon started, in milliseconds since the Unix epoch.
    started_ms: u64,
    /// The state directory's lock, held while the daemon lives.
    _lock: Option<File>,
}

impl Daemon {
    /// Starts a daemon, which resumes the unfinished jobs of an earlier one. Must be called within a tokio
    /// runtime that outlives the daemon.
    ///
    /// # Errors
    /// When another daemon uses the state directory, or the state cannot be read.
    pub fn start(config: Config) -> Result<Self> {
        let runtime = Handle::try_current().context("a daemon must be started within a tokio runtime")?;
        let OpenState { store, lock, same_boot } = match &config.state {
            StateLocation::Memory => OpenState::in_memory()?,
            StateLocation::Directory(directory) => OpenState::open(directory)?,
        };
        let stores = Stores::new(config.storage.clone(), Stores::SHARED_BYTES);
        let launcher = Launcher::start().context("starting the daemon's threads")?;
        let scorer = Scorer::new(config.worker.clone(), launcher.clone(), runtime.clone(), stores.clone());
        let capacity = start::capacity(&config.settings.limits);
        let feeds = Host::new(&stores, runtime.clone());
        feeds.set_memory(feeds_memory(&config.settings));
        let traces = Traces::start(config.traces.as_ref(), &runtime)?;
        let gpus = GpuWatch::new(config.worker.clone());
        let shared = Shared {
            worker: config.worker,
            settings: watch::Sender::new(config.settings),
            state: config.state,
            store: Arc::new(store),
            launcher,
            storage: Storage { stores, etcd: config.etcd.map(Etcd::new), runtime: runtime.clone() },
            runtime,
            jobs: Mutex::new(Jobs::new(capacity)),
            thread_ended: Condvar::new(),
            submissions: Arc::new(Semaphore::new(MAX_SUBMISSIONS)),
            looks: Arc::new(Semaphore::new(buckets::MAX_LOOKS)),
            membership: Mutex::default(),
            began: Instant::now(),
            running: watch::Sender::new(0),
            scorer,
            turns: Turns::new(MAX_TURNS),
            audit: Mutex::default(),
            traces,
            gpus,
            host_name: config.host_name,
            peers: Arc::default(),
            feeds,
            outcomes: Arc::default(),
            started_ms: now_ms(),
            _lock: lock,
        };
        let daemon = Self { shared: Arc::new(shared) };
        let held = JobFilter { states: vec![JobState::Held], limit: None };
        let (held, _) = daemon.shared.store.jobs(&held)?;
        daemon.shared.outcomes.held_before(held.into_iter().map(|record| record.id));
        daemon.requeue_unfinished(same_boot)?;
        daemon.remove_expired_daily();
        Ok(daemon)
    }

    /// Starts a daemon embedded in another program, with its state in memory.
    ///
    /// # Errors
    /// As for [`Daemon::start`].
    pub fn start_embedded() -> Result<Self> {
        Self::start(Config::embedded())
    }

    /// Its settings.
    pub(crate) fn settings(&self) -> Settings {
        self.shared.settings.borrow().clone()
    }

    /// Changes its settings. Running jobs continue, even if they are more than may start now.
    pub(crate) fn configure(&self, settings: Settings) {
        self.shared.jobs().scheduler.set_capacity(start::capacity(&settings.limits));
        self.shared.feeds.set_memory(feeds_memory(&settings));
        self.shared.settings.send_replace(settings);
        self.start_next();
    }

    /// The feeds of trainers of other programs.
    pub(crate) fn feeds(&self) -> &Host {
        &self.shared.feeds
    }

    /// Queues an ended job again, from its last checkpoint.
    ///
    /// # Errors
    /// When there is no such job, it has not ended or has succeeded, or its run directory is gone.
    pub async fn resume(&self, id: &str) -> Result<JobRecord> {
        let id = id.to_owned();
        let record = self.blocking(move |daemon| Ok::<_, anyhow::Error>(daemon.show(&id)?)).await?;
        if record.directory.as_local().is_none() {
            let (id, directory) = (record.id.clone(), record.directory.clone());
            let job = self.blocking(move |daemon| daemon.job_of(&id)).await?;
            let look = move |storage: &Storage| RunDirectory::new(directory, storage).has(runs::JOB);
            if !self.look_into_bucket(&job.storage, look).await? {
                bail!("job {}: its run directory {} is gone", record.id, record.directory);
            }
        }
        self.blocking(move |daemon| daemon.resume_now(&record.id)).await
    }

    /// Accepts a job. With `resume`, resumes the newest unfinished run of the same job in its checkpoint directory.
    ///
    /// # Errors
    /// `Invalid` when the job file is invalid.
    pub async fn submit(&self, request: SubmitRequest) -> Result<JobRecord, SubmitError> {
        self.submit_as(request, Requester::Trusted, None).await
    }

    /// As [`Daemon::submit`], with the rights of `requester`, for the user `owner`.
    pub(crate) async fn submit_as(
        &self,
        request: SubmitRequest,
        requester: Requester,
        owner: Option<Owner>,
    ) -> Result<JobRecord, SubmitError> {
        // A full queue costs nothing but this answer.
        self.check_room(owner.as_ref())?;
        // A client that leaves gives up its turn. A file that is being read is read to its end, which its size bounds.
        let turn = Arc::clone(&self.shared.submissions).acquire_owned().await.map_err(anyhow::Error::from)?;
        // A bucket that does not answer must not keep others waiting.
        let storage = self.storage(&StorageSpec::default());
        let cancelled = CancelOnDrop(storage.stores.clone());
        let submitted = self.blocking(move |daemon| {
            let began = thread_time();
            let submitted = daemon.submit_now(request, requester, owner, &storage);
            let rest = thread_time().saturating_sub(began).saturating_mul(SUBMISSION_REST_FACTOR);
            Handle::current().spawn(async move {
                tokio::time::sleep(rest.min(MAX_SUBMISSION_REST)).await;
                drop(turn);
            });
            submitted
        });
        let mut submitted = std::pin::pin!(submitted);
        tokio::select! {
            submitted = &mut submitted => submitted,
            () = tokio::time::sleep(SUBMISSION_TIMEOUT) => {
                // It may just have been accepted.
                drop(cancelled);
                submitted.await
            }
        }
    }

    /// The jobs that `filter` selects, newest first, and their number without its limit.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn list(&self, filter: &JobFilter) -> Result<(Vec<JobRecord>, u64), StoreError> {
        let (mut records, all) = self.shared.store.jobs(filter)?;
        for record in &mut records {
            if let Some(active) = self.shared.active(&record.id) {
                *record = active.recorder.record();
            }
        }
        Ok((records, all))
    }

    /// The job whose id is `id`, or the only job whose id starts with `id`.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn show(&self, id: &str) -> Result<JobRecord, StoreError> {
        Ok(self.watch(id)?.borrow().clone())
    }

    /// The oldest of a job's log lines after position `after` (0 for all), at most [`LOG_PAGE`].
    ///
    /// # Errors
    /// As for [`Daemon::show`].
    pub fn logs(&self, id: &str, after: u64) -> Result<Vec<LogRecord>, StoreError> {
        self.shared.store.logs(&self.shared.store.find(id)?, after, LOG_PAGE)
    }

    /// Records in the log of a job, and in the daemon's, who does something to it.
    ///
    /// # Errors
    /// When there is no such job, or the store cannot be written.
    pub(crate) fn record_action(&self, id: &str, action: Action, actor: Actor) -> Result<()> {
        let id = self.shared.store.find(id)?;
        let text = format!("{action} {actor}");
        tracing::info!(job = id, uid = actor.uid, "{text}");
        if let Some(active) = self.shared.active(&id) {
            active.recorder.trace().record(JobEvent::Requested(action, actor));
        }
        self.shared.store.append_log(&id, now_ms(), Level::INFO, &text)?;
        Ok(())
    }

    /// The position in the log of the job `id` (its full id) before its `last` lines (0 for all) from `since_ms` on.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) fn log_start(&self, id: &str, last: u64, since_ms: u64) -> Result<u64, StoreError> {
        self.shared.store.log_start(id, last, since_ms)
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
        self.stop(id, StopReason::Cancel).await
    }

    /// Stops a job after a checkpoint until it is resumed, and returns once it has stopped.
    ///
    /// # Errors
    /// When there is no such job, or it has ended.
    pub async fn pause(&self, id: &str) -> Result<JobRecord> {
        let record = self.stop(id, StopReason::Pause).await?;
        if record.state != JobState::Paused {
            bail!("job {} is {}; there is nothing to pause", record.id, record.state);
        }
        Ok(record)
    }

    async fn stop(&self, id: &str, why: StopReason) -> Result<JobRecord> {
        let id = id.to_owned();
        let mut record = self.blocking(move |daemon| Ok::<_, anyhow::Error>(daemon.watch(&id)?)).await?;
        let id = record.borrow().id.clone();
        let waiting = {
            let mut jobs = self.shared.jobs();
            let waiting = jobs.take_queued(&id);
            // A job on its way back to the queue notices it there.
            if let Some(active) = jobs.active(&id) {
                active.control.stop(why);
            }
            waiting
        };
        if let Some(QueuedJob { active, .. }) = waiting {
            let (state, reason) = match why {
                StopReason::Pause => (JobState::Paused, "paused before it started"),
                _ => (JobState::Cancelled, "cancelled before it started"),
            };
            let enter = move |daemon: &Self| {
                active.recorder.enter(state, reason);
                daemon.start_next();
                Ok::<_, anyhow::Error>(())
            };
            self.blocking(enter).await?;
        }
        // If the channel is closed, the last record is final.
        let _ = record.wait_for(|record| record.state.is_final()).await;
        self.blocking(move |daemon| {
            // It may have been paused before, or at the same time.
            let cancelled = if why == StopReason::Cancel { daemon.cancel_stopped(&id)? } else { None };
            if let Some(cancelled) = &cancelled {
                daemon.cancel_stopped_trials(cancelled)?;
            }
            cancelled.map_or_else(|| Ok(daemon.show(&id)?), Ok)
        })
        .await
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

    /// The ingest of the open feed whose id is `id`, or the only one whose id starts with `id`; `None` if there is none.
    pub(crate) fn explain_feed(&self, id: &str) -> Option<Result<Explanation>> {
        if !id.starts_with("feed-") {
            return None;
        }
        let mut found = self.feeds().status().feeds.into_iter().filter(|feed| feed.id.starts_with(id));
        let feed = found.next().filter(|_| found.next().is_none())?;
        Some(feed.ingest.with_context(|| format!("the files of {} are being opened; try again", feed.id)))
    }

    /// Takes a checkpoint of a running job after its current step, and returns its directory and step once it
    /// is committed.
    ///
    /// # Errors
    /// When there is no such job, or it ends before there is one.
    pub async fn checkpoint(&self, id: &str) -> Result<(Directory, u64)> {
        let id = id.to_owned();
        let record = self.blocking(move |daemon| Ok::<_, anyhow::Error>(daemon.show(&id)?)).await?;
        let active =
            self.shared.active(&record.id).filter(|active| !active.recorder.record().state.is_final());
        let active = active.with_context(|| format!("job {} is over: {}", record.id, record.state))?;
        if record.state == JobState::Queued {
            bail!("job {} is queued; it has nothing to save yet", record.id);
        }
        let committed = active.control.checkpoint()?;
        let committed = committed.await;
        let committed =
            committed.map_err(|_| anyhow!("job {} ended before the checkpoint was taken", record.id))?;
        committed.map_err(|why| anyhow!("job {}: {why}", record.id))
    }

    /// Requests a checkpoint of every job that trains, without waiting for them.
    pub(crate) fn checkpoint_all(&self) {
        for active in &self.shared.jobs().running {
            let recorder = Arc::clone(&active.recorder);
            if recorder.record().state != JobState::Running {
                continue;
            }
            let requested = active.control.checkpoint();
            self.shared.runtime.spawn(async move {
                let refused = match requested {
                    // A job that ends first has saved its end.
                    Ok(committed) => committed.await.ok().and_then(Result::err),
                    Err(error) => Some(error.to_string()),
                };
                if let Some(why) = refused {
                    tracing::warn!(job = recorder.id(), "no checkpoint: {why}");
                }
            });
        }
    }

    /// Records the next `steps` steps of a training job and their ingest. Dropping the result cancels the
    /// recording.
    ///
    /// # Errors
    /// When there is no such job, or it is not training.
    pub(crate) fn profile(&self, id: &str, steps: u64, rank: u32) -> Result<(String, PendingProfile)> {
        let JobRecord { id, state, .. } = self.show(id)?;
        match state {
            JobState::Queued => bail!("job {id} is queued and not training yet"),
            JobState::Preparing => bail!("job {id} is being prepared and not training yet"),
            JobState::Running => {}
            _ => bail!("job {id} is over: {state}"),
        }
        let active = self.shared.active(&id).with_context(|| format!("job {id} is over"))?;
        let pending = active.control.profile(steps, rank).with_context(|| format!("job {id}"))?;
        Ok((id, pending))
    }

    /// Evaluates a checkpoint on held-out data.
    ///
    /// # Errors
    /// When there is no such checkpoint, or the data cannot be scored.
    pub async fn evaluate(&self, request: ScoreRequest) -> Result<Vec<Metrics>> {
        self.evaluate_as(request, Requester::Trusted).await
    }

    /// As [`Daemon::evaluate`], with the rights of `requester`.
    pub(crate) async fn evaluate_as(
        &self,
        request: ScoreRequest,
        requester: Requester,
    ) -> Result<Vec<Metrics>> {
        let scored = self.scored(&request, &requester).await?;
        self.shared.scorer.evaluate(scored, request, requester).await
    }

    /// Scores each row with a checkpoint, in data order. Dropping the receiver stops the work.
    ///
    /// # Errors
    /// When there is no such checkpoint; later errors arrive as the last item.
    pub async fn predict(&self, request: ScoreRequest) -> Result<Predictions> {
        self.predict_as(request, Requester::Trusted).await
    }

    /// As [`Daemon::predict`], with the rights of `requester`.
    pub(crate) async fn predict_as(
        &self,
        request: ScoreRequest,
        requester: Requester,
    ) -> Result<Predictions> {
        let scored = self.scored(&request, &requester).await?;
        self.shared.scorer.predict(scored, request, requester).await
    }

    /// The checkpoint of a job's best evaluation, if the job keeps it.
    pub async fn best_checkpoint(&self, record: &JobRecord) -> Option<Directory> {
        let directory = record.directory.clone();
        // An error counts as no best checkpoint.
        if let Some(path) = directory.as_local().map(Path::to_owned) {
            let best = move |_: &Self| scoring::best_in(&RunDirectory::local(&path));
            return self.blocking(best).await.ok().flatten();
        }
        let id = record.id.clone();
        let job = self.blocking(move |daemon| daemon.job_of(&id)).await.ok()?;
        job.checkpoint.best?;
        let look = move |storage: &Storage| scoring::best_in(&RunDirectory::new(directory, storage));
        self.look_into_bucket(&job.storage, look).await.ok().flatten()
    }

    async fn scored(&self, request: &ScoreRequest, requester: &Requester) -> Result<scoring::Scored> {
        let requester = requester.clone();
        let ScoreRequest { target, base, best, .. } = request.clone();
        let known = self.blocking({
            let target = target.clone();
            move |daemon| match daemon.show(&target) {
                Ok(JobRecord { checkpoint: None, .. }) => bail!("job {target} has no checkpoint yet"),
                Ok(record) => Ok(Some(record)),
                Err(StoreError::UnknownJob { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            }
        });
        if let Some(record) = known.await? {
            // The daemon itself wrote this one.
            if let Some(path) = record.directory.as_local().map(Path::to_owned) {
                let find = move |_: &Self| scoring::find(&path, best, &Requester::Trusted);
                return self.blocking(find).await;
            }
            let id = record.id.clone();
            let job = self.blocking(move |daemon| daemon.job_of(&id)).await?;
            let find = move |copies: &Copies| {
                let contents = (best, Contents::Parameters);
                scoring::find_in(&record.directory, contents, &Requester::Trusted, copies)
            };
            return self.shared.scorer.find(&job.storage, find).await;
        }
        let directory = Directory::parse(&target, Path::new(&base))?;
        if let Some(path) = directory.as_local().map(Path::to_owned) {
            let find = move |_: &Self| {
                if !path.is_dir() {
                    bail!("`{target}` is neither a job nor a checkpoint's directory");
                }
                scoring::find(&path, best, &requester)
            };
            return self.blocking(find).await;
        }
        let find = move |copies: &Copies| {
            scoring::find_in(&directory, (best, Contents::Parameters), &requester, copies)
        };
        self.shared.scorer.find(&StorageSpec::default(), find).await
    }

    /// Runs `work` where it may wait for the store, which an async task must not.
    pub(crate) async fn blocking<T: Send + 'static, E: From<anyhow::Error> + Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let daemon = self.clone();
        match tokio::task::spawn_blocking(move || work(&daemon)).await {
            Ok(result) => result,
            Err(error) => Err(anyhow::Error::from(error).into()),
        }
    }

    /// As [`Daemon::blocking`], for short `work`: when it is the turn of a connection that has had these `answers`. Requests
    /// wait for their turn without a thread, so that they never take all threads of the runtime.
    pub(crate) async fn in_turn<T: Send + 'static, E: From<anyhow::Error> + Send + 'static>(
        &self,
        answers: &Answers,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let _turn = self.shared.turns.next(answers).await;
        self.blocking(work).await
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn membership(&self) -> MutexGuard<'_, ()> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queued or running job of this id.
    fn active(&self, id: &str) -> Option<ActiveJob> {
        self.jobs().active(id).cloned()
    }
}
