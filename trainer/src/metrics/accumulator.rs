//! Collects the scored rows of an evaluation.

use super::groups::{Groups, Means};
use super::ranking::{Ranking, WeightedRow};
use super::{EXACT_BYTES, Metric, MetricValue, Metrics, MetricsError, classes, numbers, probabilities};
use crate::spec::{Prediction, RankingSpec};

/// Accumulates the rows of an evaluation for one label.
#[derive(Clone, Debug)]
pub struct Accumulator {
    label: String,
    sums: Sums,
    /// Number of rows added, and their total weight.
    examples: u64,
    weight: f64,
}

/// The sums, by kind of prediction.
#[derive(Clone, Debug)]
enum Sums {
    Ranked { ranking: Ranking, groups: Option<Groups>, scores: Scores },
    Numbers { groups: Option<Groups>, sums: numbers::Sums },
    Classes(classes::Sums),
}

/// The meaning of scores that rank.
#[derive(Clone, Debug)]
enum Scores {
    /// The probabilities of a label from 0 to 1.
    Probabilities(probabilities::Sums),
    /// Any numbers, for a label from 0 to 1.
    Ranks,
    /// Any numbers, for a label of at least 0.
    Grades {
        /// Whether a label is above 1. Then a row is neither positive nor negative, and only metrics of grades are
        /// defined.
        exceed_one: bool,
    },
}

/// A batch of scored rows.
#[derive(Clone, Copy, Debug)]
pub struct ScoredBatch<'a> {
    /// `[rows]`; `[K, rows]` for `K` classes
    pub scores: &'a [f32],
    /// `[rows]`
    pub labels: &'a [f32],
    /// `[rows]`, if rows are weighted.
    pub weights: Option<&'a [f32]>,
    /// The id of each row's group, `[rows]`; ignored without [`Accumulator::rank_groups`].
    pub groups: Option<&'a [u32]>,
}

impl Accumulator {
    /// An accumulator for the label `label` (empty if unnamed) with this kind of prediction.
    pub fn new(label: &str, prediction: Prediction) -> Self {
        match prediction {
            Prediction::Probability => Self::with_exact_bytes(label, EXACT_BYTES),
            Prediction::Rank => {
                let ranking = Ranking::new(EXACT_BYTES);
                Self::of(label, Sums::Ranked { ranking, groups: None, scores: Scores::Ranks })
            }
            Prediction::ListRank => {
                let (ranking, scores) = (Ranking::new(EXACT_BYTES), Scores::Grades { exceed_one: false });
                Self::of(label, Sums::Ranked { ranking, groups: None, scores })
            }
            Prediction::Number
            | Prediction::RobustNumber { .. }
            | Prediction::Quantile { .. }
            | Prediction::Rate => {
                Self::of(label, Sums::Numbers { groups: None, sums: numbers::Sums::new(prediction) })
            }
            Prediction::Classes(classes) => Self::of(label, Sums::Classes(classes::Sums::new(classes))),
        }
    }

    /// An accumulator of probabilities with another limit than [`EXACT_BYTES`].
    pub(super) fn with_exact_bytes(label: &str, bytes: usize) -> Self {
        let scores = Scores::Probabilities(probabilities::Sums::default());
        Self::of(label, Sums::Ranked { ranking: Ranking::new(bytes), groups: None, scores })
    }

    fn of(label: &str, sums: Sums) -> Self {
        Self { label: label.to_owned(), sums, examples: 0, weight: 0.0 }
    }

    /// Adds the metrics of rankings within groups, for later batches. Classes have none.
    pub fn rank_groups(&mut self, ranking: RankingSpec) {
        let bytes = match &self.sums {
            Sums::Ranked { ranking, .. } => ranking.exact_bytes(),
            _ => EXACT_BYTES,
        };
        if let Sums::Ranked { groups, .. } | Sums::Numbers { groups, .. } = &mut self.sums {
            *groups = Some(Groups::new(bytes, ranking));
        }
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// When metrics are undefined for a row. Earlier rows of the batch stay added: call
    /// [`Accumulator::clear`] before further use.
    ///
    /// # Panics
    /// When lengths differ.
    pub fn add(&mut self, batch: ScoredBatch<'_>) -> Result<(), MetricsError> {
        let ScoredBatch { scores, labels, weights, groups } = batch;
        assert_eq!(scores.len(), self.sums.scores() * labels.len(), "scores for every label");
        assert!(weights.is_none_or(|weights| weights.len() == labels.len()), "a weight for every label");
        assert!(groups.is_none_or(|groups| groups.len() == labels.len()), "a group for every label");
        self.sums.reserve(&batch);
        for (row, &label) in labels.iter().enumerate() {
            let weight = weights.map_or(1.0, |weights| weights[row]);
            if !(0.0..=f32::MAX).contains(&weight) {
                return Err(MetricsError::Weight { row: self.examples, weight });
            }
            match &mut self.sums {
                Sums::Numbers { groups: grouped, sums } => {
                    sums.add(self.examples, scores[row], label, weight)?;
                    push(grouped, groups, row, WeightedRow::of_any_score(scores[row], label, weight));
                }
                Sums::Classes(sums) => {
                    let score = |class| scores[class * labels.len() + row];
                    sums.add(self.examples, score, label, weight)?;
                }
                Sums::Ranked { ranking, groups: grouped, scores: how } => {
                    let score = scores[row];
                    let bounded = match how {
                        Scores::Probabilities(sums) => {
                            sums.add(self.examples, score, label, weight).map(|()| score)?
                        }
                        Scores::Ranks => between_0_and_1(self.examples, score, label, 1.0)?,
                        Scores::Grades { exceed_one } => {
                            let bounded = between_0_and_1(self.examples, score, label, f32::MAX)?;
                            *exceed_one |= label > 1.0;
                            bounded
                        }
                    };
                    if matches!(how, Scores::Grades { exceed_one: true }) {
                        ranking.clear();
                    } else {
                        ranking.push(WeightedRow::new(bounded, label, weight));
                    }
                    push(grouped, groups, row, WeightedRow::of_any_score(score, label, weight));
                }
            }
            self.examples += 1;
            self.weight += f64::from(weight);
        }
        Ok(())
    }

    /// Number of rows added.
    pub fn examples(&self) -> u64 {
        self.examples
    }

    /// Removes all rows and keeps the allocated memory.
    pub fn clear(&mut self) {
        (self.examples, self.weight) = (0, 0.0);
        match &mut self.sums {
            Sums::Numbers { groups, sums } => {
                groups.iter_mut().for_each(Groups::clear);
                sums.clear();
            }
            Sums::Classes(sums) => sums.clear(),
            Sums::Ranked { ranking, groups, scores } => {
                ranking.clear();
                groups.iter_mut().for_each(Groups::clear);
                match scores {
                    Scores::Probabilities(sums) => *sums = probabilities::Sums::default(),
                    Scores::Ranks => {}
                    Scores::Grades { exceed_one } => *exceed_one = false,
                }
            }
        }
    }

    /// Returns the metrics of all rows added, and clears the accumulator.
    ///
    /// # Errors
    /// When there are no rows, or their total weight is 0.
    pub fn finish(&mut self) -> Result<Metrics, MetricsError> {
        let result = if self.weight > 0.0 {
            Ok(self.metrics())
        } else {
            Err(MetricsError::NoWeight { examples: self.examples })
        };
        self.clear();
        result
    }

    fn metrics(&mut self) -> Metrics {
        let (mut values, groups) = self.sums.values();
        values.sort_by_key(|values| values.metric);
        let (label, top_k) = (self.label.clone(), self.sums.groups().map(|groups| groups.ranking().top_k));
        Metrics { label, values, groups, top_k, examples: self.examples }
    }
}

impl Sums {
    /// Number of scores per row.
    fn scores(&self) -> usize {
        match self {
            Self::Ranked { .. } | Self::Numbers { .. } => 1,
            Self::Classes(sums) => sums.classes(),
        }
    }

    /// Reserves memory for a batch.
    fn reserve(&mut self, batch: &ScoredBatch<'_>) {
        if let Self::Ranked { ranking, .. } = self {
            ranking.reserve(batch.scores.len());
        }
        if let Self::Ranked { groups: Some(groups), .. } | Self::Numbers { groups: Some(groups), .. } = self {
            groups.reserve(batch.groups.map_or(0, <[u32]>::len));
        }
    }

    fn groups(&self) -> Option<&Groups> {
        match self {
            Self::Ranked { groups, .. } | Self::Numbers { groups, .. } => groups.as_ref(),
            Self::Classes(_) => None,
        }
    }

    /// The value of each metric, and the number of groups.
    fn values(&mut self) -> (Vec<MetricValue>, Option<u64>) {
        let exact = |(metric, value)| MetricValue { metric, value, error: None };
        match self {
            Self::Numbers { groups, sums } => {
                let ndcg = groups.as_mut().map(Groups::ndcg);
                let ranked = ndcg.map(|ndcg| (Metric::Ndcg, ndcg.value()));
                let values = sums.values().into_iter().chain(ranked).map(exact).collect();
                (values, ndcg.map(|ndcg| ndcg.groups))
            }
            Self::Classes(sums) => (sums.values().into_iter().map(exact).collect(), None),
            Self::Ranked { groups, scores: Scores::Grades { exceed_one: true }, .. } => {
                let means = groups.as_mut().map(Groups::means);
                let values = means.iter().flat_map(first_ranks).map(exact).collect();
                (values, means.map(|means| means.ndcg.groups))
            }
            Self::Ranked { ranking, groups, scores } => {
                let sweep = ranking.sweep();
                let areas = [(Metric::Auc, sweep.roc()), (Metric::PrAuc, sweep.precision_recall())];
                let areas = areas.map(|(metric, area)| {
                    let (value, error) = (area.map(|area| area.value), area.map(|area| area.error));
                    MetricValue { metric, value, error }
                });
                let means = groups.as_mut().map(Groups::means);
                let of_auc = means.iter().map(|means| (Metric::GroupAuc, means.auc.value()));
                let ranked = of_auc.chain(means.iter().flat_map(first_ranks));
                let sums = if let Scores::Probabilities(sums) = scores { Some(&*sums) } else { None };
                let metrics = sums.into_iter().flat_map(probabilities::Sums::values).chain(ranked);
                let values = areas.into_iter().chain(metrics.map(exact)).collect();
                (values, means.map(|means| means.auc.groups))
            }
        }
    }
}

/// The metrics of the first ranks of groups.
fn first_ranks(means: &Means) -> [(Metric, Option<f64>); 3] {
    let Means { ndcg, reciprocal_rank, recall, .. } = means;
    [(Metric::Ndcg, ndcg.value()), (Metric::Mrr, reciprocal_rank.value()), (Metric::Recall, recall.value())]
}

/// Adds a row to its group, if rows have groups.
fn push(groups: &mut Option<Groups>, ids: Option<&[u32]>, row: usize, ranked: WeightedRow) {
    if let (Some(groups), Some(ids)) = (groups, ids) {
        groups.push(ids[row], ranked);
    }
}

/// Maps a score of any size to one from 0 to 1 with the same order. `label` is from 0 to `most`. `row` is for errors.
///
/// A sigmoid would preserve the order too, but is 1 in fp32 from 17 on; dot products divided by a small
/// temperature reach that.
fn between_0_and_1(row: u64, score: f32, label: f32, most: f32) -> Result<f32, MetricsError> {
    if !score.is_finite() {
        return Err(MetricsError::Score { row, score, expected: "a finite number" });
    }
    if !(0.0..=most).contains(&label) {
        let expected = if most > 1.0 { "a number of at least 0" } else { "a number from 0 to 1" };
        return Err(MetricsError::Label { row, label, expected });
    }
    Ok(0.5 + 0.5 * (score / (1.0 + score.abs())))
}
