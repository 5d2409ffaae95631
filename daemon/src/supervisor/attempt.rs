//! One attempt: a worker, a ring, and an ingest that feeds it, from the newest whole checkpoint.
//!
//! The worker restores first and says where it stands; then ingest starts from there and the worker gets its
//! ring. From then on the worker is the one that speaks. When ingest fails, it drops its end of the ring, and
//! the worker says that its input was lost and ends; when the worker dies, ingest finds the ring's other end
//! gone and ends. So an attempt is over when the worker's messages are, and then both are asked how it went.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use millstream_backend::Description;
use millstream_pipeline::ingest::{Bound, Diagnosis};

use super::profile::Profiling;
use super::{Event, Prepared, ProfileRequest, Supervisor};
use crate::auto_batch::available;
use crate::feed::{self, Feed};
use crate::job::Job;
use crate::state::{HistoryPoint, JobRecord, LogLevel};
use crate::worker::host::WorkerProcess;
use crate::worker::protocol::{FromWorker, Metrics, Progress, Restored, Role, Start, ToWorker, TrainRole};
use crate::worker::tensorboard::EventSpec;
use millstream_trainer::metrics::{Metric, MetricValue};

/// How long a worker may take for its present step and a checkpoint once it is told to stop.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How long a worker that has said its last may take to end.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// How an attempt ended.
pub(super) enum Outcome {
    /// The job is done; why before its data was, where that is so.
    Finished(Option<String>),
    /// It was told to stop, and did.
    Stopped,
    /// Another try would meet the same.
    Failed(String),
    /// The worker is gone; another try may do better.
    Died(Death),
}

/// How a worker died.
pub(super) struct Death {
    /// What is known of it.
    pub(super) reason: String,
    /// Whether it was for lack of memory.
    pub(super) of_memory: bool,
}

impl Death {
    fn of(reason: String) -> Self {
        Self { reason, of_memory: false }
    }
}

/// A running attempt.
pub(super) struct Attempt<'a> {
    prepared: &'a Prepared,
    worker: WorkerProcess,
    /// What fills the worker's ring, once it has one.
    feed: Option<Feed>,
    /// What fills the ring of an evaluation, while there is one that is fed aside.
    aside: Option<Feed>,
    /// What somebody waits for, if anybody does.
    profiling: Option<Profiling>,
    /// The last word on how the attempt ended.
    verdict: Option<Verdict>,
    /// When the worker is killed, once it was told to stop.
    deadline: Option<Instant>,
    totals: Totals,
    /// How often the kernel had killed for lack of memory when this began, where it tells.
    kills_before: Option<u64>,
}

enum Verdict {
    /// Why before the end of the data, where that is so.
    Done(Option<String>),
    Stopped,
    InputLost,
    Failed(String),
}

/// Sums over an attempt, for what the record says of the whole run at its end.
#[derive(Default)]
struct Totals {
    seconds: f64,
    waited: f64,
    examples: f64,
}

impl<'a> Attempt<'a> {
    /// Starts a worker and tells it what to do.
    pub(super) fn start(supervisor: &Supervisor, prepared: &'a Prepared) -> Result<Self, Outcome> {
        let book = Arc::clone(&supervisor.book);
        let log = move |line: &str| book.log(LogLevel::Warn, &format!("worker: {line}"));
        let died = |error: std::io::Error| {
            Outcome::Died(Death::of(format!("the worker cannot be started: {error}")))
        };
        let kills_before = available::kills();
        let worker = WorkerProcess::spawn(&supervisor.worker, log).map_err(died)?;
        let events = supervisor.control.events.clone();
        let gone = events.clone();
        worker
            .listen(
                move |message| events.send(Event::Worker(message)).is_ok(),
                move || drop(gone.send(Event::WorkerGone)),
            )
            .map_err(died)?;
        supervisor.book.change(|record| record.attempts += 1);
        let (feed, aside, verdict, deadline, totals) = (None, None, None, None, Totals::default());
        let profiling = None;
        let mut attempt =
            Self { prepared, worker, feed, aside, profiling, verdict, deadline, totals, kills_before };
        let job = &prepared.job;
        let checkpoint = &job.checkpoint;
        let role = Role::Train(Box::new(TrainRole {
            directory: prepared.directory.clone(),
            every_steps: checkpoint.every_steps,
            keep: checkpoint.keep,
            events: event_spec(job, supervisor.book.id()),
            model: job.model.clone(),
            training: job.training.clone(),
            group: job.evaluation.group.clone(),
            evaluation: prepared.eval_plan.is_some().then_some(job.evaluation.cadence),
            judge: job.judge(),
            warm_start: prepared.warm_start.clone(),
            trial: prepared.batch.as_ref().map(|choice| choice.trial(prepared.plan.slots())),
        }));
        let schema = prepared.schema.clone();
        attempt.tell(&ToWorker::Start(Box::new(Start { role, schema })));
        Ok(attempt)
    }

    /// Follows the attempt to its end.
    pub(super) fn follow(mut self, supervisor: &mut Supervisor) -> Outcome {
        loop {
            if self.deadline.is_none() && supervisor.control.stop_wanted().is_some() {
                if self.feed.is_none() {
                    // Nothing was trained yet that a checkpoint could save.
                    return Outcome::Stopped;
                }
                self.deadline = Some(Instant::now() + STOP_LIMIT);
                self.tell(&ToWorker::Stop { checkpoint: true });
            }
            let event = match self.deadline {
                None => supervisor.events.recv().ok(),
                Some(deadline) => {
                    supervisor.events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
                }
            };
            match event {
                Some(Event::Worker(FromWorker::Ready { restored, passed_over, device })) => {
                    if let Err(error) = self.feed(restored, &passed_over, device, supervisor) {
                        return Outcome::Failed(format!("{error:#}"));
                    }
                }
                Some(Event::Worker(FromWorker::EvalDue)) => {
                    if let Err(error) = self.feed_aside() {
                        return Outcome::Failed(format!("{error:#}"));
                    }
                }
                Some(Event::Worker(message)) => self.hear(message, supervisor),
                Some(Event::Checkpoint(reply)) => {
                    supervisor.wanted.push(reply);
                    if self.feed.is_some() {
                        self.tell(&ToWorker::Checkpoint);
                    }
                }
                Some(Event::Profile(request)) => self.profile(request),
                Some(Event::Stop) => {}
                Some(Event::WorkerGone) => break,
                None => {
                    let limit = STOP_LIMIT.as_secs();
                    let message = format!("the worker did not stop within {limit} s and is killed");
                    supervisor.book.log(LogLevel::Warn, &message);
                    break;
                }
            }
        }
        self.end(supervisor)
    }

    /// Starts to feed a worker that is ready, from where it stands.
    fn feed(
        &mut self,
        restored: Option<Restored>,
        passed_over: &[String],
        device: Description,
        supervisor: &mut Supervisor,
    ) -> anyhow::Result<()> {
        if restored.as_ref().is_some_and(|restored| Some(restored.step) > supervisor.newest) {
            // Committed by a worker that died before it could tell.
            supervisor.tries.progressed();
        }
        supervisor.newest = restored.as_ref().map(|restored| restored.step);
        for damage in passed_over {
            supervisor.book.log(LogLevel::Warn, &format!("{damage}; going back to the one before"));
        }
        let whence = match &restored {
            Some(restored) => format!("goes on from step {}", restored.step),
            None => "begins".to_owned(),
        };
        supervisor.book.log(LogLevel::Info, &format!("worker {} {whence}, on {device}", self.worker.pid()));
        let position = restored.as_ref().map(|restored| restored.position.as_slice());
        let (feed, ring) = Feed::start(&self.prepared.plan, position)?;
        *supervisor.control.ingest() = Some(feed.control());
        self.feed = Some(feed);
        if let Err(error) = self.worker.hand_over(ring) {
            tracing::debug!(%error, pid = self.worker.pid(), "a worker did not take its ring");
        }
        if !supervisor.wanted.is_empty() {
            self.tell(&ToWorker::Checkpoint);
        }
        supervisor.book.rewind(restored.as_ref().map_or(0, |restored| restored.step));
        supervisor.book.change(|record| {
            record.progress.step = restored.as_ref().map_or(0, |restored| restored.step);
            record.checkpoint = restored.map(|restored| restored.path);
            record.device = Some(device);
        });
        Ok(())
    }

    /// Feeds the worker all held-out rows, aside from what it trains on.
    fn feed_aside(&mut self) -> anyhow::Result<()> {
        let plan =
            self.prepared.eval_plan.as_ref().context("a worker asked for held-out rows of a job without")?;
        let (feed, ring) = Feed::start(plan, None)?;
        self.aside = Some(feed);
        self.tell(&ToWorker::EvalRing);
        if let Err(error) = self.worker.hand_over(ring) {
            tracing::debug!(%error, pid = self.worker.pid(), "a worker did not take the ring of an evaluation");
        }
        Ok(())
    }

    /// Has the worker record its next steps.
    fn profile(&mut self, request: ProfileRequest) {
        if self.feed.is_none() {
            request.refuse(anyhow!("its worker is starting and takes no steps yet; try again in a moment"));
        } else if self.profiling.is_some() {
            request.refuse(anyhow!("it is being profiled already, and one profile is recorded at a time"));
        } else {
            self.tell(&ToWorker::Profile { steps: request.steps });
            self.profiling = Some(Profiling::new(request));
        }
    }

    /// Tells the worker something. One that cannot take it has died, and is heard of as any that has.
    fn tell(&mut self, message: &ToWorker) {
        if let Err(error) = self.worker.send(message) {
            tracing::debug!(%error, pid = self.worker.pid(), "a worker was not told");
        }
    }

    fn hear(&mut self, message: FromWorker, supervisor: &mut Supervisor) {
        match message {
            FromWorker::Progress(progress) => self.progress(progress, supervisor),
            FromWorker::Checkpointed { step, path, requested } => {
                supervisor.committed(step, path, requested);
            }
            FromWorker::Evaluated { step, epoch, ends_epoch, metrics } => {
                // All of its rows are used.
                self.aside = None;
                evaluated((step, epoch, ends_epoch), metrics, supervisor);
            }
            FromWorker::Profiling { steps, is_over } => {
                let profiling = self.profiling.as_mut();
                if profiling.is_some_and(|profiling| profiling.recorded(steps, is_over, supervisor)) {
                    self.tell(&ToWorker::EndProfile);
                }
            }
            FromWorker::Spans(track) => {
                if let Some(profiling) = &mut self.profiling {
                    profiling.add(track);
                }
            }
            FromWorker::Profiled(profile) => {
                if let Some(profiling) = self.profiling.take() {
                    profiling.finish(profile, self.worker.pid());
                }
            }
            FromWorker::Warned { message } => supervisor.book.log(LogLevel::Warn, &message),
            FromWorker::Done { stopped_early } => self.verdict = Some(Verdict::Done(stopped_early)),
            FromWorker::Stopped => self.verdict = Some(Verdict::Stopped),
            FromWorker::InputLost => self.verdict = Some(Verdict::InputLost),
            FromWorker::Failed { message } => self.verdict = Some(Verdict::Failed(message)),
            FromWorker::Surveyed { .. }
            | FromWorker::Ready { .. }
            | FromWorker::EvalDue
            | FromWorker::Scores { .. } => {
                tracing::warn!(job = supervisor.book.id(), "a training worker said what none says");
            }
        }
    }

    fn progress(&mut self, progress: Progress, supervisor: &Supervisor) {
        self.totals.seconds += progress.seconds;
        self.totals.waited += progress.waited_seconds;
        self.totals.examples += progress.new_examples as f64;
        let skipped = self.feed.as_ref().map_or(0, Feed::skipped);
        let epochs = supervisor.job.data.epochs;
        let point = HistoryPoint {
            step: progress.step,
            loss: progress.loss,
            examples: progress.new_examples,
            seconds: progress.seconds,
            waited_seconds: progress.waited_seconds,
        };
        supervisor.book.progress(point, |record| {
            let told = &mut record.progress;
            told.step = progress.step;
            told.epoch = progress.epoch;
            told.epochs = epochs;
            told.examples = progress.examples;
            told.skipped_records = skipped;
            if let Some(steps) = progress.steps_per_epoch {
                told.total_steps = Some(steps * u64::from(epochs));
            }
            if progress.new_examples > 0 {
                told.loss = progress.loss;
            }
            set_rates(record, progress.new_examples as f64, progress.seconds, progress.waited_seconds);
        });
    }

    /// Takes everything down and says how it went.
    fn end(mut self, supervisor: &Supervisor) -> Outcome {
        let profiling = self.profiling.take();
        let outcome = self.take_down(supervisor);
        if let Some(profiling) = profiling {
            let why = match &outcome {
                Outcome::Finished(_) => "the job has ended",
                Outcome::Stopped => "the job was stopped",
                Outcome::Failed(reason) => reason,
                Outcome::Died(death) => &death.reason,
            };
            profiling.lose(why, supervisor);
        }
        outcome
    }

    fn take_down(self, supervisor: &Supervisor) -> Outcome {
        let stopped = supervisor.control.stop_wanted().is_some();
        // Past a deadline there is nothing left to wait for.
        let limit = if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            Duration::ZERO
        } else {
            EXIT_LIMIT
        };
        let ending = self.worker.wait(limit);
        let kernel_killed = self.kills_before.zip(available::kills()).map(|(before, now)| now > before);
        // Before it is fed, a worker takes memory and does nothing else.
        let is_taking = self.feed.is_none();
        if let Some(control) = supervisor.control.ingest().take() {
            log_input(&control.explain().whole, supervisor);
        }
        let skipped = self.feed.as_ref().map(Feed::skipped);
        let truncated = self.feed.as_ref().map_or(0, Feed::truncated);
        if truncated > 0 {
            let message = format!("{truncated} rows lost values of multi-valued features to their `maximum`");
            supervisor.book.log(LogLevel::Warn, &message);
        }
        if stopped {
            // Reads that hang would be waited for.
            supervisor.stores.cancel();
        }
        let fed_aside = self.aside.map_or(Ok(()), Feed::stop);
        // The one that failed is the reason for the other's end.
        let fed = match (self.feed.map_or(Ok(()), Feed::stop), fed_aside) {
            (_, Err(error)) if !feed::is_echo(&error) => Err(error),
            (fed, _) => fed,
        };
        let totals = self.totals;
        supervisor.book.end_history();
        supervisor.book.change(|record| {
            if let Some(skipped) = skipped {
                record.progress.skipped_records = skipped;
            }
            set_rates(record, totals.examples, totals.seconds, totals.waited);
        });
        match (self.verdict, fed) {
            (Some(Verdict::Done(stopped_early)), _) => Outcome::Finished(stopped_early),
            (Some(Verdict::Stopped), _) => Outcome::Stopped,
            (Some(Verdict::Failed(message)), _) => Outcome::Failed(message),
            (_, Err(error)) if !feed::is_echo(&error) => Outcome::Failed(error.to_string()),
            _ if stopped => Outcome::Stopped,
            (Some(Verdict::InputLost), _) => Outcome::Died(Death::of("the worker lost its input".to_owned())),
            (None, _) => Outcome::Died(match ending {
                Ok(ending) => Death {
                    of_memory: ending.is_lack_of_memory(kernel_killed, is_taking),
                    reason: ending.to_string(),
                },
                Err(error) => Death::of(format!("the worker is lost: {error}")),
            }),
        }
    }
}

/// What a worker of `job` writes for TensorBoard, in its run `id`.
fn event_spec(job: &Job, id: &str) -> Option<EventSpec> {
    let spec = job.tensorboard.as_ref()?;
    Some(EventSpec {
        directory: spec.directory.join(id),
        every_steps: spec.every_steps,
        histograms_every_steps: spec.histograms_every_steps,
        hyper_parameters: job.hyper_parameters(),
    })
}

impl Supervisor {
    /// Takes note of a committed checkpoint.
    fn committed(&mut self, step: u64, path: PathBuf, requested: bool) {
        self.tries.progressed();
        self.newest = Some(step);
        self.book.log(LogLevel::Info, &format!("checkpoint at step {step}: {}", path.display()));
        self.book.change(|record| record.checkpoint = Some(path.clone()));
        if requested {
            for reply in self.wanted.drain(..) {
                // Whoever asked may have gone.
                let _ = reply.send((path.clone(), step));
            }
        }
    }
}

/// Keeps, for after the job, what would have made its input faster.
fn log_input(input: &Diagnosis, supervisor: &Supervisor) {
    let Diagnosis { bound, because, rows_per_second, .. } = input;
    if *bound != Bound::Starting {
        let text = format!("input came at {rows_per_second:.0} rows/s, bound by {}: {because}", bound.name());
        supervisor.book.log(LogLevel::Info, &text);
    }
}

fn evaluated((step, epoch, ends_epoch): (u64, u32, bool), metrics: Vec<Metrics>, supervisor: &Supervisor) {
    let when = if ends_epoch { format!("epoch {}", epoch + 1) } else { format!("step {step}") };
    for metrics in &metrics {
        supervisor.book.log(LogLevel::Info, &format!("{when}: {}", told(metrics)));
    }
    supervisor.book.evaluated(step, epoch, ends_epoch, metrics);
}

/// An evaluation's metrics of a label, for the log.
fn told(metrics: &Metrics) -> String {
    let figure = |&MetricValue { metric, value, error }: &MetricValue| {
        let name = metric.name().replace('_', " ");
        let bound = error.filter(|&error| error > 0.0).map(|error| format!(" (give or take {error:.1e})"));
        let groups = metrics.groups.filter(|_| metric == Metric::GroupAuc);
        let groups = groups.map(|groups| format!(" over {groups} groups")).unwrap_or_default();
        match value {
            Some(value) => format!("{name} {value:.6}{}{groups}", bound.unwrap_or_default()),
            None => format!("{name} undefined{groups}"),
        }
    };
    let figures: Vec<String> = metrics.values.iter().map(figure).collect();
    let label = if metrics.label.is_empty() { String::new() } else { format!("{}: ", metrics.label) };
    format!("{label}{}, over {} examples", figures.join(", "), metrics.examples)
}

fn set_rates(record: &mut JobRecord, examples: f64, seconds: f64, waited: f64) {
    if seconds > 0.0 {
        record.progress.examples_per_second = examples / seconds;
        record.progress.input_wait_fraction = waited / seconds;
    }
}
