//! What an evaluation says of a model: how well it ranks, and how good its probabilities are.
//!
//! Batches are added as they are scored; [`Accumulator::finish`] then gives the metrics of all rows
//! together.
//!
//! Ranking (AUC, PR-AUC) is exact while its rows fit in [`EXACT_BYTES`]: nothing is sampled or binned, which
//! is why every row's score is kept (4 bytes a row; 12 when rows carry weights or labels between 0 and 1).
//! Beyond that rows go to a histogram of bounded memory, and the metrics come with bounds that hold for the
//! exact ones. All else is a sum over rows.
//!
//! A row of weight `w` and label `y` counts as a positive of weight `w y` and a negative of weight
//! `w (1 - y)`; with labels 0 and 1 this is what everybody means by these metrics.
//!
//! * `areas`: the areas under the curves, and their bounds.
//! * `ranking`: rows by their score; `histogram`: the same in bounded memory.
//! * `groups`: the AUC within groups of rows.
//! * `compared`: which number says that one model is better than another.

mod areas;
mod compared;
mod groups;
mod histogram;
mod ranking;

use serde::{Deserialize, Serialize};

pub use compared::Metric;
use groups::Groups;
use ranking::{Ranking, WeightedRow};

/// The most that the scores of an evaluation take while its ranking is exact, and the most that the rows of
/// groups take: 64 Mi rows, a third as many when they carry weights or labels between 0 and 1, and 16 Mi
/// rows of groups.
pub const EXACT_BYTES: usize = 256 << 20;

/// Scores are kept this far from 0 and 1 before their logarithm is taken, as scikit-learn's `log_loss`
/// does for single precision.
const CLIP: f64 = f32::EPSILON as f64;

/// A score above this predicts the positive class, as in Keras and scikit-learn.
const THRESHOLD: f32 = 0.5;

/// How well scores agree with labels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// The probability that a positive row scores above a negative one, ties counting half. `None` when
    /// the rows are all of one class.
    pub auc: Option<f64>,
    /// The AUC of all rows is `auc` give or take no more than this, but for the rounding of sums: 0 where it
    /// is exact.
    pub auc_error: Option<f64>,
    /// Average precision: the mean over positive rows of the share of positives among the rows that score
    /// no less. `None` when there are no positives.
    pub pr_auc: Option<f64>,
    /// As `auc_error`.
    pub pr_auc_error: Option<f64>,
    /// Mean binary cross-entropy, natural logarithm, scores clipped to `[2^-23, 1 - 2^-23]`.
    pub log_loss: f64,
    /// Normalised entropy: the log loss divided by that of always predicting the mean label; below 1 is
    /// better than that. He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", 2014.
    /// `None` when the rows are all of one class.
    pub normalized_entropy: Option<f64>,
    /// The sum of scores divided by the sum of labels: above 1, more positives are predicted than there
    /// are. `None` when there are none.
    pub calibration: Option<f64>,
    /// Root of the mean squared difference between score and label; of the Brier score, where labels are 0
    /// or 1.
    pub rmse: f64,
    /// Share of the weight where a score above 0.5 meets a positive row, or another a negative one.
    pub accuracy: f64,
    /// The mean of the AUCs within groups of rows, weighted by the groups' weights. `None` when rows have no
    /// groups, or no group has both classes.
    pub group_auc: Option<f64>,
    /// How many groups that is the mean of; `None` when rows have no groups.
    pub groups: Option<u64>,
    /// Rows.
    pub examples: u64,
}

impl Metrics {
    /// How good the model is, each number that is defined by its name: what curves are made of.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let numbers = [
            ("auc", self.auc),
            ("pr_auc", self.pr_auc),
            ("group_auc", self.group_auc),
            ("log_loss", Some(self.log_loss)),
            ("normalized_entropy", self.normalized_entropy),
            ("calibration", self.calibration),
            ("rmse", Some(self.rmse)),
            ("accuracy", Some(self.accuracy)),
        ];
        numbers.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// Why rows have no metrics. Rows count from 0 at the start of the evaluation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MetricsError {
    /// A score is NaN or outside `[0, 1]`.
    #[error("row {row} of the evaluation scores {score}, which is not a probability")]
    Score {
        /// Which row.
        row: u64,
        /// Its score.
        score: f32,
    },
    /// A label is NaN or outside `[0, 1]`.
    #[error("row {row} of the evaluation has label {label}: expected a number from 0 to 1")]
    Label {
        /// Which row.
        row: u64,
        /// Its label.
        label: f32,
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

/// Gathers the rows of an evaluation.
#[derive(Clone, Debug)]
pub struct Accumulator {
    ranking: Ranking,
    groups: Option<Groups>,
    sums: Sums,
}

/// Sums over rows, each times its weight.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    examples: u64,
    weight: f64,
    positive: f64,
    negative: f64,
    score: f64,
    loss: f64,
    squares: f64,
    correct: f64,
}

/// A batch of rows to be added.
#[derive(Clone, Copy, Debug)]
pub struct Scored<'a> {
    /// `[rows]`
    pub scores: &'a [f32],
    /// `[rows]`
    pub labels: &'a [f32],
    /// `[rows]`, when rows are weighted.
    pub weights: Option<&'a [f32]>,
    /// `[rows]`, when the AUC within groups is wanted: the id of each row's group.
    pub groups: Option<&'a [u32]>,
}

impl Default for Accumulator {
    fn default() -> Self {
        Self::with_exact_bytes(EXACT_BYTES)
    }
}

impl Accumulator {
    /// An accumulator for which [`EXACT_BYTES`] is another number.
    fn with_exact_bytes(bytes: usize) -> Self {
        Self { ranking: Ranking::new(bytes), groups: None, sums: Sums::default() }
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// When a row is not what metrics are defined on. What the batch had added before stays added:
    /// [`Accumulator::clear`] before further use.
    ///
    /// # Panics
    /// When lengths differ.
    pub fn add(&mut self, batch: Scored<'_>) -> Result<(), MetricsError> {
        let Scored { scores, labels, weights, groups } = batch;
        assert_eq!(scores.len(), labels.len(), "a score for every label");
        assert!(weights.is_none_or(|weights| weights.len() == labels.len()), "a weight for every label");
        assert!(groups.is_none_or(|groups| groups.len() == labels.len()), "a group for every label");
        self.ranking.reserve(scores.len());
        let mut grouped = groups.map(|ids| {
            let groups = self.groups.get_or_insert_with(|| Groups::new(self.ranking.exact_bytes()));
            groups.reserve(ids.len());
            (ids, groups)
        });
        for (row, (&score, &label)) in scores.iter().zip(labels).enumerate() {
            let weight = weights.map_or(1.0, |weights| weights[row]);
            self.sums.add(score, label, weight)?;
            let ranked = WeightedRow::new(score, label, weight);
            self.ranking.push(ranked);
            if let Some((ids, groups)) = &mut grouped {
                groups.push(ids[row], ranked);
            }
        }
        Ok(())
    }

    /// Rows added.
    pub fn examples(&self) -> u64 {
        self.sums.examples
    }

    /// Forgets all rows, and keeps their memory for the next ones.
    pub fn clear(&mut self) {
        self.ranking.clear();
        self.groups.iter_mut().for_each(Groups::clear);
        self.sums = Sums::default();
    }

    /// The metrics of all rows added; the accumulator is then empty again.
    ///
    /// # Errors
    /// When there are no rows, or none of them has any weight.
    pub fn finish(&mut self) -> Result<Metrics, MetricsError> {
        let result = if self.sums.weight > 0.0 {
            Ok(self.metrics())
        } else {
            Err(MetricsError::NoWeight { examples: self.sums.examples })
        };
        self.clear();
        result
    }

    fn metrics(&mut self) -> Metrics {
        let sums = &self.sums;
        let sweep = self.ranking.sweep();
        let (roc, precision_recall) = (sweep.roc(), sweep.precision_recall());
        let groups = self.groups.as_mut().map(Groups::auc);
        let log_loss = sums.loss / sums.weight;
        Metrics {
            auc: roc.map(|area| area.value),
            auc_error: roc.map(|area| area.error),
            pr_auc: precision_recall.map(|area| area.value),
            pr_auc_error: precision_recall.map(|area| area.error),
            log_loss,
            normalized_entropy: sums.entropy().map(|entropy| log_loss / entropy),
            calibration: (sums.positive > 0.0).then(|| sums.score / sums.positive),
            rmse: (sums.squares / sums.weight).sqrt(),
            accuracy: sums.correct / sums.weight,
            group_auc: groups.and_then(|groups| groups.auc),
            groups: groups.map(|groups| groups.groups),
            examples: sums.examples,
        }
    }
}

impl Sums {
    fn add(&mut self, score: f32, label: f32, weight: f32) -> Result<(), MetricsError> {
        let row = self.examples;
        if !(0.0..=1.0).contains(&score) {
            return Err(MetricsError::Score { row, score });
        }
        if !(0.0..=1.0).contains(&label) {
            return Err(MetricsError::Label { row, label });
        }
        if !(0.0..=f32::MAX).contains(&weight) {
            return Err(MetricsError::Weight { row, weight });
        }
        let (positive, weight) = (f64::from(label), f64::from(weight));
        let difference = f64::from(score) - positive;
        self.examples += 1;
        self.weight += weight;
        self.positive += weight * positive;
        self.negative += weight * (1.0 - positive);
        self.score += weight * f64::from(score);
        self.loss += weight * cross_entropy(score, positive);
        self.squares += weight * (difference * difference);
        self.correct += weight * if score > THRESHOLD { positive } else { 1.0 - positive };
        Ok(())
    }

    /// The log loss of always predicting the mean label; `None` unless both classes have weight.
    fn entropy(&self) -> Option<f64> {
        let shares = [self.positive / self.weight, self.negative / self.weight];
        shares
            .iter()
            .all(|&share| share > 0.0)
            .then(|| -shares.iter().map(|share| share * share.ln()).sum::<f64>())
            .filter(|&entropy| entropy > 0.0)
    }
}

fn cross_entropy(score: f32, label: f64) -> f64 {
    let score = f64::from(score).clamp(CLIP, 1.0 - CLIP);
    if label == 1.0 {
        -score.ln()
    } else if label == 0.0 {
        -(1.0 - score).ln()
    } else {
        -(label * score.ln() + (1.0 - label) * (1.0 - score).ln())
    }
}

#[cfg(test)]
mod tests;
