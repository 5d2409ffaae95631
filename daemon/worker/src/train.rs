//! A worker that trains: a step per training batch, metrics per pass over held-out data, and checkpoints.
//!
//! Checkpoints are taken between steps ([`Checkpointer`]). A step is a function of the model and the batch
//! alone, so the final checkpoint does not depend on when checkpoints were taken or how often training was
//! interrupted.
//!
//! # Several workers
//!
//! Each rank trains on its part of every batch, and sees the same headers. All ranks run the same collective operations in
//! the same order, because each decision follows from what is the same on all: the headers, the number of steps, the metrics
//! of evaluations. Only a request to stop reaches ranks at different times. So before each step and each batch of held-out
//! rows, and at the end of both, all ranks [agree](Training::agree) whether any of them was asked to stop, and stop there together. A rank
//! whose wait for rows is interrupted by the request goes straight to the next agreement.
//!
//! Rank 0 alone has a [`Leader`]. What it does between steps delays the others, who wait for it in their next collective
//! operation, for `timeout_seconds` at most. So does a recording of steps, of whichever rank ([`Profiler`]). Only checkpoints and
//! images are shared: rank 0 asks for a copy of the model in an agreement, each rank copies a share
//! ([`Training::copy_with_peers`]), and each [writes](crate::parts) some of a checkpoint's files. While the next batch is late, rank 0
//! copies the model alone.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millstream_backend::Backend;
use millstream_batch::{BatchRef, BatchSchema, RingError, Stream};
use millstream_trace::{Category, Phase, Recorder, Work};
use millstream_trainer::checkpoint::{CheckpointError, CheckpointScope, CheckpointStore, Image, ImageShare};
use millstream_trainer::loss::LossSum;
use millstream_trainer::session::{
    Agreement, ContinuedData, EvalCadence, EvalOutcome, Request, Session, SessionError,
};
use millstream_trainer::spec::{ModelSpec, TrainingSpec};
use millstream_trainer::warm_start::{IdMappings, WarmStart};

use crate::checkpoints::{self, Cadence, CheckpointPlaces, Checkpointer, model_copies};
use crate::device::{self, DeviceTask};
use crate::leader::{Evaluated, Leader, Others};
use crate::link::{CommandReceiver, Link, PendingCommands, StopMode};
use crate::locks::RunLock;
use crate::parts::PartsExchange;
use crate::profiler::Profiler;
use crate::protocol::{
    ANALYSIS_PART, BeginningRole, CheckpointSize, ContinuationRole, FromWorker, JOB_PART, Place, Restored,
    TrainRole, WarmStartRole,
};
use crate::rings::{Parts, Rings};
use crate::{ranks, rehearsal};

/// Time limit for an earlier worker of the job to exit: it is dead or dying.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between checks whether a checkpoint has been written for which all ranks wait.
const WRITER_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Interval between checks for a stop while training has ended but its last checkpoint cannot be written.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// While the next batch is late, the interval between checks whether a checkpoint or the like is due.
const INPUT_PATIENCE: Duration = Duration::from_secs(1);

/// A training job, on one of its workers.
struct Training<'a, B: Backend> {
    session: Session<B>,
    /// When held-out rows are requested; `None` if they are interleaved with the training rows.
    evaluation: Option<EvalCadence>,
    /// Whether the last step ended its epoch.
    epoch_ended: bool,
    /// Whether there are other workers.
    has_peers: bool,
    /// Whether it is the first worker of its host, and asks the daemon for held-out rows.
    is_first_here: bool,
    /// What rank 0 does alone; `None` on other ranks.
    leader: Option<Leader>,
    /// The shares of images that another rank than 0 copies.
    shares: Vec<ImageShare<f32>>,
    profiler: Profiler,
    recorder: Arc<Recorder>,
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
        let (is_in_bucket, mut has_begun) = (matches!(self.role.run, Place::Bucket { .. }), false);
        match self.train(open, link, &mut has_begun) {
            // Checkpoints that cannot be written later on have been tried for long enough.
            Err(error) if is_in_bucket && !has_begun && is_of_storage(&error) => {
                Ok(FromWorker::StorageFailed { message: format!("{error:#}") })
            }
            ended => ended,
        }
    }
}

impl TrainTask {
    /// Trains to the end. Sets `has_begun` once everything has been read that training starts from.
    fn train<B: Backend<Scalar = f32>>(
        self,
        open: impl Fn(Option<u32>, Arc<Recorder>) -> Result<B>,
        link: &mut Link,
        has_begun: &mut bool,
    ) -> Result<FromWorker> {
        let Self { mut role, schema } = self;
        let (schema, training) = (&schema, &role.training);
        let recorder = Arc::new(Recorder::default());
        let open = |threads| open(threads, Arc::clone(&recorder));
        let images = role.has_images().then(|| link.receive_images()).transpose()?;
        let (is_leader, has_peers) = (role.rank == 0, training.ranks() > 1);
        let images_every = role.image_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        // Before the others restore a checkpoint: an earlier worker that is ending may still commit one.
        let _lock = match &role.run {
            Place::Local(directory) if is_leader => Some(RunLock::acquire(directory, LOCK_TIMEOUT)?),
            _ => None,
        };
        let store = match &role.run {
            Place::Local(directory) => CheckpointStore::local(directory)?,
            Place::Bucket { address, term } => link.receive_objects()?.checkpoints(address, *term),
        };
        let event_objects = match role.events.as_ref().map(|events| &events.place) {
            Some(Place::Bucket { .. }) => Some(link.receive_objects()?),
            _ => None,
        };
        let newest_image = newest_image(images.as_ref())?;
        if let Some(spec) = role.rehearsal
            && store.steps()?.is_empty()
            && newest_image.is_none()
        {
            let backend = open(training.threads)?;
            let copies = if role.place.number == 0 { model_copies(images_every) } else { 0 };
            rehearsal::run(backend, spec, (&role.model, schema, training), copies)
                .context("rehearsing a step")?;
        }
        let (communicator, newest_step) = match training.exchanges() {
            true => {
                let (communicator, newest_step) = ranks::connect(&role, link)?;
                (Some(communicator), newest_step)
            }
            false => (None, role.newest_step),
        };
        let mut session = Session::new(open(training.threads)?, &role.model, schema, training)?;
        if let Some(communicator) = communicator {
            session.join(communicator)?;
        }
        if let Some(groups) = &role.group {
            session.group_by(groups)?;
        }
        session.select_by(role.selection);
        session.share_images_as((role.place.number as usize, role.place.workers as usize));
        let mut passed_over = Vec::new();
        let restored = restore(&mut session, (&store, newest_image), newest_step, &mut passed_over)?;
        match &role.beginning {
            _ if restored.is_some() => {}
            None => {}
            Some(BeginningRole::WarmStart(source)) => {
                apply_warm_start(&mut session, (source, &store), (&role.model, schema, training))
                    .with_context(|| {
                        format!("warm start from step {} in {}", source.step, source.directory.display())
                    })?;
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
        if has_peers {
            session.check_same_state()?;
        }
        // The writer of the newest checkpoint may have been killed before. Damaged ones are kept until the next commit.
        if let Some(CheckpointSize { step, .. }) = restored.as_ref().and_then(|restored| restored.checkpoint)
            && is_leader
            && passed_over.is_empty()
            && let Err(error) = store.remove_expired(step, role.keep)
        {
            tracing::warn!(%error, "old checkpoints are not removed yet");
        }
        let device = session.device();
        let restored_step = restored.as_ref().map(|restored| restored.step);
        link.send(&FromWorker::Ready { restored: restored.clone(), passed_over, device })?;
        let part = training.part_schema(schema);
        let images: Vec<File> = images.into_iter().flatten().take(model_copies(images_every)).collect();
        let ranks = training.ranks() as usize;
        let mut shares = Vec::new();
        if !is_leader {
            shares = images.iter().map(|image| session.share_of_image(image)).collect::<Result<_, _>>()?;
        }
        let (rings, receiver, received) = link.receive_rings(&part, training.parts() / training.ranks())?;
        let others = PartsExchange { received, sender: link.sender(), rank: role.rank, ranks };
        // Stored in each checkpoint: the job file and the statistics learned from its data.
        let carried = match is_leader {
            true => {
                vec![(JOB_PART, record(&store, &role.job)?), (ANALYSIS_PART, record(&store, ANALYSIS_PART)?)]
            }
            false => Vec::new(),
        };
        *has_begun = true;
        let places = CheckpointPlaces { store, images, others };
        let leader = if is_leader {
            let job = String::from_utf8_lossy(&carried[0].1).into_owned();
            let retry_for = Duration::from_secs(60 * u64::from(role.retry_minutes));
            let cadence =
                Cadence { every_steps: role.every_steps, keep: role.keep, retry_for, images: images_every };
            let checkpointer = Checkpointer::new(cadence, &mut session, places, carried, restored)?;
            let others = match (has_peers, role.spans_hosts()) {
                (false, _) => Others::None,
                (true, false) => Others::Here,
                (true, true) => Others::Elsewhere,
            };
            let mut leader = Leader::new(checkpointer, others, Arc::clone(&recorder));
            if let Some(spec) = role.events.take() {
                leader.begin_events((spec, event_objects), restored_step, &job, link)?;
            }
            Some(leader)
        } else {
            checkpoints::help_write(places, &mut session)?;
            None
        };
        let mut training = Training {
            session,
            evaluation: role.evaluation,
            epoch_ended: false,
            has_peers,
            is_first_here: role.place.number == 0,
            leader,
            shares,
            profiler: Profiler::new(Arc::clone(&recorder), training.precision),
            recorder,
            receiver,
            link,
        };
        let ended = training.run(rings)?;
        training.drain()?;
        training.profiler.end(&training.session, true, training.link)?;
        if let Some(leader) = &mut training.leader {
            leader.end(&mut training.session, training.link)?;
        }
        Ok(ended)
    }
}

/// Initializes the weights of a session at step 0 from a checkpoint of another job.
fn apply_warm_start<B: Backend<Scalar = f32>>(
    session: &mut Session<B>,
    (source, of_run): (&WarmStartRole, &CheckpointStore),
    (model, schema, training): (&ModelSpec, &BatchSchema, &TrainingSpec),
) -> Result<()> {
    let WarmStartRole { directory, step, id_mappings } = source;
    let mappings = record(of_run, id_mappings)?;
    let mappings: IdMappings = serde_json::from_slice(&mappings).with_context(|| id_mappings.clone())?;
    let checkpoint = CheckpointStore::local(directory)?.load(*step, CheckpointScope::Scoring)?;
    let then = &checkpoint.manifest.snapshot;
    let tasks = training.tasks(schema.label_count());
    let then = (&then.model, &then.schema, then.tasks.as_slice());
    let warm = WarmStart::new(then, (model, schema, &tasks), &mappings)?;
    Ok(session.warm_start(&warm, &checkpoint)?)
}

/// Whether storage has failed, and not what was read from it.
fn is_of_storage(error: &anyhow::Error) -> bool {
    let session = error.downcast_ref::<SessionError>();
    let checkpoint = match session {
        Some(SessionError::Checkpoint(error)) => Some(error),
        _ => error.downcast_ref::<CheckpointError>(),
    };
    matches!(checkpoint, Some(CheckpointError::Storage { .. }))
}

/// The file `name` of the run, beside the checkpoints in `store`.
fn record(store: &CheckpointStore, name: &str) -> Result<Vec<u8>> {
    let found = store.record(name)?;
    Ok(found.with_context(|| format!("the run has no {name}"))?.into())
}

/// The complete image of the latest step, if there is any.
fn newest_image(files: Option<&[File; 2]>) -> Result<Option<Image>> {
    let mut newest: Option<Image> = None;
    for file in files.into_iter().flatten() {
        let step = newest.as_ref().map(|image| image.snapshot().step);
        match Image::open(file.try_clone()?) {
            Ok(image) => newest = image.filter(|image| Some(image.snapshot().step) > step).or(newest),
            Err(error) => tracing::warn!(%error, "an image is passed over"),
        }
    }
    Ok(newest)
}

/// Restores the newest state: `image`, if it is newer than all checkpoints of `store`, or the newest valid one of these, up to that of
/// `newest_step`. Appends an error for each damaged newer one to `passed_over`.
fn restore<B: Backend<Scalar = f32>>(
    session: &mut Session<B>,
    (store, image): (&CheckpointStore, Option<Image>),
    newest_step: Option<u64>,
    passed_over: &mut Vec<String>,
) -> Result<Option<Restored>> {
    let mut steps = store.steps()?;
    steps.retain(|step| newest_step.is_none_or(|newest| *step <= newest));
    if let Some(image) = image.filter(|image| Some(&image.snapshot().step) > steps.last()) {
        match session.restore_image(&image) {
            Ok(()) => {
                let newest = steps.last().map(|&step| CheckpointSize {
                    step,
                    // A damaged one is still the newest.
                    bytes: store.manifest(step).map_or(0, |manifest| manifest.bytes()),
                });
                return Ok(Some(restored(session, true, newest)));
            }
            Err(SessionError::Checkpoint(damage @ CheckpointError::Damaged { .. })) => {
                passed_over.push(damage.to_string());
            }
            // A checkpoint replaces everything that the image has.
            Err(SessionError::Checkpoint(error @ CheckpointError::Storage { .. })) if !steps.is_empty() => {
                passed_over.push(error.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    for step in steps.into_iter().rev() {
        let loaded = store.load(step, CheckpointScope::Full).map_err(SessionError::from);
        let restored_bytes = loaded.and_then(|checkpoint| {
            session.restore(&checkpoint)?;
            Ok(checkpoint.manifest.bytes())
        });
        match restored_bytes {
            Ok(bytes) => return Ok(Some(restored(session, false, Some(CheckpointSize { step, bytes })))),
            Err(SessionError::Checkpoint(damage @ CheckpointError::Damaged { .. })) => {
                passed_over.push(damage.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// The state of `session`, which was restored from an image or from `checkpoint`, the newest one.
fn restored<B: Backend<Scalar = f32>>(
    session: &Session<B>,
    is_image: bool,
    checkpoint: Option<CheckpointSize>,
) -> Restored {
    Restored { is_image, checkpoint, step: session.step(), position: session.position().to_vec() }
}

impl<B: Backend<Scalar = f32>> Training<'_, B> {
    fn run(&mut self, mut rings: Rings) -> Result<FromWorker> {
        let pinned = rings.mappings().map(|pages| self.session.pin(&pages)).collect();
        let _pinned = device::pinned(pinned, self.link)?;
        let recorder = Arc::clone(&self.recorder);
        loop {
            if let Some(ended) = self.between_steps()? {
                return Ok(ended);
            }
            let (began, was_recording, start) = (Instant::now(), recorder.is_recording(), recorder.start());
            if !rings.has_next() {
                // Time during which the device is still busy does not count as waiting for input.
                self.drain()?;
            }
            let waited = self.wait_for_input(&mut rings)?;
            // A recording may have begun meanwhile.
            let start = if was_recording { start } else { recorder.start() };
            let parts = match rings.next() {
                Ok(Some(parts)) => parts,
                // The end of the data, or a request to stop.
                Ok(None) | Err(RingError::Interrupted) => break,
                Err(RingError::PeerGone) => return Ok(FromWorker::InputLost),
                Err(error) => return Err(error.into()),
            };
            let batches = parts.batches();
            let stops = match batches[0].header().stream {
                Stream::Train => {
                    let rows = batches.iter().map(BatchRef::rows).sum::<usize>() as u64;
                    let Agreement { is_step, stop, .. } = self.agree(&batches)?;
                    ensure!(
                        is_step || stop,
                        "another worker has no batch for step {}",
                        self.session.step() + 1
                    );
                    if is_step {
                        self.train(parts)?;
                        self.after_step(began.elapsed(), waited)?;
                        recorder.add(start, Category::Step, "step", || Work { rows, ..Work::default() });
                    }
                    stop
                }
                Stream::Eval => {
                    let stops = recorder.phase(Phase::Evaluation, || self.evaluate(&batches))?;
                    recorder.phase(Phase::Release, || drop(parts));
                    stops
                }
            };
            if stops {
                return self.stop();
            }
            self.profiler.report_if_due(&self.session, self.link)?;
            if let Some(leader) = &mut self.leader {
                leader.report_if_due(&self.session, self.link)?;
            }
        }
        if self.agree(&[])?.stop {
            return self.stop();
        }
        if self.evaluation.is_some() && !self.session.is_evaluated() {
            self.session.set_eval_due();
            if let Some(ended) = self.between_steps()? {
                return Ok(ended);
            }
        }
        self.finish(None)
    }

    /// Agrees with all ranks on the next step, on these parts of a batch, or on whether to continue. A request to stop on any rank stops
    /// all. If rank 0 wants a copy of the model, all ranks copy it first.
    fn agree(&mut self, parts: &[BatchRef<'_>]) -> Result<Agreement> {
        let stop = self.receiver.commands.stop().is_some();
        let copy = self.leader.as_ref().is_some_and(Leader::wants_copy);
        let agreement = self.session.agree(parts, Request { stop, copy })?;
        if agreement.copy {
            self.copy_with_peers()?;
        }
        Ok(agreement)
    }

    /// Waits for the next batch or the end; returns how long. If it is late, does what is due, such as a requested checkpoint.
    fn wait_for_input(&mut self, rings: &mut Rings) -> Result<Duration> {
        let recorder = Arc::clone(&self.recorder);
        let mut waited = Duration::ZERO;
        loop {
            let began = Instant::now();
            let is_there = match recorder.phase(Phase::Wait, || rings.wait(INPUT_PATIENCE)) {
                // Permanent: who takes the batch gets the same error.
                Err(RingError::Interrupted) => true,
                is_there => is_there?,
            };
            waited += began.elapsed();
            if is_there {
                return Ok(waited);
            }
            if let Some(leader) = &mut self.leader {
                leader.while_waiting(&mut self.session, &self.receiver.commands, self.link)?;
            }
            self.profile_if_due()?;
            self.profiler.report_if_due(&self.session, self.link)?;
        }
    }

    /// Copies the model with all other ranks.
    fn copy_with_peers(&mut self) -> Result<()> {
        if let Some(leader) = &mut self.leader {
            return leader.copy_with_peers(&mut self.session, self.link);
        }
        self.drain()?;
        let recorder = Arc::clone(&self.recorder);
        Ok(recorder.phase(Phase::Checkpoint, || self.session.help_capture(&mut self.shares))?)
    }

    /// Does everything due before the next step; returns the outcome if training ends.
    fn between_steps(&mut self) -> Result<Option<FromWorker>> {
        if self.session.is_eval_due() {
            let recorder = Arc::clone(&self.recorder);
            if let Some(ended) = recorder.phase(Phase::Evaluation, || self.evaluate_separately())? {
                return Ok(Some(ended));
            }
        }
        if let Some(why) = self.session.early_stop_reason() {
            return self.finish(Some(why)).map(Some);
        }
        if let Some(leader) = &mut self.leader {
            leader.between_steps(&mut self.session, &self.receiver.commands, self.link)?;
        }
        self.profile_if_due()?;
        Ok(None)
    }

    /// Begins or ends the recording of a profile, if that is due.
    fn profile_if_due(&mut self) -> Result<()> {
        if self.profiler.is_due(&self.session, &self.receiver.commands) {
            self.drain()?;
            self.profiler.between_steps(&self.session, &self.receiver.commands, self.link)?;
        }
        Ok(())
    }

    /// Saves what was trained, unless the daemon is gone. All ranks have agreed to stop.
    fn stop(&mut self) -> Result<FromWorker> {
        let saves = self.receiver.commands.stop() != Some(StopMode::Immediately);
        let has_trained = !self.session.position().is_empty();
        // Rank 0 decides.
        if self.session.is_true_on_any(self.leader.is_some() && saves && has_trained)? {
            self.take_checkpoint()?;
            self.wait_for_writer()?;
        }
        Ok(FromWorker::Stopped)
    }

    fn train(&mut self, parts: Parts) -> Result<()> {
        let batches = parts.batches();
        let (header, before) = (batches[0].header(), self.session.step());
        self.session.submit(&batches)?;
        drop(batches);
        // The batch has been copied, so the slots can be released while the step is in flight.
        self.recorder.phase(Phase::Release, || drop(parts));
        if let Some(leader) = &mut self.leader {
            leader.on_step(&self.session, before, header);
        }
        if self.leader.as_ref().is_some_and(|leader| leader.needs_drain(self.session.step())) {
            self.drain()?;
        } else {
            let loss = self.session.throttle()?;
            self.add_loss(loss);
        }
        self.epoch_ended = header.last;
        let ended = header.last.then_some(header.epoch);
        if self.evaluation.is_some_and(|cadence| cadence.is_due(self.session.step(), ended)) {
            self.session.set_eval_due();
        }
        Ok(())
    }

    fn after_step(&mut self, trained: Duration, waited: Duration) -> Result<()> {
        match &mut self.leader {
            Some(leader) => leader.after_step(&mut self.session, (trained, waited), self.link),
            None => Ok(()),
        }
    }

    /// Waits until no step is in flight.
    fn drain(&mut self) -> Result<()> {
        let loss = self.session.drain()?;
        self.add_loss(loss);
        Ok(())
    }

    /// Adds the loss of completed steps.
    fn add_loss(&mut self, loss: LossSum) {
        if let Some(leader) = &mut self.leader {
            leader.add_loss(&self.session, loss);
        }
    }

    /// Evaluates a batch of held-out rows that is interleaved with training. Returns whether training stops; then the
    /// evaluation is repeated after a resume.
    fn evaluate(&mut self, parts: &[BatchRef<'_>]) -> Result<bool> {
        let header = parts[0].header();
        if self.agree(&[])?.stop {
            return Ok(true);
        }
        if let Some(leader) = &mut self.leader {
            leader.begin_evaluation();
        }
        parts.iter().try_for_each(|&part| self.session.evaluate(part))?;
        if header.last {
            let judged = self.session.finish_eval()?;
            self.evaluated(header.epoch, true, judged)?;
        }
        Ok(false)
    }

    /// Requests held-out rows through a separate ring and evaluates them. Returns the outcome if training ends, as after a
    /// request to stop.
    fn evaluate_separately(&mut self) -> Result<Option<FromWorker>> {
        if self.agree(&[])?.stop {
            return self.stop().map(Some);
        }
        self.drain()?;
        if let Some(leader) = &mut self.leader {
            // Report the training up to the evaluation first.
            leader.report(&self.session, self.link)?;
            leader.begin_evaluation();
        }
        if self.is_first_here {
            self.link.send(&FromWorker::EvalDue)?;
        }
        if let Some(ended) = self.read_held_out_rows()? {
            return Ok(Some(ended));
        }
        let judged = self.session.finish_separate_eval()?;
        let epoch = self.session.progress().epoch;
        self.evaluated(epoch, self.epoch_ended, judged)?;
        if let Some(leader) = &mut self.leader {
            leader.skip_time();
        }
        Ok(None)
    }

    /// Evaluates all batches of a separate ring. Returns the outcome if training ends.
    fn read_held_out_rows(&mut self) -> Result<Option<FromWorker>> {
        // Without rings, a stop was requested.
        let mut rings = self.receiver.next_eval_rings();
        // A failure was already reported for the training rings.
        let mappings = rings.iter().flat_map(Rings::mappings);
        let _pinned: Vec<_> = mappings.map(|pages| self.session.pin(&pages).ok()).collect();
        loop {
            let parts = match rings.as_mut().map_or(Ok(None), Rings::next) {
                Err(RingError::Interrupted) => None,
                Err(RingError::PeerGone) => return Ok(Some(FromWorker::InputLost)),
                next => next?,
            };
            if self.agree(&[])?.stop {
                self.session.discard_eval();
                return self.stop().map(Some);
            }
            let Some(parts) = parts else { return Ok(None) };
            parts.batches().into_iter().try_for_each(|part| self.session.evaluate(part))?;
        }
    }

    /// Reports an evaluation, and takes a checkpoint if it is one of the best.
    fn evaluated(
        &mut self,
        epoch: u32,
        ends_epoch: bool,
        EvalOutcome { metrics, is_best }: EvalOutcome,
    ) -> Result<()> {
        self.drain()?;
        if let Some(leader) = &mut self.leader {
            leader.evaluated(&mut self.session, Evaluated { epoch, ends_epoch, metrics }, self.link)?;
        }
        if is_best { self.take_checkpoint() } else { Ok(()) }
    }

    /// Takes a checkpoint of the current step, once the previous one is written. All ranks copy the model, unless it is committed.
    fn take_checkpoint(&mut self) -> Result<()> {
        self.wait_for_writer()?;
        if let Some(leader) = &mut self.leader {
            leader.take_checkpoint(&mut self.session, &self.receiver.commands, self.link)?;
        }
        if self.has_peers {
            self.agree(&[])?;
        }
        Ok(())
    }

    /// Waits until no checkpoint is being written. Several ranks wait together, in short operations: in a single one, rank 0 would
    /// seem to hang.
    fn wait_for_writer(&mut self) -> Result<()> {
        if self.has_peers {
            while self.ask_leader(|leader, _, link| leader.is_writing(link))? {
                std::thread::sleep(WRITER_POLL_INTERVAL);
            }
        } else if let Some(leader) = &mut self.leader {
            leader.wait_for_writer(self.link)?;
        }
        Ok(())
    }

    /// The answer of rank 0, which all ranks ask the same at the same time.
    fn ask_leader(
        &mut self,
        ask: impl FnOnce(&mut Leader, &PendingCommands, &mut Link) -> Result<bool>,
    ) -> Result<bool> {
        let answer = match &mut self.leader {
            Some(leader) => ask(leader, &self.receiver.commands, self.link)?,
            None => false,
        };
        Ok(self.session.is_true_on_any(answer)?)
    }

    /// Ends the job with its last checkpoint. If it cannot be written, tries again until it can, the job's time for that is over,
    /// or a stop is requested.
    fn finish(&mut self, stopped_early: Option<String>) -> Result<FromWorker> {
        loop {
            self.take_checkpoint()?;
            self.wait_for_writer()?;
            if !self.ask_leader(|leader, _, _| Ok(leader.retry_at().is_some()))? {
                return Ok(FromWorker::Done { step: self.session.step(), stopped_early });
            }
            while self.ask_leader(|leader, _, _| Ok(leader.retry_at() > Some(Instant::now())))? {
                if self.ask_leader(|_, commands, _| Ok(commands.stop().is_some()))? {
                    return Ok(FromWorker::Stopped);
                }
                std::thread::sleep(STOP_POLL_INTERVAL);
            }
        }
    }
}
