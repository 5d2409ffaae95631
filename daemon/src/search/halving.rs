//! Asynchronous successive halving (ASHA): which trials stop early. Li et al., "A System for Massively Parallel
//! Hyperparameter Tuning", 2018, section 3.
//!
//! A trial reaches rung `r` with its evaluation number `first * reduction^r`. It continues if it is among the best
//! `1 / reduction` of the trials that have reached this rung so far, itself included, and always if it is the best.
//!
//! The paper's Algorithm 2 pauses every trial at its rung and promotes one when enough others have arrived. This is its
//! stopping form, which decides on arrival, as Ray Tune and Optuna do: a trial is never paused, so its worker, its ring and
//! its place in the data are never given up and taken again. The first trials of a rung, which have little to be compared
//! with, may go further than the paper's.

use millstream_job::HalvingSpec;
use millstream_trainer::metrics::Metric;

/// The rung that a trial reaches with its evaluation `evaluation`, from 1.
pub(super) fn rung_of(spec: HalvingSpec, evaluation: u32) -> Option<usize> {
    let mut at = u64::from(spec.first);
    for rung in 0.. {
        if at >= u64::from(evaluation) {
            return (at == u64::from(evaluation)).then_some(rung);
        }
        at *= u64::from(spec.reduction);
    }
    None
}

/// The standing of a trial at a rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// From 1: one more than the number of better trials.
    pub(crate) place: usize,
    /// The trials that have reached the rung.
    pub(crate) of: usize,
    /// Whether the trial continues.
    pub(crate) continues: bool,
}

/// The standing of a trial with this `value` among the `others` at its rung. An undefined value is the worst.
pub(super) fn standing(
    spec: HalvingSpec,
    metric: Metric,
    value: Option<f64>,
    others: impl Iterator<Item = Option<f64>>,
) -> Standing {
    let (mut better, mut of) = (0, 1);
    for other in others {
        of += 1;
        better += usize::from(is_better(metric, other, value));
    }
    let most = (of / spec.reduction as usize).max(1);
    Standing { place: better + 1, of, continues: value.is_some() && better < most }
}

/// Whether `one` is better than `other`. Any value is better than none.
pub(super) fn is_better(metric: Metric, one: Option<f64>, other: Option<f64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => metric.gain(one, other) > 0.0,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIRDS: HalvingSpec = HalvingSpec { reduction: 3, first: 2 };

    #[test]
    fn rungs_are_at_powers_of_the_reduction() {
        let rungs: Vec<_> = (1..=60).filter_map(|at| rung_of(THIRDS, at).map(|rung| (at, rung))).collect();
        assert_eq!(rungs, [(2, 0), (6, 1), (18, 2), (54, 3)]);
        assert_eq!(rung_of(HalvingSpec { reduction: 1_000, first: u32::MAX }, 7), None);
    }

    #[test]
    fn a_trial_continues_among_the_best_third_of_those_that_arrived() {
        // Worked by hand: (AUC on arrival, its place, whether it continues). With fewer than 6 trials only the best
        // continues; with 6 to 8 the best two, with 9 the best three.
        let arrivals = [
            (0.70, 1, true),
            (0.60, 2, false),
            (0.65, 2, false),
            (0.80, 1, true),
            (0.75, 2, false),
            (0.78, 2, true),
            (0.70, 4, false),
            (0.90, 1, true),
            (0.79, 3, true),
        ];
        let mut seen = Vec::new();
        for (nth, (value, place, continues)) in arrivals.into_iter().enumerate() {
            let found = standing(THIRDS, Metric::Auc, Some(value), seen.iter().copied());
            assert_eq!(found, Standing { place, of: nth + 1, continues }, "arrival {nth}");
            seen.push(Some(value));
        }
        assert!(!standing(THIRDS, Metric::Auc, None, std::iter::empty()).continues);
        let lower = standing(THIRDS, Metric::LogLoss, Some(0.3), [Some(0.4), None].into_iter());
        assert_eq!(lower, Standing { place: 1, of: 3, continues: true });
    }
}
