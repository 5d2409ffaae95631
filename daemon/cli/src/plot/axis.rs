//! Axes: range and labels.

use crate::figures;

/// A range with round labels.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) ticks: Vec<Tick>,
}

/// A labelled number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

impl Axis {
    /// An axis for finite numbers from `low` to `high`, with about `ticks` labels, at least two.
    pub(super) fn over(low: f64, high: f64, ticks: usize) -> Self {
        // A range that is constant up to rounding is widened.
        let largest = low.abs().max(high.abs());
        let room = if high - low > largest * 1e-9 { 0.0 } else { (largest * 0.05).max(0.05) };
        let (low, high) = (low - room, high + room);
        let unit = round_up((high - low) / ticks.max(2) as f64);
        let (first, last) = ((low / unit).floor(), (high / unit).ceil());
        let decimals = (-(unit * (1.0 + 1e-9)).log10().floor()).clamp(0.0, 12.0) as usize;
        let count = (last - first).clamp(1.0, 1e3) as usize;
        let ticks = (0..=count).map(|nth| {
            let at = (first + nth as f64) * unit;
            Tick { at, label: number(at, decimals) }
        });
        Self { low: first * unit, high: (first + count as f64) * unit, ticks: ticks.collect() }
    }

    /// An axis for steps from 0 to `last`, with about `ticks` labels. It ends at `last`.
    pub(super) fn steps(last: u64, ticks: usize) -> Self {
        let high = last.max(1) as f64;
        let unit = round_up(high / ticks.max(1) as f64).max(1.0);
        let count = (high / unit).floor() as usize;
        let ticks = (0..=count).map(|nth| {
            let at = nth as f64 * unit;
            Tick { at, label: figures::count(at.round() as u64) }
        });
        Self { low: 0.0, high, ticks: ticks.collect() }
    }

    /// The position of `number`: 0 at the low end, 1 at the high end.
    pub(super) fn place(&self, number: f64) -> f64 {
        (number - self.low) / (self.high - self.low)
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least `number`.
fn round_up(number: f64) -> f64 {
    let power = 10_f64.powf(number.log10().floor());
    // The tolerance allows for rounding of the logarithm.
    let digits = [1.0, 2.0, 5.0, 10.0].into_iter().find(|digits| number <= digits * power * (1.0 + 1e-9));
    digits.unwrap_or(10.0) * power
}

fn number(number: f64, decimals: usize) -> String {
    if number.abs() >= 1e6 {
        return format!("{number:.1e}");
    }
    // Adding 0.0 turns -0 into 0.
    format!("{:.decimals$}", number + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn ends_and_labels_are_round() {
        let axis = Axis::over(0.3011, 0.6911, 4);
        assert_eq!(labels(&axis), ["0.3", "0.4", "0.5", "0.6", "0.7"]);
        assert!((axis.low - 0.3).abs() < 1e-12 && (axis.high - 0.7).abs() < 1e-12);
        assert_eq!(labels(&Axis::over(0.9011, 0.9182, 3)), ["0.90", "0.91", "0.92"]);
        assert_eq!(labels(&Axis::over(-20.0, 31.0, 3)), ["-20", "0", "20", "40"]);
        assert_eq!(labels(&Axis::over(2e7, 5e7, 3)), ["2.0e7", "3.0e7", "4.0e7", "5.0e7"]);
        assert_eq!(labels(&Axis::steps(2_048, 5)), ["0", "500", "1,000", "1,500", "2,000"]);
        assert_eq!(labels(&Axis::steps(3, 8)), ["0", "1", "2", "3"]);
    }

    #[test]
    fn axis_encloses_its_range() {
        let cases =
            [(0.5, 0.5), (0.0, 0.0), (-1e300, 1e300), (1e-300, 2e-300), (0.1, 0.1 + 1e-16), (-3.0, 7e9)];
        for (low, high) in cases {
            let axis = Axis::over(low, high, 4);
            assert!(axis.low <= low && high <= axis.high, "{low} to {high}: {axis:?}");
            assert!(axis.ticks.len() >= 2 && axis.ticks.len() < 20, "{low} to {high}: {axis:?}");
            assert!((0.0..=1.0).contains(&axis.place(low)) && (0.0..=1.0).contains(&axis.place(high)));
        }
        assert_eq!(Axis::steps(0, 4).place(0.0), 0.0);
        assert_eq!(labels(&Axis::steps(u64::MAX, 2)).len(), 2);
    }
}
