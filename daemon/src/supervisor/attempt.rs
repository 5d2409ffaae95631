//! One attempt at a job: its workers, their rings and the ingest that fills them, from the newest valid checkpoint.
//!
//! The workers first restore the checkpoint and report the position; then ingest starts there and each worker
//! gets its ring. When ingest fails, it drops its end of the rings, and the workers report lost input and
//! exit. When a worker dies, ingest finds the other end of its ring closed and stops. So an attempt ends with
//! the last of the workers' messages, or with the first death among them; then the outcomes of both are combined.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use millstream_batch::Count;

use super::descriptors;
use super::generation::{CAUSE_TIMEOUT, Generation, RanksHere, ReadyWorker};
use super::lease::Connections;
use super::profile::{NoSuchRank, Profiling};
use super::reports::{log_input, set_rates, took};
use super::role::train_role;
use super::{Event, Prepared, ProfileRequest, StopReason, Supervisor};
use crate::feed::{self, Feed};
use crate::memory::available;
use crate::runs::LeaseError;
use crate::state::HistoryPoint;
use crate::traces::JobEvent;
use millstream_worker::protocol::{FromWorker, Role, Start, ToWorker};
use tracing::Level;

/// Time limit for the current step and a checkpoint after a stop request.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for a worker to exit after its last message.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// After a profile, the next one starts after this many times the profile's duration, within the two limits: recording, and
/// sending what was recorded, slows a job down, and clients may request profiles all the time.
const PROFILE_PAUSE_FACTOR: u32 = 9;
const MIN_PROFILE_PAUSE: Duration = Duration::from_secs(1);
const MAX_PROFILE_PAUSE: Duration = Duration::from_secs(30);

/// How an attempt ended.
pub(super) enum Outcome {
    /// The job is complete; with a reason if it stopped early.
    Finished(Option<String>),
    /// Stopped on request.
    Stopped,
    /// A permanent error, which a retry would meet again.
    Failed(String),
    /// Worker `rank` could not open its device: a permanent error, unless the others continue without it.
    NoDevice { rank: u32, reason: String },
    /// The worker died; a retry may succeed.
    Died(Death),
    /// The process or the system is out of file descriptors; a retry succeeds once others are closed.
    OutOfDescriptors(String),
}

/// How a worker died.
pub(super) struct Death {
    /// The cause, if known.
    pub(super) reason: String,
    /// Whether the worker ran out of memory.
    pub(super) out_of_memory: bool,
    /// The rank of the worker that failed; `None` if that is unknown, or all would have failed.
    pub(super) rank: Option<u32>,
}

impl Outcome {
    /// The outcome of an error that a retry would meet again, unless descriptors are exhausted.
    fn failed(reason: String) -> Self {
        if descriptors::is_exhausted(&reason) { Self::OutOfDescriptors(reason) } else { Self::Failed(reason) }
    }

    /// Whether it stands, however ingest and requests to stop ended.
    fn is_final(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Stopped | Self::Failed(_) | Self::NoDevice { .. })
    }

    /// The kind of the error, as OpenTelemetry's `error.type`, and the error; `None` if there is none.
    pub(super) fn error(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Finished(_) | Self::Stopped => None,
            Self::Failed(reason) | Self::NoDevice { reason, .. } => Some(("failed", reason)),
            Self::Died(Death { reason, out_of_memory: true, .. }) => Some(("out_of_memory", reason)),
            Self::Died(Death { reason, .. }) => Some(("worker_died", reason)),
            Self::OutOfDescriptors(reason) => Some(("out_of_descriptors", reason)),
        }
    }
}

impl Death {
    fn of(reason: String) -> Self {
        Self { reason, out_of_memory: false, rank: None }
    }
}

/// A running attempt.
pub(super) struct Attempt<'a> {
    prepared: &'a Prepared,
    workers: Generation,
    /// Through which the workers write to buckets.
    connections: Connections,
    /// Fills the workers' rings, once they have any.
    feed: Option<Feed>,
    /// Fills the rings of a separately fed evaluation, while there are any.
    eval_feed: Option<Feed>,
    /// The profile in progress, if any, and its start.
    profiling: Option<(Profiling, Instant)>,
    /// A requested profile that starts after the pause.
    waiting_profile: Option<ProfileRequest>,
    /// When the next profile may start.
    next_profile: Instant,
    /// The outcome that a worker's last message reports.
    verdict: Option<Outcome>,
    /// The rank of the worker that ended the attempt: it died, or reported the verdict.
    culprit: Option<u32>,
    /// The first report of a lost worker, and until when it waits for a worker that died.
    lost: Option<(String, Instant)>,
    /// When to kill the workers after a stop request.
    deadline: Option<Instant>,
    /// Sums over the attempt, for the record's rates at its end.
    totals: HistoryPoint,
    /// The OOM killer's kill count when the attempt began, if known.
    oom_kills_before: Option<u64>,
}

impl<'a> Attempt<'a> {
    /// Starts the workers and sends their assignments.
    pub(super) fn start(supervisor: &mut Supervisor, prepared: &'a Prepared) -> Result<Self, Outcome> {
        let oom_kills_before = available::kills();
        supervisor.generation += 1;
        let places = supervisor.places(prepared).map_err(|error| match error {
            LeaseError::Lost(reason) => Outcome::Failed(reason),
            LeaseError::Storage(_) => Outcome::Died(Death::of(error.to_string())),
        })?;
        let places = places.ok_or(Outcome::Stopped)?;
        let ranks = RanksHere::all(prepared.ranks());
        let role = |rank| train_role(prepared, (rank, ranks.place(rank)), &places);
        let has_images = role(0).has_images();
        let spawned = supervisor
            .create_images(has_images)
            .and_then(|()| Generation::spawn(supervisor, prepared, (ranks, None)));
        let workers = spawned.map_err(|error| {
            let reason = format!("the worker cannot be started: {error}");
            if descriptors::is_exhausted(&reason) {
                return Outcome::OutOfDescriptors(reason);
            }
            Outcome::Died(Death::of(reason))
        })?;
        supervisor.control.vitals().set_workers(workers.pids(), workers.records().clone());
        supervisor.recorder.update(|record| record.attempts += 1);
        let attempt = supervisor.recorder.record().attempts;
        let pid = workers.pid(0);
        supervisor.recorder.trace().record(JobEvent::WorkerStarted { pid, attempt });
        let mut attempt = Self {
            prepared,
            workers,
            connections: Connections::default(),
            feed: None,
            eval_feed: None,
            profiling: None,
            waiting_profile: None,
            next_profile: Instant::now(),
            verdict: None,
            culprit: None,
            lost: None,
            deadline: None,
            totals: HistoryPoint::default(),
            oom_kills_before,
        };
        attempt.workers.send_each(|rank| {
            let role = Role::Train(Box::new(role(rank)));
            ToWorker::Start(Box::new(Start { role, schema: prepared.schema.clone() }))
        });
        if let Some(images) = &supervisor.images {
            attempt.workers.send_images(images);
        }
        let connections = &mut attempt.connections;
        attempt.workers.send_objects(|rank| supervisor.connect_objects(prepared, rank, connections));
        Ok(attempt)
    }

    /// Handles events until the attempt ends.
    pub(super) fn run(mut self, supervisor: &mut Supervisor) -> Outcome {
        loop {
            if self.deadline.is_none() && supervisor.control.stop_requested().is_some() {
                if self.feed.is_none() && !supervisor.saves_image() {
                    // Nothing has been trained since the newest checkpoint.
                    return Outcome::Stopped;
                }
                self.deadline = Some(Instant::now() + STOP_TIMEOUT);
                let why = supervisor.control.stop_requested().unwrap_or(StopReason::Drain).name();
                supervisor.recorder.trace().record(JobEvent::Stopping { why });
                if self.feed.is_some() {
                    self.workers.send_each(|_| ToWorker::Stop { checkpoint: true });
                }
            }
            match self.next_event(supervisor) {
                Some(Event::Worker(id, message)) if self.workers.has(id) => {
                    if let Err(error) = self.handle_message(id.number, message, supervisor) {
                        return Outcome::failed(format!("{error:#}"));
                    }
                }
                Some(Event::WorkerGone(id)) if self.workers.has(id) => {
                    if self.is_over_without(id.number) {
                        break;
                    }
                }
                // Of an earlier attempt, or seen at the next iteration.
                Some(Event::Worker(..) | Event::WorkerGone(_) | Event::Stop | Event::Seat) => {}
                Some(Event::Checkpoint(reply)) => {
                    supervisor.checkpoint_requests.push(reply);
                    if self.feed.is_some() {
                        self.workers.send(0, &ToWorker::Checkpoint);
                    }
                }
                Some(Event::Profile(request)) => self.profile(request),
                Some(Event::LeaseLost(_)) if !supervisor.has_lost_lease() => {}
                Some(Event::LeaseLost(reason)) => {
                    self.verdict = Some(Outcome::Failed(reason));
                    break;
                }
                None => {
                    if self.is_over_in_time(supervisor) {
                        break;
                    }
                }
            }
        }
        self.end(supervisor)
    }

    /// The next event; `None` once something is due without one.
    fn next_event(&self, supervisor: &Supervisor) -> Option<Event> {
        let profile_at = self.waiting_profile.as_ref().map(|_| self.next_profile);
        let lost_at = self.lost.as_ref().map(|(_, until)| *until);
        match self.deadline.into_iter().chain(profile_at).chain(lost_at).min() {
            None => supervisor.events.recv().ok(),
            Some(until) => {
                supervisor.events.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
            }
        }
    }

    /// Worker `rank` has closed its socket. Returns whether that ends the attempt.
    fn is_over_without(&mut self, rank: u32) -> bool {
        let has_died = self.workers.on_gone(rank);
        match &self.verdict {
            // The job has its last checkpoint; the others are about to exit.
            Some(Outcome::Finished(_) | Outcome::Stopped) => self.workers.is_over(),
            Some(_) => true,
            None if has_died => {
                self.culprit = Some(rank);
                true
            }
            None => self.workers.is_over(),
        }
    }

    /// Does what is due without an event. Returns whether that ends the attempt.
    fn is_over_in_time(&mut self, supervisor: &Supervisor) -> bool {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            let limit = STOP_TIMEOUT.as_secs();
            let message = format!("the worker did not stop within {limit} s and was killed");
            supervisor.recorder.log(Level::WARN, &message);
            if let Some(hanging) = self.workers.hanging(self.exchange_timeout()) {
                supervisor.recorder.log(Level::WARN, &hanging);
            }
            return true;
        }
        if self.lost.as_ref().is_some_and(|(_, until)| *until <= now) {
            return true;
        }
        if let Some(request) = self.waiting_profile.take().filter(|request| !request.is_abandoned()) {
            self.profile(request);
        }
        false
    }

    /// Starts feeding the workers, which are `ready`, from their position.
    fn feed(&mut self, ready: ReadyWorker, supervisor: &mut Supervisor) -> anyhow::Result<()> {
        let position = supervisor.resumes(self.prepared, ready, &self.workers);
        let (feed, rings) = Feed::start(&self.prepared.plan, position.as_deref())?;
        *supervisor.control.ingest() = Some(feed.control());
        self.feed = Some(feed);
        self.workers.send_rings(rings);
        if self.deadline.is_some() {
            self.workers.send_each(|_| ToWorker::Stop { checkpoint: true });
        }
        if !supervisor.checkpoint_requests.is_empty() {
            self.workers.send(0, &ToWorker::Checkpoint);
        }
        Ok(())
    }

    /// Feeds the workers all held-out rows through separate rings.
    fn feed_evaluation(&mut self) -> anyhow::Result<()> {
        let plan = self
            .prepared
            .eval_plan
            .as_ref()
            .context("the worker requested held-out rows, but the job has none")?;
        let (feed, rings) = Feed::start(plan, None)?;
        self.eval_feed = Some(feed);
        self.workers.send_each(|_| ToWorker::EvalRing);
        self.workers.send_rings(rings);
        Ok(())
    }

    /// Starts recording the next steps of a worker.
    fn profile(&mut self, request: ProfileRequest) {
        let is_waited_for = |request: &ProfileRequest| !request.is_abandoned();
        let (rank, ranks) = (request.rank, self.workers.ranks().count);
        if rank >= ranks {
            request.refuse(NoSuchRank { rank, ranks }.into());
        } else if self.feed.is_none() {
            request.refuse(anyhow!("its worker is still starting; try again in a moment"));
        } else if self.profiling.is_some() || self.waiting_profile.as_ref().is_some_and(is_waited_for) {
            request.refuse(anyhow!(
                "it is already being profiled, and only one profile can be recorded at a time"
            ));
        } else if Instant::now() < self.next_profile {
            self.waiting_profile = Some(request);
        } else {
            self.workers.send(rank, &ToWorker::Profile { steps: request.steps });
            self.profiling = Some((Profiling::new(request), Instant::now()));
        }
    }

    /// Handles a message of worker `rank`.
    ///
    /// # Errors
    /// When the workers cannot be fed.
    fn handle_message(
        &mut self,
        rank: u32,
        message: FromWorker,
        supervisor: &mut Supervisor,
    ) -> anyhow::Result<()> {
        match message {
            FromWorker::Listening { address } => {
                if let Some(addresses) = self.workers.on_listening(rank, address) {
                    self.workers.connect(&addresses, None);
                }
            }
            FromWorker::Ready { restored, passed_over, device } => {
                let ready = ReadyWorker { restored, passed_over, device };
                if let Some(ready) = self.workers.on_ready(rank, ready)? {
                    self.feed(ready, supervisor)?;
                }
            }
            FromWorker::Warned { message } if self.workers.ranks().count > 1 => {
                supervisor.recorder.log(Level::WARN, &format!("worker {rank}: {message}"));
            }
            FromWorker::Warned { message } => supervisor.recorder.log(Level::WARN, &message),
            FromWorker::Done { .. }
            | FromWorker::Stopped
            | FromWorker::InputLost
            | FromWorker::PeerLost { .. }
            | FromWorker::StorageFailed { .. }
            | FromWorker::DeviceFailed { .. }
            | FromWorker::DeviceUnusable { .. }
            | FromWorker::Failed { .. } => self.handle_last_message(rank, message),
            FromWorker::Profiling { steps, is_over } => {
                let profiling = self.profiling.as_mut();
                if profiling.is_some_and(|(profiling, _)| profiling.on_progress(steps, is_over, supervisor)) {
                    self.workers.send(rank, &ToWorker::EndProfile);
                }
            }
            FromWorker::WriteParts(request) => self.workers.send_others(rank, &ToWorker::WriteParts(request)),
            FromWorker::PartsWritten(written) => self.workers.send(0, &ToWorker::PartsWritten(written)),
            FromWorker::Spans(track) => {
                if let Some((profiling, _)) = &mut self.profiling {
                    profiling.add(track);
                }
            }
            FromWorker::Profiled(profile) => {
                if let Some((profiling, began)) = self.profiling.take() {
                    let pause = began.elapsed().saturating_mul(PROFILE_PAUSE_FACTOR);
                    self.next_profile = Instant::now() + pause.clamp(MIN_PROFILE_PAUSE, MAX_PROFILE_PAUSE);
                    profiling.finish(profile, (self.workers.pid(rank), self.workers.ranks().count));
                }
            }
            report => return self.handle_report(report, supervisor),
        }
        Ok(())
    }

    /// Handles the last message of worker `rank`. The first that reports an error decides, but one that reports a lost worker
    /// waits for the cause.
    fn handle_last_message(&mut self, rank: u32, message: FromWorker) {
        self.workers.on_last_message(rank);
        let verdict = match message {
            FromWorker::Done { stopped_early, .. } if rank == 0 => Outcome::Finished(stopped_early),
            FromWorker::Stopped if rank == 0 => Outcome::Stopped,
            FromWorker::InputLost => Outcome::Died(Death::of("the worker lost its input".to_owned())),
            FromWorker::DeviceFailed { message, out_of_memory } => {
                let rank = (!out_of_memory).then_some(rank);
                Outcome::Died(Death { reason: message, out_of_memory, rank })
            }
            FromWorker::StorageFailed { message } => Outcome::Died(Death::of(message)),
            FromWorker::DeviceUnusable { message } => Outcome::NoDevice { rank, reason: message },
            FromWorker::Failed { message } => Outcome::Failed(message),
            FromWorker::PeerLost { message } => {
                let until = Instant::now() + CAUSE_TIMEOUT;
                self.lost.get_or_insert((message, until));
                return;
            }
            // Rank 0 reports the outcome of all.
            _ => return,
        };
        if self.verdict.is_none() {
            self.verdict = Some(verdict);
            self.culprit = Some(rank);
        }
    }

    /// Handles a message of rank 0.
    ///
    /// # Errors
    /// When the workers cannot be fed.
    fn handle_report(&mut self, message: FromWorker, supervisor: &mut Supervisor) -> anyhow::Result<()> {
        match message {
            FromWorker::EvalDue => self.feed_evaluation()?,
            FromWorker::Progress(progress) => {
                let skipped = self.feed.as_ref().map_or(0, Feed::skipped);
                supervisor.progressed(progress, skipped, &mut self.totals);
            }
            FromWorker::Checkpointed { step, bytes, requested, seconds } => {
                supervisor.committed(step, bytes, requested, seconds);
            }
            FromWorker::CheckpointFailed { step, message, requested, seconds } => {
                supervisor.checkpoint_failed(step, &message, requested, seconds);
            }
            FromWorker::ImageCompleted { step } => supervisor.on_image(step),
            FromWorker::Evaluated { step, epoch, ends_epoch, metrics, seconds } => {
                // The evaluation has consumed its rows.
                self.eval_feed = None;
                supervisor.evaluated((step, epoch, ends_epoch), metrics, took(seconds));
            }
            _ => {
                tracing::warn!(job = supervisor.recorder.id(), "unexpected message from the training worker");
            }
        }
        Ok(())
    }

    /// Ends the attempt and returns its outcome.
    fn end(mut self, supervisor: &Supervisor) -> Outcome {
        let (profiling, waiting) = (self.profiling.take(), self.waiting_profile.take());
        let outcome = self.shut_down(supervisor);
        if let Some(request) = waiting {
            request.refuse(anyhow!("it ended before its next step"));
        }
        if let Some((profiling, _)) = profiling {
            let why = match &outcome {
                Outcome::Finished(_) => "the job has ended",
                Outcome::Stopped => "the job was stopped",
                Outcome::Failed(reason)
                | Outcome::NoDevice { reason, .. }
                | Outcome::OutOfDescriptors(reason) => reason,
                Outcome::Died(death) => &death.reason,
            };
            profiling.abort(why, supervisor);
        }
        outcome
    }

    /// How long workers wait for each other in an exchange.
    fn exchange_timeout(&self) -> Duration {
        Duration::from_secs(self.prepared.job.workers.timeout_seconds.into())
    }

    fn shut_down(self, supervisor: &Supervisor) -> Outcome {
        // Before the workers are killed, after which none shows signs of life.
        let lost = self.lost.as_ref().map(|(report, _)| {
            self.workers.hanging(self.exchange_timeout()).unwrap_or_else(|| report.clone())
        });
        let stopped = supervisor.control.stop_requested().is_some();
        // Past the deadline there is nothing left to wait for.
        let is_late = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        let limit = if is_late { Duration::ZERO } else { EXIT_TIMEOUT };
        let has_ended = matches!(self.verdict, Some(Outcome::Finished(_) | Outcome::Stopped));
        let culprit = self.culprit.filter(|_| !has_ended);
        let exit = match culprit {
            // One that did not die is about to exit. The others may wait for it, for as long as an operation may take.
            Some(rank) => self.workers.kill_besides(rank, limit).map(Some),
            None if has_ended => self.workers.finish(limit).map(|()| None),
            None => self.workers.kill().map(|()| None),
        };
        let oom_killer_ran = self.oom_kills_before.zip(available::kills()).map(|(before, now)| now > before);
        // Before it is fed, a worker mostly allocates memory.
        let is_allocating = self.feed.is_none();
        if let Some(control) = supervisor.control.ingest().take() {
            log_input(&control.explain().whole, supervisor);
        }
        let skipped = self.feed.as_ref().map(Feed::skipped);
        let truncated = self.feed.as_ref().map_or(0, Feed::truncated);
        if truncated > 0 {
            let message =
                format!("{}: truncated to a multi-valued feature's `maximum`", Count(truncated, "row"));
            supervisor.recorder.log(Level::WARN, &message);
        }
        let eval_fed = self.eval_feed.map_or(Ok(()), Feed::stop);
        // A failure of one is the cause of the other's end.
        let fed = match (self.feed.map_or(Ok(()), Feed::stop), eval_fed) {
            (_, Err(error)) if !feed::is_echo(&error) => Err(error),
            (fed, _) => fed,
        };
        let totals = self.totals;
        supervisor.recorder.end_history();
        supervisor.recorder.update(|record| {
            if let Some(skipped) = skipped {
                record.progress.skipped_records = skipped;
            }
            set_rates(record, &totals);
        });
        match (self.verdict, fed) {
            (Some(verdict), _) if verdict.is_final() => verdict,
            (_, Err(error)) if !feed::is_echo(&error) => Outcome::failed(error.to_string()),
            // Otherwise, the next workers save the newest image.
            _ if stopped && (is_late || !supervisor.saves_image()) => Outcome::Stopped,
            (Some(death), _) => death,
            (None, _) => Outcome::Died(match (exit, lost) {
                (Ok(Some(exit)), _) => {
                    let out_of_memory = exit.is_out_of_memory(oom_killer_ran, is_allocating);
                    let rank = culprit.filter(|_| !out_of_memory);
                    Death { reason: exit.to_string(), out_of_memory, rank }
                }
                (Ok(None), Some(reason)) => Death::of(reason),
                (Ok(None), None) => Death::of("the workers ended without a result".to_owned()),
                (Err(error), _) => Death::of(format!("the worker is lost: {error}")),
            }),
        }
    }
}
