//! Why a model cannot be built, and why a step is not taken.

use millstream_backend::BatchError;
use millstream_backend::collective::CollectiveError;

use crate::optimizer::InvalidHyperparameter;
use crate::parameter::ParameterTooLarge;

/// Why a step was not taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StepError {
    /// The batch does not fit the model.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The exchange with the other workers failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Another worker sent the gradients of other tables.
    #[error("another worker of the job trains another model")]
    OtherModel,
}

/// A model that cannot be built for a batch schema.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// Batch normalization with micro-batches.
    #[error("`normalization = \"batch\"` needs whole batches: remove `training.micro_batch_size`")]
    PartsNormalized,
    /// Batch normalization over parts of unequal numbers of rows.
    #[error(
        "`normalization = \"batch\"` needs workers with equally many rows, which workers of several hosts do not have: \
         choose \"layer\", or train on one host"
    )]
    UnevenNormalized,
    /// More labels than the model predicts.
    #[error(
        "model.kind: \"{kind}\" predicts one label, and there are {labels}; \"mmoe\" and \"din\" predict several"
    )]
    SeveralLabels {
        /// The model's kind.
        kind: &'static str,
        /// Number of labels.
        labels: usize,
    },
    /// Classes, for a model that does not predict classes.
    #[error(
        "model.kind: \"{kind}\" does not predict one of several classes; \"linear\", \"mlp\", \"wide_deep\", \"dcn_v2\", \"din\" and \"dlrm\" do, of one label"
    )]
    Classes {
        /// The model's kind.
        kind: &'static str,
    },
    /// Fewer than two classes, or a wrong number of weights.
    #[error("training.loss: {weights} weights for {classes} classes")]
    ClassWeights {
        /// Number of classes.
        classes: u32,
        /// Number of weights.
        weights: usize,
    },
    /// A constant of a loss is out of range.
    #[error("training.loss.{key}: expected {expected}, found {value}")]
    LossConstant {
        /// The key of the loss.
        key: &'static str,
        /// Its value.
        value: f32,
        /// What is expected.
        expected: &'static str,
    },
    /// The number of losses differs from the number of labels.
    #[error("training: {losses} losses for {labels} labels")]
    Losses {
        /// Number of losses.
        losses: usize,
        /// Number of labels.
        labels: usize,
    },
    /// A loss that compares rows, with micro-batches.
    #[error("the loss \"{loss}\" needs whole batches: remove `training.micro_batch_size`")]
    PartsOfLists {
        /// The loss's kind.
        loss: &'static str,
    },
    /// Something that depends on all rows of a batch, with shards.
    #[error("{what} depends on all rows of a batch, which `workers.reproducible` divides: remove it")]
    WholeBatches {
        /// What depends on them.
        what: String,
    },
    /// The parts of a batch cannot be divided among the workers.
    #[error(
        "{shards} parts of a batch cannot be divided among {ranks} workers: choose a power of two that is a multiple of \
         the number of workers"
    )]
    Shards {
        /// The number of parts.
        shards: u32,
        /// The number of workers.
        ranks: u32,
    },
    /// Gradients that travel in half precision, without a loss scale.
    #[error(
        "gradients that are not scaled vanish in half precision: set `workers.gradient_precision` to \"bf16\", or \
         `training.precision` to \"fp16\""
    )]
    UnscaledGradients,
    /// Gradients that travel in 16 bits, with shards.
    #[error(
        "with `workers.gradient_precision = \"{gradients}\"`, results depend on the number of workers: remove it, or \
         `workers.reproducible`"
    )]
    RoundedGradients {
        /// The precision of the gradients.
        gradients: &'static str,
    },
    /// The batches lack the feature that identifies lists.
    #[error("training.loss.group: the batches have no feature `{feature}` with one id per row")]
    NoLists {
        /// The feature.
        feature: String,
    },
    /// A loss that compares rows, for several labels.
    #[error("the loss \"{loss}\" is for one label, and there are {labels}")]
    ListsOfLabels {
        /// The loss's kind.
        loss: &'static str,
        /// Number of labels.
        labels: usize,
    },
    /// A two-tower model with micro-batches.
    #[error("a two-tower model needs whole batches: remove `training.micro_batch_size`")]
    PartsChoose,
    /// A feature that the batch does not have.
    #[error("{key}: there is no feature `{feature}`{}", suggestion(.nearest.as_deref()))]
    UnknownFeature {
        /// The job's key, such as `model.wide.features`.
        key: String,
        /// The name in the job.
        feature: String,
        /// The feature with the most similar name.
        nearest: Option<String>,
    },
    /// A feature is listed twice.
    #[error("{key}: feature `{feature}` is listed twice")]
    RepeatedFeature {
        /// The job's key.
        key: String,
        /// Its name.
        feature: String,
    },
    /// The feature does not have exactly one id per row.
    #[error("{key}: feature `{feature}` must have one id per row, which identifies the item")]
    NotOneId {
        /// The job's key.
        key: String,
        /// Its name.
        feature: String,
    },
    /// An invalid pair of a history and its target.
    #[error("{key}: feature `{feature}` {message}")]
    Sequence {
        /// The job's key.
        key: String,
        /// The name of the history or target.
        feature: String,
        /// What is wrong, and what is expected.
        message: String,
    },
    /// A list or number that must not be empty.
    #[error("{key}: {expected}")]
    Empty {
        /// The job's key.
        key: String,
        /// What is expected.
        expected: &'static str,
    },
    /// An invalid embedding table.
    #[error("{key}.{table}: {message}")]
    Table {
        /// The job's key of the tables.
        key: String,
        /// Its name.
        table: String,
        /// What is wrong, and what is expected.
        message: String,
    },
    /// The maximum of embeddings with weights.
    #[error(
        "{key}: \"max\" does not use weights, which feature `{feature}` has: remove `weights`, or pool by \"sum\", \"mean\" or \"sqrtn\""
    )]
    WeightedMaxima {
        /// The job's key.
        key: String,
        /// Its name.
        feature: String,
    },
    /// Embeddings of different or automatic widths, in a model that needs one width.
    #[error("{key}: {model} needs embeddings of one fixed width")]
    Widths {
        /// The job's key.
        key: String,
        /// The model's name.
        model: &'static str,
    },
    /// An optimizer constant out of range.
    #[error("{key}: {source}")]
    Optimizer {
        /// The job's key.
        key: String,
        /// The constant.
        source: InvalidHyperparameter,
    },
    /// Row-wise optimizer state for layers.
    #[error("{key}: `rowwise_adagrad` applies to embeddings only")]
    RowWise {
        /// The job's key.
        key: String,
    },
    /// A required kind of feature is missing.
    #[error("{key}: {model} needs at least one {kind} feature")]
    NoFeature {
        /// The job's key.
        key: String,
        /// The model's name.
        model: &'static str,
        /// What is missing.
        kind: &'static str,
    },
    /// The model exceeds the address space.
    #[error(transparent)]
    ParameterTooLarge(#[from] ParameterTooLarge),
}

impl ModelError {
    /// Embeddings of different or automatic widths in `model`.
    pub(crate) fn widths(model: &'static str) -> Self {
        Self::Widths { key: "model.embedding_dim".to_owned(), model }
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; the nearest is `{name}`")).unwrap_or_default()
}
