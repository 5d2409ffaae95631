//! Deep Interest Network: attention over a row's history by its target, next to the other embeddings.
//!
//! ```text
//! history --- embeddings --- attention by the target --- W -- \
//! target, other ids --- embeddings -------------------------- | --- ReLU layers --- logits
//! dense ----------------------------------------------------- /
//! ```
//!
//! Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018, section 4.3. Hidden layers are those
//! of the other models: ReLU instead of the paper's PReLU or Dice.

use millstream_backend::{Activation, Backend, Device, IdColumn, Lookup, ops};
use millstream_batch::BatchSchema;

use crate::gradients::GradientVisitor;
use crate::layers::{Attention, Embedding, Mlp, MlpGradients};
use crate::model::batch_gradient::BatchGradient;
use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::embeddings::EmbeddingTables;
use crate::model::error::ModelError;
use crate::model::features::Features;
use crate::parameter::parameters;
use crate::pass::Pass;
use crate::spec::{DinSpec, EmbeddingSpec, SequenceSpec};

/// The model. `E` are the columns of embeddings outside of histories, `H` the room of all values of the histories, `A`
/// the columns of the histories' sums, `D` the dense columns.
pub(super) struct Din<D: Device> {
    embedding: Embedding<D>,
    numbers: Embedding<D>,
    attention: Vec<Attention<D>>,
    mlp: Mlp<D>,
    /// `E`
    pooled: usize,
    /// `A`
    attended: usize,
    /// Embeddings, then those of each history's values, `[B, E + H]`.
    vectors: D::Matrix,
    /// `[B, E + A + D]`
    input: D::Matrix,
    work: MlpGradients<D>,
    /// `[B, E + A]`
    input_grad: D::Matrix,
    /// `[B, E + H]`
    vectors_grad: BatchGradient<D>,
}

/// A model's features, of which the last ids are the histories.
pub(crate) struct SequenceFeatures {
    pub(crate) features: Features,
    /// For each history: the index of its target among the ids.
    pub(crate) targets: Vec<usize>,
}

impl SequenceFeatures {
    /// Moves the histories of `sequences` to the end of the ids, in the order of the sequences.
    pub(crate) fn resolve(
        features: Features,
        sequences: &[SequenceSpec],
        embedding: &EmbeddingSpec,
        schema: &BatchSchema,
    ) -> Result<Self, ModelError> {
        if sequences.is_empty() {
            let expected = "at least one pair of a history and its target is needed";
            return Err(ModelError::Empty { key: KEY.to_owned(), expected });
        }
        let EmbeddingTables { lookups, .. } = EmbeddingTables::resolve("", embedding, &features.ids)?;
        let place = |name: &String| {
            let found = features.ids.iter().position(|feature| feature.name == *name);
            found.ok_or_else(|| refused(name, "is not an id feature of model.features"))
        };
        let mut pairs = Vec::new();
        for SequenceSpec { history, target } in sequences {
            let (of_history, of_target) = (place(history)?, place(target)?);
            let IdColumn::Ragged(column) = features.ids[of_history].column else {
                return Err(refused(history, "has one id per row; a history has `multi = true`"));
            };
            if schema.ragged[column].weighted {
                return Err(refused(history, "has weights, which attention does not use; remove `weights`"));
            }
            if let IdColumn::Ragged(_) = features.ids[of_target].column {
                return Err(refused(target, "has several ids per row; a target has one"));
            }
            if pairs.iter().any(|&(other, _)| other == of_history) {
                return Err(refused(history, "is the history of two sequences"));
            }
            if lookups[of_history].table != lookups[of_target].table {
                let message = format!("and its target `{target}` must share a table of model.embeddings");
                return Err(refused(history, message));
            }
            pairs.push((of_history, of_target));
        }
        let is_history = |place: &usize| pairs.iter().any(|(history, _)| history == place);
        let others: Vec<usize> = (0..features.ids.len()).filter(|place| !is_history(place)).collect();
        let moved = |target: usize| others.iter().position(|&other| other == target);
        let targets = pairs.iter().map(|&(_, target)| moved(target).expect("a target is no history"));
        let histories = pairs.iter().map(|&(history, _)| history);
        let ids = others.iter().copied().chain(histories).map(|place| features.ids[place].clone());
        let (targets, ids) = (targets.collect(), ids.collect());
        Ok(Self { features: Features { ids, dense: features.dense }, targets })
    }

    /// The number of ids before the histories.
    pub(crate) fn others(&self) -> usize {
        self.features.ids.len() - self.targets.len()
    }
}

const KEY: &str = "model.sequences";

fn refused(feature: &str, message: impl Into<String>) -> ModelError {
    ModelError::Sequence { key: KEY.to_owned(), feature: feature.to_owned(), message: message.into() }
}

impl<D: Device> Din<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &DinSpec) -> Result<Self, ModelError> {
        let features = builder.some_features("model.features", &spec.features)?;
        let sequences = builder.sequences(features, &spec.sequences, &spec.embedding)?;
        let optimizer = builder.optimizer("model.optimizer", &spec.optimizer)?;
        let (others, targets) = (sequences.others(), sequences.targets);
        let mut features = sequences.features;
        let numbers = builder.numbers(std::mem::take(&mut features.dense), optimizer);
        let ids = features.ids.clone();
        let embedding = builder.embedding_of_sequences(&spec.embedding, features, targets.len())?;
        let tables = &embedding.tables;
        let lookup = |place: usize| {
            let is_it = |lookup: &&Lookup| lookup.column == ids[place].column;
            tables.lookups.iter().find(is_it).expect("a lookup of every feature")
        };
        let pooled = lookup(others).first;
        let mut first_column = pooled;
        let mut attention = Vec::new();
        for (number, &target) in targets.iter().enumerate() {
            let (history, target) = (lookup(others + number), lookup(target));
            let name = format!("attention.{}", ids[others + number].name);
            let sequence = tables.sequence(history, target);
            let place = (sequence, first_column);
            attention.push(builder.attention(
                &name,
                place,
                &spec.attention,
                &spec.hidden_layer,
                optimizer,
            )?);
            first_column += sequence.width;
        }
        let (attended, vectors) = (first_column - pooled, embedding.embedded());
        let inputs = first_column + numbers.dense.len();
        let hidden = ("model.hidden", spec.hidden.as_slice(), &spec.hidden_layer);
        let last = (builder.outputs(), Activation::Identity);
        let mlp = builder.mlp("deep", inputs, hidden, last, optimizer)?;
        Ok(Self {
            vectors: builder.matrix(vectors),
            input: builder.matrix(inputs),
            work: MlpGradients::new(builder.device, builder.buffers(), &mlp),
            input_grad: builder.matrix(first_column),
            vectors_grad: builder.batch_gradient(vectors),
            embedding,
            numbers,
            attention,
            mlp,
            pooled,
            attended,
        })
    }
}

impl<B: Backend> Compute<B> for Din<B> {
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>) {
        let Self { embedding, numbers, attention, vectors, input, pooled, attended, .. } = self;
        embedding.forward(backend, batch, pass, vectors, 0);
        backend.run(ops::CopyColumns {
            rows: pass.len(),
            from: (vectors, 0),
            to: (input, 0),
            columns: *pooled,
        });
        for unit in attention {
            unit.forward(backend, pass, vectors, input);
        }
        if !numbers.dense.is_empty() {
            numbers.forward(backend, batch, pass, input, *pooled + *attended);
        }
        self.mlp.forward(backend, pass, &self.input);
    }

    fn logits(&self) -> &B::Matrix {
        self.mlp.output()
    }

    fn backward(&mut self, backend: &B, _batch: &B::Batch, pass: &Pass<'_, B>, logits_grad: &mut B::Matrix) {
        let Self { attention, mlp, pooled, vectors, input, work, input_grad, vectors_grad, .. } = self;
        mlp.backward(backend, pass, input, work, logits_grad, Some(input_grad));
        let of_pass = vectors_grad.of_pass();
        backend.run(ops::CopyColumns {
            rows: pass.len(),
            from: (input_grad, 0),
            to: (of_pass, 0),
            columns: *pooled,
        });
        for unit in attention {
            unit.backward(backend, pass, vectors, input_grad, of_pass);
        }
        vectors_grad.keep(backend, pass);
    }

    fn visit_gradients(&mut self, _logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>) {
        visitor.layers(&mut self.mlp);
        visitor.layers(&mut self.attention);
        self.embedding.visit_gradients(self.vectors_grad.of_batch(), 0, visitor);
    }
}

parameters!(Din: embedding, attention, mlp);
