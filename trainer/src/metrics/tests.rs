#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde::Deserialize;

use super::{Accumulator, Metrics, MetricsError, Scored};

/// Every pair of rows, one by one.
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

/// Each positive row, one by one, against every row.
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

fn scored<'a>(scores: &'a [f32], labels: &'a [f32], weights: Option<&'a [f32]>) -> Scored<'a> {
    Scored { scores, labels, weights, groups: None }
}

fn metrics(scores: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Result<Metrics, MetricsError> {
    let mut accumulator = Accumulator::default();
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

/// Scores from few values, so that many are tied.
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
        prop_assert_eq!(found.auc, auc_by_pairs(&scores, &labels, &ones));
        let expected = pr_auc_by_rows(&scores, &labels, &ones);
        prop_assert!(close(found.pr_auc, expected, 1e-12), "{:?} {:?}", found.pr_auc, expected);
        prop_assert_eq!(found.auc_error, found.auc.map(|_| 0.0));
        prop_assert_eq!(found.pr_auc_error, found.pr_auc.map(|_| 0.0));
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
                prop_assert!(close(found.auc, expected, 1e-12), "{:?} {:?}", found.auc, expected);
                let expected = pr_auc_by_rows(&scores, &labels, &weights);
                prop_assert!(close(found.pr_auc, expected, 1e-12), "{:?} {:?}", found.pr_auc, expected);
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
        // A weight of 2, then taken back, moves the rows to the weighted representation.
        let plain = metrics(&scores, &labels, None).unwrap();
        let mut accumulator = Accumulator::default();
        accumulator.add(scored(&scores[..cut], &labels[..cut], None)).unwrap();
        accumulator.add(scored(&[0.5], &[1.0], Some(&[0.0]))).unwrap();
        accumulator.add(scored(&scores[cut..], &labels[cut..], None)).unwrap();
        let weighted = accumulator.finish().unwrap();
        prop_assert!(close(weighted.auc, plain.auc, 1e-12));
        prop_assert!(close(weighted.pr_auc, plain.pr_auc, 1e-12));
        let ranked = |of: Metrics| Metrics { auc: of.auc, pr_auc: of.pr_auc, examples: of.examples, ..plain };
        prop_assert_eq!(weighted, ranked(weighted), "all but the areas is the same sums");
        prop_assert_eq!(weighted.examples, plain.examples + 1);
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
        let mut accumulator = Accumulator::default();
        let rows = scored(&case.scores, &case.labels, case.weights.as_deref());
        accumulator.add(Scored { groups: case.groups.as_deref(), ..rows }).unwrap();
        let found = accumulator.finish().unwrap();
        let compared = [
            (found.auc, Some(case.auc)),
            (found.pr_auc, Some(case.pr_auc)),
            (Some(found.log_loss), Some(case.log_loss)),
            (found.normalized_entropy, Some(case.normalized_entropy)),
            (found.calibration, Some(case.calibration)),
            (Some(found.rmse), Some(case.rmse)),
            (Some(found.accuracy), Some(case.accuracy)),
            (found.group_auc, case.group_auc),
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
    // From the top: a positive of weight 2; a positive and a negative, tied; a negative of weight 4.
    let (scores, labels, weights) = ([0.75, 0.5, 0.5, 0.25], [1.0, 1.0, 0.0, 0.0], [2.0, 1.0, 1.0, 4.0]);
    let found = metrics(&scores, &labels, Some(&weights)).unwrap();
    // Of 3 x 5 pairs the tied one counts half.
    assert_eq!(found.auc, Some(14.5 / 15.0));
    // Precision is 1 for the first positive, and (2 + 1) / 4 for the second.
    assert_eq!(found.pr_auc, Some((2.0 + 0.75) / 3.0));
    assert_eq!(found.calibration, Some((1.5 + 0.5 + 0.5 + 1.0) / 3.0));
    assert_eq!(found.rmse, ((6.0 * 0.0625 + 2.0 * 0.25) / 8.0_f64).sqrt());
    assert_eq!(found.accuracy, (2.0 + 5.0) / 8.0);
    let log_loss = -(6.0 * 0.75_f64.ln() + 2.0 * 0.5_f64.ln()) / 8.0;
    assert!((found.log_loss - log_loss).abs() < 1e-15);
    let entropy = -(0.375 * 0.375_f64.ln() + 0.625 * 0.625_f64.ln());
    assert!(close(found.normalized_entropy, Some(log_loss / entropy), 1e-15));
    assert_eq!((found.group_auc, found.groups, found.examples), (None, None, 4));
}

#[test]
fn always_the_mean_label_has_entropy_and_calibration_one() {
    let found = metrics(&[0.25; 8], &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0], None).unwrap();
    assert!(close(found.normalized_entropy, Some(1.0), 1e-15), "{found:?}");
    assert_eq!((found.calibration, found.auc, found.pr_auc), (Some(1.0), Some(0.5), Some(0.25)));
}

#[test]
fn batches_make_no_difference() {
    let scores: Vec<f32> = (0_u32..1000).map(|i| (i * 7919 % 997) as f32 / 997.0).collect();
    let labels: Vec<f32> = (0_u32..1000).map(|i| (i * 31 % 3 == 0) as u8 as f32).collect();
    let whole = metrics(&scores, &labels, None).unwrap();
    let mut accumulator = Accumulator::default();
    for (scores, labels) in scores.chunks(37).zip(labels.chunks(37)) {
        accumulator.add(scored(scores, labels, None)).unwrap();
    }
    assert_eq!(accumulator.examples(), 1000);
    assert_eq!(accumulator.finish().unwrap(), whole);
    assert_eq!(accumulator.examples(), 0, "finishing empties the accumulator");
    assert_eq!(accumulator.finish(), Err(MetricsError::NoWeight { examples: 0 }));
}

#[test]
fn a_class_alone_has_what_does_not_compare_classes() {
    let positives = metrics(&[0.25, 0.75], &[1.0, 1.0], None).unwrap();
    assert_eq!((positives.auc, positives.auc_error, positives.normalized_entropy), (None, None, None));
    assert_eq!((positives.pr_auc, positives.pr_auc_error), (Some(1.0), Some(0.0)));
    assert_eq!((positives.calibration, positives.accuracy), (Some(0.5), 0.5));
    let negatives = metrics(&[0.25, 0.75], &[0.0, 0.0], None).unwrap();
    assert_eq!((negatives.auc, negatives.pr_auc, negatives.pr_auc_error), (None, None, None));
    assert_eq!((negatives.calibration, negatives.normalized_entropy), (None, None));
    assert_eq!(negatives.rmse, (10.0_f64 / 32.0).sqrt());
}

#[test]
fn rows_without_weight_have_no_say() {
    let weighted = metrics(&[0.5, 0.25, 0.9], &[1.0, 0.0, 0.0], Some(&[1.0, 1.0, 0.0])).unwrap();
    let without = metrics(&[0.5, 0.25], &[1.0, 0.0], None).unwrap();
    assert_eq!(weighted, Metrics { examples: 3, ..without });
    let only = metrics(&[0.5, 0.25], &[1.0, 0.0], Some(&[0.0, 1.0])).unwrap();
    assert_eq!((only.auc, only.pr_auc, only.calibration), (None, None, None));
}

#[test]
fn an_accumulator_past_its_bound_is_exact_again_for_the_next_rows() {
    let scores = [0.3, 0.300_000_1, 0.300_000_2];
    let labels = [0.0, 1.0, 0.0];
    let mut accumulator = Accumulator::with_exact_bytes(8);
    accumulator.add(scored(&scores, &labels, None)).unwrap();
    let binned = accumulator.finish().unwrap();
    assert_eq!((binned.auc, binned.auc_error), (Some(0.5), Some(0.5)));
    accumulator.add(scored(&scores[..2], &labels[..2], None)).unwrap();
    let exact = accumulator.finish().unwrap();
    assert_eq!((exact.auc, exact.auc_error), (Some(1.0), Some(0.0)));
    assert_eq!(binned.rmse, metrics(&scores, &labels, None).unwrap().rmse, "only the areas are bounded");
}

#[test]
fn extremes_are_ranked_and_clipped() {
    let found = metrics(&[0.0, -0.0, 1.0, f32::MIN_POSITIVE], &[0.0, 1.0, 1.0, 0.0], None).unwrap();
    // The first two are tied; the positive at 0 loses to the smallest number above it.
    assert_eq!(found.auc, Some(2.5 / 4.0));
    assert!(found.log_loss.is_finite());
    let wrong = metrics(&[0.0, 1.0], &[1.0, 0.0], None).unwrap();
    assert!((wrong.log_loss - 23.0 * std::f64::consts::LN_2).abs() < 1e-12);
}

#[test]
fn exactly_a_half_predicts_the_negative_class() {
    assert_eq!(metrics(&[0.5, 0.5], &[0.0, 0.0], None).unwrap().accuracy, 1.0);
}

#[test]
fn rows_without_metrics_are_named() {
    let bad_score = metrics(&[0.5, f32::NAN], &[0.0, 1.0], None).unwrap_err();
    assert!(matches!(bad_score, MetricsError::Score { row: 1, .. }), "{bad_score}");
    assert_eq!(metrics(&[1.5], &[0.0], None), Err(MetricsError::Score { row: 0, score: 1.5 }));
    assert_eq!(metrics(&[0.5], &[2.0], None), Err(MetricsError::Label { row: 0, label: 2.0 }));
    let weight = f32::INFINITY;
    assert_eq!(metrics(&[0.5], &[1.0], Some(&[weight])), Err(MetricsError::Weight { row: 0, weight }));
    assert_eq!(metrics(&[0.5], &[1.0], Some(&[0.0])), Err(MetricsError::NoWeight { examples: 1 }));
}
