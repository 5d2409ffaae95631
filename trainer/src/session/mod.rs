//! Training as a worker drives it: one call per batch.
//!
//! A [`Session`] owns the model and the state that its checkpoints contain. It has no ring, process or clock, so two
//! sessions given the same batches have the same bits.
//!
//! A device may have several steps in flight: a step is submitted, and its loss is known when it completes.
//! Checkpoints require that none is in flight.
//!
//! The checkpointed position advances after a training batch and at the end of an evaluation, not within one: an
//! evaluation changes no weights, so an interrupted one is repeated. If held-out rows are fed separately, they have
//! no position; the session then remembers that an evaluation is due.
//!
//! [`selection`] defines early stopping and the best checkpoints.

mod cadence;
mod difference;
mod scorer;
mod selection;

use std::collections::VecDeque;
use std::fs::File;

use millstream_backend::collective::{CollectiveError, Communicator, UseOfTime};
use millstream_backend::{Backend, BatchError, ConnectDevicesError, Description, PinError};
use millstream_batch::{BatchRef, BatchSchema, RingMapping};
use sha2::{Digest, Sha256};

use crate::checkpoint::{
    Checkpoint, CheckpointError, CheckpointScope, Element, Image, ImageShare, ModelCopy, Snapshot,
    TrainingProgress,
};
use crate::exchange::Exchange;
pub use crate::exchange::{Agreement, Request};
use crate::loss::LossSum;
use crate::metrics::{Metrics, MetricsError};
use crate::model::{LossScale, ModelError, NamedTensor, StepError, TensorRole};
use crate::spec::{GroupSpec, ModelSpec, ScheduleSpec, TrainingSpec};
use crate::warm_start::WarmStart;
pub use cadence::EvalCadence;
pub use scorer::Scorer;
pub use selection::{BestSpec, EvalPoint, SelectionSpec, SelectionState, StoppingSpec};

/// Why a session cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The batch does not fit the model.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Training has diverged; the weights are unusable.
    #[error("the loss of step {step} is {loss}: training has diverged (is a learning rate too high?)")]
    NotFinite {
        /// The step, from 1.
        step: u64,
        /// Its mean loss.
        loss: f64,
    },
    /// Training in half precision has diverged.
    #[error(
        "gradients of step {step} overflowed even at a loss scale of {scale:e}: training has diverged (is a learning \
         rate too high, or a numeric feature not normalized?)"
    )]
    Overflow {
        /// The step, from 1.
        step: u64,
        /// The loss scale.
        scale: f32,
    },
    /// The metrics of the rows are undefined.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Groups need a feature with one id per row.
    #[error("`{feature}` cannot group rows: batches have no such feature with one id per row")]
    NoGroups {
        /// The requested feature.
        feature: String,
    },
    /// The checkpoint belongs to another job.
    #[error("{state} is of another job: {difference}")]
    Mismatch {
        /// The checkpoint, or the image.
        state: String,
        /// The first difference.
        difference: String,
    },
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The communication with the other workers failed: one of them has ended, or is late.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Another worker has restored another state.
    #[error("worker {rank} has restored another state than worker 0: the run has changed meanwhile")]
    OtherState {
        /// The rank of that worker.
        rank: usize,
    },
    /// Another worker of the job trains another model.
    #[error("another worker of the job trains another model")]
    OtherModel,
    /// The devices of the workers cannot be connected.
    #[error(transparent)]
    Devices(ConnectDevicesError),
}

impl From<ConnectDevicesError> for SessionError {
    fn from(error: ConnectDevicesError) -> Self {
        match error {
            ConnectDevicesError::Collective(error) => error.into(),
            error => Self::Devices(error),
        }
    }
}

impl From<StepError> for SessionError {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Batch(error) => error.into(),
            StepError::Collective(error) => error.into(),
            StepError::OtherModel => Self::OtherModel,
        }
    }
}

/// A model in training.
pub struct Session<B: Backend> {
    scorer: Scorer<B>,
    schedule: ScheduleSpec,
    judge: SelectionSpec,
    /// What a checkpoint stores, except for the loss scale, which the model knows.
    state: Snapshot,
    position_in_eval: Vec<u8>,
    /// The number of this worker among those that share images with it, and their number; `None` for its rank.
    place: Option<(usize, usize)>,
    /// Steps in flight.
    in_flight: VecDeque<InFlight>,
    failure: Option<Failure>,
}

/// A step in flight.
struct InFlight {
    step: u64,
    epoch: u32,
    rows: u32,
}

/// Why the session has failed.
#[derive(Clone)]
enum Failure {
    /// The mean loss of a step is not finite.
    Loss { step: u64, loss: f64 },
    /// Gradients of a step overflowed at this loss scale.
    Scale { step: u64, scale: f32 },
    /// A step failed: its batch is invalid, or the state of the other workers is unknown.
    Step(StepError),
}

/// Below this loss scale a gradient of 1 is subnormal in half precision: nothing can be learned, so smaller scales
/// are not tried.
const LEAST_LOSS_SCALE: f32 = 1.0 / (1 << 14) as f32;

/// The data on which a session continues another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContinuedData {
    /// The same rows: epochs are counted on.
    Same,
    /// Other rows: epochs are counted from 0.
    New,
}

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalOutcome {
    /// The metrics of each label.
    pub metrics: Vec<Metrics>,
    /// Whether it is among the best, whose checkpoints are kept.
    pub is_best: bool,
}

impl<B> Session<B>
where
    B: Backend,
    B::Scalar: Element,
{
    /// A session at step 0, with initial weights fixed by the seed.
    ///
    /// # Errors
    /// When the model cannot be built for batches of `schema`.
    pub fn new(
        backend: B,
        model: &ModelSpec,
        schema: &BatchSchema,
        training: &TrainingSpec,
    ) -> Result<Self, SessionError> {
        Ok(Self {
            scorer: Scorer::new(backend, model, schema, training)?,
            schedule: training.schedule,
            judge: SelectionSpec::default(),
            state: Snapshot {
                step: 0,
                progress: TrainingProgress::default(),
                position: Vec::new(),
                eval: Vec::new(),
                eval_step: None,
                eval_due: false,
                standing: SelectionState::default(),
                model: model.clone(),
                schema: schema.clone(),
                seed: training.seed,
                precision: training.precision,
                embedding_precision: training.embedding_precision,
                loss_scale: None,
                tasks: training.tasks(schema.label_count()),
            },
            position_in_eval: Vec::new(),
            place: None,
            in_flight: VecDeque::new(),
            failure: None,
        })
    }

    /// Takes a step on `batch`, scores it and makes `copies` copies of the model, which allocates all the memory that training
    /// needs. One of several workers takes the step without the others, over `alone`, a world of one rank, with `batch` as each
    /// of its parts. The session is consumed, because its weights are meaningless.
    ///
    /// # Errors
    /// When the batch does not fit the model.
    pub fn dry_run(
        mut self,
        batch: BatchRef<'_>,
        alone: Communicator,
        copies: usize,
    ) -> Result<(), SessionError> {
        let mut copies: Vec<_> = (0..copies).map(|_| self.allocate_copy()).collect();
        self.scorer.model.rehearse(batch, self.schedule.step(self.state.step + 1), alone)?;
        self.scorer.predict(batch)?;
        Ok(copies.iter_mut().try_for_each(|copy| copy.copy(&mut self.scorer.model))?)
    }

    /// As [`Scorer::pin`].
    ///
    /// # Errors
    /// As there.
    pub fn pin(&self, pages: &RingMapping) -> Result<B::Pinned, PinError> {
        self.scorer.pin(pages)
    }

    /// As [`Scorer::group_by`].
    ///
    /// # Errors
    /// As there.
    pub fn group_by(&mut self, groups: &GroupSpec) -> Result<(), SessionError> {
        self.scorer.group_by(groups)
    }

    /// Selects checkpoints and stops early according to `judge`, from the next evaluation on.
    pub fn select_by(&mut self, judge: SelectionSpec) {
        self.judge = judge;
    }

    /// Joins the other workers of the job, each of which trains the same model on its part of every batch. From now on, all
    /// make the same calls in the same order.
    ///
    /// # Errors
    /// When the devices of the workers cannot be connected.
    ///
    /// # Panics
    /// If they are not as many as this session's training has workers.
    pub fn join(&mut self, communicator: Communicator) -> Result<(), SessionError> {
        Ok(self.scorer.model.join(communicator)?)
    }

    /// Checks that the other workers have restored the same state, which may be read from storage while it changes.
    ///
    /// # Errors
    /// When they have not, another worker has ended, or is late.
    pub fn check_same_state(&mut self) -> Result<(), SessionError> {
        let json = serde_json::to_vec(&self.state).expect("a snapshot has string keys");
        let hash = Sha256::digest(json);
        let (words, _) = hash.as_chunks();
        let mine: Vec<_> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
        let all = self.peers().gather(&mine)?;
        match all.iter().position(|other| other[..] != all[0][..]) {
            None => Ok(()),
            Some(rank) => Err(SessionError::OtherState { rank }),
        }
    }

    /// Copies the model with the other workers of this host only: as number `place.0` of `place.1`. Each host then has an image with the
    /// whole model. Otherwise all workers are taken to be on one host.
    pub fn share_images_as(&mut self, place: (usize, usize)) {
        self.place = Some(place);
    }

    /// Agrees with the other workers on the next step. Each passes its parts of the batch, or none if it lacks them, and
    /// what it wants. If the result is a step, all workers take it; otherwise none does. A worker alone gets what
    /// it passes.
    ///
    /// # Errors
    /// When another worker has ended, or is late. The session is then unusable.
    pub fn agree(&mut self, parts: &[BatchRef<'_>], request: Request) -> Result<Agreement, SessionError> {
        Ok(self.scorer.model.agree(parts, request)?)
    }

    /// Whether `answer` is true on any worker of the job. All workers ask the same at the same time, between steps.
    ///
    /// # Errors
    /// As of [`Session::agree`].
    pub fn is_true_on_any(&mut self, answer: bool) -> Result<bool, SessionError> {
        Ok(self.agree(&[], Request { stop: answer, copy: false })?.stop)
    }

    /// How each worker had used its time before the last agreement, by rank; empty for a worker alone.
    pub fn use_of_time(&self) -> &[UseOfTime] {
        let with_others = self.scorer.model.exchange().filter(|exchange| exchange.rank().1 > 1);
        with_others.map_or(&[], Exchange::times)
    }

    /// Takes a step on `batch` and waits for its end: [`Session::agree`], [`Session::submit`] and [`Session::drain`].
    ///
    /// # Errors
    /// As of all three.
    pub fn train(&mut self, batch: BatchRef<'_>) -> Result<LossSum, SessionError> {
        self.agree(&[batch], Request::default())?;
        self.submit(&[batch])?;
        self.drain()
    }

    /// Submits a step on this worker's `parts` of a batch, whose memory may change once this returns. The step counts as taken.
    /// Call [`Session::throttle`] before the next one. A worker alone has the whole batch as one part, unless its training has
    /// shards. If several workers train the model, they have agreed on the step.
    ///
    /// # Errors
    /// When the batch does not fit the model; a worker alone has then changed nothing. When the exchange with the other
    /// workers fails; the session is then unusable.
    ///
    /// # Panics
    /// When there are not as many parts as each worker has.
    pub fn submit(&mut self, parts: &[BatchRef<'_>]) -> Result<(), SessionError> {
        self.check_failed()?;
        let submitted = self.scorer.model.submit_parts(parts, self.schedule.step(self.state.step + 1));
        if let (Err(error), true) = (&submitted, self.scorer.model.exchange().is_some()) {
            self.failure = Some(Failure::Step(error.clone()));
        }
        submitted?;
        self.state.step += 1;
        let header = parts[0].header();
        let (step, rows) = (self.state.step, header.global_rows);
        self.in_flight.push_back(InFlight { step, epoch: header.epoch, rows });
        self.state.position.clear();
        self.state.position.extend_from_slice(parts[0].position());
        Ok(())
    }

    /// Waits until few enough steps are in flight to submit another. Returns the loss of the completed steps, each
    /// computed before its update; a skipped step with a loss that is not finite has weight 0.
    ///
    /// # Errors
    /// When the loss of a step is not finite, gradients overflow at the smallest loss scale, or a batch is invalid.
    /// The session is then unusable.
    pub fn throttle(&mut self) -> Result<LossSum, SessionError> {
        self.end_steps(self.scorer.model.steps_ahead())
    }

    /// Waits until no step is in flight. Returns as [`Session::throttle`].
    ///
    /// # Errors
    /// As of [`Session::throttle`].
    pub fn drain(&mut self) -> Result<LossSum, SessionError> {
        self.end_steps(0)
    }

    fn end_steps(&mut self, ahead: usize) -> Result<LossSum, SessionError> {
        let mut losses = LossSum::default();
        while let Some(InFlight { step, epoch, rows }) =
            self.in_flight.pop_front_if(|_| self.scorer.model.steps_in_flight() > ahead)
        {
            let loss = self.finish_step(step)?;
            if epoch != self.state.progress.epoch {
                self.state.progress.epoch = epoch;
                self.state.progress.loss = LossSum::default();
            }
            self.state.progress.examples += u64::from(rows);
            self.state.progress.loss += loss;
            losses += loss;
        }
        Ok(losses)
    }

    /// Completes the oldest step in flight. A skipped step with a loss that is not finite has weight 0.
    fn finish_step(&mut self, step: u64) -> Result<LossSum, SessionError> {
        let before = self.loss_scale();
        let ended = self.scorer.model.finish_step();
        if let Err(error) = &ended {
            self.in_flight.clear();
            self.failure = Some(Failure::Step(error.clone().into()));
        }
        let mut loss = ended?;
        let skipped = before.filter(|before| Some(before.skipped_steps) < self.skipped_steps());
        if let Some(before) = skipped {
            if before.scale < LEAST_LOSS_SCALE {
                self.failure = Some(Failure::Scale { step, scale: before.scale });
            }
            if !loss.loss.is_finite() {
                loss = LossSum::default();
            }
        } else if !loss.loss.is_finite() {
            self.failure = Some(Failure::Loss { step, loss: loss.mean() });
        }
        self.check_failed()?;
        Ok(loss)
    }

    /// Scores `batch` and adds it to the current evaluation.
    ///
    /// # Errors
    /// When the batch does not fit the model, or the metrics of a row are undefined.
    pub fn evaluate(&mut self, batch: BatchRef<'_>) -> Result<(), SessionError> {
        self.scorer.evaluate(batch)?;
        self.position_in_eval.clear();
        self.position_in_eval.extend_from_slice(batch.position());
        Ok(())
    }

    /// Ends the evaluation and returns the metrics of its rows. The position becomes that of its last row.
    ///
    /// # Errors
    /// When it has no rows.
    pub fn finish_eval(&mut self) -> Result<EvalOutcome, SessionError> {
        let judged = self.finish_separate_eval()?;
        std::mem::swap(&mut self.state.position, &mut self.position_in_eval);
        Ok(judged)
    }

    /// As [`Session::finish_eval`], for rows that were fed separately: the position does not change.
    ///
    /// # Errors
    /// As there.
    pub fn finish_separate_eval(&mut self) -> Result<EvalOutcome, SessionError> {
        let metrics = self.scorer.finish_eval()?;
        self.state.eval.clone_from(&metrics);
        self.state.eval_step = Some(self.state.step);
        self.state.eval_due = false;
        let is_best = self.state.standing.judge(&self.judge, self.state.step, &metrics);
        Ok(EvalOutcome { metrics, is_best })
    }

    /// Discards the rows of an interrupted evaluation.
    pub fn discard_eval(&mut self) {
        self.scorer.discard_eval();
    }

    /// Records that an evaluation is due before the next step.
    pub fn set_eval_due(&mut self) {
        self.state.eval_due = true;
    }

    /// Whether an evaluation is due before the next step.
    pub fn is_eval_due(&self) -> bool {
        self.state.eval_due
    }

    /// Whether the current weights were evaluated.
    pub fn is_evaluated(&self) -> bool {
        self.state.eval_step == Some(self.state.step)
    }

    /// Why training stops early, if it does.
    pub fn early_stop_reason(&self) -> Option<String> {
        self.state.standing.stop(&self.judge, &self.state.schema.labels)
    }

    /// The device.
    pub fn device(&self) -> Description {
        self.scorer.model.backend().describe()
    }

    /// The device.
    pub fn backend(&self) -> &B {
        self.scorer.model.backend()
    }

    /// Number of steps, including those in flight.
    pub fn step(&self) -> u64 {
        self.state.step
    }

    /// The loss scale, in half precision.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.scorer.model.loss_scale()
    }

    fn skipped_steps(&self) -> Option<u32> {
        self.loss_scale().map(|scale| scale.skipped_steps)
    }

    /// The progress of the completed steps.
    pub fn progress(&self) -> TrainingProgress {
        self.state.progress
    }

    /// Calls `visit` with every trained tensor, in a fixed order, until its first error. One tensor at a time is in
    /// host memory.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn read_parameters<E>(
        &mut self,
        mut visit: impl FnMut(&NamedTensor, &[B::Scalar]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.scorer.model.read_tensors(|tensor, numbers| match tensor.role {
            TensorRole::Parameter => visit(tensor, numbers),
            TensorRole::OptimizerState => Ok(()),
        })
    }

    /// The metrics of the last completed evaluation, by label; empty before the first.
    pub fn last_eval(&self) -> &[Metrics] {
        &self.state.eval
    }

    /// Whether the evaluation of the current step is among the best, whose checkpoints are kept.
    pub fn is_best(&self) -> bool {
        self.state.standing.best().iter().any(|best| best.step == self.state.step)
    }

    /// The encoded position to resume from; empty at the start.
    pub fn position(&self) -> &[u8] {
        &self.state.position
    }

    /// Allocates a copy of the model.
    pub fn allocate_copy(&mut self) -> ModelCopy<B::Scalar> {
        ModelCopy::of(&mut self.scorer.model)
    }

    /// A copy of the model in the memory of an [image](crate::checkpoint::image), whose file is empty or has an image of this
    /// session's model. Each [`Session::capture`] into it completes the image. `number` identifies the image among those of
    /// the session.
    ///
    /// # Errors
    /// When it is not an anonymous file, or the system refuses the memory.
    pub fn copy_in_image(&mut self, image: File, number: u32) -> Result<ModelCopy<B::Scalar>, SessionError> {
        Ok(ModelCopy::in_image(&mut self.scorer.model, image, number)?)
    }

    /// This worker's share of an image, which another worker has as a [copy](Session::copy_in_image).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// When there are no other workers: see [`Session::join`].
    pub fn share_of_image(&mut self, image: &File) -> Result<ImageShare<B::Scalar>, SessionError> {
        let place = self.place();
        Ok(ImageShare::open(image, self.scorer.model.copy_layout().1, place)?)
    }

    /// Copies the model into `model_copy`, allocated by this session, and returns the rest of a checkpoint.
    ///
    /// # Errors
    /// When training has diverged, or the system refuses memory for an image.
    ///
    /// # Panics
    /// When a step is in flight: see [`Session::drain`].
    pub fn capture(&mut self, model_copy: &mut ModelCopy<B::Scalar>) -> Result<Snapshot, SessionError> {
        self.check_idle()?;
        model_copy.copy(&mut self.scorer.model)?;
        self.complete(model_copy)
    }

    /// Copies the model into an image together with the other workers, all of which call [`Session::help_capture`]. Each
    /// copies its share.
    ///
    /// # Errors
    /// As of [`Session::capture`], and when another worker has ended, or is late. The image is then incomplete.
    ///
    /// # Panics
    /// As there. When there are no other workers, or the copy is not in an image.
    pub fn capture_together(
        &mut self,
        model_copy: &mut ModelCopy<B::Scalar>,
    ) -> Result<Snapshot, SessionError> {
        self.check_idle()?;
        let number = model_copy.begin()?.expect("a copy in an image");
        self.peers().gather(&[number])?;
        let place = self.place();
        model_copy.copy_share(&mut self.scorer.model, place);
        // All have copied their shares.
        self.peers().gather(&[])?;
        self.complete(model_copy)
    }

    /// Copies this worker's share of the model when another worker calls [`Session::capture_together`]. `shares` are those of
    /// all images, by number.
    ///
    /// # Errors
    /// As there, and when the other worker's image is none of these.
    ///
    /// # Panics
    /// As there.
    pub fn help_capture(&mut self, shares: &mut [ImageShare<B::Scalar>]) -> Result<(), SessionError> {
        self.check_idle()?;
        let numbers = self.peers().gather(&[])?;
        let number = numbers.iter().find_map(|number| number.first()).map(|&number| number as usize);
        let share = number.and_then(|number| shares.get_mut(number)).ok_or(SessionError::OtherModel)?;
        share.copy(&mut self.scorer.model);
        self.peers().gather(&[])?;
        Ok(())
    }

    /// Completes the copy with the rest of a checkpoint.
    fn complete(&mut self, model_copy: &mut ModelCopy<B::Scalar>) -> Result<Snapshot, SessionError> {
        let snapshot = Snapshot { loss_scale: self.loss_scale(), ..self.state.clone() };
        model_copy.complete(&snapshot)?;
        Ok(snapshot)
    }

    fn check_idle(&self) -> Result<(), SessionError> {
        self.check_failed()?;
        assert!(self.in_flight.is_empty(), "steps are in flight: drain before a checkpoint");
        Ok(())
    }

    /// The number of this worker among those that share images with it, and their number.
    fn place(&self) -> (usize, usize) {
        self.place.unwrap_or_else(|| self.peers().rank())
    }

    /// The exchange with the other workers.
    fn peers(&self) -> &Exchange<B::Scalar> {
        self.scorer.model.exchange().expect("there are other workers")
    }

    /// Restores `checkpoint`. Training continues with the same bits as without the interruption.
    ///
    /// # Errors
    /// When the checkpoint has another model, schema, seed or precision, or lacks a tensor; then nothing was changed.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SessionError> {
        let snapshot = &checkpoint.manifest.snapshot;
        self.check_same(snapshot, &name_of(checkpoint))?;
        self.scorer.load(checkpoint, CheckpointScope::Full)?;
        self.resume(snapshot);
        Ok(())
    }

    /// Restores `image`, as [`Session::restore`] does a checkpoint.
    ///
    /// # Errors
    /// As there.
    pub fn restore_image(&mut self, image: &Image) -> Result<(), SessionError> {
        self.check_same(image.snapshot(), "the image in memory")?;
        self.scorer.load_image(image)?;
        self.resume(image.snapshot());
        Ok(())
    }

    /// Checks that `theirs`, which errors call `state`, is one of this session's training.
    fn check_same(&self, theirs: &Snapshot, state: &str) -> Result<(), SessionError> {
        let ours = &self.state;
        let difference = difference::first("model", &theirs.model, &ours.model)
            .or_else(|| difference::first("schema", &theirs.schema, &ours.schema))
            .or_else(|| difference::first("seed", &theirs.seed, &ours.seed))
            .or_else(|| difference::first("precision", &theirs.precision, &ours.precision))
            .or_else(|| {
                let [theirs, ours] = [theirs, ours].map(|snapshot| &snapshot.embedding_precision);
                difference::first("embedding_precision", theirs, ours)
            });
        match difference {
            Some(difference) => Err(SessionError::Mismatch { state: state.to_owned(), difference }),
            None => Ok(()),
        }
    }

    /// Continues in the state `theirs`, whose model has been loaded.
    fn resume(&mut self, theirs: &Snapshot) {
        // This job's losses apply, even if the checkpoint has others.
        let tasks = std::mem::take(&mut self.state.tasks);
        self.state = Snapshot { tasks, ..theirs.clone() };
        if let Some(scale) = theirs.loss_scale {
            self.scorer.model.set_loss_scale(scale);
        }
        self.failure = None;
    }

    /// Continues the training of another job from its `checkpoint`, at the encoded `position` in this job's data. The
    /// optimizer's state and the step count are kept; evaluations so far are forgotten.
    ///
    /// # Errors
    /// When the checkpoint's batches have other contents, whatever their number of rows, or it lacks a tensor; then
    /// nothing was changed.
    pub fn continue_from(
        &mut self,
        checkpoint: &Checkpoint,
        position: &[u8],
        data: ContinuedData,
    ) -> Result<(), SessionError> {
        let theirs = &checkpoint.manifest.snapshot;
        let schema = BatchSchema { rows: self.state.schema.rows, ..theirs.schema.clone() };
        if let Some(difference) = difference::first("schema", &schema, &self.state.schema) {
            return Err(SessionError::Mismatch { state: name_of(checkpoint), difference });
        }
        self.scorer.load(checkpoint, CheckpointScope::Full)?;
        let progress = match data {
            ContinuedData::Same => theirs.progress,
            ContinuedData::New => {
                TrainingProgress { examples: theirs.progress.examples, ..TrainingProgress::default() }
            }
        };
        self.state.step = theirs.step;
        self.state.progress = progress;
        self.state.position = position.to_vec();
        if let (Some(scale), Some(_)) = (theirs.loss_scale, self.loss_scale()) {
            self.scorer.model.set_loss_scale(scale);
        }
        self.failure = None;
        Ok(())
    }

    /// Starts with the weights of `checkpoint` that `warm` selects, for a session at step 0. `warm` must have been
    /// computed for this checkpoint and this session's model.
    ///
    /// # Errors
    /// When the checkpoint lacks a tensor; then nothing was changed.
    pub fn warm_start(&mut self, warm: &WarmStart, checkpoint: &Checkpoint) -> Result<(), SessionError> {
        self.scorer.warm_start(warm, checkpoint)
    }

    fn check_failed(&self) -> Result<(), SessionError> {
        match self.failure.clone() {
            Some(Failure::Loss { step, loss }) => Err(SessionError::NotFinite { step, loss }),
            Some(Failure::Scale { step, scale }) => Err(SessionError::Overflow { step, scale }),
            Some(Failure::Step(error)) => Err(error.into()),
            None => Ok(()),
        }
    }
}

/// What errors call a checkpoint.
fn name_of(checkpoint: &Checkpoint) -> String {
    format!("checkpoint {}", checkpoint.path())
}

#[cfg(test)]
mod tests;
