//! The life of a job, on its own thread.
//!
//! ```text
//! queued -> preparing -> running -> succeeded
//!    ^        /  |         |   ^ \-> failed       a permanent error, or too many worker deaths without
//!    \-------/   |         \---/                  progress ([`retry`])
//!                |    a worker died: retry from the newest checkpoint; or, if it ran out of memory before the
//!                |    first checkpoint of an automatic batch size, restart with half the size
//!                \--> failed | cancelled | paused
//! ```
//!
//! *Preparing* is the work shared by all attempts ([`prepare`]); what it learns is in the run directory. A prepared job
//! ([`Ready`]) whose demand does not fit yet returns to the queue, and is prepared again, quickly, when it starts. An
//! *attempt* is one or several workers ([`generation`]), each with a ring, and one ingest that fills the rings, from the
//! newest valid checkpoint ([`attempt`]). If the job allows it, the next attempt leaves out a worker that fails again and again
//! ([`membership`]). A job that may have workers on several hosts has a seat among these instead of attempts ([`hosts`]). A run in a bucket is trained by the daemon that has its [`lease`]. The thread spawns the workers itself and
//! outlives them, because the kernel kills a worker when the thread that spawned it ends.
//!
//! Other threads reach it through its [`Control`]: a bounded channel of events, shared with the workers'
//! messages, and a stop flag that long work polls.

mod attempt;
mod checkpoints;
mod descriptors;
mod exchanges;
mod generation;
mod hosts;
mod images;
mod lease;
mod membership;
mod prepare;
mod profile;
mod recorder;
mod reports;
mod retry;
mod role;
mod vitals;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use millstream_batch::Size;
use millstream_control::proto::JobState;
use millstream_io::storage::{Directory, Stores};
use millstream_job::Job;
use millstream_pipeline::ingest::{Explanation, IngestControl};
use millstream_worker::protocol::FromWorker;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tracing::Level;

use crate::access::Requester;
use crate::auto_batch::{self, Decided};
use crate::memory::Room;
use crate::peers::Peers;
use crate::runs::{Lease, RunDirectory, Storage};
use crate::scheduler::Demand;
use crate::traces::JobEvent;
use crate::worker::WorkerProgram;
use crate::{runs, survey};

use attempt::{Attempt, Death, Outcome};
pub(crate) use exchanges::{Exchanges, FlightRecords};
pub(crate) use hosts::{Changes, NO_PEERS, Seats, Site, Written};
use images::Images;
use membership::{Failure, Membership};
pub(crate) use membership::{FewerWorkers, LeftOut};
pub(crate) use prepare::Prepared;
pub(crate) use profile::{NoSuchRank, PendingProfile, Profile, ProfileRequest};
pub(crate) use recorder::JobRecorder;
use retry::RetryBudget;
pub(crate) use vitals::Vitals;

/// Capacity of a job's event queue.
const EVENT_QUEUE: usize = 64;

/// A committed checkpoint, its directory and its step; or why it could not be written.
pub(crate) type Committed = Result<(Directory, u64), String>;

/// An event for a job's thread.
pub(crate) enum Event {
    /// [`Control::stop`] was called.
    Stop,
    /// A client requests a checkpoint.
    Checkpoint(oneshot::Sender<Committed>),
    /// A client requests a profile.
    Profile(ProfileRequest),
    /// A message from a worker.
    Worker(WorkerId, FromWorker),
    /// A worker has closed its socket; its last event.
    WorkerGone(WorkerId),
    /// Another daemon has taken over the run, for this reason.
    LeaseLost(String),
    /// There is an event of the job's seat among several hosts.
    Seat,
}

/// A worker of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerId {
    /// The number of its attempt.
    generation: u64,
    /// Its number among the workers of this host in that attempt, from 0.
    number: u32,
}

/// Why a job is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// The daemon is shutting down; the job resumes when it restarts.
    Drain,
    /// A user paused it.
    Pause,
    /// Its search stopped it, because other trials are better.
    Search,
    /// A user cancelled it.
    Cancel,
}

impl StopReason {
    /// All, the weakest first: a stop for one reason is overruled by a later reason only.
    const ALL: [Self; 4] = [Self::Drain, Self::Pause, Self::Search, Self::Cancel];

    /// Its name in a trace.
    fn name(self) -> &'static str {
        match self {
            Self::Drain => "daemon stops",
            Self::Pause => "paused",
            Self::Search => "stopped by its search",
            Self::Cancel => "cancelled",
        }
    }
}

/// The handle through which other threads reach a job's thread.
pub(crate) struct Control {
    events: SyncSender<Event>,
    stopping: Arc<AtomicBool>,
    /// The reason to stop: 0 for none, or one more than its place in [`StopReason::ALL`].
    reason: AtomicU8,
    /// Wakes the thread of a search, which has no other events.
    stop_notice: Notify,
    /// The ingest that feeds the job's worker, while it has one.
    ingest: Mutex<Option<IngestControl>>,
    vitals: Vitals,
}

/// Runs one job.
pub(crate) struct Supervisor {
    job: Job,
    /// Who submitted it.
    requester: Requester,
    worker: WorkerProgram,
    runtime: Handle,
    stores: Stores,
    /// What reads and writes the run directory. Unlike `stores`, it is not cancelled by a stop, which saves a checkpoint.
    run_storage: Storage,
    /// The lease of a run in a bucket, while the job is prepared or trains.
    lease: Option<Arc<Lease>>,
    recorder: Arc<JobRecorder>,
    control: Arc<Control>,
    events: Receiver<Event>,
    /// Unanswered checkpoint requests.
    checkpoint_requests: Vec<oneshot::Sender<Committed>>,
    retries: RetryBudget,
    membership: Membership,
    /// The number of attempts that were started.
    generation: u64,
    /// The step of the newest known checkpoint or image.
    newest_step: Option<u64>,
    /// The images of the model, once the job has any.
    images: Option<Images>,
    /// The memory that it has to fit into; `None` if that is unknown.
    room: Option<Room>,
    /// Why training stopped early, as rank 0 has reported it from another host.
    stopped_early: Option<String>,
    /// Whether a user has resumed the job, which then goes on even if it has failed on other hosts, too.
    is_resumed: bool,
    /// The daemons of other hosts, once the port for them is open.
    peers: Arc<OnceLock<Arc<Peers>>>,
}

/// A job that is prepared.
pub(crate) struct Ready {
    supervisor: Supervisor,
    prepared: Box<Prepared>,
}

impl Ready {
    /// What the job demands of the host.
    pub(crate) fn demand(&self) -> Demand {
        prepare::demand(&self.prepared.job, Some(&self.prepared))
    }

    /// Whether it fits into `room`.
    pub(crate) fn fits(&self, room: Room) -> bool {
        self.prepared.memory.check(&self.prepared.model, room).is_ok()
    }

    /// Trains until the job ends or is stopped; the record holds the outcome.
    pub(crate) fn train(self) {
        let Self { mut supervisor, prepared } = self;
        let ended = match Room::now().map_or(Ok(()), |room| prepared.check_memory(room)) {
            Ok(()) if prepared.job.workers.max.is_some() => supervisor.train_among_hosts(*prepared),
            Ok(()) => supervisor.run_attempts(*prepared),
            Err(error) => Err(Abort::Failed(error.to_string())),
        };
        supervisor.end(ended);
    }

    /// Forgets the preparation, of which the results stay in the run directory.
    pub(crate) fn into_supervisor(mut self) -> Supervisor {
        // Nobody may wait for storage here.
        self.supervisor.release_lease_later();
        self.supervisor
    }
}

impl Control {
    /// Creates a control and the receiver of its events.
    pub(crate) fn new() -> (Arc<Self>, Receiver<Event>) {
        let (events, receiver) = sync_channel(EVENT_QUEUE);
        let (stopping, reason, ingest) = (Arc::default(), AtomicU8::new(0), Mutex::default());
        let (stop_notice, vitals) = (Notify::new(), Vitals::default());
        let control = Self { events, stopping, reason, stop_notice, ingest, vitals };
        (Arc::new(control), receiver)
    }

    /// Asks the job to take a checkpoint and stop. A cancelled job stays cancelled.
    pub(crate) fn stop(&self, why: StopReason) {
        let place = StopReason::ALL.iter().position(|&reason| reason == why).unwrap_or_default();
        self.reason.fetch_max(place as u8 + 1, Ordering::AcqRel);
        self.stopping.store(true, Ordering::Release);
        // A full queue wakes the thread as well, and it checks the flag on every event.
        let _ = self.events.try_send(Event::Stop);
        self.stop_notice.notify_one();
    }

    /// Waits until a stop is requested, also if it was before. For one caller.
    pub(crate) async fn stopped(&self) {
        self.stop_notice.notified().await;
    }

    /// Requests a checkpoint. The receiver is closed if the job ends first.
    ///
    /// # Errors
    /// When the job has ended, or its event queue is full.
    pub(crate) fn checkpoint(&self) -> Result<oneshot::Receiver<Committed>> {
        let (reply, committed) = oneshot::channel();
        self.send(Event::Checkpoint(reply))?;
        Ok(committed)
    }

    /// Requests a profile of the next `steps` steps of worker `rank`.
    ///
    /// # Errors
    /// As for [`Control::checkpoint`].
    pub(crate) fn profile(&self, steps: u64, rank: u32) -> Result<PendingProfile> {
        let (request, pending) = ProfileRequest::new(steps, rank);
        self.send(Event::Profile(request))?;
        Ok(pending)
    }

    fn send(&self, event: Event) -> Result<()> {
        match self.events.try_send(event) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => bail!("the job has too many pending requests; try again"),
            Err(TrySendError::Disconnected(_)) => bail!("the job has ended"),
        }
    }

    /// Explains the job's ingest; `None` while there is none.
    pub(crate) fn explain(&self) -> Option<Explanation> {
        self.ingest().as_ref().map(IngestControl::explain)
    }

    /// The job's workers and newest checkpoint.
    pub(crate) fn vitals(&self) -> &Vitals {
        &self.vitals
    }

    fn ingest(&self) -> MutexGuard<'_, Option<IngestControl>> {
        self.ingest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reason to stop, if a stop was requested.
    pub(crate) fn stop_requested(&self) -> Option<StopReason> {
        let place = usize::from(self.reason.load(Ordering::Acquire)).checked_sub(1)?;
        StopReason::ALL.get(place).copied()
    }
}

/// While it lives, cancels the job's reads once a stop is requested, even if they hang.
struct CancelOnStop(AbortHandle);

/// Interval between checks of the stop flag.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl CancelOnStop {
    fn new(stores: &Stores, stopping: &Arc<AtomicBool>, runtime: &Handle) -> Self {
        let (stores, stopping) = (stores.clone(), Arc::clone(stopping));
        let watching = async move {
            while !stopping.load(Ordering::Relaxed) {
                tokio::time::sleep(STOP_POLL_INTERVAL).await;
            }
            stores.cancel();
        };
        Self(runtime.spawn(watching).abort_handle())
    }
}

impl Drop for CancelOnStop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Supervisor {
    /// A supervisor for a job of a user, which `recorder` records.
    pub(crate) fn new(
        (job, requester): (Job, Requester),
        worker: WorkerProgram,
        storage: &Storage,
        recorder: Arc<JobRecorder>,
        (control, events): (Arc<Control>, Receiver<Event>),
        peers: Arc<OnceLock<Arc<Peers>>>,
    ) -> Self {
        let run_storage = storage.for_job(&job.storage);
        let (stores, runtime) = (storage.stores.for_job(&job.storage), storage.runtime.clone());
        let membership = Membership::of(&job);
        Self {
            job,
            requester,
            worker,
            runtime,
            stores,
            run_storage,
            lease: None,
            recorder,
            control,
            events,
            checkpoint_requests: Vec::new(),
            retries: RetryBudget::default(),
            membership,
            generation: 0,
            newest_step: None,
            images: None,
            room: None,
            stopped_early: None,
            is_resumed: false,
            peers,
        }
    }

    /// The same for a job that a user has resumed.
    pub(crate) fn resumed(self, is_resumed: bool) -> Self {
        Self { is_resumed, ..self }
    }

    /// What the job demands of the host.
    pub(crate) fn demand(&self) -> Demand {
        prepare::demand(&self.job, None)
    }

    /// Prepares the job, which must fit into `room`. `None` if it ends or is stopped then; the record holds the outcome.
    pub(crate) fn prepare_in(mut self, room: Option<Room>) -> Option<Ready> {
        self.room = room;
        let prepared = self.check_stop().and_then(|()| {
            self.recorder.enter(JobState::Preparing, "");
            self.take_lease()?;
            self.prepare()
        });
        match prepared {
            Ok(prepared) => Some(Ready { prepared: Box::new(prepared), supervisor: self }),
            Err(abort) => {
                self.end(Err(abort));
                None
            }
        }
    }

    /// Records how the job ended, or why it stopped.
    fn end(&mut self, ended: Result<Option<String>, Abort>) {
        // Before the new state, which observers read first.
        self.control.vitals().attempts_ended();
        let (state, reason) = match ended {
            // After a retry, keep the recorded reason.
            Ok(stopped_early) => {
                (JobState::Succeeded, stopped_early.unwrap_or_else(|| self.recorder.record().reason))
            }
            Err(Abort::Stopped(StopReason::Cancel)) => {
                (JobState::Cancelled, "cancelled by a user".to_owned())
            }
            Err(Abort::Stopped(StopReason::Search)) => {
                (JobState::Cancelled, "stopped early by its search; others are better".to_owned())
            }
            Err(Abort::Stopped(StopReason::Pause)) => (JobState::Paused, "paused by a user".to_owned()),
            Err(Abort::Stopped(StopReason::Drain)) => {
                (JobState::Queued, "the daemon stopped; the job resumes when it restarts".to_owned())
            }
            Err(Abort::Failed(reason)) => {
                self.discard_run();
                (JobState::Failed, reason)
            }
        };
        // Before the new state, after which another daemon may resume the job.
        self.release_lease();
        self.recorder.enter(state, &reason);
    }

    /// The run directory.
    fn directory(&self) -> RunDirectory {
        self.directory_in(&self.run_storage.stores)
    }

    /// The run directory, which `stores` reads and writes.
    fn directory_in(&self, stores: &Stores) -> RunDirectory {
        let storage = Storage { stores: stores.clone(), ..self.run_storage.clone() };
        let directory = RunDirectory::new(self.recorder.record().directory, &storage);
        directory.under_lease(self.lease.clone())
    }

    /// Runs attempts until the job finishes; returns the reason for early stopping, if any.
    fn run_attempts(&mut self, mut prepared: Prepared) -> Result<Option<String>, Abort> {
        self.check_stop()?;
        // The next preparation follows a worker that ran out of memory.
        self.room = Room::now();
        self.recorder.enter(JobState::Running, "");
        loop {
            match self.attempt(&prepared) {
                Outcome::Finished(stopped_early) => return Ok(stopped_early),
                Outcome::Stopped => {
                    return Err(Abort::Stopped(self.control.stop_requested().unwrap_or(StopReason::Drain)));
                }
                Outcome::Failed(reason) => return Err(Abort::Failed(reason)),
                Outcome::OutOfDescriptors(reason) => self.wait_for_descriptors(reason)?,
                Outcome::NoDevice { rank, reason } => {
                    if !self.leave_out(&mut prepared, Failure::NoDevice { rank }, &reason)? {
                        return Err(Abort::Failed(reason));
                    }
                }
                Outcome::Died(Death { reason, out_of_memory: false, rank }) => {
                    let failure = rank.map_or(Failure::Other, |rank| Failure::OfWorker { rank });
                    if !self.leave_out(&mut prepared, failure, &reason)? {
                        self.back_off(reason)?;
                    }
                }
                Outcome::Died(Death { reason, out_of_memory: true, .. }) => {
                    self.membership.on_failure(Failure::Other, &reason);
                    match &prepared.batch {
                        None => self.after_out_of_memory(&prepared, reason)?,
                        Some(choice) => {
                            if let Some(with_smaller_batches) =
                                self.with_smaller_batches(choice.decided(), &prepared, reason)?
                            {
                                prepared = with_smaller_batches;
                            }
                        }
                    }
                }
            }
        }
    }

    /// An attempt has failed, because of `reason`. Returns whether its cause is left out; then plans the next attempt with the
    /// other workers, and waits before it.
    fn leave_out(&mut self, prepared: &mut Prepared, failure: Failure, reason: &str) -> Result<bool, Abort> {
        if !self.membership.on_failure(failure, reason) {
            return Ok(false);
        }
        self.set_members(prepared).map_err(|error| Abort::Failed(format!("{reason}: {error:#}")))?;
        // The number of workers bounds how often that happens.
        self.retries.reset();
        let continues = self.membership.fewer().map(|fewer| fewer.to_string()).unwrap_or_default();
        self.wait_to_resume(format!("{reason}; {continues}"), retry::FIRST_BACK_OFF)?;
        Ok(true)
    }

    /// Plans the attempts at `prepared` with the members.
    fn set_members(&self, prepared: &mut Prepared) -> Result<()> {
        let Some(fewer) = self.membership.fewer() else { return Ok(()) };
        prepared.set_workers(fewer.members, self.membership.gpus())?;
        self.control.vitals().set_fewer_workers(fewer);
        Ok(())
    }

    /// The job has a new checkpoint or image.
    fn on_progress(&mut self) {
        self.retries.reset();
        self.membership.on_progress();
    }

    fn prepare(&mut self) -> Result<Prepared, Abort> {
        let stopping = Arc::clone(&self.control.stopping);
        loop {
            let prepared = {
                let _watch = CancelOnStop::new(&self.stores, &stopping, &self.runtime);
                let host = || survey::survey_host(&self.worker);
                let job = (&self.job, &self.requester);
                let stores = (&self.stores, &self.runtime);
                // Cancelled by a stop, unlike the directory that workers save checkpoints to.
                let directory = self.directory_in(&self.stores);
                prepare::prepare(job, stores, directory, self.room, &host, &self.recorder, &stopping)
            };
            self.check_stop()?;
            let error = match prepared {
                Ok(prepared) => return Ok(prepared),
                Err(error) => format!("{error:#}"),
            };
            if !descriptors::is_exhausted(&error) {
                return Err(Abort::Failed(error));
            }
            self.wait_for_descriptors(error)?;
        }
    }

    /// A worker of a job with an automatically chosen batch size ran out of memory; `decided` is the size.
    /// Before the first checkpoint the job restarts with half the size. Afterwards the size is fixed, and a
    /// retry may succeed.
    fn with_smaller_batches(
        &mut self,
        decided: Decided,
        prepared: &Prepared,
        reason: String,
    ) -> Result<Option<Prepared>, Abort> {
        let failed = |error: anyhow::Error| Abort::Failed(format!("{error:#}"));
        let steps = prepared.directory.checkpoints().and_then(|store| Ok(store.steps()?));
        if !steps.map_err(failed)?.is_empty() {
            let rows = decided.rows;
            self.back_off(format!(
                "{reason}; this run has a checkpoint, so its batches stay at {rows} rows: provide more memory and \
                 `--resume`, or start a new run with a lower `data.auto_batch.{}` or `data.batch_size = {}`",
                if decided.gpu_limit_bytes.is_some() { "gpu_memory" } else { "memory" },
                rows / 2
            ))?;
            return Ok(None);
        }
        let least = self.job.auto_batch.map_or(1, |auto| auto.least);
        let less = auto_batch::halve(&prepared.directory, decided, least);
        let less = less.with_context(|| reason.clone()).map_err(failed)?;
        let message = format!(
            "{reason}: too little memory for batches of {} rows; restarts with batches of {} rows; {}",
            decided.rows,
            less.rows,
            auto_batch::format_rate_change(&prepared.job, &self.job.with_batch_size(less.rows)),
        );
        self.recorder.log(Level::WARN, &message);
        self.recorder.update(|record| record.reason = message);
        // Images are of the old size.
        (self.images, self.newest_step) = (None, None);
        self.control.vitals().set_image(None);
        // A new size starts a new budget: the number of sizes is bounded.
        self.retries.reset();
        let mut prepared = self.prepare()?;
        self.set_members(&mut prepared).map_err(failed)?;
        Ok(Some(prepared))
    }

    /// A worker of a job with a fixed batch size ran out of memory. If the host has enough now, other programs may have used
    /// it, and the job continues from its checkpoint. Without a checkpoint it would only repeat what failed.
    fn after_out_of_memory(&mut self, prepared: &Prepared, reason: String) -> Result<(), Abort> {
        let is_on_gpu = prepared.job.training.device.gpu().is_some();
        if let Some(room) = Room::now().filter(|_| !is_on_gpu) {
            // The next attempt uses the images that it has.
            let room = room.with(self.images.as_ref().map_or(0, Images::bytes));
            let too_little = match prepared.memory.check(&prepared.model, room) {
                Err(error) => Some(error.to_string()),
                Ok(()) if self.newest_step.is_none() => Some(format!(
                    "the job was planned with {}, and this host has {room}; lower `data.batch_size` or \
                     `data.memory_budget`, or stop other programs, then use `--resume`",
                    Size(prepared.memory.total_bytes())
                )),
                Ok(()) => None,
            };
            if let Some(too_little) = too_little {
                return Err(Abort::Failed(format!("{reason}: out of memory: {too_little}")));
            }
        }
        self.back_off(reason)
    }

    /// Deletes the run directory of a failed job unless it has checkpoints.
    fn discard_run(&self) {
        let directory = self.directory();
        // Without the lease, it is another daemon's. Once it is led, other hosts train in it.
        let led = self.lease.as_ref().and_then(|lease| self.runtime.block_on(lease.led()));
        if directory.as_local().is_none() && self.lease.is_none() || led.is_some() {
            return;
        }
        if let Err(error) = runs::discard(&directory) {
            let id = self.recorder.id();
            tracing::warn!(job = id, "cannot delete the failed job's run directory: {error:#}");
        }
    }

    fn attempt(&mut self, prepared: &Prepared) -> Outcome {
        let outcome = match Attempt::start(self, prepared) {
            Ok(attempt) => attempt.run(self),
            Err(outcome) => outcome,
        };
        self.control.vitals.set_workers(Vec::new(), FlightRecords::default());
        if self.control.vitals().image_step().is_none() {
            // The next attempt would not continue from them.
            self.images = None;
        }
        self.recorder.trace().record(JobEvent::WorkerEnded { error: outcome.error() });
        outcome
    }

    /// Waits before the next attempt, or fails the job if its retry budget is spent.
    fn back_off(&mut self, reason: String) -> Result<(), Abort> {
        let Some(pause) = self.retries.on_death() else {
            // A stop that could not save the newest image.
            self.check_stop()?;
            let deaths = self.retries.deaths();
            return Err(Abort::Failed(format!(
                "gave up after {deaths} attempts without a new checkpoint or image; last failure: {reason}"
            )));
        };
        self.wait_to_resume(reason, pause)
    }

    /// Waits for `pause` after an attempt that failed because of `reason`.
    fn wait_to_resume(&mut self, reason: String, pause: Duration) -> Result<(), Abort> {
        self.recorder.log(Level::WARN, &format!("{reason}; resuming in {pause:?}"));
        self.recorder.update(|record| record.reason = reason);
        self.pause(pause)
    }

    /// Waits before the next attempt, which needs descriptors that others use now.
    fn wait_for_descriptors(&mut self, reason: String) -> Result<(), Abort> {
        let reason = format!("waiting for file descriptors, of which there are too few: {reason}");
        // Logged once, however long it takes.
        if self.recorder.record().reason != reason {
            self.recorder.log(Level::WARN, &reason);
            self.recorder.update(|record| record.reason = reason);
        }
        self.check_stop()?;
        self.pause(descriptors::PAUSE)
    }

    fn pause(&mut self, pause: Duration) -> Result<(), Abort> {
        let until = Instant::now() + pause;
        loop {
            // The next workers save the newest image.
            if !self.saves_image() {
                self.check_stop()?;
            }
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Checkpoint(reply)) => self.checkpoint_requests.push(reply),
                Ok(Event::Profile(request)) => {
                    request.refuse(anyhow!("its worker has died and is being restarted"));
                }
                Ok(Event::LeaseLost(reason)) if self.has_lost_lease() => return Err(Abort::Failed(reason)),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn check_stop(&self) -> Result<(), Abort> {
        self.control.stop_requested().map_or(Ok(()), |why| Err(Abort::Stopped(why)))
    }
}

/// Why a job ends before its data.
enum Abort {
    Stopped(StopReason),
    Failed(String),
}
