//! Scoring rows with a model: evaluation and prediction.

use millstream_backend::{Backend, Description, PinError};
use millstream_batch::{BatchRef, BatchSchema, RingMapping};

use super::{SessionError, difference, name_of};
use crate::checkpoint::tensors::TensorFiles;
use crate::checkpoint::{Checkpoint, CheckpointScope, Element, Image};
use crate::exchange::scored_rows::RowFormat;
use crate::metrics::{Accumulator, Metrics, ScoredBatch};
use crate::model::{Model, TensorRole};
use crate::spec::{GroupSpec, ModelSpec, TrainingSpec};
use crate::warm_start::WarmStart;

/// A model that scores rows.
pub struct Scorer<B: Backend> {
    pub(super) model: Model<B>,
    pub(super) schema: BatchSchema,
    /// Number of scores per row.
    outputs: usize,
    /// The metrics of each label.
    metrics: Vec<Accumulator>,
    /// The feature whose ids define groups of rows.
    group: Option<usize>,
    /// The scores of the last batch, `[L, rows]`, or `[K, rows]` for the `K` classes of one label.
    scores: Vec<f32>,
}

impl<B> Scorer<B>
where
    B: Backend,
    B::Scalar: Element,
{
    /// The model of `checkpoint`, for batches of `schema` with any number of rows.
    ///
    /// # Errors
    /// When the features differ from those of training, or the checkpoint lacks a parameter.
    pub fn open(backend: B, schema: &BatchSchema, checkpoint: &Checkpoint) -> Result<Self, SessionError> {
        let trained = &checkpoint.manifest.snapshot;
        let difference = difference::first("schema.labels", &trained.schema.labels, &schema.labels)
            .or_else(|| difference::first("schema.dense", &trained.schema.dense, &schema.dense))
            .or_else(|| difference::first("schema.ids", &trained.schema.ids, &schema.ids))
            .or_else(|| difference::first("schema.ragged", &trained.schema.ragged, &schema.ragged));
        if let Some(difference) = difference {
            return Err(SessionError::Mismatch { state: name_of(checkpoint), difference });
        }
        // Scores equal those of an evaluation during training: the arithmetic is the same.
        let (seed, precision, tasks) = (trained.seed, trained.precision, trained.tasks.clone());
        let embedding_precision = trained.embedding_precision;
        let training =
            TrainingSpec { seed, precision, embedding_precision, tasks, ..TrainingSpec::default() };
        let mut scorer = Self::new(backend, &trained.model, schema, &training)?;
        scorer.load(checkpoint, CheckpointScope::Scoring)?;
        Ok(scorer)
    }

    pub(super) fn new(
        backend: B,
        spec: &ModelSpec,
        schema: &BatchSchema,
        training: &TrainingSpec,
    ) -> Result<Self, SessionError> {
        let model = Model::new(backend, spec, schema, training)?;
        let part = training.part_schema(schema);
        Ok(Self {
            model,
            schema: schema.clone(),
            metrics: accumulators(spec, schema, training),
            group: None,
            outputs: training.outputs(schema.label_count()),
            scores: vec![0.0; training.outputs(schema.label_count()) * part.rows as usize],
        })
    }

    /// The device.
    pub fn device(&self) -> Description {
        self.model.backend().describe()
    }

    /// As [`Backend::pin`].
    ///
    /// # Errors
    /// As there.
    pub fn pin(&self, pages: &RingMapping) -> Result<B::Pinned, PinError> {
        self.model.pin(pages)
    }

    /// Groups rows for metrics of rankings within groups, from the next evaluation on.
    ///
    /// # Errors
    /// When the batches have no feature of that name with one id a row.
    pub fn group_by(&mut self, groups: &GroupSpec) -> Result<(), SessionError> {
        let GroupSpec { feature, ranking } = groups;
        let place = self.schema.ids.iter().position(|id| id.name == *feature);
        self.group = Some(place.ok_or_else(|| SessionError::NoGroups { feature: feature.clone() })?);
        self.metrics.iter_mut().for_each(|metrics| metrics.rank_groups(*ranking));
        Ok(())
    }

    /// The scores of each row, `[L, rows]`, or of the `K` classes of one label `[K, rows]`; see [`Model::predict`].
    ///
    /// # Errors
    /// When the batch is not the model's.
    pub fn predict(&mut self, batch: BatchRef<'_>) -> Result<&[f32], SessionError> {
        self.model.predict(batch, &mut self.scores)?;
        Ok(&self.scores[..self.outputs * batch.rows()])
    }

    /// Scores `batch` and adds it to the metrics of this evaluation. If several workers train the model, each passes its
    /// part, and all get the metrics of the whole batch.
    ///
    /// # Errors
    /// When the batch is not the model's, the metrics of a row are undefined, or another worker has ended.
    pub fn evaluate(&mut self, batch: BatchRef<'_>) -> Result<(), SessionError> {
        self.model.predict(batch, &mut self.scores)?;
        let rows = batch.rows();
        if let Some(exchange) = self.model.exchange() {
            let format = self.row_format();
            let parts = exchange.gather(&format.encode(&self.scores[..self.outputs * rows], batch))?;
            let scored = format.join(&parts).ok_or(SessionError::OtherModel)?;
            for (label, metrics) in self.metrics.iter_mut().enumerate() {
                metrics.add(scored.of_label(label))?;
            }
            return Ok(());
        }
        // One score per label; with classes, there is one label with a score per class.
        let of_label = self.outputs / self.metrics.len() * rows;
        for (label, metrics) in self.metrics.iter_mut().enumerate() {
            metrics.add(ScoredBatch {
                scores: &self.scores[label * of_label..][..of_label],
                labels: batch.labels(label),
                weights: batch.weights(),
                groups: self.group.map(|feature| batch.ids(feature)),
            })?;
        }
        Ok(())
    }

    /// The format of rows that workers send each other.
    fn row_format(&self) -> RowFormat {
        RowFormat {
            scores: self.outputs,
            labels: self.metrics.len(),
            weighted: self.schema.weighted,
            group: self.group,
        }
    }

    /// Ends the evaluation and returns the metrics of each label.
    ///
    /// # Errors
    /// When it has no rows.
    pub fn finish_eval(&mut self) -> Result<Vec<Metrics>, SessionError> {
        let metrics: Result<_, _> = self.metrics.iter_mut().map(Accumulator::finish).collect();
        Ok(metrics?)
    }

    /// Discards the rows evaluated since the last call of [`Scorer::finish_eval`].
    pub(super) fn discard_eval(&mut self) {
        self.metrics.iter_mut().for_each(Accumulator::clear);
    }

    /// Restores the parameters, and with [`CheckpointScope::Full`] the optimizer state. Everything is checked first:
    /// on an error nothing was changed.
    pub(super) fn load(
        &mut self,
        checkpoint: &Checkpoint,
        extent: CheckpointScope,
    ) -> Result<(), SessionError> {
        let parameters = self.tensor_files(checkpoint, TensorRole::Parameter)?;
        let state = match extent {
            CheckpointScope::Full => Some(self.tensor_files(checkpoint, TensorRole::OptimizerState)?),
            CheckpointScope::Scoring => None,
        };
        self.discard_eval();
        self.model.write_tensors(|tensor, numbers| {
            let files = match tensor.role {
                TensorRole::Parameter => Some(&parameters),
                TensorRole::OptimizerState => state.as_ref(),
            };
            let copied = files.map_or(Ok(()), |files| files.copy(tensor, numbers));
            copied.map_err(|message| checkpoint.damaged_tensors(tensor.role, message).into())
        })
    }

    /// Replaces the model with that of `image`.
    pub(super) fn load_image(&mut self, image: &Image) -> Result<(), SessionError> {
        let (places, _) = self.model.copy_layout();
        image.check::<B::Scalar>(&places)?;
        self.discard_eval();
        let mut places = places.iter();
        self.model.write_tensors(|_, numbers| {
            let place = places.next().expect("the place of each tensor");
            Ok(image.read(place, numbers)?)
        })
    }

    /// As [`Session::warm_start`](super::Session::warm_start).
    pub(super) fn warm_start(
        &mut self,
        warm: &WarmStart,
        checkpoint: &Checkpoint,
    ) -> Result<(), SessionError> {
        let role = TensorRole::Parameter;
        let files = checkpoint.tensor_files::<B::Scalar>(role, warm.tensors().iter())?;
        warm.apply(&mut self.model, |tensor, numbers| {
            let copied = files.copy(tensor, numbers);
            copied.map_err(|message| checkpoint.damaged_tensors(role, message).into())
        })
    }

    /// The files with the model's tensors of `role`.
    fn tensor_files<'a>(
        &self,
        checkpoint: &'a Checkpoint,
        role: TensorRole,
    ) -> Result<TensorFiles<'a>, SessionError> {
        let tensors = self.model.tensors().iter().filter(|tensor| tensor.role == role);
        Ok(checkpoint.tensor_files::<B::Scalar>(role, tensors)?)
    }
}

/// An accumulator of metrics for each label.
fn accumulators(model: &ModelSpec, schema: &BatchSchema, training: &TrainingSpec) -> Vec<Accumulator> {
    let tasks = training.tasks(schema.label_count());
    schema
        .label_names()
        .into_iter()
        .zip(&tasks)
        .map(|(name, task)| Accumulator::new(name, model.prediction(&task.loss)))
        .collect()
}
