//! The last numbers of a job, as a line of bars.

use std::collections::VecDeque;

/// How many numbers are kept.
const LENGTH: usize = 60;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Numbers in the order of time, the newest last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series(VecDeque<f64>);

impl Series {
    /// Adds a number, if it is finite.
    pub(super) fn push(&mut self, number: f64) {
        if !number.is_finite() {
            return;
        }
        if self.0.len() == LENGTH {
            self.0.pop_front();
        }
        self.0.push_back(number);
    }

    /// The last `width` numbers as bars, the highest of them and the lowest at the ends of the scale. Fewer numbers are
    /// aligned to the right.
    pub(super) fn bars(&self, width: usize) -> String {
        let shown: Vec<f64> = self.0.iter().skip(self.0.len().saturating_sub(width)).copied().collect();
        let low = shown.iter().copied().fold(f64::INFINITY, f64::min);
        let high = shown.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let bar = |number: f64| {
            // Noise in the last digits is no change.
            if high - low <= high.abs() * 1e-6 {
                return BARS[BARS.len() / 2];
            }
            BARS[((number - low) / (high - low) * (BARS.len() - 1) as f64).round() as usize]
        };
        let bars: String = shown.into_iter().map(bar).collect();
        format!("{bars:>width$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_span_the_scale() {
        let mut series = Series::default();
        assert_eq!(series.bars(4), "    ");
        series.push(3.0);
        assert_eq!(series.bars(4), "   ▅");
        for number in [f64::NAN, 1.0, 2.0, 8.0] {
            series.push(number);
        }
        assert_eq!(series.bars(4), "▃▁▂█");
        assert_eq!(series.bars(3), "▁▂█");
    }

    #[test]
    fn old_numbers_are_forgotten() {
        let mut series = Series::default();
        (0..1_000).for_each(|number| series.push(f64::from(number)));
        assert_eq!(series.0.len(), LENGTH);
        assert_eq!(series.bars(8), "▁▂▃▄▅▆▇█");
    }
}
