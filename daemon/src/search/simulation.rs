//! Searches of analytic functions and of simulated learning curves: whether TPE and successive halving do what they are
//! for. All seeds are fixed.

#![allow(clippy::unwrap_used)]

use millstream_job::{Domain, HalvingSpec};

use super::tests::{real, spec};
use super::*;

const TRIALS: u32 = 40;
const SEEDS: u64 = 60;

/// Parameters, all of which are numbers or indices.
fn numbers(parameters: &[ParameterValue]) -> Vec<f64> {
    let number = |value: &ParameterValue| match *value {
        ParameterValue::Real(number) => number,
        ParameterValue::Whole(number) => number as f64,
        ParameterValue::Choice(place) => place as f64,
    };
    parameters.iter().map(number).collect()
}

/// The best value that a search finds; higher is better.
fn best_of(algorithm: Algorithm, domains: &[Domain], seed: u64, function: fn(&[f64]) -> f64) -> f64 {
    let mut spec = spec(algorithm, domains.to_vec(), TRIALS);
    spec.seed = seed;
    let mut search = Search::new(spec, Vec::new()).unwrap();
    while let Some(number) = search.start() {
        let value = function(&numbers(&search.trials()[number].parameters));
        search.observe(number, 1, Some(value));
        search.end(number, Outcome::Finished);
    }
    search.trials()[search.best().unwrap()].value.unwrap()
}

/// As the AUC of a model over its learning rate, dropout, layers and optimizer.
fn model(x: &[f64]) -> f64 {
    let rate = (x[0].log10() + 2.3) / 1.5;
    let dropout = (x[1] - 0.2) / 0.4;
    let layers = (x[2] - 3.0) / 4.0;
    let optimizer = [0.0, 0.02, 0.1][x[3] as usize];
    0.92 - 0.1 * rate * rate - 0.02 * dropout * dropout - 0.02 * layers * layers - optimizer
}

/// Branin and Hoo's function, with three maxima; negated.
fn branin(x: &[f64]) -> f64 {
    use std::f64::consts::PI;
    let square = (x[1] - 5.1 / (4.0 * PI * PI) * x[0] * x[0] + 5.0 / PI * x[0] - 6.0).powi(2);
    -(square + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x[0].cos() + 10.0)
}

/// A bowl in five dimensions.
fn bowl(x: &[f64]) -> f64 {
    -x.iter().enumerate().map(|(nth, x)| (x - 0.15 * (nth + 1) as f64).powi(2)).sum::<f64>()
}

#[test]
fn tpe_finds_better_values_than_random_search() {
    let optimizers = Domain::Values(vec!["\"a\"".into(), "\"b\"".into(), "\"c\"".into()]);
    let layers = Domain::Whole { min: 1, max: 8, step: 1, log: false };
    let of_model = vec![real(1e-5, 1.0, true), real(0.0, 0.7, false), layers, optimizers];
    let of_branin = vec![real(-5.0, 10.0, false), real(0.0, 15.0, false)];
    type Function = fn(&[f64]) -> f64;
    let functions: [(&str, Vec<Domain>, Function); 3] = [
        ("model", of_model, model),
        ("branin", of_branin, branin),
        ("bowl", vec![real(0.0, 1.0, false); 5], bowl),
    ];
    for (name, domains, function) in functions {
        let pairs = (0..SEEDS).map(|seed| {
            let of = |algorithm| best_of(algorithm, &domains, seed, function);
            (of(Algorithm::Tpe), of(Algorithm::Random))
        });
        let pairs: Vec<_> = pairs.collect();
        let wins = pairs.iter().filter(|(tpe, random)| tpe > random).count();
        let mut gains: Vec<f64> = pairs.iter().map(|(tpe, random)| tpe - random).collect();
        gains.sort_by(f64::total_cmp);
        // A sign test: 39 of 60 wins have a probability of 1.4 % if both are equally good.
        assert!(wins >= 39, "{name}: TPE wins {wins} of {SEEDS}, median gain {}", gains[gains.len() / 2]);
    }
}

/// The metric of a simulated trial of this quality, from 0 to 1, after an evaluation: it rises towards its limit, and trials
/// differ in how fast. With noise.
fn curve(quality: f64, speed: f64, evaluation: u32, noise: f64) -> f64 {
    let rise = 1.0 - (-f64::from(evaluation) / (1.0 + 3.0 * speed)).exp();
    0.5 + 0.4 * quality * rise + 0.005 * noise
}

#[test]
fn halving_keeps_the_best_at_a_fraction_of_the_evaluations() {
    const EVALUATIONS: u32 = 27;
    let halving = HalvingSpec { reduction: 3, first: 1 };
    let (mut used, mut regrets) = (0, Vec::new());
    for seed in 0..SEEDS {
        let mut spec = spec(Algorithm::Random, vec![real(0.0, 1.0, false), real(0.0, 1.0, false)], TRIALS);
        (spec.seed, spec.parallel, spec.stop) = (seed, 4, Some(halving));
        let mut search = Search::new(spec, Vec::new()).unwrap();
        let mut running: Vec<(usize, u32)> = Vec::new();
        while !search.is_over() {
            running.extend(std::iter::from_fn(|| search.start()).map(|number| (number, 0)));
            // Trials take turns, as on a host that runs them beside each other.
            let (number, done) = running.remove(0);
            let evaluation = done + 1;
            let x = numbers(&search.trials()[number].parameters);
            let noise = rng(seed, number as u64, 1_000 + u64::from(evaluation)).random::<f64>() - 0.5;
            let standing = search.observe(number, evaluation, Some(curve(x[0], x[1], evaluation, noise)));
            used += 1;
            if standing.is_some_and(|standing| !standing.continues) {
                search.end(number, Outcome::Stopped);
            } else if evaluation == EVALUATIONS {
                search.end(number, Outcome::Finished);
            } else {
                running.push((number, evaluation));
            }
        }
        let quality = |number: usize| numbers(&search.trials()[number].parameters)[0];
        let best = (0..TRIALS as usize).map(quality).fold(0.0, f64::max);
        regrets.push(best - quality(search.best().unwrap()));
    }
    let share = f64::from(used) / (f64::from(TRIALS * EVALUATIONS) * SEEDS as f64);
    assert!(share < 0.25, "{:.0} % of all evaluations", 100.0 * share);
    regrets.sort_by(f64::total_cmp);
    let (median, high) = (regrets[regrets.len() / 2], regrets[regrets.len() * 9 / 10]);
    assert!(median < 0.02 && high < 0.1, "regret: median {median:.3}, 90th percentile {high:.3}");
}
