//! A job's life, on a thread of its own.
//!
//! ```text
//! queued -> preparing -> running -> succeeded
//!               |         |   ^ \-> failed       an error that another try would meet again, or too many
//!               |         \---/                  workers that died without progress ([`tries`])
//!               |    a worker died: again from the newest checkpoint, or where batches that were found to
//!               |    fit memory did not, and there is none yet, from the beginning with smaller ones
//!               \--> failed | cancelled
//! ```
//!
//! *Preparing* is everything that attempts share ([`prepare`]). An *attempt* is one worker with one ring and
//! one ingest feeding it, from the newest whole checkpoint ([`attempt`]). The thread starts the worker
//! itself and outlives it, because the kernel kills a worker when the thread that started it ends.
//!
//! Others reach the thread through its [`Control`]: a bounded channel of events, which it shares with the
//! worker's messages, and a flag to stop that long work looks at between pieces.

mod attempt;
mod book;
mod prepare;
mod profile;
mod tries;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use millstream_pipeline::ingest::{Explanation, IngestControl};
use millstream_pipeline::storage::Stores;
use millstream_trainer::checkpoint::CheckpointStore;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::auto_batch::{self, Decided};
use crate::job::Job;
use crate::runs;
use crate::state::{JobState, LogLevel};
use crate::worker::device::HostSurvey;
use crate::worker::protocol::FromWorker;
use attempt::{Attempt, Death, Outcome};
pub(crate) use book::Book;
pub(crate) use prepare::Prepared;
pub(crate) use profile::{PendingProfile, Profile, ProfileRequest};
use tries::Tries;

/// Events that a job's thread has not taken up yet.
const EVENTS: usize = 64;

/// A committed checkpoint: its directory and its step.
pub(crate) type Committed = (PathBuf, u64);

/// Something that a job's thread reacts to.
pub(crate) enum Event {
    /// [`Control::stop`] was called.
    Stop,
    /// A checkpoint is asked for.
    Checkpoint(oneshot::Sender<Committed>),
    /// Steps are to be recorded.
    Profile(ProfileRequest),
    /// The worker says something.
    Worker(FromWorker),
    /// The worker has gone; the last event of an attempt.
    WorkerGone,
}

/// Why a job is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A person wants it to end.
    Cancel,
    /// The daemon ends; the job goes on when it starts again.
    Drain,
}

/// How others reach a job's thread.
pub(crate) struct Control {
    events: SyncSender<Event>,
    stopping: Arc<AtomicBool>,
    cancelled: AtomicBool,
    /// What feeds the job's worker, while it has one.
    ingest: Mutex<Option<IngestControl>>,
}

/// A job that runs or is about to.
pub(crate) struct Supervisor {
    job: Job,
    worker: PathBuf,
    runtime: Handle,
    stores: Stores,
    book: Arc<Book>,
    control: Arc<Control>,
    events: Receiver<Event>,
    /// Checkpoints asked for and not yet taken.
    wanted: Vec<oneshot::Sender<Committed>>,
    tries: Tries,
    /// The step of the newest checkpoint known.
    newest: Option<u64>,
}

impl Control {
    /// A control, and where its events arrive.
    pub(crate) fn new() -> (Arc<Self>, Receiver<Event>) {
        let (events, receiver) = sync_channel(EVENTS);
        let (stopping, cancelled, ingest) = (Arc::default(), AtomicBool::new(false), Mutex::default());
        let control = Self { events, stopping, cancelled, ingest };
        (Arc::new(control), receiver)
    }

    /// Asks the job to take a checkpoint and stop. A cancelled job stays cancelled.
    pub(crate) fn stop(&self, why: Stop) {
        if why == Stop::Cancel {
            self.cancelled.store(true, Ordering::Release);
        }
        self.stopping.store(true, Ordering::Release);
        // A full channel wakes the thread as well, and it looks at the flag each time.
        let _ = self.events.try_send(Event::Stop);
    }

    /// Asks for a checkpoint. The receiver gets nothing when the job ends before there is one.
    ///
    /// # Errors
    /// When the job has ended, or too much is asked of it at once.
    pub(crate) fn checkpoint(&self) -> Result<oneshot::Receiver<Committed>> {
        let (reply, committed) = oneshot::channel();
        self.ask(Event::Checkpoint(reply))?;
        Ok(committed)
    }

    /// Asks for a profile of the next `steps` steps.
    ///
    /// # Errors
    /// As [`Control::checkpoint`].
    pub(crate) fn profile(&self, steps: u64) -> Result<PendingProfile> {
        let (request, pending) = ProfileRequest::new(steps);
        self.ask(Event::Profile(request))?;
        Ok(pending)
    }

    fn ask(&self, event: Event) -> Result<()> {
        match self.events.try_send(event) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => bail!("the job is busy; try again"),
            Err(TrySendError::Disconnected(_)) => bail!("the job has ended"),
        }
    }

    /// How the job's ingest goes; `None` while it is not being fed.
    pub(crate) fn explain(&self) -> Option<Explanation> {
        self.ingest().as_ref().map(IngestControl::explain)
    }

    fn ingest(&self) -> MutexGuard<'_, Option<IngestControl>> {
        self.ingest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the job is to stop, if it is.
    fn stop_wanted(&self) -> Option<Stop> {
        if !self.stopping.load(Ordering::Acquire) {
            return None;
        }
        Some(if self.cancelled.load(Ordering::Acquire) { Stop::Cancel } else { Stop::Drain })
    }
}

/// Calls off a job's reads once the job is told to stop, however they hang; while it lives.
struct CalledOff(AbortHandle);

/// How soon that is noticed.
const NOTICED: Duration = Duration::from_millis(100);

impl CalledOff {
    fn with(stores: &Stores, stopping: &Arc<AtomicBool>, runtime: &Handle) -> Self {
        let (stores, stopping) = (stores.clone(), Arc::clone(stopping));
        let watching = async move {
            while !stopping.load(Ordering::Relaxed) {
                tokio::time::sleep(NOTICED).await;
            }
            stores.cancel();
        };
        Self(runtime.spawn(watching).abort_handle())
    }
}

impl Drop for CalledOff {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Supervisor {
    /// A supervisor for `job`, recorded in `book`.
    pub(crate) fn new(
        job: Job,
        worker: PathBuf,
        runtime: Handle,
        stores: &Stores,
        book: Arc<Book>,
        (control, events): (Arc<Control>, Receiver<Event>),
    ) -> Self {
        let stores = stores.for_job(&job.storage);
        Self {
            job,
            worker,
            runtime,
            stores,
            book,
            control,
            events,
            wanted: Vec::new(),
            tries: Tries::default(),
            newest: None,
        }
    }

    /// Runs the job to its end, or until it is stopped; the record says how it went.
    pub(crate) fn run(mut self) {
        let (state, reason) = match self.live() {
            // Where it was resumed on the way, the record goes on to say why.
            Ok(stopped_early) => {
                (JobState::Succeeded, stopped_early.unwrap_or_else(|| self.book.record().reason))
            }
            Err(End::Stopped(Stop::Cancel)) => (JobState::Cancelled, "cancelled by a person".to_owned()),
            Err(End::Stopped(Stop::Drain)) => {
                (JobState::Queued, "the daemon stopped; goes on when it starts again".to_owned())
            }
            Err(End::Failed(reason)) => {
                self.clear_away();
                (JobState::Failed, reason)
            }
        };
        self.book.enter(state, &reason);
    }

    /// Says why the job ended before its data did, where that is so.
    fn live(&mut self) -> Result<Option<String>, End> {
        self.check_stop()?;
        self.book.enter(JobState::Preparing, "");
        let mut prepared = self.prepare()?;
        self.book.enter(JobState::Running, "");
        loop {
            match self.attempt(&prepared) {
                Outcome::Finished(stopped_early) => return Ok(stopped_early),
                Outcome::Stopped => {
                    return Err(End::Stopped(self.control.stop_wanted().unwrap_or(Stop::Drain)));
                }
                Outcome::Failed(reason) => return Err(End::Failed(reason)),
                Outcome::Died(Death { reason, of_memory: false }) => self.back_off(reason)?,
                Outcome::Died(Death { reason, of_memory: true }) => match &prepared.batch {
                    None => self.back_off(reason)?,
                    Some(choice) => {
                        if let Some(with_less) = self.with_less(choice.decided(), &prepared, reason)? {
                            prepared = with_less;
                        }
                    }
                },
            }
        }
    }

    fn prepare(&mut self) -> Result<Prepared, End> {
        let stopping = Arc::clone(&self.control.stopping);
        let prepared = {
            let _watch = CalledOff::with(&self.stores, &stopping, &self.runtime);
            let host = || HostSurvey::by_worker(&self.worker);
            prepare::prepare(&self.job, &self.stores, &self.runtime, &host, &self.book, &stopping)
        };
        self.check_stop()?;
        prepared.map_err(|error| End::Failed(format!("{error:#}")))
    }

    /// A worker died for lack of memory, of a job that found the size of its batches, which is `decided`. Before there
    /// is a checkpoint the job begins again with half of it; from then on batches stay what they are, and another try
    /// may do better.
    fn with_less(
        &mut self,
        decided: Decided,
        prepared: &Prepared,
        reason: String,
    ) -> Result<Option<Prepared>, End> {
        let failed = |error: anyhow::Error| End::Failed(format!("{error:#}"));
        let steps = CheckpointStore::local(&prepared.directory).and_then(|store| store.steps());
        if !steps.map_err(|error| failed(error.into()))?.is_empty() {
            let rows = decided.rows;
            self.back_off(format!(
                "{reason}; this run has a checkpoint, so its batches stay at {rows} rows: let it have more memory and \
                 `--resume`, or begin another run with a lower `data.auto_batch.{}` or `data.batch_size = {}`",
                if decided.gpu_limit_bytes.is_some() { "gpu_memory" } else { "memory" },
                rows / 2
            ))?;
            return Ok(None);
        }
        let less = auto_batch::halve(&prepared.directory, decided);
        let less = less.with_context(|| reason.clone()).map_err(failed)?;
        let told = format!(
            "{reason}: too little memory for batches of {} rows; begins again with batches of {} rows; {}",
            decided.rows,
            less.rows,
            auto_batch::told_change(&prepared.job, &self.job.with_batch_size(less.rows)),
        );
        self.book.log(LogLevel::Warn, &told);
        self.book.change(|record| record.reason = told);
        // Another size is another try, and there are only so many sizes.
        self.tries.progressed();
        self.prepare().map(Some)
    }

    /// Leaves nothing of a job that came to nothing.
    fn clear_away(&self) {
        let record = self.book.record();
        if let Err(error) = runs::discard(&record.directory) {
            tracing::warn!(job = record.id, "what is left of the job is not removed: {error:#}");
        }
    }

    fn attempt(&mut self, prepared: &Prepared) -> Outcome {
        match Attempt::start(self, prepared) {
            Ok(attempt) => attempt.follow(self),
            Err(outcome) => outcome,
        }
    }

    /// Waits before the next try, or ends the job when there has been enough of it.
    fn back_off(&mut self, reason: String) -> Result<(), End> {
        let Some(pause) = self.tries.died() else {
            let deaths = self.tries.deaths();
            return Err(End::Failed(format!(
                "given up after {deaths} tries without a new checkpoint; the last: {reason}"
            )));
        };
        self.book.log(LogLevel::Warn, &format!("{reason}; resuming in {pause:?}"));
        self.book.change(|record| record.reason = reason);
        let until = Instant::now() + pause;
        loop {
            self.check_stop()?;
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Checkpoint(reply)) => self.wanted.push(reply),
                Ok(Event::Profile(request)) => {
                    request.refuse(anyhow!("its worker has died, and the next one is not there yet"));
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn check_stop(&self) -> Result<(), End> {
        self.control.stop_wanted().map_or(Ok(()), |why| Err(End::Stopped(why)))
    }
}

/// Why a job's thread ends before the job's data does.
enum End {
    Stopped(Stop),
    Failed(String),
}
