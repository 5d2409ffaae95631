//! A worker that trains: a step per training batch, metrics per pass over held-out data, and checkpoints.
//!
//! Checkpoints are taken between steps ([`Checkpointer`]). A step is a function of the model and the batch
//! alone, so the final checkpoint does not depend on when checkpoints were taken or how often training was
//! interrupted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millstream_backend::Backend;
use millstream_batch::{BatchRef, BatchSchema, Consumer, Lease, RingError, Stream};
use millstream_trace::{Category, Phase, Recorder, Work};
use millstream_trainer::checkpoint::{CheckpointError, CheckpointScope, CheckpointStore};
use millstream_trainer::loss::LossSum;
use millstream_trainer::session::{ContinuedData, EvalCadence, EvalOutcome, Session, SessionError};
use millstream_trainer::spec::{ModelSpec, TrainingSpec};
use millstream_trainer::warm_start::{IdMappings, WarmStart};

use crate::checkpoints::{Cadence, Checkpointer};
use crate::device::{self, DeviceTask};
use crate::link::{CommandReceiver, Link, StopMode};
use crate::locks::RunLock;
use crate::profiler::Profiler;
use crate::protocol::{
    ANALYSIS_PART, BeginningRole, ContinuationRole, FromWorker, JOB_PART, Restored, TrainRole, WarmStartRole,
    WorkerProgress,
};
use crate::rehearsal;
use crate::tensorboard::{EventSpec, EventWriter, Meter};

/// Time limit for an earlier worker of the job to exit: it is dead or dying.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between progress reports.
const REPORT_PERIOD: Duration = Duration::from_millis(100);

/// Interval between checks for a stop while training has ended but its last checkpoint cannot be written.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A training job.
struct Training<'a, B: Backend> {
    session: Session<B>,
    /// When held-out rows are requested; `None` if they are interleaved with the training rows.
    evaluation: Option<EvalCadence>,
    /// Whether the last step ended its epoch.
    epoch_ended: bool,
    /// When the current evaluation began, while there is one.
    evaluating_since: Option<Instant>,
    checkpointer: Checkpointer,
    /// What was done since the last progress report.
    meter: Meter,
    /// When that was.
    reported: Instant,
    /// If it has become known since.
    steps_per_epoch: Option<u64>,
    /// TensorBoard events, if the job writes them.
    events: Option<EventWriter>,
    /// Whether a failure to write events has been reported.
    events_warned: bool,
    profiler: Profiler,
    receiver: CommandReceiver,
    link: &'a mut Link,
}

/// Trains a job from its newest valid checkpoint.
pub(crate) struct TrainTask {
    pub(crate) role: TrainRole,
    pub(crate) schema: BatchSchema,
}

impl DeviceTask for TrainTask {
    fn run<B: Backend<Scalar = f32>>(
        self,
        open: impl Fn(Option<u32>, Arc<Recorder>) -> Result<B>,
        link: &mut Link,
    ) -> Result<FromWorker> {
        let Self { mut role, schema } = self;
        let (schema, training) = (&schema, &role.training);
        let recorder = Arc::new(Recorder::default());
        let open = |threads| open(threads, Arc::clone(&recorder));
        let _lock = RunLock::acquire(&role.directory, LOCK_TIMEOUT)?;
        let read = |path: &Path| fs::read_to_string(path).with_context(|| path.display().to_string());
        let (job, analysis) = (read(&role.job)?, read(&role.analysis)?);
        let store = CheckpointStore::local(&role.directory)?;
        if let Some(spec) = role.rehearsal
            && store.steps()?.is_empty()
        {
            let backend = open(training.threads)?;
            rehearsal::run(backend, spec, &role.model, schema, training).context("rehearsing a step")?;
        }
        let mut session = Session::new(open(training.threads)?, &role.model, schema, training)?;
        if let Some(groups) = &role.group {
            session.group_by(groups)?;
        }
        session.select_by(role.selection);
        let mut passed_over = Vec::new();
        let committed = restore(&mut session, &store, &mut passed_over)?;
        match &role.beginning {
            _ if committed.is_some() => {}
            None => {}
            Some(BeginningRole::WarmStart(source)) => {
                apply_warm_start(&mut session, source, (&role.model, schema, training)).with_context(
                    || format!("warm start from step {} in {}", source.step, source.directory.display()),
                )?;
            }
            Some(BeginningRole::Continuation(ContinuationRole {
                directory,
                step,
                position,
                is_same_data,
            })) => {
                let checkpoint = CheckpointStore::local(directory)?.load(*step, CheckpointScope::Full)?;
                let data = if *is_same_data { ContinuedData::Same } else { ContinuedData::New };
                session.continue_from(&checkpoint, position, data)?;
            }
        }
        // The writer of the newest checkpoint may have been killed before. Damaged ones are kept until the next commit.
        if let Some(Restored { step, .. }) = &committed
            && passed_over.is_empty()
            && let Err(error) = store.remove_expired(*step, role.keep)
        {
            tracing::warn!(%error, "old checkpoints are not removed yet");
        }
        let device = session.device();
        link.send(&FromWorker::Ready { restored: committed.clone(), passed_over, device })?;
        let (ring, receiver) = link.receive_ring(schema)?;
        // Stored in each checkpoint: the job file and the statistics learned from its data.
        let carried = vec![(JOB_PART, job.clone().into_bytes()), (ANALYSIS_PART, analysis.into_bytes())];
        let retry_for = Duration::from_secs(60 * u64::from(role.retry_minutes));
        let cadence = Cadence { every_steps: role.every_steps, keep: role.keep, retry_for };
        let checkpointer = Checkpointer::new(cadence, &mut session, store, carried, committed)?;
        let profiler = Profiler::new(Arc::clone(&recorder), training.precision);
        let mut training = Training {
            session,
            evaluation: role.evaluation,
            epoch_ended: false,
            evaluating_since: None,
            checkpointer,
            meter: Meter::default(),
            reported: Instant::now(),
            steps_per_epoch: None,
            events: None,
            events_warned: false,
            profiler,
            receiver,
            link,
        };
        if let Some(spec) = role.events.take() {
            training.begin_events(spec, &job)?;
        }
        let ended = training.run(ring)?;
        training.drain()?;
        training.profiler.end(&training.session, true, training.link)?;
        training.report()?;
        training.write_events(|events, session| events.end(session.step()))?;
        training.report_skipped_steps()?;
        Ok(ended)
    }
}

/// Initializes the weights of a session at step 0 from a checkpoint of another job.
fn apply_warm_start<B: Backend<Scalar = f32>>(
    session: &mut Session<B>,
    source: &WarmStartRole,
    (model, schema, training): (&ModelSpec, &BatchSchema, &TrainingSpec),
) -> Result<()> {
    let WarmStartRole { directory, step, id_mappings } = source;
    let mappings = fs::read(id_mappings).with_context(|| id_mappings.display().to_string())?;
    let mappings: IdMappings =
        serde_json::from_slice(&mappings).with_context(|| id_mappings.display().to_string())?;
    let checkpoint = CheckpointStore::local(directory)?.load(*step, CheckpointScope::Scoring)?;
    let then = &checkpoint.manifest.snapshot;
    let tasks = training.tasks(schema.label_count());
    let then = (&then.model, &then.schema, then.tasks.as_slice());
    let warm = WarmStart::new(then, (model, schema, &tasks), &mappings)?;
    Ok(session.warm_start(&warm, &checkpoint)?)
}

/// Restores the newest valid checkpoint. Appends an error for each damaged newer one to `passed_over`.
fn restore<B: Backend<Scalar = f32>>(
    session: &mut Session<B>,
    store: &CheckpointStore,
    passed_over: &mut Vec<String>,
) -> Result<Option<Restored>> {
    for step in store.steps()?.into_iter().rev() {
        let loaded = store.load(step, CheckpointScope::Full).map_err(SessionError::from);
        match loaded.and_then(|checkpoint| session.restore(&checkpoint)) {
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
    fn run(&mut self, mut ring: Consumer) -> Result<FromWorker> {
        let _pinned = device::pinned(self.session.pin(&ring.mapping()), self.link)?;
        let recorder = Arc::clone(self.profiler.recorder());
        loop {
            if let Some(ended) = self.between_steps()? {
                return Ok(ended);
            }
            let (began, start) = (Instant::now(), recorder.start());
            if !ring.has_next() {
                // Time during which the device is still busy does not count as waiting for input.
                self.drain()?;
            }
            let wait_began = Instant::now();
            let leased = match recorder.phase(Phase::Wait, || ring.next()) {
                Ok(Some(leased)) => leased,
                Ok(None) => break,
                // A stop was requested; the next iteration handles it.
                Err(RingError::Interrupted) => continue,
                Err(RingError::PeerGone) => return Ok(FromWorker::InputLost),
                Err(error) => return Err(error.into()),
            };
            let waited = wait_began.elapsed();
            match leased.batch().header().stream {
                Stream::Train => {
                    let rows = leased.batch().rows() as u64;
                    self.train(leased)?;
                    self.add_time(began.elapsed(), waited);
                    self.write_events(|events, session| events.point_if_due(session.step()))?;
                    let began = Instant::now();
                    if self.events.is_some() {
                        recorder.phase(Phase::Events, || self.write_events(write_histograms))?;
                    }
                    self.checkpointer.on_step(self.session.step());
                    self.add_time(began.elapsed(), Duration::ZERO);
                    recorder.add(start, Category::Step, "step", || Work { rows, ..Work::default() });
                }
                Stream::Eval => {
                    recorder.phase(Phase::Evaluation, || self.evaluate(leased.batch()))?;
                    recorder.phase(Phase::Release, || drop(leased));
                }
            }
            if self.reported.elapsed() >= REPORT_PERIOD {
                self.report()?;
            }
        }
        if self.evaluation.is_some() && !self.session.is_evaluated() {
            self.session.set_eval_due();
            if let Some(ended) = self.between_steps()? {
                return Ok(ended);
            }
        }
        self.finish(None)
    }

    /// Does everything due before the next step; returns the outcome if training ends.
    fn between_steps(&mut self) -> Result<Option<FromWorker>> {
        if let Some(ended) = self.apply_commands()? {
            return Ok(Some(ended));
        }
        if self.session.is_eval_due() {
            let recorder = Arc::clone(self.profiler.recorder());
            if let Some(ended) = recorder.phase(Phase::Evaluation, || self.evaluate_separately())? {
                return Ok(Some(ended));
            }
            if let Some(ended) = self.apply_commands()? {
                return Ok(Some(ended));
            }
        }
        if let Some(why) = self.session.early_stop_reason() {
            return self.finish(Some(why)).map(Some);
        }
        let began = Instant::now();
        self.checkpoint_if_due()?;
        self.add_time(began.elapsed(), Duration::ZERO);
        if self.profiler.is_due(&self.session, &self.receiver.commands) {
            self.drain()?;
            self.profiler.between_steps(&self.session, &self.receiver.commands, self.link)?;
        }
        Ok(None)
    }

    /// Applies the daemon's pending commands.
    fn apply_commands(&mut self) -> Result<Option<FromWorker>> {
        // Before the first batch there is nothing to save; the request stays pending.
        let has_trained = !self.session.position().is_empty();
        if has_trained && self.receiver.commands.take_checkpoint() {
            self.checkpointer.request();
        }
        let Some(stop) = self.receiver.commands.stop() else { return Ok(None) };
        if has_trained && stop == StopMode::AfterCheckpoint {
            self.take_checkpoint(true)?;
        }
        Ok(Some(FromWorker::Stopped))
    }

    fn train(&mut self, leased: Lease) -> Result<()> {
        let header = leased.batch().header();
        // All epochs have equally many rows, unless weights draw some of them; the mean is then reported. If a short last
        // batch is dropped, only the next epoch's first batch shows that an epoch has ended.
        let (before, epochs) = (self.session.step(), u64::from(header.epoch));
        if header.batch == 0 && epochs > 0 {
            self.steps_per_epoch = Some(before / epochs);
        }
        self.session.submit(&[leased.batch()])?;
        // The batch has been copied, so the slot can be released while the step is in flight.
        self.profiler.recorder().phase(Phase::Release, || drop(leased));
        for meter in self.meters() {
            meter.steps += 1;
            meter.examples += u64::from(header.rows);
        }
        match self.events.as_ref().is_some_and(|events| events.point_is_due(self.session.step())) {
            true => self.drain()?,
            false => {
                let loss = self.session.throttle()?;
                self.add_loss(loss);
            }
        }
        if header.last {
            self.steps_per_epoch = Some(self.session.step() / (epochs + 1));
        }
        self.epoch_ended = header.last;
        let ended = header.last.then_some(header.epoch);
        if self.evaluation.is_some_and(|cadence| cadence.is_due(self.session.step(), ended)) {
            self.session.set_eval_due();
        }
        Ok(())
    }

    /// Waits until no step is in flight.
    fn drain(&mut self) -> Result<()> {
        let loss = self.session.drain()?;
        self.add_loss(loss);
        Ok(())
    }

    /// Adds the loss of completed steps.
    fn add_loss(&mut self, loss: LossSum) {
        self.meters().for_each(|meter| meter.loss += loss);
        if let (Some(events), Some(scale)) = (&mut self.events, self.session.loss_scale()) {
            events.set_loss_scale(scale);
        }
    }

    /// The meters of progress reports and of TensorBoard's curves.
    fn meters(&mut self) -> impl Iterator<Item = &mut Meter> {
        std::iter::once(&mut self.meter).chain(self.events.as_mut().map(EventWriter::meter))
    }

    /// Evaluates a batch of held-out rows that is interleaved with training.
    fn evaluate(&mut self, batch: BatchRef<'_>) -> Result<()> {
        let header = batch.header();
        self.evaluating_since.get_or_insert_with(Instant::now);
        self.session.evaluate(batch)?;
        if header.last {
            let judged = self.session.finish_eval()?;
            self.evaluated(header.epoch, true, judged)?;
        }
        Ok(())
    }

    /// Requests held-out rows through a separate ring and evaluates them. A stop request ends this early.
    fn evaluate_separately(&mut self) -> Result<Option<FromWorker>> {
        // Report the training up to the evaluation first.
        self.drain()?;
        self.report()?;
        self.evaluating_since = Some(Instant::now());
        self.link.send(&FromWorker::EvalDue)?;
        let Some(mut ring) = self.receiver.next_eval_ring() else { return Ok(None) };
        // A failure was already reported for the training ring.
        let _pinned = self.session.pin(&ring.mapping()).ok();
        loop {
            let leased = match ring.next() {
                Ok(Some(leased)) => leased,
                Ok(None) => break,
                Err(RingError::Interrupted) => {
                    self.session.discard_eval();
                    self.evaluating_since = None;
                    return Ok(None);
                }
                Err(RingError::PeerGone) => return Ok(Some(FromWorker::InputLost)),
                Err(error) => return Err(error.into()),
            };
            self.session.evaluate(leased.batch())?;
        }
        let judged = self.session.finish_separate_eval()?;
        let epoch = self.session.progress().epoch;
        self.evaluated(epoch, self.epoch_ended, judged)?;
        // Evaluation time does not count as training time.
        self.reported = Instant::now();
        Ok(None)
    }

    /// Reports an evaluation, and takes a checkpoint if it is one of the best.
    fn evaluated(
        &mut self,
        epoch: u32,
        ends_epoch: bool,
        EvalOutcome { metrics, is_best }: EvalOutcome,
    ) -> Result<()> {
        let step = self.session.step();
        self.drain()?;
        self.report()?;
        self.write_events(|events, _| events.evaluated(step, &metrics))?;
        let seconds = self.evaluating_since.take().map_or(0.0, |began| began.elapsed().as_secs_f64());
        self.link.send(&FromWorker::Evaluated { step, epoch, ends_epoch, metrics, seconds })?;
        if is_best {
            self.take_checkpoint(false)?;
        }
        Ok(())
    }

    /// Reports a committed checkpoint, and takes one if it is due and the writer is idle.
    fn checkpoint_if_due(&mut self) -> Result<()> {
        self.checkpointer.report_committed(self.link)?;
        if self.checkpointer.is_ready() {
            self.take_checkpoint(false)?;
        }
        Ok(())
    }

    /// Takes a checkpoint; if it `is_last`, waits until it is committed.
    fn take_checkpoint(&mut self, is_last: bool) -> Result<()> {
        self.drain()?;
        // So that a worker resuming from it repeats no events.
        self.write_events(|events, _| events.flush())?;
        let recorder = Arc::clone(self.profiler.recorder());
        recorder.phase(Phase::Checkpoint, || {
            self.checkpointer.take(&mut self.session, self.link)?;
            if is_last { self.checkpointer.wait(self.link) } else { Ok(()) }
        })
    }

    /// Commits the last checkpoint. If it cannot be written, tries again until it can, the job's time for that is over, or a
    /// stop is requested.
    fn finish(&mut self, stopped_early: Option<String>) -> Result<FromWorker> {
        loop {
            self.take_checkpoint(true)?;
            let Some(retry_at) = self.checkpointer.retry_at() else {
                return Ok(FromWorker::Done { stopped_early });
            };
            while Instant::now() < retry_at {
                if self.receiver.commands.stop().is_some() {
                    return Ok(FromWorker::Stopped);
                }
                std::thread::sleep(STOP_POLL_INTERVAL);
            }
        }
    }

    /// Adds training time and its part spent waiting for a batch.
    fn add_time(&mut self, trained: Duration, waited: Duration) {
        for meter in self.meters() {
            meter.trained += trained;
            meter.waited += waited;
        }
    }

    /// Creates an event file. On failure training continues without one.
    fn begin_events(&mut self, spec: EventSpec, job: &str) -> Result<()> {
        let directory = spec.directory.clone();
        match EventWriter::begin(spec, self.checkpointer.committed().map(|restored| restored.step), job) {
            Ok(events) => self.events = Some(events),
            Err(error) => self.warn_of_events(&directory, &error)?,
        }
        Ok(())
    }

    /// Reports the number of skipped steps, if any.
    fn report_skipped_steps(&mut self) -> Result<()> {
        let Some(scale) = self.session.loss_scale().filter(|scale| scale.skipped_steps > 0) else {
            return Ok(());
        };
        let message = format!(
            "{} of {} steps were skipped because gradients overflowed; the loss scale is now {}",
            scale.skipped_steps,
            self.session.step(),
            scale.scale
        );
        self.link.send(&FromWorker::Warned { message })?;
        Ok(())
    }

    /// Writes TensorBoard events. A failure is reported once, and training continues.
    fn write_events(
        &mut self,
        write: impl FnOnce(&mut EventWriter, &mut Session<B>) -> io::Result<()>,
    ) -> Result<()> {
        let Some(events) = &mut self.events else { return Ok(()) };
        let Err(error) = write(events, &mut self.session) else { return Ok(()) };
        let path = events.path().to_owned();
        self.warn_of_events(&path, &error)
    }

    fn warn_of_events(&mut self, path: &Path, error: &io::Error) -> Result<()> {
        if !std::mem::replace(&mut self.events_warned, true) {
            let message = format!(
                "{}: {error}; training continues, but TensorBoard will miss some events",
                path.display()
            );
            self.link.send(&FromWorker::Warned { message })?;
        }
        Ok(())
    }

    fn report(&mut self) -> Result<()> {
        self.profiler.report(&self.session, self.link)?;
        self.reported = Instant::now();
        let meter = std::mem::take(&mut self.meter);
        let progress = self.session.progress();
        self.link.send(&FromWorker::Progress(WorkerProgress {
            step: self.session.step(),
            epoch: progress.epoch,
            examples: progress.examples,
            steps_per_epoch: self.steps_per_epoch.take(),
            new_examples: meter.examples,
            loss: meter.loss.mean(),
            seconds: meter.trained.as_secs_f64(),
            waited_seconds: meter.waited.as_secs_f64(),
        }))?;
        Ok(())
    }
}

/// Writes a histogram of each weight tensor, if due.
fn write_histograms<B: Backend<Scalar = f32>>(
    events: &mut EventWriter,
    session: &mut Session<B>,
) -> io::Result<()> {
    let step = session.step();
    if !events.histograms_are_due(step) {
        return Ok(());
    }
    session.read_parameters(|tensor, numbers| events.histogram(step, &tensor.name, numbers))
}
