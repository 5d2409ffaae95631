//! Draws parallel coordinates as SVG: an axis per column, and a line through its values for each row. Numbers are placed by
//! their size, on a logarithmic axis if they are positive and it is asked for; other values are spread evenly.

use super::svg::{ADVANCE, CURVES, FAINT, INK, LABEL, Picture, TITLE};

/// The size of the picture and its margins.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 430.0;
const SIDE: f64 = 80.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 34.0;

/// Colours of a line by the rank of its last value, from bad to good.
const BAD: [f64; 3] = [205.0, 214.0, 222.0];
const GOOD: [f64; 3] = [0.0, 114.0, 178.0];

/// Rows of values, of which the last one is the result.
#[derive(Clone, Debug)]
pub(crate) struct Parallel {
    pub(crate) title: String,
    /// The names of the axes.
    pub(crate) axes: Vec<String>,
    /// Whether each axis is logarithmic.
    pub(crate) log: Vec<bool>,
    /// Whether high values of the last axis are good.
    pub(crate) is_last_better_high: bool,
    pub(crate) lines: Vec<Line>,
}

/// A row.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// A value for each axis.
    pub(crate) values: Vec<String>,
    pub(crate) is_best: bool,
    /// Drawn thin.
    pub(crate) is_faint: bool,
}

/// An axis: where its values are.
struct Scale {
    /// The texts at its ends, or of all its values, and their places from 0 (below) to 1.
    labels: Vec<(f64, String)>,
    places: Vec<f64>,
}

impl Scale {
    fn new(values: &[&str], log: bool) -> Self {
        let numbers: Option<Vec<f64>> = values
            .iter()
            .map(|value| value.parse::<f64>().ok().filter(|number| number.is_finite()))
            .collect();
        let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) else {
            return Self::of_names(values);
        };
        let log = log && numbers.iter().all(|&number| number > 0.0);
        let size = |number: f64| if log { number.ln() } else { number };
        let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if low >= high {
            return Self { labels: vec![(0.5, low.to_string())], places: vec![0.5; values.len()] };
        }
        let place = |number: f64| (size(number) - size(low)) / (size(high) - size(low));
        Self {
            labels: vec![(0.0, low.to_string()), (1.0, high.to_string())],
            places: numbers.into_iter().map(place).collect(),
        }
    }

    fn of_names(values: &[&str]) -> Self {
        let mut names: Vec<&str> = values.to_vec();
        names.sort_unstable();
        names.dedup();
        let place = |nth: usize| if names.len() < 2 { 0.5 } else { nth as f64 / (names.len() - 1) as f64 };
        let of = |value: &&str| place(names.binary_search(value).unwrap_or_default());
        let labels = names.iter().enumerate().map(|(nth, name)| (place(nth), (*name).to_owned()));
        Self { places: values.iter().map(of).collect(), labels: labels.collect() }
    }
}

/// Where the title of the axis at `x` is anchored: in its middle, unless it would leave the picture.
fn title_place(x: f64, name: &str) -> (f64, &'static str) {
    let half = name.chars().count() as f64 * LABEL * ADVANCE / 2.0;
    match () {
        () if x - half < 0.0 => (0.0, "start"),
        () if x + half > WIDTH => (WIDTH, "end"),
        () => (x, "middle"),
    }
}

/// An SVG document of the rows.
pub(crate) fn parallel_svg(parallel: &Parallel) -> String {
    let mut picture = Picture::new(WIDTH, HEIGHT);
    picture.text([SIDE, 28.0], "start", TITLE, INK, &parallel.title);
    let gaps = parallel.axes.len().saturating_sub(1).max(1) as f64;
    let x = |axis: usize| SIDE + axis as f64 * (WIDTH - 2.0 * SIDE) / gaps;
    let y = |place: f64| TOP + (1.0 - place) * (HEIGHT - TOP - BOTTOM);
    let scales: Vec<Scale> = (0..parallel.axes.len())
        .map(|axis| {
            let values = parallel.lines.iter().map(|line| line.values.get(axis).map_or("", String::as_str));
            Scale::new(&values.collect::<Vec<_>>(), parallel.log.get(axis).copied().unwrap_or(false))
        })
        .collect();
    for (axis, (name, scale)) in parallel.axes.iter().zip(&scales).enumerate() {
        picture.line([x(axis), y(0.0)], [x(axis), y(1.0)]);
        // Neighbours are not on the same height, since names can be long.
        let (place, anchor) = title_place(x(axis), name);
        picture.text([place, TOP - 16.0 - 16.0 * (axis % 2) as f64], anchor, LABEL, INK, name);
        for (place, label) in &scale.labels {
            picture.text([x(axis) - 6.0, y(*place) + 4.0], "end", LABEL, FAINT, label);
        }
    }
    let ranks = ranks(&scales, parallel.is_last_better_high);
    let mut order: Vec<usize> = (0..parallel.lines.len()).collect();
    // The best ones on top.
    order.sort_by(|&one, &other| ranks[one].total_cmp(&ranks[other]));
    order.sort_by_key(|&nth| parallel.lines[nth].is_best);
    for nth in order {
        let line = &parallel.lines[nth];
        let points: Vec<[f64; 2]> =
            scales.iter().enumerate().map(|(axis, scale)| [x(axis), y(scale.places[nth])]).collect();
        let shade = |part: usize| BAD[part] + ranks[nth] * (GOOD[part] - BAD[part]);
        let colour = format!("#{:02x}{:02x}{:02x}", shade(0) as u8, shade(1) as u8, shade(2) as u8);
        let colour = if line.is_best { CURVES[1] } else { &colour };
        let width = if line.is_best { 2.6 } else { 1.6 - 0.7 * f64::from(u8::from(line.is_faint)) };
        picture.trial(&points, width, colour);
    }
    picture.finish()
}

/// How good each row is among all, from 0 to 1.
fn ranks(scales: &[Scale], is_better_high: bool) -> Vec<f64> {
    let Some(results) = scales.last() else { return Vec::new() };
    let results = &results.places;
    let most = results.len().saturating_sub(1).max(1) as f64;
    let is_worse = |one: f64, other: f64| if is_better_high { one < other } else { one > other };
    results
        .iter()
        .map(|&one| results.iter().filter(|&&other| is_worse(other, one)).count() as f64 / most)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_stay_within_the_picture() {
        assert_eq!(title_place(SIDE, "deep.optimizer.learning_rate"), (0.0, "start"));
        assert_eq!(title_place(WIDTH - SIDE, "deep.optimizer.learning_rate"), (WIDTH, "end"));
        assert_eq!(title_place(SIDE, "dropout"), (SIDE, "middle"));
    }

    #[test]
    fn values_are_placed_by_size_on_their_axis() {
        let close = |scale: &Scale, wanted: &[f64]| {
            scale.places.iter().zip(wanted).all(|(one, other)| (one - other).abs() < 1e-9)
        };
        assert!(close(&Scale::new(&["0.001", "0.01", "0.1"], true), &[0.0, 0.5, 1.0]));
        assert!(close(&Scale::new(&["1", "2", "5"], false), &[0.0, 0.25, 1.0]));
        assert!(close(&Scale::new(&["-1", "1"], true), &[0.0, 1.0]), "not logarithmic");
        assert!(close(&Scale::new(&["3", "3"], false), &[0.5, 0.5]));
        let names = Scale::new(&["\"b\"", "\"a\"", "[1, 2]"], false);
        assert!(close(&names, &[0.5, 0.0, 1.0]));
        assert_eq!(names.labels.len(), 3);
        assert_eq!(ranks(&[Scale::new(&["0.9", "0.7", "0.8"], false)], true), [1.0, 0.0, 0.5]);
        assert_eq!(ranks(&[Scale::new(&["0.9", "0.7", "0.8"], false)], false), [0.0, 1.0, 0.5]);
    }

    #[test]
    fn a_picture_without_rows_has_its_axes() {
        let axes = vec!["a".to_owned(), "auc".to_owned()];
        let none =
            Parallel { title: "t".into(), axes, log: vec![], is_last_better_high: true, lines: vec![] };
        let svg = parallel_svg(&none);
        assert!(svg.contains(">auc</text>") && svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }
}
