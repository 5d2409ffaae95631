//! Draws a plot as SVG, in points from the upper left corner.

use super::axis::Axis;
use super::{Curve, Plot};

/// Width of the picture.
const WIDTH: f64 = 960.0;

/// Height of a panel's grid, of the title above it and of the step labels below it.
const GRID_HEIGHT: f64 = 190.0;
const ABOVE: f64 = 38.0;
const BELOW: f64 = 30.0;

/// Margins of the picture.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 14.0;

/// A curve with fewer points shows each as a dot.
const FEW_POINTS: usize = 60;

/// Sizes of glyphs.
pub(crate) const LABEL: f64 = 10.8;
pub(super) const TITLE: f64 = 14.4;
/// The width of a monospaced character relative to its size, and the space between two names.
pub(crate) const ADVANCE: f64 = 0.6;
const NAME_GAP: f64 = 16.0;

pub(crate) const INK: &str = "#333333";
pub(super) const FAINT: &str = "#777777";
const LINES: &str = "#e4e4e4";
/// The colour-blind safe palette of Okabe and Ito: blue, vermilion, green, purple.
pub(crate) const CURVES: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// An SVG document that shows `plot`.
pub(crate) fn svg(plot: &Plot) -> String {
    let panel = ABOVE + GRID_HEIGHT + BELOW;
    let height = TOP + panel * plot.curves.len() as f64 + BOTTOM;
    let mut picture = Picture::new(WIDTH, height);
    picture.text([LEFT, 28.0], "start", TITLE, INK, &plot.title);
    let steps = Axis::steps(plot.last_step(), 8);
    for (nth, curve) in plot.curves.iter().enumerate() {
        let top = TOP + panel * nth as f64 + ABOVE;
        let colours = [CURVES[nth % CURVES.len()], CURVES[(nth + 1) % CURVES.len()]];
        picture.panel(curve, &steps, top, colours);
    }
    picture.finish()
}

/// The elements painted so far.
pub(crate) struct Picture(String);

impl Picture {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"Noto Sans Mono, DejaVu Sans Mono, monospace\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        ))
    }

    pub(crate) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }

    /// Draws the line of a trial.
    pub(super) fn trial(&mut self, points: &[[f64; 2]], width: f64, colour: &str) {
        self.0 += "<g class=\"trial\">";
        self.stroke(points, width, colour);
        self.0 += "</g>\n";
    }

    /// Draws a curve in the first colour and its marks in the second.
    fn panel(&mut self, curve: &Curve, steps: &Axis, top: f64, [colour, of_marks]: [&str; 2]) {
        let axis = curve.axis(5);
        let x = |step: f64| LEFT + steps.place(step) * (WIDTH - LEFT - RIGHT);
        let y = |number: f64| top + (1.0 - axis.place(number)) * GRID_HEIGHT;
        let bottom = top + GRID_HEIGHT;

        self.text([LEFT, top - 12.0], "start", LABEL, colour, &curve.name);
        if let Some(marks) = &curve.marks {
            let after = LEFT + NAME_GAP + curve.name.chars().count() as f64 * LABEL * ADVANCE;
            self.text([after, top - 12.0], "start", LABEL, of_marks, &marks.name);
        }
        self.text([WIDTH - RIGHT, top - 12.0], "end", LABEL, FAINT, &curve.extremes());
        for tick in &axis.ticks {
            self.line([LEFT, y(tick.at)], [WIDTH - RIGHT, y(tick.at)]);
            self.text([LEFT - 8.0, y(tick.at) + 4.0], "end", LABEL, FAINT, &tick.label);
        }
        for tick in &steps.ticks {
            self.line([x(tick.at), top], [x(tick.at), bottom]);
            self.text([x(tick.at), bottom + 17.0], "middle", LABEL, FAINT, &tick.label);
        }
        self.text([LEFT - 12.0, bottom + 17.0], "end", LABEL, FAINT, "step");
        let marks = curve.marks.as_ref().map(|marks| (&marks.points, of_marks));
        for (points, colour) in std::iter::once((&curve.points, colour)).chain(marks) {
            let points: Vec<_> = points.iter().map(|&(step, number)| [x(step as f64), y(number)]).collect();
            if points.len() < FEW_POINTS {
                points.iter().for_each(|&point| self.stroke(&[point], 5.0, colour));
            }
            self.stroke(&points, 1.5, colour);
        }
    }

    pub(super) fn line(&mut self, from: [f64; 2], to: [f64; 2]) {
        self.stroke(&[from, to], 1.0, LINES);
    }

    /// Draws a box with round corners whose upper left corner is at this point.
    pub(crate) fn rectangle(&mut self, [x, y]: [f64; 2], [width, height]: [f64; 2], fill: &str, edge: &str) {
        self.0 += &format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"6\" fill=\"{fill}\" \
             stroke=\"{edge}\"/>\n"
        );
    }

    /// Draws a line through the points, with round ends. A single point is a dot: a line to its own start.
    pub(crate) fn stroke(&mut self, points: &[[f64; 2]], width: f64, colour: &str) {
        let end = points.first().filter(|_| points.len() == 1);
        let points: String = points.iter().chain(end).map(|[x, y]| format!(" {x:.1} {y:.1}")).collect();
        self.0 += &format!(
            "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linecap=\"round\" \
             stroke-linejoin=\"round\" d=\"M{points}\"/>\n"
        );
    }

    /// Writes a line of text whose `anchor` is at this point of the baseline. Spaces keep their width.
    pub(crate) fn text(&mut self, [x, y]: [f64; 2], anchor: &str, size: f64, colour: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.0 += &format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size:.1}\" fill=\"{colour}\" \
             text-anchor=\"{anchor}\" xml:space=\"preserve\">{text}</text>\n"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn document_has_every_curve_and_text() {
        let svg = svg(&sample());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains(">tiny-k3f9q2 &lt;succeeded&gt;</text>"));
        assert!(svg.contains(">loss</text>") && svg.contains(">auc</text>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        // 200 points of loss in one path.
        let longest = svg.lines().filter(|line| line.starts_with("<path")).map(str::len).max();
        assert!(longest.is_some_and(|longest| longest > 200 * 8));
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    }
}
