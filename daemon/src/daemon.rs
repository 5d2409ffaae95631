//! The daemon: takes jobs in, runs them in turn, answers for them.
//!
//! A [`Daemon`] is a handle; all clones mean the same daemon. `millstreamd` serves one over its socket, and
//! `millstream train` without a daemon listening hosts one in its own process. Jobs wait in a bounded queue,
//! in order of arrival, and at most `max_jobs` run, each on a thread of its own ([`crate::supervisor`]).
//! A job leaves the daemon's memory when it has ended; the store keeps its record.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use millstream_pipeline::ingest::Explanation;
use millstream_pipeline::storage::Stores;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::{Config, StateLocation};
use crate::job::{Job, JobError};
use crate::runs;
pub use crate::scoring::Predictions;
use crate::scoring::{self, Scorer};
use crate::state::{
    History, JobRecord, JobSource, JobState, LogLevel, LogRecord, Metrics, Store, StoreError, now_ms,
};
use crate::supervisor::{Book, Control, PendingProfile, Stop, Supervisor};

/// Jobs that may wait for their turn.
const QUEUE: usize = 10_000;

/// How long running jobs may take for their last checkpoints when the daemon stops.
const DRAIN: Duration = Duration::from_secs(75);

/// How a file in the state directory that only one daemon may hold is called.
const LOCK: &str = "lock";
const DATABASE: &str = "state.sqlite";

/// A running daemon.
#[derive(Clone)]
pub struct Daemon {
    shared: Arc<Shared>,
}

/// What rows are scored with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// A job's id, or the directory of a job or of a checkpoint.
    pub name: String,
    /// Whether of a job's checkpoints the best is meant, and not the newest.
    pub best: bool,
}

/// Why a job was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The job file is wrong.
    #[error(transparent)]
    Invalid(#[from] JobError),
    /// The job file is right, and yet the job cannot be taken.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

struct Shared {
    config: Config,
    store: Arc<Store>,
    runtime: Handle,
    /// Storage, as all jobs share it.
    stores: Stores,
    jobs: Mutex<Jobs>,
    /// How many jobs run; for waiting until none does.
    running: watch::Sender<usize>,
    scorer: Scorer,
    /// Held for as long as the daemon lives.
    _lock: Option<File>,
}

#[derive(Default)]
struct Jobs {
    queued: VecDeque<Waiting>,
    running: Vec<Live>,
    draining: bool,
}

/// A job in memory.
#[derive(Clone)]
struct Live {
    book: Arc<Book>,
    control: Arc<Control>,
}

/// A job whose turn has not come.
struct Waiting {
    live: Live,
    supervisor: Supervisor,
}

impl Daemon {
    /// Starts a daemon, which takes up the jobs that an earlier one left unfinished. To be called within a
    /// tokio runtime, which must outlive it.
    ///
    /// # Errors
    /// When another daemon uses the state directory, or the state cannot be read.
    pub fn start(config: Config) -> Result<Self> {
        let runtime = Handle::try_current().context("a daemon is started within a tokio runtime")?;
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
        daemon.take_up_unfinished()?;
        Ok(daemon)
    }

    /// Starts a daemon inside another program, without any state that outlives it.
    ///
    /// # Errors
    /// As for [`Daemon::start`].
    pub fn start_embedded() -> Result<Self> {
        Self::start(Config::embedded())
    }

    /// Lets no further job start, has running ones take a checkpoint and stop, and waits for that, within a
    /// bound. Their records stay unfinished: the next daemon over this state takes them up.
    pub async fn shutdown(&self) {
        {
            let mut jobs = self.shared.jobs();
            jobs.draining = true;
            jobs.queued.clear();
            for live in &jobs.running {
                live.control.stop(Stop::Drain);
            }
        }
        let mut running = self.shared.running.subscribe();
        let drained = async {
            self.shared.scorer.close().await;
            // The sender lives as long as `self`.
            let _ = running.wait_for(|&running| running == 0).await;
        };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            tracing::warn!("jobs did not stop in time; they go on from an earlier checkpoint");
        }
    }

    /// Accepts a job: `text` is a job file that was read from `path`, `set` replaces single keys of it. With
    /// `resume`, the newest unfinished run of the same job in its checkpoint directory goes on.
    ///
    /// # Errors
    /// `Invalid` when the job file is wrong.
    pub async fn submit(
        &self,
        text: String,
        path: PathBuf,
        set: Vec<String>,
        resume: bool,
    ) -> Result<JobRecord, SubmitError> {
        self.blocking(move |daemon| daemon.submit_now(&text, path, &set, resume)).await
    }

    /// All jobs, newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn list(&self) -> Result<Vec<JobRecord>, StoreError> {
        let mut records = self.shared.store.jobs()?;
        for record in &mut records {
            if let Some(live) = self.shared.live(&record.id) {
                *record = live.book.record();
            }
        }
        Ok(records)
    }

    /// The job whose id is `id` or, alone, begins with it.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn show(&self, id: &str) -> Result<JobRecord, StoreError> {
        Ok(self.watch(id)?.borrow().clone())
    }

    /// A job's log after line `after` (0 for all that is kept).
    ///
    /// # Errors
    /// As for [`Daemon::show`].
    pub fn logs(&self, id: &str, after: u64) -> Result<Vec<LogRecord>, StoreError> {
        self.shared.store.logs(&self.shared.store.find(id)?, after)
    }

    /// A job, and its course over its steps.
    ///
    /// # Errors
    /// As for [`Daemon::show`].
    pub fn history(&self, id: &str) -> Result<(JobRecord, History), StoreError> {
        let record = self.show(id)?;
        let mut history = self.shared.store.history(&record.id)?;
        // Looked at after the store: what is stored in between is missing then, and not there twice.
        let latest = self.shared.live(&record.id).and_then(|live| live.book.latest());
        let stored = history.points.last().map_or(0, |point| point.step);
        history.points.extend(latest.filter(|latest| latest.step > stored));
        Ok((record, history))
    }

    /// A job as it changes. The sender is gone once the job has ended.
    ///
    /// # Errors
    /// As for [`Daemon::show`].
    pub fn watch(&self, id: &str) -> Result<watch::Receiver<JobRecord>, StoreError> {
        let id = self.shared.store.find(id)?;
        if let Some(live) = self.shared.live(&id) {
            return Ok(live.book.watch());
        }
        let record = self.shared.store.job(&id)?.ok_or(StoreError::UnknownJob { id })?;
        Ok(watch::Sender::new(record).subscribe())
    }

    /// Stops a job after a checkpoint, and returns once it has ended. One that has ended is left as it is.
    ///
    /// # Errors
    /// As for [`Daemon::show`].
    pub async fn cancel(&self, id: &str) -> Result<JobRecord> {
        let mut record = self.watch(id)?;
        let id = record.borrow().id.clone();
        if let Some(waiting) = self.shared.take_queued(&id) {
            waiting.live.book.enter(JobState::Cancelled, "before it began");
        } else if let Some(live) = self.shared.live(&id) {
            live.control.stop(Stop::Cancel);
        }
        // A sender that is gone has left the last record.
        let _ = record.wait_for(|record| record.state.is_final()).await;
        Ok(self.show(&id)?)
    }

    /// How the ingest of a running job goes, what holds it back, and what to do about it.
    ///
    /// # Errors
    /// When there is no such job, or it is not being fed.
    pub fn explain(&self, id: &str) -> Result<Explanation> {
        let record = self.show(id)?;
        let live = self.shared.live(&record.id);
        let explained = live.and_then(|live| live.control.explain());
        explained.with_context(|| format!("job {} reads no data: it is {}", record.id, record.state))
    }

    /// Takes a checkpoint of a running job after its present step, and returns once it is committed: its
    /// directory and step.
    ///
    /// # Errors
    /// When there is no such job, or it ends before there is one.
    pub async fn checkpoint(&self, id: &str) -> Result<(PathBuf, u64)> {
        let record = self.show(id)?;
        let live = self.shared.live(&record.id).filter(|live| !live.book.record().state.is_final());
        let live = live.with_context(|| format!("job {} is over: {}", record.id, record.state))?;
        if record.state == JobState::Queued {
            bail!("job {} waits for its turn; there is nothing to save yet", record.id);
        }
        let committed = live.control.checkpoint()?;
        committed.await.map_err(|_| anyhow!("job {} ended before the checkpoint was taken", record.id))
    }

    /// Records the next `steps` steps of a job that trains, and the ingest that feeds them. Dropping what is returned
    /// calls that off.
    ///
    /// # Errors
    /// When there is no such job, or it takes no steps.
    pub(crate) fn profile(&self, id: &str, steps: u64) -> Result<(String, PendingProfile)> {
        let JobRecord { id, state, .. } = self.show(id)?;
        match state {
            JobState::Queued => bail!("job {id} waits for its turn and takes no steps yet"),
            JobState::Preparing => bail!("job {id} is being prepared and takes no steps yet"),
            JobState::Running => {}
            _ => bail!("job {id} is over: {state}"),
        }
        let live = self.shared.live(&id).with_context(|| format!("job {id} is over"))?;
        let pending = live.control.profile(steps).with_context(|| format!("job {id}"))?;
        Ok((id, pending))
    }

    /// Scores held-out data with a checkpoint. `target` is a job's id, or the directory of a job or of a
    /// checkpoint; `data` are paths and globs, none for the job's own held-out data; `base` is where relative
    /// ones of either start.
    ///
    /// # Errors
    /// When there is no such checkpoint, or the data cannot be scored.
    pub async fn evaluate(
        &self,
        target: impl Into<Target>,
        data: Vec<String>,
        base: PathBuf,
    ) -> Result<Vec<Metrics>> {
        let checkpoint = self.scored(target.into(), &base).await?;
        self.shared.scorer.evaluate(checkpoint, data, base).await
    }

    /// Scores data with a checkpoint, row by row in the order of the data; arguments as for
    /// [`Daemon::evaluate`]. Dropping the receiver ends the work.
    ///
    /// # Errors
    /// When there is no such checkpoint; what fails later arrives as the last item.
    pub async fn predict(
        &self,
        target: impl Into<Target>,
        data: Vec<String>,
        base: PathBuf,
    ) -> Result<Predictions> {
        let checkpoint = self.scored(target.into(), &base).await?;
        self.shared.scorer.predict(checkpoint, data, base).await
    }

    /// The checkpoint of a job's best evaluation, where that is kept.
    pub async fn best_checkpoint(&self, record: &JobRecord) -> Option<PathBuf> {
        let directory = record.directory.clone();
        // Where there is none, or it cannot be told, there is none to show.
        self.blocking(move |_| Ok::<_, anyhow::Error>(scoring::best_in(&directory)?)).await.ok().flatten()
    }

    async fn scored(&self, Target { name, best }: Target, base: &Path) -> Result<scoring::Scored> {
        let base = base.to_owned();
        self.blocking(move |daemon| match daemon.show(&name) {
            Ok(JobRecord { checkpoint: None, .. }) => bail!("job {name} has no checkpoint yet"),
            Ok(record) => scoring::find(&record.directory, best),
            Err(StoreError::UnknownJob { .. }) if !base.join(&name).is_dir() => {
                bail!("`{name}` is neither a job nor a checkpoint's directory")
            }
            Err(StoreError::UnknownJob { .. }) => scoring::find(&base.join(&name), best),
            Err(error) => Err(error.into()),
        })
        .await
    }

    fn submit_now(
        &self,
        text: &str,
        path: PathBuf,
        set: &[String],
        resume: bool,
    ) -> Result<JobRecord, SubmitError> {
        let (job, warnings) = Job::parse(text, &path, set)?;
        let run = if resume { runs::newest_unfinished(&job)? } else { runs::new(&job)? };
        if self.shared.live(&run.id).is_some() {
            return Err(anyhow!("job {} is not over; there is nothing to resume", run.id).into());
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
            let logged =
                self.shared.store.append_log(&run.id, now_ms(), LogLevel::Warn, &warning.to_string());
            logged.map_err(anyhow::Error::from)?;
        }
        self.enqueue(job, record.clone())?;
        Ok(record)
    }

    /// Queues what an earlier daemon over this state left unfinished.
    fn take_up_unfinished(&self) -> Result<()> {
        for mut record in self.shared.store.unfinished()? {
            let source = self.shared.store.source(&record.id)?;
            match Job::parse(&source.text, &source.path, &[]) {
                Ok((job, _)) => {
                    tracing::info!(job = record.id, "taken up again");
                    record.enter(JobState::Queued, "taken up by a new daemon");
                    self.shared.store.save_job(&record)?;
                    self.enqueue(job, record)?;
                }
                Err(error) => {
                    tracing::error!(job = record.id, %error, "cannot be taken up again");
                    record.enter(JobState::Failed, format!("cannot be taken up again: {error}"));
                    self.shared.store.save_job(&record)?;
                }
            }
        }
        Ok(())
    }

    fn enqueue(&self, job: Job, record: JobRecord) -> Result<()> {
        let (control, events) = Control::new();
        let book = Arc::new(Book::new(Arc::clone(&self.shared.store), record));
        let live = Live { book: Arc::clone(&book), control: Arc::clone(&control) };
        let supervisor = Supervisor::new(
            job,
            self.shared.config.worker.clone(),
            self.shared.runtime.clone(),
            &self.shared.stores,
            book,
            (control, events),
        );
        {
            let mut jobs = self.shared.jobs();
            if jobs.draining {
                bail!("the daemon is stopping");
            }
            if jobs.live(live.book.id()).is_some() {
                bail!("job {} is not over; there is nothing to resume", live.book.id());
            }
            if jobs.queued.len() >= QUEUE {
                bail!("{QUEUE} jobs are waiting already");
            }
            jobs.queued.push_back(Waiting { live, supervisor });
        }
        self.start_next();
        Ok(())
    }

    /// Starts queued jobs for as long as there is room.
    fn start_next(&self) {
        let mut jobs = self.shared.jobs();
        while jobs.running.len() < self.shared.config.max_jobs.get() && !jobs.draining {
            let Some(Waiting { live, supervisor }) = jobs.queued.pop_front() else { break };
            let daemon = self.clone();
            let mine = live.clone();
            // The thread's first look at `jobs` waits for this one to end.
            let thread =
                std::thread::Builder::new().name(format!("job {}", live.book.id())).spawn(move || {
                    let guard = Running { daemon, live: mine };
                    supervisor.run();
                    drop(guard);
                });
            match thread {
                Ok(_) => {
                    jobs.running.push(live);
                    self.shared.running.send_replace(jobs.running.len());
                }
                Err(error) => live.book.enter(JobState::Failed, &format!("no thread for it: {error}")),
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

impl From<&str> for Target {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), best: false }
    }
}

impl From<&String> for Target {
    fn from(name: &String) -> Self {
        Self::from(name.as_str())
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job in memory, whether it runs or waits.
    fn live(&self, id: &str) -> Option<Live> {
        self.jobs().live(id).cloned()
    }

    fn take_queued(&self, id: &str) -> Option<Waiting> {
        let mut jobs = self.jobs();
        let place = jobs.queued.iter().position(|waiting| waiting.live.book.id() == id)?;
        jobs.queued.remove(place)
    }
}

impl Jobs {
    fn live(&self, id: &str) -> Option<&Live> {
        let waiting = self.queued.iter().map(|waiting| &waiting.live);
        self.running.iter().chain(waiting).find(|live| live.book.id() == id)
    }
}

/// A job's place among the running ones; given up when the job's thread ends, however it does.
struct Running {
    daemon: Daemon,
    live: Live,
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.live.book.enter(JobState::Failed, "a defect in the daemon; its log has more");
        }
        {
            let mut jobs = self.daemon.shared.jobs();
            jobs.running.retain(|live| live.book.id() != self.live.book.id());
            self.daemon.shared.running.send_replace(jobs.running.len());
        }
        self.daemon.start_next();
    }
}

/// Opens the state directory for this daemon alone.
fn open_state(directory: &Path) -> Result<(Store, Option<File>)> {
    let here = || format!("state directory {}", directory.display());
    std::fs::create_dir_all(directory).with_context(here)?;
    let lock = File::create(directory.join(LOCK)).with_context(here)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => bail!("another daemon uses the {}", here()),
        Err(std::fs::TryLockError::Error(error)) => return Err(error).with_context(here),
    }
    Ok((Store::open(&directory.join(DATABASE))?, Some(lock)))
}
