//! Hyper-parameter search, as a pure function of its specification and its history: no I/O, no clock, no threads.
//!
//! A [`Search`] suggests the parameters of the next trial, is told the evaluations and the ends of trials, and decides which
//! trials stop early. Its state is the [`Trial`]s, which serialize: a search that is rebuilt from them continues as if it
//! had never stopped. The random numbers of a trial depend on the seed and the trial's number alone.
//!
//! * [`space`]: parameters as points of the unit interval.
//! * [`tpe`]: the tree-structured Parzen estimator.
//! * [`halving`]: asynchronous successive halving.
//! * [`record`]: where a search is recorded; the one part with I/O.

mod halving;
mod record;
#[cfg(test)]
mod simulation;
mod space;
mod tpe;

use std::cmp::Ordering;

use millstream_job::{Algorithm, ParameterValue, SearchSpec};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

pub(crate) use halving::Standing;
pub(crate) use record::{SearchRecord, TrialJob, is_over, of_trial};

/// The number of ended trials up to which parameters are random: fewer say little about which values are good.
const STARTUP_TRIALS: usize = 10;

/// How often parameters that an earlier trial has are chosen again.
const MAX_REPEATS: u64 = 16;

/// A search and its trials.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Search {
    spec: SearchSpec,
    trials: Vec<Trial>,
}

/// A trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// A value of each parameter.
    pub(crate) parameters: Vec<ParameterValue>,
    /// The number of evaluations so far.
    pub(crate) evaluations: u32,
    /// The metric of the last evaluation, or of the best one if the job keeps the checkpoint of its best evaluation; `None`
    /// before the first one, and if it is undefined.
    pub(crate) value: Option<f64>,
    /// `value` at each rung reached.
    pub(crate) rungs: Vec<Option<f64>>,
    /// How it ended; `None` while it has not.
    pub(crate) outcome: Option<Outcome>,
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It trained to its end.
    Finished,
    /// It was stopped at a rung.
    Stopped,
    /// Its job failed.
    Failed,
    /// A user cancelled it. Its parameters say nothing.
    Cancelled,
}

impl Trial {
    fn new(parameters: Vec<ParameterValue>) -> Self {
        Self { parameters, evaluations: 0, value: None, rungs: Vec::new(), outcome: None }
    }
}

impl Search {
    /// A search with the trials so far; those with other parameters than the specification's are an error.
    pub(crate) fn new(spec: SearchSpec, trials: Vec<Trial>) -> Result<Self, OtherParameters> {
        for (number, trial) in trials.iter().enumerate() {
            let values = spec.parameters.iter().zip(&trial.parameters);
            let fits = trial.parameters.len() == spec.parameters.len()
                && values.into_iter().all(|(parameter, &value)| parameter.contains(value));
            if !fits {
                return Err(OtherParameters { number });
            }
        }
        Ok(Self { spec, trials })
    }

    /// The specification.
    pub(crate) fn spec(&self) -> &SearchSpec {
        &self.spec
    }

    /// The trials, by number.
    pub(crate) fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Starts the next trial, and returns its number; `None` if there are enough, or as many are under way as may be.
    pub(crate) fn start(&mut self) -> Option<usize> {
        let number = self.trials.len();
        if !self.may_start() {
            return None;
        }
        self.trials.push(Trial::new(self.suggest(number as u64)));
        Some(number)
    }

    /// Takes back the last [`Search::start`].
    pub(crate) fn withdraw_last(&mut self) {
        self.trials.pop();
    }

    /// Whether another trial may start now.
    pub(crate) fn may_start(&self) -> bool {
        let under_way = self.trials.iter().filter(|trial| trial.outcome.is_none()).count();
        self.trials.len() < self.spec.trials as usize && under_way < self.spec.parallel as usize
    }

    /// Whether all trials have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.trials.len() >= self.spec.trials as usize
            && self.trials.iter().all(|trial| trial.outcome.is_some())
    }

    /// Records the metric after a trial's evaluation, from 1. Returns the trial's standing if it has reached a rung.
    /// Evaluations that are repeated after a resume are ignored.
    pub(crate) fn observe(&mut self, number: usize, evaluation: u32, value: Option<f64>) -> Option<Standing> {
        let (metric, stop) = (self.spec.metric, self.spec.stop);
        let value = value.filter(|value| value.is_finite());
        let trial = self.trials.get_mut(number)?;
        if evaluation != trial.evaluations + 1 || trial.outcome.is_some() {
            return None;
        }
        trial.evaluations = evaluation;
        if !self.spec.keeps_best || halving::is_better(metric, value, trial.value) {
            trial.value = value;
        }
        let value = trial.value;
        let stop = stop?;
        let rung = halving::rung_of(stop, evaluation)?;
        trial.rungs.push(value);
        let others = self.trials.iter().enumerate().filter(|&(other, _)| other != number);
        let others = others.filter_map(|(_, trial)| trial.rungs.get(rung).copied());
        Some(halving::standing(stop, metric, value, others))
    }

    /// Records how a trial ended.
    pub(crate) fn end(&mut self, number: usize, outcome: Outcome) {
        if let Some(trial) = self.trials.get_mut(number) {
            trial.outcome = Some(outcome);
        }
    }

    /// The number of the best trial: of those that trained to their end, or else of all with a value.
    pub(crate) fn best(&self) -> Option<usize> {
        let ranked = self.ranked(|trial| trial.value.is_some() && trial.outcome != Some(Outcome::Failed));
        let is_finished = |&&number: &&usize| self.trials[number].outcome == Some(Outcome::Finished);
        ranked.iter().find(is_finished).or(ranked.first()).copied()
    }

    /// The numbers of some trials, the best first.
    fn ranked(&self, is_ranked: impl Fn(&Trial) -> bool) -> Vec<usize> {
        let mut numbers: Vec<usize> =
            (0..self.trials.len()).filter(|&number| is_ranked(&self.trials[number])).collect();
        // Stable, so equal ones stay in the order of their numbers.
        numbers.sort_by(|&one, &other| self.compare(&self.trials[one], &self.trials[other]));
        numbers
    }

    /// `Less` if `one` is better: it went further than a trial that stopped, or its value is better.
    fn compare(&self, one: &Trial, other: &Trial) -> Ordering {
        let class = |trial: &Trial| match trial.outcome {
            Some(Outcome::Failed) => 2,
            Some(Outcome::Stopped) => 1,
            _ => 0,
        };
        let further = || match class(one) {
            1 => other.rungs.len().cmp(&one.rungs.len()),
            _ => Ordering::Equal,
        };
        let by_value = || {
            let metric = self.spec.metric;
            let is_better = halving::is_better(metric, one.value, other.value);
            let is_worse = halving::is_better(metric, other.value, one.value);
            is_worse.cmp(&is_better)
        };
        class(one).cmp(&class(other)).then_with(further).then_with(by_value)
    }

    /// The parameters of trial `number`, going by the trials that have ended.
    fn suggest(&self, number: u64) -> Vec<ParameterValue> {
        if self.spec.algorithm == Algorithm::Grid {
            return self.combination(number);
        }
        let ranked = self.ranked(|trial| trial.outcome.is_some_and(|outcome| outcome != Outcome::Cancelled));
        let mut parameters = Vec::new();
        for attempt in 0..MAX_REPEATS {
            let mut rng = rng(self.spec.seed, number, attempt);
            let chosen = self.spec.parameters.iter().enumerate().map(|(nth, parameter)| {
                if self.spec.algorithm == Algorithm::Tpe && ranked.len() >= STARTUP_TRIALS {
                    let values: Vec<_> =
                        ranked.iter().map(|&number| self.trials[number].parameters[nth]).collect();
                    tpe::next(parameter, &values, &mut rng)
                } else {
                    space::value_at(&parameter.domain, rng.random())
                }
            });
            parameters = chosen.collect();
            if self.trials.iter().all(|trial| trial.parameters != parameters) {
                break;
            }
        }
        parameters
    }

    /// The combination `number` of a grid, in which the last parameter changes fastest.
    fn combination(&self, mut number: u64) -> Vec<ParameterValue> {
        let mut values = Vec::new();
        for parameter in self.spec.parameters.iter().rev() {
            let points = parameter.domain.grid_points().unwrap_or(1).max(1);
            values.push(space::value_in_grid(&parameter.domain, number % points));
            number /= points;
        }
        values.reverse();
        values
    }
}

/// A trial does not have the parameters of its search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("trial {number} has other parameters than [search.parameters]")]
pub(crate) struct OtherParameters {
    number: usize,
}

/// The random numbers of an attempt at the parameters of a trial.
fn rng(seed: u64, number: u64, attempt: u64) -> StdRng {
    let mut bytes = [0; 32];
    for (part, number) in bytes.chunks_exact_mut(8).zip([seed, number, attempt]) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    StdRng::from_seed(bytes)
}

#[cfg(test)]
mod tests;
