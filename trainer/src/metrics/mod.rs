//! The metrics of an evaluation: the quality of a model's ranking, and of its probabilities or numbers.
//!
//! Batches are added as they are scored; [`Accumulator::finish`] then returns the metrics of all rows. The
//! set of metrics depends on the kind of prediction: ranking, log loss and accuracy for probabilities; errors
//! and the explained share of variance for numbers; log loss and accuracy for classes.
//!
//! Ranking metrics (AUC, PR-AUC) are exact while the scores fit in [`EXACT_BYTES`]: without sampling or
//! binning, by keeping every row's score (4 bytes per row; 12 if rows have weights or labels between 0 and
//! 1). Beyond that, rows move to a histogram of bounded memory, and the metrics have error bounds. All other
//! metrics are sums over rows.
//!
//! A row of weight `w` and label `y` counts as a positive of weight `w y` and a negative of weight `w (1 -
//! y)`. With labels 0 and 1, this is the usual definition of these metrics.
//!
//! * `metric`: the metrics by name; `accumulator`: collects the rows of an evaluation.
//! * `probabilities`, `numbers`, `classes`: sums over rows, by kind of prediction.
//! * `areas`: the areas under the curves, with bounds.
//! * `ranking`: rows by score; `histogram`: the same in bounded memory.
//! * `groups`: metrics within groups of rows; `top_ranks`: those of the first ranks of a group.

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
mod top_ranks;

use document::Document;
use serde::{Deserialize, Serialize};

pub use accumulator::{Accumulator, ScoredBatch};
pub use document::one_or_several;
pub use metric::Metric;

/// The memory limit for the scores of an evaluation with exact ranking, and separately for the rows of
/// groups: 64 Mi rows, a third as many with weights or labels between 0 and 1, and 16 Mi rows of groups.
pub const EXACT_BYTES: usize = 256 << 20;

/// The metrics of one label.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Document", into = "Document")]
pub struct Metrics {
    /// The label's name; empty for a single unnamed label.
    pub label: String,
    /// The metrics for this kind of prediction, in the order of [`Metric::ALL`].
    pub values: Vec<MetricValue>,
    /// The number of groups in the group AUC, or in NDCG where it is the first of these metrics; `None` if rows have no
    /// groups.
    pub groups: Option<u64>,
    /// The number of first ranks in NDCG and recall; `None` if rows have no groups.
    pub top_k: Option<u32>,
    /// Number of rows.
    pub examples: u64,
}

/// The value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricValue {
    /// The metric.
    pub metric: Metric,
    /// `None` if it is undefined for these rows.
    pub value: Option<f64>,
    /// The maximum distance of `value` from the exact value, apart from rounding of sums; 0 if it is exact.
    /// `None` for metrics that are always exact.
    pub error: Option<f64>,
}

impl Metrics {
    /// The value of a metric, if it is present and defined.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        let found = self.values.iter().find(|values| values.metric == metric);
        found.and_then(|values| values.value).filter(|value| value.is_finite())
    }

    /// The maximum error of [`Metrics::value`].
    pub fn error_bound(&self, metric: Metric) -> Option<f64> {
        self.values.iter().find(|values| values.metric == metric).and_then(|values| values.error)
    }

    /// The number of groups in the mean of a metric, where it is reported.
    pub fn groups_of(&self, metric: Metric) -> Option<u64> {
        let counted = self.values.iter().map(|values| values.metric);
        let counted = counted.filter(|metric| metric.needs_groups()).min();
        self.groups.filter(|_| counted == Some(metric))
    }

    /// The number of first ranks that a metric looks at.
    pub fn top_k_of(&self, metric: Metric) -> Option<u32> {
        self.top_k.filter(|_| matches!(metric, Metric::Ndcg | Metric::Recall))
    }

    /// The defined metrics by name, as used for curves. A named label is the prefix: `LABEL/auc`.
    pub fn named_values(&self) -> impl Iterator<Item = (String, f64)> {
        let defined = self.values.iter().filter_map(|values| Some((values.metric.name(), values.value?)));
        defined.map(|(name, value)| match self.label.as_str() {
            "" => (name.to_owned(), value),
            label => (format!("{label}/{name}"), value),
        })
    }
}

/// Why metrics are undefined. Row numbers count from 0 at the start of the evaluation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MetricsError {
    /// A score is out of range.
    #[error("row {row} of the evaluation scores {score}, which is not {expected}")]
    Score {
        /// The row.
        row: u64,
        /// Its score.
        score: f32,
        /// The expected range.
        expected: &'static str,
    },
    /// A label is out of range.
    #[error("row {row} of the evaluation has label {label}: expected {expected}")]
    Label {
        /// The row.
        row: u64,
        /// Its label.
        label: f32,
        /// The expected range.
        expected: &'static str,
    },
    /// A weight is NaN, infinite or negative.
    #[error("row {row} of the evaluation has weight {weight}: expected a finite number of at least 0")]
    Weight {
        /// The row.
        row: u64,
        /// Its weight.
        weight: f32,
    },
    /// There is no weight for a mean.
    #[error("an evaluation of {examples} rows with a total weight of 0 has no metrics")]
    NoWeight {
        /// Number of rows added.
        examples: u64,
    },
}

#[cfg(test)]
mod tests;
