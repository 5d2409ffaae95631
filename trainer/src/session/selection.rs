//! Decisions from evaluations: whether to stop early, and which checkpoints are the best.
//!
//! **Early stopping** by patience follows Prechelt, "Early Stopping - but when?", 1998. An evaluation improves if its
//! value exceeds the best one so far by more than `min_delta`. Training stops after `patience` evaluations in a row
//! without improvement. An evaluation in which the metric is undefined does not improve.
//!
//! **The best** evaluations are those with the best values, regardless of `min_delta`; of equal ones the first.
//!
//! A [`SelectionState`] is part of every checkpoint, so a resumed job decides as if it had not stopped. It is reset
//! if the job selects by another metric.

use serde::{Deserialize, Serialize};

use crate::metrics::{Metric, Metrics};

/// What evaluations decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelectionSpec {
    /// When to stop early; `None` for never.
    pub stopping: Option<StoppingSpec>,
    /// Which checkpoints are kept as the best; `None` for none.
    pub best: Option<BestSpec>,
}

/// When to stop early.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoppingSpec {
    /// The metric of comparison.
    pub metric: Metric,
    /// The index of its label.
    #[serde(default, skip_serializing_if = "is_first")]
    pub label: u32,
    /// Evaluations in a row without improvement, at least 1.
    pub patience: u32,
    /// The minimum improvement, exclusive.
    pub min_delta: f64,
}

/// Which checkpoints are the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestSpec {
    /// The metric of comparison.
    pub metric: Metric,
    /// The index of its label.
    #[serde(default, skip_serializing_if = "is_first")]
    pub label: u32,
    /// Number of checkpoints to keep, at least 1.
    pub keep: u32,
}

/// The state after the evaluations so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelectionState {
    /// The state of early stopping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stopping: Option<Stopping>,
    /// The best evaluations, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    best: Vec<EvalPoint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Stopping {
    metric: Metric,
    #[serde(default, skip_serializing_if = "is_first")]
    label: u32,
    best: Option<EvalPoint>,
    /// Evaluations since the last improvement.
    evaluations: u32,
}

/// The value of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalPoint {
    /// The metric.
    pub metric: Metric,
    /// The index of its label.
    #[serde(default, skip_serializing_if = "is_first")]
    pub label: u32,
    /// The value.
    pub value: f64,
    /// The step after which it was computed.
    pub step: u64,
}

impl SelectionState {
    #[cfg(test)]
    pub(crate) fn of(best: Vec<EvalPoint>) -> Self {
        Self { stopping: None, best }
    }

    /// Whether the state is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The best evaluations, best first, whose checkpoints are kept.
    pub fn best(&self) -> &[EvalPoint] {
        &self.best
    }

    /// Adds an evaluation after `step`; returns whether it is among the best.
    pub(super) fn judge(&mut self, spec: &SelectionSpec, step: u64, metrics: &[Metrics]) -> bool {
        let evaluated = |metric: Metric, label: u32| {
            let value = metrics.get(label as usize).and_then(|metrics| metrics.value(metric));
            value.map(|value| EvalPoint { metric, label, value, step })
        };
        if let Some(spec) = &spec.stopping {
            self.judge_stopping(spec, evaluated(spec.metric, spec.label));
        }
        spec.best.is_some_and(|spec| self.judge_best(spec, evaluated(spec.metric, spec.label)))
    }

    /// Why training stops early, if it does. `labels` are the names of the labels, if they have any.
    pub fn stop(&self, spec: &SelectionSpec, labels: &[String]) -> Option<String> {
        let spec = spec.stopping.as_ref()?;
        let StoppingSpec { metric, label, patience, min_delta } = *spec;
        let Stopping { best, evaluations, .. } = self.stopping.filter(|state| state.is_of(spec))?;
        if evaluations < patience {
            return None;
        }
        let name = match labels.get(label as usize) {
            Some(label) => format!("{} of {label}", metric.name()),
            None => metric.name().to_owned(),
        };
        let Some(EvalPoint { value, step, .. }) = best else {
            return Some(format!("stopped early: {name} was not defined in {evaluations} evaluations"));
        };
        let by = if min_delta > 0.0 { format!(" by more than {min_delta}") } else { String::new() };
        let verb = metric.improvement_verb();
        Some(format!(
            "stopped early: {name} has not {verb}{by} since step {step}, where it was {value:.6}, in {evaluations} \
             evaluations"
        ))
    }

    fn judge_stopping(&mut self, spec: &StoppingSpec, found: Option<EvalPoint>) {
        let fresh = Stopping { metric: spec.metric, label: spec.label, best: None, evaluations: 0 };
        let before = self.stopping.filter(|state| state.is_of(spec)).unwrap_or(fresh);
        let is_better = |found: &EvalPoint| {
            before.best.is_none_or(|best| spec.metric.gain(found.value, best.value) > spec.min_delta)
        };
        self.stopping = Some(match found.filter(is_better) {
            Some(found) => Stopping { best: Some(found), evaluations: 0, ..before },
            None => Stopping { evaluations: before.evaluations.saturating_add(1), ..before },
        });
    }

    fn judge_best(&mut self, spec: BestSpec, found: Option<EvalPoint>) -> bool {
        self.best.retain(|best| (best.metric, best.label) == (spec.metric, spec.label));
        let Some(found) = found else { return false };
        // A repeated evaluation.
        self.best.retain(|best| best.step != found.step);
        let place = self.best.iter().take_while(|best| spec.metric.gain(found.value, best.value) <= 0.0);
        let place = place.count();
        self.best.insert(place, found);
        self.best.truncate(spec.keep as usize);
        place < self.best.len()
    }
}

impl Stopping {
    /// Whether it is the value of this metric and label.
    fn is_of(&self, spec: &StoppingSpec) -> bool {
        (self.metric, self.label) == (spec.metric, spec.label)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_first(label: &u32) -> bool {
    *label == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricValue;

    fn metrics(auc: Option<f64>) -> Vec<Metrics> {
        let values = |metric, value| MetricValue { metric, value, error: None };
        let values = vec![values(Metric::Auc, auc), values(Metric::LogLoss, Some(1.0))];
        vec![Metrics { values, examples: 1, ..Metrics::default() }]
    }

    fn stopping(patience: u32, min_delta: f64) -> SelectionSpec {
        SelectionSpec {
            stopping: Some(StoppingSpec { metric: Metric::Auc, label: 0, patience, min_delta }),
            best: None,
        }
    }

    /// The evaluation after which training stops.
    fn stops(spec: &SelectionSpec, values: &[Option<f64>]) -> Option<usize> {
        let mut standing = SelectionState::default();
        values.iter().enumerate().position(|(step, &auc)| {
            standing.judge(spec, step as u64, &metrics(auc));
            standing.stop(spec, &[]).is_some()
        })
    }

    #[test]
    fn training_stops_after_patience_evaluations_without_improvement() {
        let values = [0.5, 0.6, 0.7, 0.65, 0.7, 0.71, 0.705, 0.71, 0.71].map(Some);
        assert_eq!(stops(&stopping(1, 0.0), &values), Some(3));
        assert_eq!(stops(&stopping(2, 0.0), &values), Some(4), "an equal value is no improvement");
        assert_eq!(stops(&stopping(3, 0.0), &values), Some(8));
        assert_eq!(stops(&stopping(4, 0.0), &values), None);
        // 0.71 exceeds 0.7 by too little, so 0.7 remains the best.
        assert_eq!(stops(&stopping(3, 0.02), &values), Some(5));
        assert_eq!(stops(&stopping(2, 0.0), &[None, Some(0.5), None, None]), Some(3));
        assert_eq!(stops(&stopping(2, 0.0), &[None, None]), Some(1));
        assert_eq!(stops(&SelectionSpec::default(), &values), None);
    }

    #[test]
    fn the_reason_is_reported() {
        let spec = stopping(2, 0.25);
        let mut standing = SelectionState::default();
        for (step, auc) in [(100, 0.5), (200, 0.625), (300, 0.75)] {
            standing.judge(&spec, step, &metrics(Some(auc)));
        }
        let why = "stopped early: auc has not risen by more than 0.25 since step 100, where it was 0.500000, in 2 \
                   evaluations";
        assert_eq!(standing.stop(&spec, &[]).as_deref(), Some(why));
        let other = StoppingSpec { metric: Metric::LogLoss, label: 0, patience: 1, min_delta: 0.0 };
        let other = SelectionSpec { stopping: Some(other), best: None };
        assert_eq!(standing.stop(&other, &[]), None, "the state belongs to another metric");
        standing.judge(&other, 400, &metrics(None));
        assert_eq!(standing.stop(&other, &[]), None);
        standing.judge(&other, 500, &metrics(None));
        assert!(
            standing
                .stop(&other, &[])
                .is_some_and(|why| why.contains("log_loss has not fallen since step 400"))
        );
    }

    #[test]
    fn the_best_are_those_of_the_best_values() {
        let spec =
            SelectionSpec { stopping: None, best: Some(BestSpec { metric: Metric::Auc, label: 0, keep: 2 }) };
        let mut standing = SelectionState::default();
        let values = [0.5, 0.7, 0.6, 0.7, 0.4, 0.8].map(Some);
        let judged = values.into_iter().chain([None]).enumerate();
        let best: Vec<bool> =
            judged.map(|(step, auc)| standing.judge(&spec, step as u64, &metrics(auc))).collect();
        assert_eq!(best, [true, true, true, true, false, true, false]);
        let steps =
            |standing: &SelectionState| standing.best().iter().map(|best| best.step).collect::<Vec<_>>();
        assert_eq!(steps(&standing), [5, 1]);
        // A repeated evaluation replaces its first result.
        assert!(standing.judge(&spec, 5, &metrics(Some(0.8))));
        assert_eq!(steps(&standing), [5, 1]);
    }
    #[test]
    fn evaluations_are_compared_by_the_selected_label() {
        let stopping = StoppingSpec { metric: Metric::Auc, label: 1, patience: 1, min_delta: 0.0 };
        let best = BestSpec { metric: Metric::Auc, label: 1, keep: 1 };
        let spec = SelectionSpec { stopping: Some(stopping), best: Some(best) };
        let mut standing = SelectionState::default();
        let both = |first, second| [metrics(Some(first)), metrics(Some(second))].concat();
        assert!(standing.judge(&spec, 1, &both(0.9, 0.5)));
        assert!(!standing.judge(&spec, 2, &both(1.0, 0.4)));
        let labels = ["bought".to_owned(), "read".to_owned()];
        let why = standing.stop(&spec, &labels);
        assert!(why.is_some_and(|why| why.starts_with("stopped early: auc of read has not risen")));
        // A missing metric is undefined.
        assert!(!standing.judge(&spec, 3, &metrics(Some(1.0))));
    }
}
