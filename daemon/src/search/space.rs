//! Values of parameters as points of the unit interval, on which random choices are uniform.

use millstream_job::{Domain, ParameterValue};

/// Significant digits of a chosen number: more would not change the outcome, only its text.
const DIGITS: usize = 5;

/// The value at `point`, from 0 to 1.
pub(super) fn value_at(domain: &Domain, point: f64) -> ParameterValue {
    match domain {
        &Domain::Real { min, max, log, .. } => {
            let (low, high) = if log { (min.ln(), max.ln()) } else { (min, max) };
            let number = low + point * (high - low);
            let number = rounded(if log { number.exp() } else { number });
            ParameterValue::Real(number.clamp(min, max))
        }
        &Domain::Whole { min, max, log: true, .. } => {
            let (low, high) = log_bounds(min, max);
            let number = (low + point * (high - low)).exp().round() as i64;
            ParameterValue::Whole(number.clamp(min, max))
        }
        &Domain::Whole { min, max, step, log: false } => {
            let count = max.abs_diff(min) / step + 1;
            let place = nth(point, count);
            // At most `max`.
            ParameterValue::Whole(min.saturating_add_unsigned(place * step))
        }
        Domain::Values(values) => ParameterValue::Choice(nth(point, values.len() as u64) as usize),
    }
}

/// The point of `value`, in the middle of all points that have it.
pub(super) fn point_of(domain: &Domain, value: ParameterValue) -> f64 {
    let point = match (domain, value) {
        (&Domain::Real { min, max, log: true, .. }, ParameterValue::Real(number)) => {
            (number.ln() - min.ln()) / (max.ln() - min.ln())
        }
        (&Domain::Real { min, max, .. }, ParameterValue::Real(number)) => (number - min) / (max - min),
        (&Domain::Whole { min, max, log: true, .. }, ParameterValue::Whole(number)) => {
            let (low, high) = log_bounds(min, max);
            ((number as f64).ln() - low) / (high - low)
        }
        (&Domain::Whole { min, max, step, .. }, ParameterValue::Whole(number)) => {
            let count = max.abs_diff(min) / step + 1;
            ((number.abs_diff(min) / step) as f64 + 0.5) / count as f64
        }
        (Domain::Values(values), ParameterValue::Choice(place)) => (place as f64 + 0.5) / values.len() as f64,
        // A value of another domain, in the record of a search whose file was changed.
        _ => 0.5,
    };
    if point.is_finite() { point.clamp(0.0, 1.0) } else { 0.5 }
}

/// The value at the `nth` of the points of a grid; see [`Domain::grid_points`].
pub(super) fn value_in_grid(domain: &Domain, nth: u64) -> ParameterValue {
    match domain {
        Domain::Real { points, .. } => {
            let intervals = points.unwrap_or(2).saturating_sub(1).max(1);
            value_at(domain, nth as f64 / f64::from(intervals))
        }
        // Also on a logarithmic scale: all of them.
        &Domain::Whole { min, step, .. } => ParameterValue::Whole(min.saturating_add_unsigned(nth * step)),
        Domain::Values(_) => ParameterValue::Choice(nth as usize),
    }
}

/// The logarithms of the ends of an interval in which each whole number has its neighbourhood.
fn log_bounds(min: i64, max: i64) -> (f64, f64) {
    ((min as f64 - 0.5).ln(), (max as f64 + 0.5).ln())
}

/// The index among `count` of equal intervals.
fn nth(point: f64, count: u64) -> u64 {
    ((point * count as f64) as u64).min(count.saturating_sub(1))
}

fn rounded(number: f64) -> f64 {
    // Formatting rounds to nearest, and its text is a number.
    format!("{number:.*e}", DIGITS - 1).parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_points_that_have_the_values() {
        let real = |min, max, log| Domain::Real { min, max, log, points: Some(5) };
        let whole = |min, max, step, log| Domain::Whole { min, max, step, log };
        let domains = [
            real(-2.0, 3.0, false),
            real(1e-5, 10.0, true),
            whole(-7, 23, 5, false),
            whole(1, 500, 1, true),
            whole(0, 1 << 53, 1, false),
            Domain::Values(vec!["1".into(), "\"a\"".into(), "[3, 4]".into()]),
        ];
        for domain in &domains {
            for nth in 0..=200 {
                let value = value_at(domain, f64::from(nth) / 200.0);
                let again = value_at(domain, point_of(domain, value));
                match (value, again) {
                    (ParameterValue::Real(one), ParameterValue::Real(other)) => {
                        assert!(
                            (one - other).abs() <= 2e-4 * one.abs().max(1e-3),
                            "{domain:?}: {one} {other}"
                        );
                    }
                    (ParameterValue::Whole(one), ParameterValue::Whole(other)) => {
                        assert!(one.abs_diff(other) <= 1 << 10, "{domain:?}: {one} {other}");
                        assert!(one == other || one.abs() > 1 << 40, "{domain:?}: {one} {other}");
                    }
                    (one, other) => assert_eq!(one, other),
                }
            }
        }
        assert_eq!(value_at(&domains[1], 1.0), ParameterValue::Real(10.0));
        assert_eq!(value_at(&domains[1], 0.5), ParameterValue::Real(0.01));
        assert_eq!(value_at(&domains[2], 1.0), ParameterValue::Whole(23));
        assert_eq!(value_in_grid(&domains[0], 4), ParameterValue::Real(3.0));
        assert_eq!(value_in_grid(&domains[2], 6), ParameterValue::Whole(23));
    }
}
