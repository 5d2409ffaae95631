//! Curves over steps: [`terminal`] draws them as characters, [`svg`] as a picture. Rows of a table as [`parallel`]
//! coordinates.
//!
//! Each curve has its own panel and scale; all share the step axis. Marks on a curve's panel share its scale.

mod axis;
mod parallel;
mod svg;
mod terminal;

pub(crate) use parallel::{Line, Parallel, parallel_svg};
pub(crate) use svg::{ADVANCE, CURVES, INK, LABEL, Picture, svg};
pub(crate) use terminal::{panel, terminal};

use crate::figures;
use axis::Axis;

/// A number over steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// Steps in increasing order, with finite numbers.
    pub(crate) points: Vec<(u64, f64)>,
    /// Other numbers of the same kind, shown in the same panel.
    pub(crate) marks: Option<Marks>,
}

/// Single numbers at some steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Marks {
    pub(crate) name: String,
    /// As those of a [`Curve`].
    pub(crate) points: Vec<(u64, f64)>,
}

/// Curves with a common title.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plot {
    pub(crate) title: String,
    /// None is empty.
    pub(crate) curves: Vec<Curve>,
}

impl Plot {
    /// Drops points that are not finite, then empty curves.
    pub(crate) fn new(title: impl Into<String>, curves: Vec<Curve>) -> Self {
        let finite = |mut curve: Curve| {
            curve.points.retain(|(_, number)| number.is_finite());
            if let Some(marks) = &mut curve.marks {
                marks.points.retain(|(_, number)| number.is_finite());
            }
            curve.marks = curve.marks.filter(|marks| !marks.points.is_empty());
            (!curve.points.is_empty()).then_some(curve)
        };
        Self { title: title.into(), curves: curves.into_iter().filter_map(finite).collect() }
    }

    /// The last step of all curves.
    fn last_step(&self) -> u64 {
        self.curves.iter().flat_map(Curve::all_points).map(|&(step, _)| step).max().unwrap_or(0)
    }
}

impl Curve {
    /// The axis of its numbers, with about `ticks` labels.
    fn axis(&self, ticks: usize) -> Axis {
        let numbers = || self.all_points().map(|&(_, number)| number);
        let (low, high) =
            (numbers().fold(f64::INFINITY, f64::min), numbers().fold(f64::NEG_INFINITY, f64::max));
        Axis::over(low, high, ticks)
    }

    /// Its points and its marks.
    fn all_points(&self) -> impl Iterator<Item = &(u64, f64)> {
        self.points.iter().chain(self.marks.iter().flat_map(|marks| &marks.points))
    }

    /// `last 0.3102, min 0.3011 at 1,200, max 0.6931 at 8`
    fn extremes(&self) -> String {
        let numbers = || self.points.iter();
        let min = numbers().min_by(|one, other| one.1.total_cmp(&other.1));
        let max = numbers().max_by(|one, other| one.1.total_cmp(&other.1));
        let (Some(last), Some(min), Some(max)) = (numbers().last(), min, max) else { return String::new() };
        let at = |(step, number): &(u64, f64)| format!("{} at {}", shown(*number), figures::count(*step));
        format!("last {}, min {}, max {}", shown(last.1), at(min), at(max))
    }
}

/// A number with the digits that matter.
fn shown(number: f64) -> String {
    if number.abs() >= 1e3 { figures::rate(number) } else { figures::metric(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two curves, one of them noisy.
    pub(super) fn sample() -> Plot {
        let loss = (1..=200_u32).map(|n| {
            let decay = 0.3 + 0.4 * (-f64::from(n) / 40.0).exp();
            (u64::from(n) * 10, decay + 0.02 * f64::from(n * 7919 % 13) / 13.0)
        });
        let auc = (1..=8_u32).map(|n| (u64::from(n) * 250, 0.9 - 0.3 / f64::from(n)));
        let curve = |name: &str, points| Curve { name: name.to_owned(), points, marks: None };
        Plot::new("tiny-k3f9q2 <succeeded>", vec![curve("loss", loss.collect()), curve("auc", auc.collect())])
    }

    #[test]
    fn non_finite_points_and_empty_curves_are_dropped() {
        let curve = |name: &str, points: &[(u64, f64)]| Curve {
            name: name.into(),
            points: points.into(),
            marks: None,
        };
        let found = Plot::new(
            "a",
            vec![curve("auc", &[(1, f64::NAN)]), curve("loss", &[(1, f64::INFINITY), (2, 0.5)])],
        );
        assert_eq!(found.curves, [curve("loss", &[(2, 0.5)])]);
        assert_eq!(found.last_step(), 2);
    }

    #[test]
    fn extremes_show_their_steps() {
        let points = vec![(1_000, 0.5), (2_000, 0.9), (3_000, 0.8)];
        let curve = Curve { name: "auc".into(), points, marks: None };
        let wanted = "last 0.8000, min 0.5000 at 1,000, max 0.9000 at 2,000";
        assert_eq!(curve.extremes(), wanted);
        let curve = Curve { name: "rows/s".into(), points: vec![(1, 165_786.74)], marks: None };
        assert_eq!(curve.extremes(), "last 165,787, min 165,787 at 1, max 165,787 at 1");
    }
}
