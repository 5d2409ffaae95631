//! Mean and variance in one pass, mergeable.
//!
//! Uses Welford's update (Technometrics 4, 1962) and the merge of Chan, Golub and LeVeque (1979). Both keep
//! the sum of squared deviations from the mean instead of the sum of squares, which avoids cancellation.
//! Values are added one at a time, so the result depends only on their order and on the merge points.

/// The moments of the values so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Accumulator {
    count: u64,
    mean: f64,
    /// The sum of squared deviations from the mean.
    squares: f64,
}

impl Accumulator {
    #[inline]
    pub(super) fn add(&mut self, value: f64) {
        self.count += 1;
        let distance = value - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (value - self.mean);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if self.count == 0 {
            *self = *other;
        } else if other.count > 0 {
            let count = self.count + other.count;
            let distance = other.mean - self.mean;
            let share = other.count as f64 / count as f64;
            self.mean += distance * share;
            self.squares += other.squares + distance * distance * self.count as f64 * share;
            self.count = count;
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn mean(&self) -> f64 {
        self.mean
    }

    /// The population standard deviation.
    pub(super) fn deviation(&self) -> f64 {
        if self.count == 0 { 0.0 } else { (self.squares / self.count as f64).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn of(values: &[f64]) -> Accumulator {
        let mut accumulator = Accumulator::default();
        values.iter().for_each(|&value| accumulator.add(value));
        accumulator
    }

    fn close(a: f64, b: f64, scale: f64) -> bool {
        (a - b).abs() <= 1e-9 * scale.max(1.0)
    }

    proptest! {
        #[test]
        fn matches_the_two_pass_formula(values in proptest::collection::vec(-1e6..1e6f64, 1..200), cut: prop::sample::Index) {
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let deviation = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
            let cut = cut.index(values.len());
            let mut merged = of(&values[..cut]);
            merged.merge(&of(&values[cut..]));
            for accumulator in [of(&values), merged] {
                prop_assert!(close(accumulator.mean(), mean, 1e6));
                prop_assert!(close(accumulator.deviation(), deviation, 1e6));
            }
        }
    }

    #[test]
    fn a_large_offset_does_not_lose_precision() {
        let values: Vec<f64> = (0..1000).map(|i| 1e9 + f64::from(i % 2)).collect();
        assert!((of(&values).deviation() - 0.5).abs() < 1e-6);
    }
}
