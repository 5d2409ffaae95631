//! The tree-structured Parzen estimator: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", 2011, section 4.
//!
//! The trials so far are split into the best few and the rest. Each parameter's values in both groups give two densities,
//! and of some values drawn from the first the one with the highest ratio of both is chosen. The densities are those of
//! the crate `tpe`. Only the order of the trials counts, so any metric will do, and trials that stopped early or failed
//! have their place in it.

use millstream_job::{Domain, ParameterSpec, ParameterValue};
use rand::rngs::StdRng;
use tpe::density_estimation::DefaultEstimatorBuilder;
use tpe::range::{Range, RangeError};
use tpe::{TpeOptimizerBuilder, categorical_range, histogram_estimator, parzen_estimator, range};

use super::space;

/// The share of trials in the group of the best; gamma in the paper, whose value this is.
const BEST_SHARE: f64 = 0.15;

/// Values drawn per choice, of which the best is taken.
const CANDIDATES: usize = 24;

/// The next value of a parameter, whose values of the trials so far are `ranked`, the best first.
pub(super) fn next(parameter: &ParameterSpec, ranked: &[ParameterValue], rng: &mut StdRng) -> ParameterValue {
    let asked = match &parameter.domain {
        Domain::Values(values) => {
            let told = ranked.iter().map(|&value| match value {
                ParameterValue::Choice(place) => place as f64,
                _ => f64::NAN,
            });
            ask(histogram_estimator(), categorical_range(values.len()), told, rng)
                .map(|place| ParameterValue::Choice((place as usize).min(values.len() - 1)))
        }
        domain => {
            // The upper end of the crate's ranges is excluded.
            let told = ranked.iter().map(|&value| space::point_of(domain, value).min(1.0 - f64::EPSILON));
            ask(parzen_estimator(), range(0.0, 1.0), told, rng).map(|point| space::value_at(domain, point))
        }
    };
    asked.unwrap_or_else(|| space::value_at(&parameter.domain, 0.5))
}

/// `None` if the crate rejects a number, which those above prevent.
fn ask(
    estimator: DefaultEstimatorBuilder,
    range: Result<Range, RangeError>,
    told: impl Iterator<Item = f64>,
    rng: &mut StdRng,
) -> Option<f64> {
    let mut optimizer = TpeOptimizerBuilder::new();
    optimizer.gamma(BEST_SHARE).candidates(CANDIDATES);
    let mut optimizer = optimizer.build(estimator, range.ok()?).ok()?;
    for (rank, told) in told.enumerate() {
        optimizer.tell(told, rank as f64).ok()?;
    }
    optimizer.ask(rng).ok()
}
