#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use millstream_job::{Domain, HalvingSpec, ParameterSpec};
use millstream_trainer::metrics::Metric;

use super::*;

pub(super) fn spec(algorithm: Algorithm, domains: Vec<Domain>, trials: u32) -> SearchSpec {
    let parameter = |(nth, domain)| ParameterSpec { key: format!("p{nth}"), domain };
    SearchSpec {
        algorithm,
        trials,
        parallel: 1,
        metric: Metric::Auc,
        label: 0,
        keeps_best: false,
        seed: 7,
        parameters: domains.into_iter().enumerate().map(parameter).collect(),
        stop: None,
    }
}

pub(super) fn real(min: f64, max: f64, log: bool) -> Domain {
    Domain::Real { min, max, log, points: Some(3) }
}

fn whole(min: i64, max: i64, step: u64) -> Domain {
    Domain::Whole { min, max, step, log: false }
}

/// Runs all trials one after another, each with one evaluation.
fn run(spec: SearchSpec, value: impl Fn(&[ParameterValue]) -> f64) -> Search {
    let mut search = Search::new(spec, Vec::new()).unwrap();
    while let Some(number) = search.start() {
        let value = value(&search.trials()[number].parameters);
        assert_eq!(search.observe(number, 1, Some(value)), None);
        search.end(number, Outcome::Finished);
    }
    assert!(search.is_over());
    search
}

fn number(value: ParameterValue) -> f64 {
    match value {
        ParameterValue::Real(number) => number,
        ParameterValue::Whole(number) => number as f64,
        ParameterValue::Choice(place) => place as f64,
    }
}

#[test]
fn a_grid_has_every_combination_once() {
    let values = Domain::Values(vec!["\"a\"".into(), "\"b\"".into()]);
    let domains = vec![real(0.0, 1.0, false), whole(10, 30, 10), values, real(1.0, 100.0, true)];
    let search = run(spec(Algorithm::Grid, domains, 3 * 3 * 2 * 3), |_| 0.5);
    let seen: HashSet<String> =
        search.trials().iter().map(|trial| format!("{:?}", trial.parameters)).collect();
    assert_eq!(seen.len(), 54);
    let last = search.trials().last().unwrap().parameters.clone();
    let wanted = [
        ParameterValue::Real(1.0),
        ParameterValue::Whole(30),
        ParameterValue::Choice(1),
        ParameterValue::Real(100.0),
    ];
    assert_eq!(last, wanted);
    assert_eq!(search.trials()[1].parameters[3], ParameterValue::Real(10.0), "the last changes fastest");
}

/// The largest distance between the distribution of numbers in [0, 1] and the uniform one (Kolmogorov and Smirnov).
fn distance_from_uniform(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let count = numbers.len() as f64;
    let distance = |(nth, number): (usize, &f64)| {
        let (below, with) = (nth as f64 / count, (nth + 1) as f64 / count);
        (number - below).abs().max((with - number).abs())
    };
    numbers.iter().enumerate().map(distance).fold(0.0, f64::max)
}

#[test]
fn random_parameters_are_uniform_or_log_uniform() {
    const TRIALS: u32 = 1_000;
    // Exceeded by one sample in a thousand.
    let limit = 1.95 / f64::from(TRIALS).sqrt();
    let values = Domain::Values(vec!["1".into(), "2".into(), "3".into(), "4".into()]);
    let domains = vec![real(-3.0, 5.0, false), real(1e-4, 0.1, true), whole(1, 8, 1), values];
    let search = run(spec(Algorithm::Random, domains, TRIALS), |_| 0.5);
    let all = |nth: usize| -> Vec<f64> {
        search.trials().iter().map(|trial| number(trial.parameters[nth])).collect()
    };
    let linear = all(0).into_iter().map(|x| (x + 3.0) / 8.0).collect();
    assert!(distance_from_uniform(linear) < limit);
    let logarithm = all(1).into_iter().map(|x| (x / 1e-4).log10() / 3.0).collect::<Vec<_>>();
    assert!(distance_from_uniform(logarithm) < limit);
    assert!(distance_from_uniform(all(1).into_iter().map(|x| x / 0.1).collect()) > 0.5, "not linear");
    for (nth, count) in [(2, 8), (3, 4)] {
        for value in 0..count {
            let least = if nth == 2 { 1 } else { 0 };
            let hits = all(nth).iter().filter(|&&found| found == f64::from(value + least)).count() as f64;
            let (mean, share) = (f64::from(TRIALS) / f64::from(count), 1.0 / f64::from(count));
            let deviation = (f64::from(TRIALS) * share * (1.0 - share)).sqrt();
            assert!((hits - mean).abs() < 4.0 * deviation, "value {value}: {hits} of about {mean}");
        }
    }
}

#[test]
fn a_rebuilt_search_continues_as_if_it_had_never_stopped() {
    for algorithm in [Algorithm::Random, Algorithm::Tpe] {
        let domains = vec![real(0.0, 1.0, false), real(1e-3, 1.0, true), whole(1, 9, 2)];
        let value = |parameters: &[ParameterValue]| -(number(parameters[0]) - 0.3).abs();
        let wanted = run(spec(algorithm, domains.clone(), 24), value);
        let mut search = Search::new(spec(algorithm, domains.clone(), 24), Vec::new()).unwrap();
        while let Some(number) = search.start() {
            let result = value(&search.trials()[number].parameters);
            search.observe(number, 1, Some(result));
            search.end(number, Outcome::Finished);
            let stored = serde_json::to_string(search.trials()).unwrap();
            let trials = serde_json::from_str(&stored).unwrap();
            search = Search::new(spec(algorithm, domains.clone(), 24), trials).unwrap();
        }
        assert_eq!(search, wanted);
        let other = spec(algorithm, vec![real(0.0, 0.01, false); 3], 24);
        assert!(Search::new(other, search.trials().to_vec()).is_err());
    }
}

#[test]
fn trials_are_started_up_to_the_limits() {
    let limited = SearchSpec { parallel: 2, ..spec(Algorithm::Random, vec![real(0.0, 1.0, false)], 3) };
    let mut search = Search::new(limited, Vec::new()).unwrap();
    assert_eq!((search.start(), search.start(), search.start()), (Some(0), Some(1), None));
    search.end(1, Outcome::Failed);
    assert_eq!((search.start(), search.start()), (Some(2), None));
    search.end(0, Outcome::Cancelled);
    search.end(2, Outcome::Finished);
    assert!(search.is_over() && search.start().is_none());
    assert_eq!(search.best(), None, "no trial has a value");
}

#[test]
fn the_best_trial_is_the_best_of_those_that_finished() {
    let halving = HalvingSpec { reduction: 2, first: 1 };
    for (metric, best) in [(Metric::Auc, 2), (Metric::LogLoss, 1)] {
        let mut spec = spec(Algorithm::Random, vec![real(0.0, 1.0, false)], 9);
        (spec.metric, spec.parallel, spec.stop) = (metric, 9, Some(halving));
        let mut search = Search::new(spec, Vec::new()).unwrap();
        let ends = [
            (0.9, Outcome::Stopped),
            (0.5, Outcome::Finished),
            (0.6, Outcome::Finished),
            (0.99, Outcome::Failed),
            (0.1, Outcome::Stopped),
        ];
        for (number, (value, outcome)) in ends.into_iter().enumerate() {
            assert_eq!(search.start(), Some(number));
            search.observe(number, 1, Some(value));
            search.end(number, outcome);
        }
        assert_eq!(search.best(), Some(best));
        let last = search.ranked(|_| true);
        assert_eq!(last.last(), Some(&3), "a failed trial is the worst");
    }
}

#[test]
fn evaluations_are_counted_once_and_the_best_counts_if_it_is_kept() {
    let halving = HalvingSpec { reduction: 2, first: 2 };
    for (keeps_best, values) in [(false, [0.6, 0.5, 0.55]), (true, [0.6, 0.6, 0.6])] {
        let spec = spec(Algorithm::Random, vec![real(0.0, 1.0, false)], 2);
        let spec = SearchSpec { keeps_best, stop: Some(halving), ..spec };
        let mut search = Search::new(spec, Vec::new()).unwrap();
        search.start();
        let alone = Standing { place: 1, of: 1, continues: true };
        assert_eq!(search.observe(0, 1, Some(0.6)), None);
        assert_eq!(search.observe(0, 2, Some(0.5)), Some(alone));
        assert_eq!(search.observe(0, 2, Some(0.9)), None, "repeated");
        assert_eq!(search.observe(0, 4, Some(0.9)), None, "not the next");
        assert_eq!(search.trials()[0].value, Some(values[1]));
        assert_eq!(search.observe(0, 3, Some(0.55)), None);
        assert_eq!((search.trials()[0].value, search.trials()[0].rungs.len()), (Some(values[2]), 1));
        search.observe(0, 4, Some(f64::NAN));
        assert_eq!(search.trials()[0].value, keeps_best.then_some(0.6));
    }
}
