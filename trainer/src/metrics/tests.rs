#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde::Deserialize;

use super::{Accumulator, Metric, MetricValue, Metrics, MetricsError, ScoredBatch};
use crate::spec::{Gains, Prediction, RankingSpec};

/// Compares every pair of rows.
fn auc_by_pairs(scores: &[f32], labels: &[f32], weights: &[f32]) -> Option<f64> {
    let (mut wins, mut pairs) = (0.0, 0.0);
    for i in 0..scores.len() {
        for j in 0..scores.len() {
            let pair = f64::from(weights[i])
                * f64::from(labels[i])
                * f64::from(weights[j])
                * (1.0 - f64::from(labels[j]));
            pairs += pair;
            wins += pair
                * match scores[i].total_cmp(&scores[j]) {
                    std::cmp::Ordering::Greater => 1.0,
                    std::cmp::Ordering::Equal => 0.5,
                    std::cmp::Ordering::Less => 0.0,
                };
        }
    }
    (pairs > 0.0).then(|| wins / pairs)
}

/// Compares each positive row with every row.
fn pr_auc_by_rows(scores: &[f32], labels: &[f32], weights: &[f32]) -> Option<f64> {
    let positive = |i: usize| f64::from(weights[i]) * f64::from(labels[i]);
    let rows = 0..scores.len();
    let all: f64 = rows.clone().map(positive).sum();
    let precision = |i: usize| {
        let no_less = || rows.clone().filter(|&j| scores[j] >= scores[i]);
        no_less().map(positive).sum::<f64>() / no_less().map(|j| f64::from(weights[j])).sum::<f64>()
    };
    let sum: f64 = rows.clone().filter(|&i| positive(i) > 0.0).map(|i| positive(i) * precision(i)).sum();
    (all > 0.0).then(|| sum / all)
}

fn scored<'a>(scores: &'a [f32], labels: &'a [f32], weights: Option<&'a [f32]>) -> ScoredBatch<'a> {
    ScoredBatch { scores, labels, weights, groups: None }
}

fn of_probabilities() -> Accumulator {
    Accumulator::new("", Prediction::Probability)
}

fn metrics(scores: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Result<Metrics, MetricsError> {
    let mut accumulator = of_probabilities();
    accumulator.add(scored(scores, labels, weights))?;
    accumulator.finish()
}

fn close(found: Option<f64>, expected: Option<f64>, tolerance: f64) -> bool {
    match (found, expected) {
        (Some(found), Some(expected)) => (found - expected).abs() <= tolerance,
        (None, None) => true,
        _ => false,
    }
}

/// Scores with few distinct values, so that many are tied.
fn tied_scores() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec((0_u8..12).prop_map(|tenth| f32::from(tenth) / 11.0), 1..60)
}

proptest! {
    #[test]
    fn counted_areas_are_those_of_all_pairs(scores in tied_scores(), seed in any::<u64>()) {
        let labels: Vec<f32> = (0..scores.len()).map(|i| (seed >> (i % 64) & 1) as f32).collect();
        let found = metrics(&scores, &labels, None).unwrap();
        let ones = vec![1.0; scores.len()];
        // Both are sums of halves, exact in f64 at this size, and one division.
        prop_assert_eq!(found.value(Metric::Auc), auc_by_pairs(&scores, &labels, &ones));
        let expected = pr_auc_by_rows(&scores, &labels, &ones);
        prop_assert!(close(found.value(Metric::PrAuc), expected, 1e-12), "{:?} {:?}", found.value(Metric::PrAuc), expected);
        prop_assert_eq!(found.error_bound(Metric::Auc), found.value(Metric::Auc).map(|_| 0.0));
        prop_assert_eq!(found.error_bound(Metric::PrAuc), found.value(Metric::PrAuc).map(|_| 0.0));
    }

    #[test]
    fn weighted_areas_are_those_of_all_pairs(
        rows in prop::collection::vec((0_u8..12, 0_u8..5, 0_u8..4), 1..60),
    ) {
        let scores: Vec<f32> = rows.iter().map(|row| f32::from(row.0) / 11.0).collect();
        let labels: Vec<f32> = rows.iter().map(|row| f32::from(row.1) / 4.0).collect();
        let weights: Vec<f32> = rows.iter().map(|row| f32::from(row.2) * 0.7).collect();
        match metrics(&scores, &labels, Some(&weights)) {
            Ok(found) => {
                let expected = auc_by_pairs(&scores, &labels, &weights);
                prop_assert!(close(found.value(Metric::Auc), expected, 1e-12), "{:?} {:?}", found.value(Metric::Auc), expected);
                let expected = pr_auc_by_rows(&scores, &labels, &weights);
                prop_assert!(close(found.value(Metric::PrAuc), expected, 1e-12), "{:?} {:?}", found.value(Metric::PrAuc), expected);
            }
            Err(error) => {
                prop_assert_eq!(error, MetricsError::NoWeight { examples: rows.len() as u64 });
                prop_assert!(weights.iter().all(|&weight| weight == 0.0));
            }
        }
    }

    #[test]
    fn weights_of_one_change_nothing(scores in tied_scores(), seed in any::<u64>(), cut in 0_usize..60) {
        let labels: Vec<f32> = (0..scores.len()).map(|i| (seed >> (i % 64) & 1) as f32).collect();
        let cut = cut.min(scores.len());
        // Adding and removing a row of weight 2 converts the rows to the weighted representation.
        let plain = metrics(&scores, &labels, None).unwrap();
        let mut accumulator = of_probabilities();
        accumulator.add(scored(&scores[..cut], &labels[..cut], None)).unwrap();
        accumulator.add(scored(&[0.5], &[1.0], Some(&[0.0]))).unwrap();
        accumulator.add(scored(&scores[cut..], &labels[cut..], None)).unwrap();
        let weighted = accumulator.finish().unwrap();
        prop_assert!(close(weighted.value(Metric::Auc), plain.value(Metric::Auc), 1e-12));
        prop_assert!(close(weighted.value(Metric::PrAuc), plain.value(Metric::PrAuc), 1e-12));
        prop_assert_eq!(weighted.examples, plain.examples + 1);
        let sums = |of: Metrics| of.named_values().filter(|(name, _)| !name.ends_with("auc")).collect::<Vec<_>>();
        prop_assert_eq!(sums(weighted), sums(plain), "all metrics except the areas are the same sums");
    }
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<GoldenCase>,
}

#[derive(Deserialize)]
struct GoldenCase {
    name: String,
    scores: Vec<f32>,
    labels: Vec<f32>,
    weights: Option<Vec<f32>>,
    groups: Option<Vec<u32>>,
    auc: f64,
    pr_auc: f64,
    log_loss: f64,
    normalized_entropy: f64,
    calibration: f64,
    rmse: f64,
    accuracy: f64,
    group_auc: Option<f64>,
}

#[test]
fn agrees_with_scikit_learn() {
    let golden: Golden = serde_json::from_str(include_str!("../../tests/golden/metrics.json")).unwrap();
    assert!(golden.cases.len() >= 4);
    assert!(golden.cases.iter().any(|case| case.groups.is_some()));
    for case in golden.cases {
        let mut accumulator = of_probabilities();
        let rows = scored(&case.scores, &case.labels, case.weights.as_deref());
        if case.groups.is_some() {
            accumulator.rank_groups(RankingSpec::default());
        }
        accumulator.add(ScoredBatch { groups: case.groups.as_deref(), ..rows }).unwrap();
        let found = accumulator.finish().unwrap();
        let compared = [
            (found.value(Metric::Auc), Some(case.auc)),
            (found.value(Metric::PrAuc), Some(case.pr_auc)),
            (found.value(Metric::LogLoss), Some(case.log_loss)),
            (found.value(Metric::NormalizedEntropy), Some(case.normalized_entropy)),
            (found.value(Metric::Calibration), Some(case.calibration)),
            (found.value(Metric::Rmse), Some(case.rmse)),
            (found.value(Metric::Accuracy), Some(case.accuracy)),
            (found.value(Metric::GroupAuc), case.group_auc),
        ];
        for (found, expected) in compared {
            assert!(close(found, expected, 1e-12), "{}: {found:?} for {expected:?}", case.name);
        }
        assert_eq!(found.examples, case.scores.len() as u64);
        assert_eq!(found.groups.is_some(), case.groups.is_some());
    }
}

#[test]
fn a_case_worked_by_hand() {
    // In descending order: a positive of weight 2; a positive and a negative, tied; a negative of weight 4.
    let (scores, labels, weights) = ([0.75, 0.5, 0.5, 0.25], [1.0, 1.0, 0.0, 0.0], [2.0, 1.0, 1.0, 4.0]);
    let found = metrics(&scores, &labels, Some(&weights)).unwrap();
    // Of 3 x 5 pairs, the tied one counts half.
    assert_eq!(found.value(Metric::Auc), Some(14.5 / 15.0));
    // Precision is 1 for the first positive, and (2 + 1) / 4 for the second.
    assert_eq!(found.value(Metric::PrAuc), Some((2.0 + 0.75) / 3.0));
    assert_eq!(found.value(Metric::Calibration), Some((1.5 + 0.5 + 0.5 + 1.0) / 3.0));
    assert_eq!(found.value(Metric::Rmse), Some(((6.0 * 0.0625 + 2.0 * 0.25) / 8.0_f64).sqrt()));
    assert_eq!(found.value(Metric::Accuracy), Some((2.0 + 5.0) / 8.0));
    let log_loss = -(6.0 * 0.75_f64.ln() + 2.0 * 0.5_f64.ln()) / 8.0;
    assert!(close(found.value(Metric::LogLoss), Some(log_loss), 1e-15));
    let entropy = -(0.375 * 0.375_f64.ln() + 0.625 * 0.625_f64.ln());
    assert!(close(found.value(Metric::NormalizedEntropy), Some(log_loss / entropy), 1e-15));
    assert_eq!((found.value(Metric::GroupAuc), found.groups, found.examples), (None, None, 4));
}

#[test]
fn predicting_the_mean_label_has_entropy_and_calibration_one() {
    let found = metrics(&[0.25; 8], &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0], None).unwrap();
    assert!(close(found.value(Metric::NormalizedEntropy), Some(1.0), 1e-15), "{found:?}");
    assert_eq!(
        (found.value(Metric::Calibration), found.value(Metric::Auc), found.value(Metric::PrAuc)),
        (Some(1.0), Some(0.5), Some(0.25))
    );
}

#[test]
fn batches_make_no_difference() {
    let scores: Vec<f32> = (0_u32..1000).map(|i| (i * 7919 % 997) as f32 / 997.0).collect();
    let labels: Vec<f32> = (0_u32..1000).map(|i| (i * 31 % 3 == 0) as u8 as f32).collect();
    let whole = metrics(&scores, &labels, None).unwrap();
    let mut accumulator = of_probabilities();
    for (scores, labels) in scores.chunks(37).zip(labels.chunks(37)) {
        accumulator.add(scored(scores, labels, None)).unwrap();
    }
    assert_eq!(accumulator.examples(), 1000);
    assert_eq!(accumulator.finish().unwrap(), whole);
    assert_eq!(accumulator.examples(), 0, "finishing empties the accumulator");
    assert_eq!(accumulator.finish(), Err(MetricsError::NoWeight { examples: 0 }));
}

#[test]
fn a_single_class_has_only_metrics_that_do_not_compare_classes() {
    let positives = metrics(&[0.25, 0.75], &[1.0, 1.0], None).unwrap();
    assert_eq!(
        (
            positives.value(Metric::Auc),
            positives.error_bound(Metric::Auc),
            positives.value(Metric::NormalizedEntropy)
        ),
        (None, None, None)
    );
    assert_eq!(
        (positives.value(Metric::PrAuc), positives.error_bound(Metric::PrAuc)),
        (Some(1.0), Some(0.0))
    );
    assert_eq!(
        (positives.value(Metric::Calibration), positives.value(Metric::Accuracy)),
        (Some(0.5), Some(0.5))
    );
    let negatives = metrics(&[0.25, 0.75], &[0.0, 0.0], None).unwrap();
    assert_eq!(
        (negatives.value(Metric::Auc), negatives.value(Metric::PrAuc), negatives.error_bound(Metric::PrAuc)),
        (None, None, None)
    );
    assert_eq!(
        (negatives.value(Metric::Calibration), negatives.value(Metric::NormalizedEntropy)),
        (None, None)
    );
    assert_eq!(negatives.value(Metric::Rmse), Some((10.0_f64 / 32.0).sqrt()));
}

#[test]
fn rows_without_weight_have_no_effect() {
    let weighted = metrics(&[0.5, 0.25, 0.9], &[1.0, 0.0, 0.0], Some(&[1.0, 1.0, 0.0])).unwrap();
    let without = metrics(&[0.5, 0.25], &[1.0, 0.0], None).unwrap();
    assert_eq!(weighted, Metrics { examples: 3, ..without });
    let only = metrics(&[0.5, 0.25], &[1.0, 0.0], Some(&[0.0, 1.0])).unwrap();
    assert_eq!(
        (only.value(Metric::Auc), only.value(Metric::PrAuc), only.value(Metric::Calibration)),
        (None, None, None)
    );
}

#[test]
fn an_accumulator_above_its_limit_is_exact_again_after_finishing() {
    let scores = [0.3, 0.300_000_1, 0.300_000_2];
    let labels = [0.0, 1.0, 0.0];
    let mut accumulator = Accumulator::with_exact_bytes("", 8);
    accumulator.add(scored(&scores, &labels, None)).unwrap();
    let binned = accumulator.finish().unwrap();
    assert_eq!((binned.value(Metric::Auc), binned.error_bound(Metric::Auc)), (Some(0.5), Some(0.5)));
    accumulator.add(scored(&scores[..2], &labels[..2], None)).unwrap();
    let exact = accumulator.finish().unwrap();
    assert_eq!((exact.value(Metric::Auc), exact.error_bound(Metric::Auc)), (Some(1.0), Some(0.0)));
    assert_eq!(
        binned.value(Metric::Rmse),
        metrics(&scores, &labels, None).unwrap().value(Metric::Rmse),
        "only the areas are bounded"
    );
}

#[test]
fn extremes_are_ranked_and_clipped() {
    let found = metrics(&[0.0, -0.0, 1.0, f32::MIN_POSITIVE], &[0.0, 1.0, 1.0, 0.0], None).unwrap();
    // The first two are tied; the positive at 0 loses to the smallest positive number.
    assert_eq!(found.value(Metric::Auc), Some(2.5 / 4.0));
    assert!(found.value(Metric::LogLoss).is_some());
    let wrong = metrics(&[0.0, 1.0], &[1.0, 0.0], None).unwrap();
    assert!(close(wrong.value(Metric::LogLoss), Some(23.0 * std::f64::consts::LN_2), 1e-12));
}

#[test]
fn exactly_a_half_predicts_the_negative_class() {
    assert_eq!(metrics(&[0.5, 0.5], &[0.0, 0.0], None).unwrap().value(Metric::Accuracy), Some(1.0));
}

#[test]
fn rows_without_metrics_are_reported() {
    let bad_score = metrics(&[0.5, f32::NAN], &[0.0, 1.0], None).unwrap_err();
    assert!(matches!(bad_score, MetricsError::Score { row: 1, .. }), "{bad_score}");
    let (row, expected) = (0, "a probability");
    assert_eq!(metrics(&[1.5], &[0.0], None), Err(MetricsError::Score { row, score: 1.5, expected }));
    let expected = "a number from 0 to 1";
    assert_eq!(metrics(&[0.5], &[2.0], None), Err(MetricsError::Label { row, label: 2.0, expected }));
    let weight = f32::INFINITY;
    assert_eq!(metrics(&[0.5], &[1.0], Some(&[weight])), Err(MetricsError::Weight { row: 0, weight }));
    assert_eq!(metrics(&[0.5], &[1.0], Some(&[0.0])), Err(MetricsError::NoWeight { examples: 1 }));
}

#[test]
fn unbounded_scores_have_ranking_metrics_only() {
    let ranked = |scores: &[f32]| {
        let mut accumulator = Accumulator::new("", Prediction::Rank);
        accumulator.rank_groups(RankingSpec::default());
        let (labels, groups) = ([1.0, 0.0, 1.0, 0.0], [3, 3, 4, 4]);
        accumulator.add(ScoredBatch { groups: Some(&groups), ..scored(scores, &labels, None) })?;
        accumulator.finish()
    };
    // Positives are above three of four negatives; within groups, above all.
    let found = ranked(&[40.0, 30.0, -20.0, -25.0]).unwrap();
    let names: Vec<_> = found.values.iter().map(|values| values.metric.name()).collect();
    assert_eq!(names, ["auc", "pr_auc", "group_auc", "ndcg", "mrr", "recall"]);
    assert_eq!((found.value(Metric::Auc), found.value(Metric::GroupAuc)), (Some(0.75), Some(1.0)));
    assert!(
        Metric::ALL.iter().all(|(name, metric)| metric.applies_to(Prediction::Rank) == names.contains(name))
    );
    let (row, score, expected) = (2, f32::INFINITY, "a finite number");
    assert_eq!(ranked(&[1.0, 2.0, score, 3.0]), Err(MetricsError::Score { row, score, expected }));
}

#[test]
fn grades_have_metrics_of_first_ranks_and_binary_grades_also_areas() {
    let graded = |labels: &[f32]| {
        let mut accumulator = Accumulator::new("", Prediction::ListRank);
        accumulator.rank_groups(RankingSpec::default());
        let (scores, groups) = ([40.0, 30.0, -20.0, -25.0], [3, 3, 4, 4]);
        accumulator.add(ScoredBatch { groups: Some(&groups), ..scored(&scores, labels, None) })?;
        accumulator.finish()
    };
    let names =
        |metrics: &Metrics| metrics.values.iter().map(|values| values.metric.name()).collect::<Vec<_>>();
    let found = graded(&[1.0, 0.0, 1.0, 0.0]).unwrap();
    assert_eq!(names(&found), ["auc", "pr_auc", "group_auc", "ndcg", "mrr", "recall"]);
    assert!(names(&found).iter().all(|name| {
        let metric = Metric::ALL.iter().find(|(other, _)| other == name).unwrap().1;
        metric.applies_to(Prediction::ListRank)
    }));
    assert_eq!((found.value(Metric::Auc), found.groups_of(Metric::GroupAuc)), (Some(0.75), Some(2)));
    // The gains 1 and 3 in the wrong order.
    let found = graded(&[1.0, 2.0, 0.0, 0.0]).unwrap();
    assert_eq!(names(&found), ["ndcg", "mrr", "recall"]);
    let (discounted, ideal) = (1.0 + 3.0 / 3.0_f64.log2(), 3.0 + 1.0 / 3.0_f64.log2());
    assert!(close(found.value(Metric::Ndcg), Some(discounted / ideal), 1e-12));
    assert_eq!((found.value(Metric::Recall), found.groups_of(Metric::Ndcg)), (Some(1.0), Some(1)));
    let (row, label, expected) = (3, -1.0, "a number of at least 0");
    assert_eq!(graded(&[1.0, 0.0, 0.0, -1.0]), Err(MetricsError::Label { row, label, expected }));
}

fn of_numbers(scores: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Result<Metrics, MetricsError> {
    let mut accumulator = Accumulator::new("price", Prediction::Number);
    for start in (0..scores.len()).step_by(7) {
        let of = start..scores.len().min(start + 7);
        let weights = weights.map(|weights| &weights[of.clone()]);
        accumulator.add(scored(&scores[of.clone()], &labels[of], weights))?;
    }
    accumulator.finish()
}

proptest! {
    /// In two passes, with the mean known beforehand.
    #[test]
    fn numbers_have_the_errors_of_their_definition(
        rows in prop::collection::vec((-50.0_f32..50.0, -50.0_f32..50.0, 0_u8..4), 2..60), far in any::<bool>(),
    ) {
        let shift = if far { 4096.0 } else { 0.0 };
        let scores: Vec<f32> = rows.iter().map(|row| row.0 + shift).collect();
        let labels: Vec<f32> = rows.iter().map(|row| row.1 + shift).collect();
        let weights: Vec<f32> = rows.iter().map(|row| f32::from(row.2) / 2.0).collect();
        let total = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            let rows = scores.iter().zip(&labels).zip(&weights);
            rows.map(|((&s, &y), &w)| f64::from(w) * of(s.into(), y.into())).sum()
        };
        let weight = total(&|_, _| 1.0);
        prop_assume!(weight > 0.0);
        let found = of_numbers(&scores, &labels, Some(&weights)).unwrap();
        let (mean, squares) = (total(&|_, y| y) / weight, total(&|s, y| (s - y).powi(2)));
        let spread = total(&|_, y| (y - mean).powi(2));
        prop_assert!(close(found.value(Metric::Rmse), Some((squares / weight).sqrt()), 1e-9));
        prop_assert!(close(found.value(Metric::Mae), Some(total(&|s, y| (s - y).abs()) / weight), 1e-9));
        if spread > 1.0 {
            prop_assert!(close(found.value(Metric::R2), Some(1.0 - squares / spread), 1e-8 * (1.0 + squares / spread)));
        }
        if mean.abs() > 1.0 {
            prop_assert!(close(found.value(Metric::Calibration), Some(total(&|s, _| s) / weight / mean), 1e-8));
        }
        prop_assert_eq!(found.value(Metric::Auc), None);
    }
}

#[test]
fn numbers_worked_by_hand() {
    let found = of_numbers(&[3.0, 1.0, -2.0], &[1.0, 1.0, 4.0], Some(&[1.0, 2.0, 0.0])).unwrap();
    // Labels without variance have no R².
    let wanted = [("rmse", (4.0_f64 / 3.0).sqrt()), ("mae", 2.0 / 3.0), ("calibration", 5.0 / 3.0)];
    let names: Vec<String> = found.named_values().map(|(name, _)| name).collect();
    assert_eq!(names, ["price/rmse", "price/mae", "price/calibration"]);
    for (name, value) in wanted {
        let found = found.named_values().find(|(found, _)| *found == format!("price/{name}"));
        assert!(close(found.map(|(_, value)| value), Some(value), 1e-15), "{name}");
    }
    let mean = of_numbers(&[2.0, 2.0], &[1.0, 3.0], None).unwrap();
    assert_eq!((mean.value(Metric::R2), mean.value(Metric::Calibration)), (Some(0.0), Some(1.0)));
    let (row, expected) = (1, "a finite number");
    let label = f32::INFINITY;
    assert_eq!(
        of_numbers(&[1.0, 1.0], &[0.0, label], None),
        Err(MetricsError::Label { row, label, expected })
    );
    assert!(of_numbers(&[1.0, f32::NAN], &[0.0, 0.0], None).is_err());
}

/// The metrics of rows of labels and scores.
fn of_rows(prediction: Prediction, rows: &[(f32, f32)]) -> Metrics {
    let (labels, scores): (Vec<f32>, Vec<f32>) = rows.iter().copied().unzip();
    let mut accumulator = Accumulator::new("", prediction);
    accumulator.add(scored(&scores, &labels, None)).unwrap();
    let metrics = accumulator.finish().unwrap();
    for MetricValue { metric, .. } in &metrics.values {
        assert!(metric.applies_to(prediction), "{metric:?}");
    }
    assert!(metrics.values.iter().any(|value| value.metric == Metric::default_for(prediction)));
    metrics
}

#[test]
fn the_huber_loss_is_quadratic_up_to_delta_and_linear_beyond() {
    let prediction = Prediction::RobustNumber { delta: 2.0 };
    // Differences of 1, 2, 10 and -6.
    let found = of_rows(prediction, &[(0.0, 1.0), (3.0, 5.0), (-10.0, 0.0), (6.0, 0.0)]);
    let expected = (0.5 + 2.0 + 2.0 * 9.0 + 2.0 * 5.0) / 4.0;
    assert_eq!(found.value(Metric::HuberLoss), Some(expected));
    let names: Vec<&str> = found.values.iter().map(|value| value.metric.name()).collect();
    assert_eq!(names, ["huber_loss", "rmse", "mae", "r2", "calibration"]);
}

#[test]
fn the_pinball_loss_weights_labels_above_and_below_and_coverage_counts_them() {
    let prediction = Prediction::Quantile { quantile: 0.75 };
    // Labels 4 above, 2 below, at the score, and 8 below.
    let found = of_rows(prediction, &[(5.0, 1.0), (-2.0, 0.0), (3.0, 3.0), (-8.0, 0.0)]);
    assert_eq!(found.value(Metric::PinballLoss), Some((0.75 * 4.0 + 0.25 * 2.0 + 0.25 * 8.0) / 4.0));
    assert_eq!(found.value(Metric::Coverage), Some(0.75));
    assert_eq!(found.values.len(), 3);
    assert_eq!(found.value(Metric::Mae), Some(3.5));
}

#[test]
fn the_poisson_deviance_compares_rates_with_counts() {
    let found = of_rows(Prediction::Rate, &[(0.0, 0.5), (3.0, 3.0), (2.0, 1.0), (4.0, 0.0)]);
    // As scikit-learn's `mean_poisson_deviance`; the last rate has underflowed.
    let of_zero = 2.0 * (4.0 * (4.0 / f64::from(f32::MIN_POSITIVE)).ln() - 4.0);
    let expected = (1.0 + 0.0 + 2.0 * (2.0 * 2.0_f64.ln() - 1.0) + of_zero) / 4.0;
    assert!(close(found.value(Metric::PoissonDeviance), Some(expected), 1e-12));
    assert_eq!(found.value(Metric::Calibration), Some(4.5 / 9.0));
    let mut accumulator = Accumulator::new("", Prediction::Rate);
    let (row, label, expected) = (0, -1.0, "a number of at least 0");
    let error = accumulator.add(scored(&[1.0], &[label], None));
    assert_eq!(error, Err(MetricsError::Label { row, label, expected }));
}

#[test]
fn graded_labels_have_an_ndcg_with_the_gains_of_choice() {
    let of = |gains, labels: &[f32]| {
        let mut accumulator = Accumulator::new("", Prediction::Number);
        accumulator.rank_groups(RankingSpec { top_k: 2, gains });
        let rows = scored(&[-1.0, 3.0, -2.0, 9.0], labels, None);
        accumulator.add(ScoredBatch { groups: Some(&[1, 1, 1, 2]), ..rows }).unwrap();
        accumulator.finish().unwrap()
    };
    // In the order of scores: 0 and 3, where 3 and 1 is ideal. The label of group 2 is 0, so it has no NDCG.
    let second = 1.0 / 3.0_f64.log2();
    for (gains, three) in [(Gains::Exponential, 7.0), (Gains::Linear, 3.0)] {
        let found = of(gains, &[3.0, 0.0, 1.0, 0.0]);
        assert!(
            close(found.value(Metric::Ndcg), Some(three * second / (three + second)), 1e-12),
            "{found:?}"
        );
        assert_eq!((found.groups, found.groups_of(Metric::Ndcg)), (Some(1), Some(1)));
        assert_eq!((found.top_k_of(Metric::Ndcg), found.top_k_of(Metric::Rmse)), (Some(2), None));
        assert_eq!(found.value(Metric::Mrr), None);
    }
    let found = of(Gains::Exponential, &[300.0, 0.0, 1.0, 0.0]);
    assert_eq!(
        (found.value(Metric::Ndcg), found.groups),
        (None, Some(0)),
        "a label without an exponential gain"
    );
}

#[derive(Debug, PartialEq, Deserialize, serde::Serialize)]
struct Documents(#[serde(with = "super::one_or_several")] Vec<Metrics>);

#[test]
fn documents_round_trip() {
    let mut grouped = of_probabilities();
    let rows = scored(&[0.5, 0.1 + 0.2], &[1.0, 0.0], None);
    grouped.rank_groups(RankingSpec { top_k: 3, ..RankingSpec::default() });
    grouped.add(ScoredBatch { groups: Some(&[3, 4]), ..rows }).unwrap();
    let (grouped, numbers) = (grouped.finish().unwrap(), of_numbers(&[1.0], &[2.0], None).unwrap());
    assert_eq!(grouped.value(Metric::GroupAuc), None, "each group is of one class");
    assert_eq!((grouped.value(Metric::Mrr), grouped.top_k), (Some(1.0), Some(3)));
    for metrics in [vec![], vec![grouped.clone()], vec![numbers.clone()], vec![grouped, numbers]] {
        let text = serde_json::to_string(&Documents(metrics.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Documents>(&text).unwrap(), Documents(metrics), "{text}");
    }
}

#[test]
fn documents_of_earlier_versions_without_labels_are_read() {
    let old = r#"{"auc": 0.75, "auc_error": 0.0, "pr_auc": null, "pr_auc_error": null, "log_loss": 0.5,
        "normalized_entropy": null, "calibration": null, "rmse": 0.25, "accuracy": 0.875, "group_auc": null,
        "groups": null, "examples": 18446744073709551615}"#;
    let Documents(found) = serde_json::from_str(old).unwrap();
    let [metrics] = found.as_slice() else { panic!("one label") };
    assert_eq!((metrics.label.as_str(), metrics.examples), ("", u64::MAX));
    assert_eq!((metrics.value(Metric::Auc), metrics.error_bound(Metric::Auc)), (Some(0.75), Some(0.0)));
    let names: Vec<&str> = metrics.values.iter().map(|values| values.metric.name()).collect();
    let wanted = ["auc", "pr_auc", "log_loss", "normalized_entropy", "rmse", "calibration", "accuracy"];
    assert_eq!(names, wanted);
}

#[test]
fn classes_worked_by_hand() {
    // Column-major: the scores of four rows for each class.
    let scores = [0.5, 0.25, 0.4, 0.0, 0.25, 0.25, 0.4, 0.0, 0.25, 0.5, 0.2, 1.0];
    let (labels, weights) = ([0.0, 1.0, 1.0, 0.0], [1.0, 2.0, 1.0, 4.0]);
    let mut accumulator = Accumulator::new("", Prediction::Classes(3));
    let of = |weights| ScoredBatch { scores: &scores, labels: &labels, weights, groups: None };
    accumulator.add(of(Some(&weights))).unwrap();
    let metrics = accumulator.finish().unwrap();
    let found: Vec<Metric> = metrics.values.iter().map(|values| values.metric).collect();
    assert_eq!(found, [Metric::LogLoss, Metric::NormalizedEntropy, Metric::Accuracy]);
    let of_none = f64::from(f32::EPSILON).ln();
    let log_loss = -(0.5_f64.ln() + 2.0 * 0.25_f64.ln() + f64::from(0.4_f32).ln() + 4.0 * of_none) / 8.0;
    let entropy = -(5.0 / 8.0 * (5.0_f64 / 8.0).ln() + 3.0 / 8.0 * (3.0_f64 / 8.0).ln());
    let close = |metric, expected: f64| {
        let found = metrics.value(metric).unwrap();
        assert!((found - expected).abs() < 1e-12, "{metric:?}: {found}, not {expected}");
    };
    close(Metric::LogLoss, log_loss);
    close(Metric::NormalizedEntropy, log_loss / entropy);
    // Of two equal scores, the first one is the prediction: the third row's class is not predicted.
    close(Metric::Accuracy, 1.0 / 8.0);
    // Again, with other weights; earlier rows have no effect.
    accumulator.add(of(None)).unwrap();
    assert_eq!(accumulator.finish().unwrap().value(Metric::Accuracy), Some(0.25));
    // Rows of one class have no entropy for comparison.
    accumulator
        .add(ScoredBatch { scores: &[1.0, 0.0, 0.0], labels: &[0.0], weights: None, groups: None })
        .unwrap();
    let metrics = accumulator.finish().unwrap();
    assert_eq!(metrics.value(Metric::NormalizedEntropy), None);
    assert_eq!(metrics.value(Metric::Accuracy), Some(1.0));
}

#[test]
fn top5_accuracy_counts_the_five_highest_scores() {
    // Class 0 has the highest score, then class 1 and so on.
    let scores: Vec<f32> = (0..7).flat_map(|class| [0.25 / (1.0 + class as f32); 7]).collect();
    let labels: Vec<f32> = (0..7).map(|class| class as f32).collect();
    let mut accumulator = Accumulator::new("", Prediction::Classes(7));
    accumulator.add(scored(&scores, &labels, None)).unwrap();
    let metrics = accumulator.finish().unwrap();
    assert_eq!(metrics.value(Metric::Top5Accuracy), Some(5.0 / 7.0));
    assert_eq!(metrics.value(Metric::Accuracy), Some(1.0 / 7.0));
    for metric in Metric::ALL.map(|(_, metric)| metric) {
        let there = metrics.values.iter().any(|values| values.metric == metric);
        assert_eq!(there, metric.applies_to(Prediction::Classes(7)), "{metric:?}");
    }
    assert!(!Metric::Top5Accuracy.applies_to(Prediction::Classes(5)));
}

#[test]
fn invalid_classes_and_probabilities_are_reported() {
    let added = |scores: [f32; 2], label: f32| {
        let mut accumulator = Accumulator::new("", Prediction::Classes(2));
        let row = ScoredBatch { scores: &scores, labels: &[label], weights: None, groups: None };
        accumulator.add(row).map_err(|error| error.to_string())
    };
    assert_eq!(added([0.5, 0.5], 1.0), Ok(()));
    for label in [2.0, -1.0, 0.5, f32::NAN] {
        let expected = format!("row 0 of the evaluation has label {label}: expected the index of a class");
        assert_eq!(added([0.5, 0.5], label), Err(expected));
    }
    for score in [1.5, -0.5, f32::NAN] {
        let expected = format!("row 0 of the evaluation scores {score}, which is not a probability");
        assert_eq!(added([0.5, score], 0.0), Err(expected));
    }
}
