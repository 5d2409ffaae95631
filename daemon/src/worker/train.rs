//! A worker that trains: a step for each training batch, metrics for each pass over held-out data, and
//! checkpoints.
//!
//! Checkpoints are taken between steps ([`Keeper`]). What a step does is a function of the model and the batch
//! alone, so neither when checkpoints are taken nor how often training was cut short leaves a trace in the
//! final one.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use millstream_backend::{Backend, Measured};
use millstream_batch::{BatchRef, BatchSchema, Consumer, Lease, RingError, Stream};
use millstream_trace::{Category, Phase, Recorder, Work};
use millstream_trainer::checkpoint::{CheckpointError, CheckpointScope, CheckpointStore};
use millstream_trainer::loss::LossSum;
use millstream_trainer::session::{EvalOutcome, Session, SessionError};

use super::keeper::{Cadence, Keeper};
use super::process::{Ended, Heard, Link, Stop};
use super::profiler::Profiler;
use super::protocol::{EvalCadence, FromWorker, Progress, Restored, TrainRole};
use super::tensorboard::{EventSpec, EventWriter};
use super::{device, trial};
use crate::{auto_batch, runs, warm_start};

/// How long an earlier worker may take to let go of the job: it is dead or about to be.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Between reports of progress.
const REPORT_PERIOD: Duration = Duration::from_millis(100);

/// A job being trained.
struct Training<'a, B: Backend> {
    session: Session<Measured<B>>,
    /// When held-out rows are asked for; `None` where they come between those of training.
    evaluation: Option<EvalCadence>,
    /// Whether the last step was the last of its epoch.
    epoch_ended: bool,
    keeper: Keeper,
    meter: Meter,
    /// What TensorBoard is told, if anything.
    events: Option<EventWriter>,
    /// Whether it was said that events cannot be written.
    events_warned: bool,
    profiler: Profiler,
    heard: Heard,
    link: &'a mut Link,
}

/// What was done since the last report.
struct Meter {
    reported: Instant,
    trained: Duration,
    waited: Duration,
    examples: u64,
    loss: LossSum,
    steps_per_epoch: Option<u64>,
}

/// Trains the job as `role` says, from its newest whole checkpoint, on the device that `open` opens with so many threads.
pub(super) fn run<B: Backend<Scalar = f32>>(
    open: impl Fn(Option<u32>) -> Result<B>,
    role: TrainRole,
    schema: &BatchSchema,
    link: &mut Link,
) -> Result<Ended> {
    let TrainRole {
        directory,
        every_steps,
        keep,
        events,
        model,
        training,
        group,
        evaluation,
        judge,
        warm_start: from,
        trial,
    } = role;
    let recorder = Arc::new(Recorder::default());
    let open = |threads| Ok::<_, anyhow::Error>(Measured::new(open(threads)?, Arc::clone(&recorder)));
    let cadence = Cadence { every_steps, keep };
    let _lock = lock(&directory)?;
    let analysis = directory.join(runs::ANALYSIS);
    let analysis = fs::read(&analysis).with_context(|| analysis.display().to_string())?;
    let job = auto_batch::job_text(&directory)?;
    let store = CheckpointStore::local(&directory)?;
    if let Some(spec) = trial
        && store.steps()?.is_empty()
    {
        let backend = open(training.threads)?;
        trial::run(backend, spec, &model, schema, &training).context("trying the memory of a step")?;
    }
    let mut session = Session::new(open(training.threads)?, &model, schema, &training)?;
    if let Some(feature) = &group {
        session.group_by(feature)?;
    }
    session.select_by(judge);
    let mut passed_over = Vec::new();
    let committed = restore(&mut session, &store, &mut passed_over)?;
    if let (None, Some(checkpoint)) = (&committed, &from) {
        warm_start::begin(&mut session, checkpoint, &directory, (&model, schema))?;
    }
    let device = session.device();
    link.send(&FromWorker::Ready { restored: committed.clone(), passed_over, device })?;
    let (ring, heard) = link.receive_ring(schema)?;
    // Carried in each checkpoint: the job, and what was learned from its data.
    let carried = vec![(runs::JOB, job.clone().into_bytes()), (runs::ANALYSIS, analysis)];
    let keeper = Keeper::new(cadence, &session, store, carried, committed)?;
    let (meter, events_warned) = (Meter::new(Instant::now()), false);
    let profiler = Profiler::new(Arc::clone(&recorder), training.precision);
    let mut training = Training {
        session,
        evaluation,
        epoch_ended: false,
        keeper,
        meter,
        events: None,
        events_warned,
        profiler,
        heard,
        link,
    };
    if let Some(spec) = events {
        training.begin_events(spec, &job)?;
    }
    let ended = training.follow(ring)?;
    training.settle()?;
    training.profiler.end(&training.session, true, training.link)?;
    training.report()?;
    training.record(|events, session| events.end(session.step()))?;
    training.tell_skipped()?;
    Ok(ended)
}

/// Keeps every other worker from this job. The lock is gone with the process, however it ends.
fn lock(directory: &Path) -> Result<File> {
    let here = || format!("job directory {}", directory.display());
    let lock = File::open(directory).with_context(here)?;
    let until = Instant::now() + LOCK_LIMIT;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOCK_POLL),
            Err(TryLockError::WouldBlock) => bail!("another worker trains in the {}", here()),
            Err(TryLockError::Error(error)) => return Err(error).with_context(here),
        }
    }
}

/// Restores the newest checkpoint that is whole; what is wrong with newer ones goes to `passed_over`.
fn restore<B: Backend<Scalar = f32>>(
    session: &mut Session<B>,
    store: &CheckpointStore,
    passed_over: &mut Vec<String>,
) -> Result<Option<Restored>> {
    for step in store.steps()?.into_iter().rev() {
        let restored = match store.load(step, CheckpointScope::Full) {
            Ok(checkpoint) => session.restore(&checkpoint),
            Err(error) => Err(error.into()),
        };
        match restored {
            Ok(()) => {
                let path = PathBuf::from(store.path(step));
                return Ok(Some(Restored { path, step, position: session.position().to_vec() }));
            }
            Err(SessionError::Checkpoint(damage @ CheckpointError::Damaged { .. })) => {
                passed_over.push(damage.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

impl<B: Backend<Scalar = f32>> Training<'_, B> {
    fn follow(&mut self, mut ring: Consumer) -> Result<Ended> {
        let _pinned = device::pinned(self.session.pin(&ring.mapping()), self.link)?;
        let recorder = Arc::clone(self.profiler.recorder());
        loop {
            if let Some(ended) = self.between_steps()? {
                return Ok(ended);
            }
            let (began, start) = (Instant::now(), recorder.start());
            if !ring.has_next() {
                // As long as the device has something to do, nobody waits for input.
                self.settle()?;
            }
            let asked = Instant::now();
            let leased = match recorder.phase(Phase::Wait, || ring.next()) {
                Ok(Some(leased)) => leased,
                Ok(None) => break,
                // A stop is wanted: it is heeded above.
                Err(RingError::Interrupted) => continue,
                Err(RingError::PeerGone) => return Ok(Ended::InputLost),
                Err(error) => return Err(error.into()),
            };
            let waited = asked.elapsed();
            match leased.batch().header().stream {
                Stream::Train => {
                    let rows = leased.batch().rows() as u64;
                    self.train(leased)?;
                    self.spent(began.elapsed(), waited);
                    self.record(|events, session| events.point_if_due(session.step()))?;
                    let began = Instant::now();
                    if self.events.is_some() {
                        recorder.phase(Phase::Events, || self.record(write_histograms))?;
                    }
                    self.keeper.stepped(self.session.step());
                    self.spent(began.elapsed(), Duration::ZERO);
                    recorder.add(start, Category::Step, "step", || Work { rows, ..Work::default() });
                }
                Stream::Eval => {
                    recorder.phase(Phase::Evaluation, || self.evaluate(leased.batch()))?;
                    recorder.phase(Phase::Release, || drop(leased));
                }
            }
            if self.meter.reported.elapsed() >= REPORT_PERIOD {
                self.report()?;
            }
        }
        if self.evaluation.is_some() && !self.session.is_evaluated() {
            self.session.set_eval_due();
            if let Some(ended) = self.between_steps()? {
                return Ok(ended);
            }
        }
        self.last_checkpoint()?;
        Ok(Ended::Done)
    }

    /// Does all that is to be done before the next step; says how training ends, if it does.
    fn between_steps(&mut self) -> Result<Option<Ended>> {
        if let Some(ended) = self.heed()? {
            return Ok(Some(ended));
        }
        if self.session.is_eval_due() {
            let recorder = Arc::clone(self.profiler.recorder());
            if let Some(ended) = recorder.phase(Phase::Evaluation, || self.evaluate_aside())? {
                return Ok(Some(ended));
            }
            if let Some(ended) = self.heed()? {
                return Ok(Some(ended));
            }
        }
        if let Some(why) = self.session.early_stop_reason() {
            self.last_checkpoint()?;
            return Ok(Some(Ended::StoppedEarly(why)));
        }
        let began = Instant::now();
        self.checkpoint_if_due()?;
        self.spent(began.elapsed(), Duration::ZERO);
        if self.profiler.is_due(&self.session, &self.heard.wishes) {
            self.settle()?;
            self.profiler.between_steps(&self.session, &self.heard.wishes, self.link)?;
        }
        Ok(None)
    }

    /// Does what the daemon wishes.
    fn heed(&mut self) -> Result<Option<Ended>> {
        // Before the first batch there is nothing to save, and the wish is kept for later.
        let begun = !self.session.position().is_empty();
        if begun && self.heard.wishes.take_checkpoint() {
            self.keeper.want();
        }
        let Some(stop) = self.heard.wishes.stop() else { return Ok(None) };
        if begun && stop == Stop::AfterCheckpoint {
            self.last_checkpoint()?;
        }
        Ok(Some(Ended::Stopped))
    }

    fn train(&mut self, leased: Lease) -> Result<()> {
        let header = leased.batch().header();
        // All epochs have the same rows. Where a short last batch is left out, only the next epoch tells.
        let (before, epochs) = (self.session.step(), u64::from(header.epoch));
        if header.batch == 0 && epochs > 0 {
            self.meter.steps_per_epoch = Some(before / epochs);
        }
        self.session.submit(leased.batch())?;
        // It was copied, and the slot goes back while the step is under way.
        self.profiler.recorder().phase(Phase::Release, || drop(leased));
        self.meter.examples += u64::from(header.rows);
        if let Some(events) = &mut self.events {
            events.stepped(u64::from(header.rows));
        }
        match self.events.as_ref().is_some_and(|events| events.point_is_due(self.session.step())) {
            true => self.settle()?,
            false => {
                let lost = self.session.throttle()?;
                self.lost(lost);
            }
        }
        if header.last {
            self.meter.steps_per_epoch = Some(self.session.step() / (epochs + 1));
        }
        self.epoch_ended = header.last;
        let ended = header.last.then_some(header.epoch);
        if self.evaluation.is_some_and(|cadence| cadence.is_due(self.session.step(), ended)) {
            self.session.set_eval_due();
        }
        Ok(())
    }

    /// Waits until all steps have ended.
    fn settle(&mut self) -> Result<()> {
        let lost = self.session.drain()?;
        self.lost(lost);
        Ok(())
    }

    /// Takes note of what steps lost that have ended.
    fn lost(&mut self, loss: LossSum) {
        self.meter.loss += loss;
        if let Some(events) = &mut self.events {
            events.lost(loss);
            if let Some(scale) = self.session.loss_scale() {
                events.scaled(scale);
            }
        }
    }

    /// Takes in held-out rows that come between those of training.
    fn evaluate(&mut self, batch: BatchRef<'_>) -> Result<()> {
        let header = batch.header();
        self.session.evaluate(batch)?;
        if header.last {
            let judged = self.session.finish_eval()?;
            self.evaluated(header.epoch, true, judged)?;
        }
        Ok(())
    }

    /// Asks for held-out rows, and evaluates them. A wish to stop ends that early.
    fn evaluate_aside(&mut self) -> Result<Option<Ended>> {
        // So that what was told of the training reaches up to the evaluation.
        self.settle()?;
        self.report()?;
        self.link.send(&FromWorker::EvalDue)?;
        let Some(mut ring) = self.heard.next_ring() else { return Ok(None) };
        // Where it cannot be, that was said of the ring before.
        let _pinned = self.session.pin(&ring.mapping()).ok();
        loop {
            let leased = match ring.next() {
                Ok(Some(leased)) => leased,
                Ok(None) => break,
                Err(RingError::Interrupted) => {
                    self.session.discard_eval();
                    return Ok(None);
                }
                Err(RingError::PeerGone) => return Ok(Some(Ended::InputLost)),
                Err(error) => return Err(error.into()),
            };
            self.session.evaluate(leased.batch())?;
        }
        let judged = self.session.finish_separate_eval()?;
        let epoch = self.session.progress().epoch;
        self.evaluated(epoch, self.epoch_ended, judged)?;
        // The evaluation is none of the time that went into training.
        self.meter.reported = Instant::now();
        Ok(None)
    }

    /// Tells of an evaluation, and keeps what it was of if it is one of the best.
    fn evaluated(
        &mut self,
        epoch: u32,
        ends_epoch: bool,
        EvalOutcome { metrics, is_best }: EvalOutcome,
    ) -> Result<()> {
        let step = self.session.step();
        self.settle()?;
        self.report()?;
        self.record(|events, _| events.evaluated(step, &metrics))?;
        self.link.send(&FromWorker::Evaluated { step, epoch, ends_epoch, metrics })?;
        if is_best {
            self.take_checkpoint()?;
        }
        Ok(())
    }

    /// Tells of a checkpoint that was committed, and begins one if that is due and can be.
    fn checkpoint_if_due(&mut self) -> Result<()> {
        self.keeper.collect(self.link)?;
        if self.keeper.is_ready() {
            self.take_checkpoint()?;
        }
        Ok(())
    }

    fn take_checkpoint(&mut self) -> Result<()> {
        self.settle()?;
        self.flush_events()?;
        let recorder = Arc::clone(self.profiler.recorder());
        recorder.phase(Phase::Checkpoint, || self.keeper.take(&self.session, self.link))
    }

    fn last_checkpoint(&mut self) -> Result<()> {
        self.settle()?;
        self.flush_events()?;
        let recorder = Arc::clone(self.profiler.recorder());
        recorder.phase(Phase::Checkpoint, || self.keeper.take_last(&self.session, self.link))
    }

    /// So that a worker that goes on from a checkpoint tells nothing again of what came before.
    fn flush_events(&mut self) -> Result<()> {
        self.record(|events, _| events.flush())
    }

    /// Takes note of time that went into training, and of its part that was spent waiting for a batch.
    fn spent(&mut self, trained: Duration, waited: Duration) {
        self.meter.trained += trained;
        self.meter.waited += waited;
        if let Some(events) = &mut self.events {
            events.spent(trained, waited);
        }
    }

    /// Begins an event file; without one, training goes on.
    fn begin_events(&mut self, spec: EventSpec, job: &str) -> Result<()> {
        let directory = spec.directory.clone();
        match EventWriter::begin(spec, self.keeper.committed().map(|restored| restored.step), job) {
            Ok(events) => self.events = Some(events),
            Err(error) => self.warn_of_events(&directory, &error)?,
        }
        Ok(())
    }

    /// Says how many steps were skipped, where any were.
    fn tell_skipped(&mut self) -> Result<()> {
        let Some(scale) = self.session.loss_scale().filter(|scale| scale.skipped_steps > 0) else {
            return Ok(());
        };
        let message = format!(
            "{} of {} steps were skipped, since gradients overflowed; the loss scale is {} now",
            scale.skipped_steps,
            self.session.step(),
            scale.scale
        );
        self.link.send(&FromWorker::Warned { message })?;
        Ok(())
    }

    /// Has something written for TensorBoard. Where that fails it is said, once, and training goes on.
    fn record(
        &mut self,
        write: impl FnOnce(&mut EventWriter, &Session<Measured<B>>) -> io::Result<()>,
    ) -> Result<()> {
        let Some(events) = &mut self.events else { return Ok(()) };
        let Err(error) = write(events, &self.session) else { return Ok(()) };
        let path = events.path().to_owned();
        self.warn_of_events(&path, &error)
    }

    fn warn_of_events(&mut self, path: &Path, error: &io::Error) -> Result<()> {
        if !std::mem::replace(&mut self.events_warned, true) {
            let message = format!(
                "{}: {error}; training goes on, and TensorBoard will not show all of it",
                path.display()
            );
            self.link.send(&FromWorker::Warned { message })?;
        }
        Ok(())
    }

    fn report(&mut self) -> Result<()> {
        self.profiler.report(&self.session, self.link)?;
        let now = Instant::now();
        let meter = std::mem::replace(&mut self.meter, Meter::new(now));
        let progress = self.session.progress();
        self.link.send(&FromWorker::Progress(Progress {
            step: self.session.step(),
            epoch: progress.epoch,
            examples: progress.examples,
            steps_per_epoch: meter.steps_per_epoch,
            new_examples: meter.examples,
            loss: meter.loss.mean(),
            seconds: meter.trained.as_secs_f64(),
            waited_seconds: meter.waited.as_secs_f64(),
        }))?;
        Ok(())
    }
}

/// Writes the distribution of each tensor of weights, if that is due.
fn write_histograms<B: Backend<Scalar = f32>>(
    events: &mut EventWriter,
    session: &Session<B>,
) -> io::Result<()> {
    let step = session.step();
    if !events.histograms_are_due(step) {
        return Ok(());
    }
    session.read_parameters(|tensor, numbers| events.histogram(step, &tensor.name, numbers))
}

impl Meter {
    fn new(now: Instant) -> Self {
        Self {
            reported: now,
            trained: Duration::ZERO,
            waited: Duration::ZERO,
            examples: 0,
            loss: LossSum::default(),
            steps_per_epoch: None,
        }
    }
}
