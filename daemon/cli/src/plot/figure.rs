//! The layout of a plot as a picture: strokes and texts, in points from the upper left corner.

use super::axis::Axis;
use super::{Curve, Plot};

/// Width of the picture.
pub(super) const WIDTH: f64 = 960.0;

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

/// Red, green, blue.
pub(super) type Colour = [u8; 3];

const INK: Colour = [0x33, 0x33, 0x33];
const FAINT: Colour = [0x77, 0x77, 0x77];
const LINES: Colour = [0xe4, 0xe4, 0xe4];
/// The colour-blind safe palette of Okabe and Ito: blue, vermilion, green, purple.
const CURVES: [Colour; 4] = [[0x00, 0x72, 0xb2], [0xd5, 0x5e, 0x00], [0x00, 0x9e, 0x73], [0xcc, 0x79, 0xa7]];

/// The laid-out plot.
pub(super) struct Figure {
    pub(super) height: f64,
    /// In painting order.
    pub(super) items: Vec<Item>,
}

/// An element to paint.
pub(super) enum Item {
    /// A line through the points, with round ends. A single point is a dot.
    Stroke { points: Vec<[f64; 2]>, width: f64, colour: Colour },
    /// A line of text.
    Text { at: [f64; 2], anchor: Anchor, size: Size, colour: Colour, text: String },
}

/// The point of a text's baseline that lies at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Left,
    Middle,
    Right,
}

/// The size of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Label,
    Title,
}

impl Figure {
    /// Lays `plot` out.
    pub(super) fn of(plot: &Plot) -> Self {
        let panel = ABOVE + GRID_HEIGHT + BELOW;
        let mut figure = Self { height: TOP + panel * plot.curves.len() as f64 + BOTTOM, items: Vec::new() };
        figure.text([LEFT, 28.0], Anchor::Left, Size::Title, INK, &plot.title);
        let steps = Axis::steps(plot.last_step(), 8);
        for (nth, curve) in plot.curves.iter().enumerate() {
            let top = TOP + panel * nth as f64 + ABOVE;
            figure.panel(curve, &steps, top, CURVES[nth % CURVES.len()]);
        }
        figure
    }

    fn panel(&mut self, curve: &Curve, steps: &Axis, top: f64, colour: Colour) {
        let numbers = || curve.points.iter().map(|&(_, number)| number);
        let (low, high) =
            (numbers().fold(f64::INFINITY, f64::min), numbers().fold(f64::NEG_INFINITY, f64::max));
        let axis = Axis::over(low, high, 5);
        let x = |step: f64| LEFT + steps.place(step) * (WIDTH - LEFT - RIGHT);
        let y = |number: f64| top + (1.0 - axis.place(number)) * GRID_HEIGHT;
        let bottom = top + GRID_HEIGHT;

        self.text([LEFT, top - 12.0], Anchor::Left, Size::Label, colour, &curve.name);
        self.text([WIDTH - RIGHT, top - 12.0], Anchor::Right, Size::Label, FAINT, &curve.extremes());
        for tick in &axis.ticks {
            self.line([LEFT, y(tick.at)], [WIDTH - RIGHT, y(tick.at)]);
            self.text([LEFT - 8.0, y(tick.at) + 4.0], Anchor::Right, Size::Label, FAINT, &tick.label);
        }
        for tick in &steps.ticks {
            self.line([x(tick.at), top], [x(tick.at), bottom]);
            self.text([x(tick.at), bottom + 17.0], Anchor::Middle, Size::Label, FAINT, &tick.label);
        }
        self.text([LEFT - 12.0, bottom + 17.0], Anchor::Right, Size::Label, FAINT, "step");
        let points: Vec<_> = curve.points.iter().map(|&(step, number)| [x(step as f64), y(number)]).collect();
        if points.len() < FEW_POINTS {
            let dot = |&point: &[f64; 2]| Item::Stroke { points: vec![point], width: 5.0, colour };
            self.items.extend(points.iter().map(dot));
        }
        self.items.push(Item::Stroke { points, width: 1.5, colour });
    }

    fn line(&mut self, from: [f64; 2], to: [f64; 2]) {
        self.items.push(Item::Stroke { points: vec![from, to], width: 1.0, colour: LINES });
    }

    fn text(&mut self, at: [f64; 2], anchor: Anchor, size: Size, colour: Colour, text: &str) {
        self.items.push(Item::Text { at, anchor, size, colour, text: text.to_owned() });
    }
}

impl Size {
    /// Height of a line of text.
    pub(super) fn points(self) -> u32 {
        match self {
            Self::Label => 12,
            Self::Title => 16,
        }
    }
}
