//! What an evaluation says of a model: how well it ranks, and how good its probabilities or numbers are.
//!
//! Batches are added as they are scored; [`Accumulator::finish`] then gives the metrics of all rows
//! together. Which these are follows from what is predicted: ranking, log loss and accuracy are of probabilities;
//! of numbers there are errors and the share of their variance that is explained; of classes, log loss and accuracy.
//!
//! Ranking (AUC, PR-AUC) is exact while its rows fit in [`EXACT_BYTES`]: nothing is sampled or binned, which
//! is why every row's score is kept (4 bytes a row; 12 when rows carry weights or labels between 0 and 1).
//! Beyond that rows go to a histogram of bounded memory, and the metrics come with bounds that hold for the
//! exact ones. All else is a sum over rows.
//!
//! A row of weight `w` and label `y` counts as a positive of weight `w y` and a negative of weight
//! `w (1 - y)`; with labels 0 and 1 this is what everybody means by these metrics.
//!
//! * `metric`: the metrics, by name; `accumulator`: rows of an evaluation.
//! * `probabilities`, `numbers`, `classes`: sums over rows, by what is predicted.
//! * `areas`: the areas under the curves, and their bounds.
//! * `ranking`: rows by their score; `histogram`: the same in bounded memory.
//! * `groups`: the AUC within groups of rows.

mod accumulator;
mod areas;
mod classes;
mod document;
mod groups;
mod histogram;
mod metric;
mod numbers;
mod probabilities;
mod ranking;

use document::Document;
use serde::{Deserialize, Serialize};

pub use accumulator::{Accumulator, ScoredBatch};
pub use document::one_or_several;
pub use metric::Metric;

/// The most that the scores of an evaluation take while its ranking is exact, and the most that the rows of
/// groups take: 64 Mi rows, a third as many when they carry weights or labels between 0 and 1, and 16 Mi
/// rows of groups.
pub const EXACT_BYTES: usize = 256 << 20;

/// How well the scores of one label agree with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Document", into = "Document")]
pub struct Metrics {
    /// Its name; empty where rows have one label without a name.
    pub label: String,
    /// Those that suit what is predicted, in the order of [`Metric::ALL`].
    pub values: Vec<MetricValue>,
    /// How many groups the group AUC is the mean of; `None` when rows have no groups.
    pub groups: Option<u64>,
    /// Rows.
    pub examples: u64,
}

/// One of the metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricValue {
    /// Which.
    pub metric: Metric,
    /// `None` where it is not defined for these rows.
    pub value: Option<f64>,
    /// That of all rows is `value` give or take no more than this, but for the rounding of sums: 0 where it is exact.
    /// Only of those metrics that need not be.
    pub error: Option<f64>,
}

impl Metrics {
    /// The value of a metric, if it is there and a number.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        let found = self.values.iter().find(|values| values.metric == metric);
        found.and_then(|values| values.value).filter(|value| value.is_finite())
    }

    /// How far the exact value of a metric may be from [`Metrics::value`] it.
    pub fn error_bound(&self, metric: Metric) -> Option<f64> {
        self.values.iter().find(|values| values.metric == metric).and_then(|values| values.error)
    }

    /// How good the model is, each number that is defined by its name: what curves are made of. Where the label has a
    /// name, that comes first: `LABEL/auc`.
    pub fn named_values(&self) -> impl Iterator<Item = (String, f64)> {
        let defined = self.values.iter().filter_map(|values| Some((values.metric.name(), values.value?)));
        defined.map(|(name, value)| match self.label.as_str() {
            "" => (name.to_owned(), value),
            label => (format!("{label}/{name}"), value),
        })
    }
}

/// Why rows have no metrics. Rows count from 0 at the start of the evaluation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MetricsError {
    /// A score is not what is predicted.
    #[error("row {row} of the evaluation scores {score}, which is not {expected}")]
    Score {
        /// Which row.
        row: u64,
        /// Its score.
        score: f32,
        /// What it should be.
        expected: &'static str,
    },
    /// A label is not what can be predicted.
    #[error("row {row} of the evaluation has label {label}: expected {expected}")]
    Label {
        /// Which row.
        row: u64,
        /// Its label.
        label: f32,
        /// What it should be.
        expected: &'static str,
    },
    /// A weight is NaN, infinite or negative.
    #[error("row {row} of the evaluation has weight {weight}: expected a finite number not below 0")]
    Weight {
        /// Which row.
        row: u64,
        /// Its weight.
        weight: f32,
    },
    /// Nothing to take a mean over.
    #[error("an evaluation of {examples} rows with a total weight of 0 has no metrics")]
    NoWeight {
        /// Rows added.
        examples: u64,
    },
}

#[cfg(test)]
mod tests;
