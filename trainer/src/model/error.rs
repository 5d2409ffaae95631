//! Why a model cannot be built.

use crate::optimizer::InvalidHyperparameter;
use crate::parameter::ParameterTooLarge;

/// A model that cannot be built for a batch schema.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// Columns are normalised over all rows of a batch, which pass in parts.
    #[error("`normalization = \"batch\"` is over whole batches: `training.micro_batch_size` is not for it")]
    PartsNormalized,
    /// More labels than the model predicts.
    #[error("model.kind: \"{kind}\" predicts one label, and there are {labels}; \"mmoe\" predicts several")]
    SeveralLabels {
        /// As a job names it.
        kind: &'static str,
        /// How many.
        labels: usize,
    },
    /// Classes of a label, where a model predicts none.
    #[error(
        "model.kind: \"{kind}\" does not predict one of several classes; \"linear\", \"mlp\", \"wide_deep\", \"dcn_v2\" and \"dlrm\" do, of one label"
    )]
    Classes {
        /// As a job names it.
        kind: &'static str,
    },
    /// Classes are two at least, and weights none or as many.
    #[error("training.loss: {weights} weights of {classes} classes")]
    ClassWeights {
        /// Classes of the label.
        classes: u32,
        /// Weights given.
        weights: usize,
    },
    /// As many losses as labels are needed.
    #[error("training: {losses} losses for {labels} labels")]
    Losses {
        /// Losses given.
        losses: usize,
        /// Labels of a batch.
        labels: usize,
    },
    /// Rows choose among the items of a whole batch, which passes in parts.
    #[error(
        "a two-tower model chooses among the items of whole batches: `training.micro_batch_size` is not for it"
    )]
    PartsChoose,
    /// A feature that the batch does not have.
    #[error("{key}: there is no feature `{feature}`{}", suggestion(.nearest.as_deref()))]
    UnknownFeature {
        /// The job's key, such as `model.wide.features`.
        key: &'static str,
        /// As it is written there.
        feature: String,
        /// The feature whose name is nearest.
        nearest: Option<String>,
    },
    /// A feature named twice.
    #[error("{key}: feature `{feature}` is named twice")]
    RepeatedFeature {
        /// The job's key.
        key: &'static str,
        /// Its name.
        feature: String,
    },
    /// A feature that is not of one id a row.
    #[error(
        "{key}: feature `{feature}` has not one id a row, which would say whether two items are the same"
    )]
    NotOneId {
        /// The job's key.
        key: &'static str,
        /// Its name.
        feature: String,
    },
    /// A list or number that must not be empty.
    #[error("{key}: {expected}")]
    Empty {
        /// The job's key.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A table of embeddings that cannot be as the job has it.
    #[error("{key}.{table}: {message}")]
    Table {
        /// The job's key of all tables.
        key: &'static str,
        /// Its name.
        table: String,
        /// What is wrong, and what was expected.
        message: String,
    },
    /// Embeddings of several widths, or of none in particular, where a model computes with one.
    #[error("{key}: {model} needs embeddings of one width, a number")]
    Widths {
        /// The job's key.
        key: &'static str,
        /// The model's name.
        model: &'static str,
    },
    /// A constant of an optimizer out of its range.
    #[error("{key}: {source}")]
    Optimizer {
        /// The job's key.
        key: &'static str,
        /// Which constant.
        source: InvalidHyperparameter,
    },
    /// An optimizer that keeps state of rows, where there are layers.
    #[error("{key}: `rowwise_adagrad` is for embeddings alone")]
    RowWise {
        /// The job's key.
        key: &'static str,
    },
    /// Features of a kind that the model cannot do without.
    #[error("{key}: {model} needs at least one feature {kind}")]
    NoFeature {
        /// The job's key.
        key: &'static str,
        /// The model's name.
        model: &'static str,
        /// What is missing.
        kind: &'static str,
    },
    /// More numbers than memory can hold.
    #[error(transparent)]
    ParameterTooLarge(#[from] ParameterTooLarge),
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; the nearest is `{name}`")).unwrap_or_default()
}
