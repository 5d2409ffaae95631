//! Training, as a worker drives it: one call for each batch.
//!
//! A [`Session`] owns the model and all that a checkpoint of it says. It knows nothing of rings,
//! processes or time, so two sessions given the same batches stand at the same bits.
//!
//! A device may have several steps to do at once, so a step is begun, and its end is waited for later: what it lost is known
//! then. Checkpoints are taken where all have ended.
//!
//! The position it checkpoints moves on after a training batch and at the end of an evaluation, not
//! within one: an evaluation changes no weights, so one that was cut short is simply made again. Where the rows of
//! an evaluation come aside, and not between those of training, the position knows nothing of it; then it is
//! remembered that one is due.
//!
//! What evaluations say of how to go on is [`selection`].

mod cadence;
mod difference;
mod scorer;
mod selection;

use std::collections::VecDeque;

use millstream_backend::{Backend, BatchError, Description, PinError};
use millstream_batch::{BatchRef, BatchSchema, RingMapping};

use crate::checkpoint::{
    Checkpoint, CheckpointError, CheckpointScope, Element, ModelCopy, Snapshot, TrainingProgress,
};
use crate::loss::LossSum;
use crate::metrics::{Metrics, MetricsError};
use crate::model::{LossScale, ModelError, NamedTensor, TensorRole};
use crate::spec::{ModelSpec, Precision, ScheduleSpec, TaskSpec, TrainingSpec};
use crate::warm_start::WarmStart;
pub use cadence::EvalCadence;
pub use scorer::Scorer;
pub use selection::{BestSpec, EvalPoint, SelectionSpec, SelectionState, StoppingSpec};

/// Why a session cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A batch is not one of the model's.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Training has diverged. The weights are no use any more.
    #[error("the loss of step {step} is {loss}: training has diverged (is a learning rate too high?)")]
    NotFinite {
        /// Which step, from 1.
        step: u64,
        /// Its mean loss.
        loss: f64,
    },
    /// Training in half precision has diverged.
    #[error(
        "gradients of step {step} overflowed even at a loss scale of {scale:e}: training has diverged (is a learning \
         rate too high, or a feature of numbers not normalised?)"
    )]
    Overflow {
        /// Which step, from 1.
        step: u64,
        /// What the loss was multiplied by.
        scale: f32,
    },
    /// Rows that have no metrics.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Groups are ids, one a row.
    #[error("`{feature}` cannot group rows: batches have no feature of that name with one id a row")]
    NoGroups {
        /// What was asked for.
        feature: String,
    },
    /// A checkpoint of something else.
    #[error("checkpoint {path} is of another job: {difference}")]
    Mismatch {
        /// The checkpoint.
        path: String,
        /// The first difference.
        difference: String,
    },
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// A model in training.
pub struct Session<B: Backend> {
    scorer: Scorer<B>,
    model: ModelSpec,
    seed: u64,
    schedule: ScheduleSpec,
    precision: Precision,
    embedding_precision: Precision,
    tasks: Vec<TaskSpec>,
    step: u64,
    progress: TrainingProgress,
    /// Of each label; none before the first evaluation.
    last_eval: Vec<Metrics>,
    /// The step that it followed.
    eval_step: Option<u64>,
    eval_due: bool,
    judge: SelectionSpec,
    standing: SelectionState,
    position: Vec<u8>,
    position_in_eval: Vec<u8>,
    /// Steps that have not ended.
    in_flight: VecDeque<InFlight>,
    failure: Option<Failure>,
}

/// A step that was begun.
struct InFlight {
    step: u64,
    epoch: u32,
    rows: u32,
}

/// Why nothing can go on from where a session stands.
#[derive(Clone)]
enum Failure {
    /// The mean loss of a step is not finite.
    Loss { step: u64, loss: f64 },
    /// Gradients of a step overflowed at this loss scale.
    Scale { step: u64, scale: f32 },
    /// Steps were begun on a batch that was not sound.
    Batch(BatchError),
}

/// A gradient of 1 is no normal number of half precision any more where the loss scale is below: there is nothing to
/// learn from, and smaller scales are not tried.
const LEAST_LOSS_SCALE: f32 = 1.0 / (1 << 14) as f32;

/// What an evaluation came to.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalOutcome {
    /// Its numbers, of each label.
    pub metrics: Vec<Metrics>,
    /// Whether it is one of the best, whose checkpoints are kept.
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
            model: model.clone(),
            seed: training.seed,
            schedule: training.schedule,
            precision: training.precision,
            embedding_precision: training.embedding_precision,
            tasks: training.tasks(schema.label_count()),
            step: 0,
            progress: TrainingProgress::default(),
            last_eval: Vec::new(),
            eval_step: None,
            eval_due: false,
            judge: SelectionSpec::default(),
            standing: SelectionState::default(),
            position: Vec::new(),
            position_in_eval: Vec::new(),
            in_flight: VecDeque::new(),
            failure: None,
        })
    }

    /// Takes a step on `batch`, scores it and copies the model as a checkpoint does: all the memory that training takes
    /// was taken then. What comes of it is nothing to go on with, so the session is used up.
    ///
    /// # Errors
    /// When the batch is not the model's.
    pub fn dry_run(mut self, batch: BatchRef<'_>) -> Result<(), SessionError> {
        let mut image = self.allocate_copy();
        self.scorer.model.train_step(batch, self.schedule.step(self.step + 1))?;
        self.scorer.predict(batch)?;
        image.copy(&self.scorer.model);
        Ok(())
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
    pub fn group_by(&mut self, feature: &str) -> Result<(), SessionError> {
        self.scorer.group_by(feature)
    }

    /// From the next evaluation on, judges as `judge` says.
    pub fn select_by(&mut self, judge: SelectionSpec) {
        self.judge = judge;
    }

    /// Takes a step on `batch` and waits for its end: [`Session::submit`] and [`Session::drain`].
    ///
    /// # Errors
    /// As of both.
    pub fn train(&mut self, batch: BatchRef<'_>) -> Result<LossSum, SessionError> {
        self.submit(batch)?;
        self.drain()
    }

    /// Begins a step on `batch`, whose memory may change once this returns. From here on it counts as taken. Before the next
    /// one is begun, [`Session::throttle`] is to be called.
    ///
    /// # Errors
    /// When the batch is found not to be the model's; then nothing was changed.
    pub fn submit(&mut self, batch: BatchRef<'_>) -> Result<(), SessionError> {
        self.check_failed()?;
        let header = batch.header();
        self.scorer.model.submit_step(batch, self.schedule.step(self.step + 1))?;
        self.step += 1;
        self.in_flight.push_back(InFlight { step: self.step, epoch: header.epoch, rows: header.rows });
        self.position.clear();
        self.position.extend_from_slice(batch.position());
        Ok(())
    }

    /// Waits for the end of steps until no more are begun than the device needs, so as to have something to do; returns the
    /// losses of those that ended, before each step, over no weight where one is not finite and the step was
    /// skipped for it.
    ///
    /// # Errors
    /// When the loss of a step that was taken is not finite, or gradients overflow however small the loss scale is, or a
    /// batch turns out not to be the model's; then the session is good for nothing more.
    pub fn throttle(&mut self) -> Result<LossSum, SessionError> {
        self.end_steps(self.scorer.model.steps_ahead())
    }

    /// As [`Session::throttle`], until all steps have ended.
    ///
    /// # Errors
    /// As there.
    pub fn drain(&mut self) -> Result<LossSum, SessionError> {
        self.end_steps(0)
    }

    fn end_steps(&mut self, ahead: usize) -> Result<LossSum, SessionError> {
        let mut losses = LossSum::default();
        while let Some(InFlight { step, epoch, rows }) =
            self.in_flight.pop_front_if(|_| self.scorer.model.steps_in_flight() > ahead)
        {
            let loss = self.finish_step(step)?;
            if epoch != self.progress.epoch {
                self.progress.epoch = epoch;
                self.progress.loss = LossSum::default();
            }
            self.progress.examples += u64::from(rows);
            self.progress.loss += loss;
            losses += loss;
        }
        Ok(losses)
    }

    /// The loss of the step that was begun first; over no weight where it was skipped and has none.
    fn finish_step(&mut self, step: u64) -> Result<LossSum, SessionError> {
        let before = self.loss_scale();
        let ended = self.scorer.model.finish_step();
        if let Err(error) = &ended {
            self.in_flight.clear();
            self.failure = Some(Failure::Batch(error.clone()));
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

    /// Scores `batch` and adds it to the metrics of this evaluation.
    ///
    /// # Errors
    /// When the batch is not the model's, or a row has no metrics.
    pub fn evaluate(&mut self, batch: BatchRef<'_>) -> Result<(), SessionError> {
        self.scorer.evaluate(batch)?;
        self.position_in_eval.clear();
        self.position_in_eval.extend_from_slice(batch.position());
        Ok(())
    }

    /// The metrics of all rows evaluated since the last call, and the end of the evaluation. The position is now
    /// that of its last row.
    ///
    /// # Errors
    /// When there were none.
    pub fn finish_eval(&mut self) -> Result<EvalOutcome, SessionError> {
        let judged = self.finish_separate_eval()?;
        std::mem::swap(&mut self.position, &mut self.position_in_eval);
        Ok(judged)
    }

    /// As [`Session::finish_eval`], of rows that came aside: the position stays.
    ///
    /// # Errors
    /// As there.
    pub fn finish_separate_eval(&mut self) -> Result<EvalOutcome, SessionError> {
        let metrics = self.scorer.finish_eval()?;
        self.last_eval.clone_from(&metrics);
        self.eval_step = Some(self.step);
        self.eval_due = false;
        let is_best = self.standing.judge(&self.judge, self.step, &metrics);
        Ok(EvalOutcome { metrics, is_best })
    }

    /// Forgets the rows of an evaluation that was cut short.
    pub fn discard_eval(&mut self) {
        self.scorer.discard_eval();
    }

    /// Remembers that an evaluation is due before the next step.
    pub fn set_eval_due(&mut self) {
        self.eval_due = true;
    }

    /// Whether an evaluation is due before the next step.
    pub fn is_eval_due(&self) -> bool {
        self.eval_due
    }

    /// Whether the model as it is was evaluated.
    pub fn is_evaluated(&self) -> bool {
        self.eval_step == Some(self.step)
    }

    /// Why training is to stop early, if it is.
    pub fn early_stop_reason(&self) -> Option<String> {
        self.standing.stop(&self.judge, &self.scorer.schema.labels)
    }

    /// What it computes on.
    pub fn device(&self) -> Description {
        self.scorer.model.backend().describe()
    }

    /// What it computes on.
    pub fn backend(&self) -> &B {
        self.scorer.model.backend()
    }

    /// Steps taken, or begun.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Where the loss scale stands, in half precision.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.scorer.model.loss_scale()
    }

    fn skipped_steps(&self) -> Option<u32> {
        self.loss_scale().map(|scale| scale.skipped_steps)
    }

    /// How far the steps that have ended have come.
    pub fn progress(&self) -> TrainingProgress {
        self.progress
    }

    /// Shows every trained tensor, in a fixed order, to `visit`; stops at its first error. One is in host memory
    /// at a time.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn read_parameters<E>(
        &self,
        mut visit: impl FnMut(&NamedTensor, &[B::Scalar]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.scorer.model.read_tensors(|tensor, numbers| match tensor.role {
            TensorRole::Parameter => visit(tensor, numbers),
            TensorRole::OptimizerState => Ok(()),
        })
    }

    /// Of the last evaluation that ended, of each label; none before the first.
    pub fn last_eval(&self) -> &[Metrics] {
        &self.last_eval
    }

    /// The encoded position to go on from; empty at the start.
    pub fn position(&self) -> &[u8] {
        &self.position
    }

    /// BufferSpec for copies of the model.
    pub fn allocate_copy(&self) -> ModelCopy<B::Scalar> {
        ModelCopy::of(&self.scorer.model)
    }

    /// Copies the model into `image`, which is one of this session's, and says where training stands: all that a
    /// checkpoint is made of.
    ///
    /// # Errors
    /// When training has diverged.
    ///
    /// # Panics
    /// When a step has not ended: see [`Session::drain`].
    pub fn capture(&self, image: &mut ModelCopy<B::Scalar>) -> Result<Snapshot, SessionError> {
        self.check_failed()?;
        assert!(self.in_flight.is_empty(), "a checkpoint is taken between steps");
        image.copy(&self.scorer.model);
        Ok(self.snapshot())
    }

    /// Goes on from `checkpoint`, bit by bit as if it had never stopped.
    ///
    /// # Errors
    /// When the checkpoint is of another model, other batches, another seed or precision, or does not
    /// hold the model's tensors; then nothing was changed.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SessionError> {
        let theirs = &checkpoint.manifest.snapshot;
        let ours = self.snapshot();
        let difference = difference::first("model", &theirs.model, &ours.model)
            .or_else(|| difference::first("schema", &theirs.schema, &ours.schema))
            .or_else(|| difference::first("seed", &theirs.seed, &ours.seed))
            .or_else(|| difference::first("precision", &theirs.precision, &ours.precision))
            .or_else(|| {
                let [theirs, ours] = [theirs, &ours].map(|snapshot| &snapshot.embedding_precision);
                difference::first("embedding_precision", theirs, ours)
            });
        if let Some(difference) = difference {
            return Err(SessionError::Mismatch { path: checkpoint.path().to_owned(), difference });
        }
        self.scorer.load(checkpoint, CheckpointScope::Full)?;
        self.step = theirs.step;
        self.progress = theirs.progress;
        self.last_eval.clone_from(&theirs.eval);
        self.eval_step = theirs.eval_step;
        self.eval_due = theirs.eval_due;
        self.standing.clone_from(&theirs.standing);
        self.position.clone_from(&theirs.position);
        if let Some(scale) = theirs.loss_scale {
            self.scorer.model.set_loss_scale(scale);
        }
        self.failure = None;
        Ok(())
    }

    /// Begins with weights of `checkpoint` as `warm` says, which was worked out for its model and this one's. Of a
    /// session at step 0.
    ///
    /// # Errors
    /// When the checkpoint does not hold the tensors that it was to hold; then nothing was changed.
    pub fn warm_start(&mut self, warm: &WarmStart, checkpoint: &Checkpoint) -> Result<(), SessionError> {
        self.scorer.warm_start(warm, checkpoint)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            step: self.step,
            progress: self.progress,
            position: self.position.clone(),
            eval: self.last_eval.clone(),
            eval_step: self.eval_step,
            eval_due: self.eval_due,
            standing: self.standing.clone(),
            model: self.model.clone(),
            schema: self.scorer.schema.clone(),
            seed: self.seed,
            precision: self.precision,
            embedding_precision: self.embedding_precision,
            tasks: self.tasks.clone(),
            loss_scale: self.loss_scale(),
        }
    }

    fn check_failed(&self) -> Result<(), SessionError> {
        match self.failure.clone() {
            Some(Failure::Loss { step, loss }) => Err(SessionError::NotFinite { step, loss }),
            Some(Failure::Scale { step, scale }) => Err(SessionError::Overflow { step, scale }),
            Some(Failure::Batch(error)) => Err(error.into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
