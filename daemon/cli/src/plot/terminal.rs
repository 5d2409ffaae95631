//! Draws curves as characters: grids of Braille patterns, each two dots wide and four high.

use super::axis::Axis;
use super::{Curve, Plot};
use crate::figures;

/// Height of the first panel and of the others, in lines.
const FIRST_LINES: usize = 12;
const FURTHER_LINES: usize = 7;

/// Maximum width of the labels on the left, in characters.
const LABELS: usize = 9;

/// Minimum and maximum width of a grid.
const MIN_COLUMNS: usize = 16;
const MAX_COLUMNS: usize = 240;

/// Draws the plot in lines of at most `width` characters, or the minimum width.
pub(crate) fn terminal(plot: &Plot, width: usize) -> String {
    let columns = width.saturating_sub(LABELS + 2).clamp(MIN_COLUMNS, MAX_COLUMNS);
    let steps = Axis::steps(plot.last_step(), (columns / 14).max(1));
    let mut out = format!("{}\n", plot.title);
    for (nth, curve) in plot.curves.iter().enumerate() {
        let lines = if nth == 0 { FIRST_LINES } else { FURTHER_LINES };
        out += &titled_panel(curve, &steps, columns, lines);
    }
    out
}

/// Draws one curve with its title and its steps, in lines of at most `width` characters, or the minimum width, and in
/// `lines` lines, at least one of them of the grid.
pub(crate) fn panel(curve: &Curve, width: usize, lines: usize) -> String {
    let columns = width.saturating_sub(LABELS + 2).clamp(MIN_COLUMNS, MAX_COLUMNS);
    let last_step = curve.all_points().map(|&(step, _)| step).max().unwrap_or(0);
    let frame = 3 + usize::from(curve.marks.is_some());
    let steps = Axis::steps(last_step, (columns / 14).max(1));
    let panel = titled_panel(curve, &steps, columns, lines.saturating_sub(frame).max(1));
    panel.trim_start_matches('\n').to_owned()
}

fn titled_panel(curve: &Curve, steps: &Axis, columns: usize, lines: usize) -> String {
    let axis = curve.axis(lines / 2);
    let mut grid = Grid::new(columns, lines);
    grid.curve(&thinned(&curve.points, steps, grid.width()), &axis);

    let mut out = format!("\n{}  {}\n", curve.name, curve.extremes());
    if let Some(marks) = &curve.marks {
        grid.marks(&thinned(&marks.points, steps, grid.width()), &axis);
        let last = marks.points.last().map_or_else(String::new, |&(_, last)| figures::metric(last));
        out += &format!("{MARK} {}  last {last}\n", marks.name);
    }
    for line in 0..lines {
        // The label of the tick on this line, if any.
        let label = axis.ticks.iter().find(|tick| line_of(axis.place(tick.at), lines) == line);
        let (label, mark) = label.map_or(("", '│'), |tick| (tick.label.as_str(), '┤'));
        let row = grid.line(line);
        out += format!("{label:>LABELS$} {mark}{row}").trim_end();
        out.push('\n');
    }
    out + &below(steps, columns)
}

/// The line, counted from the top, of a `place` between 0 (bottom) and 1 (top).
fn line_of(place: f64, lines: usize) -> usize {
    ((1.0 - place) * (lines - 1) as f64).round() as usize
}

/// The step axis and its labels.
fn below(steps: &Axis, columns: usize) -> String {
    let mut line: Vec<char> = vec!['─'; columns];
    let mut labels: Vec<char> = format!("{:>LABELS$}", "step").chars().collect();
    for tick in &steps.ticks {
        let at = (steps.place(tick.at) * (columns - 1) as f64).round() as usize;
        line[at] = '┬';
        // Labels are centred within the line, and skipped if they would touch another.
        let end = LABELS + 2 + columns;
        let start = (LABELS + 2 + at).saturating_sub(tick.label.len() / 2);
        let start = start.min(end.saturating_sub(tick.label.len()));
        if start > labels.len() {
            labels.resize(start, ' ');
            labels.extend(tick.label.chars());
        }
    }
    let line: String = line.into_iter().collect();
    let labels: String = labels.into_iter().collect();
    format!("{:>LABELS$} └{line}\n{labels}\n", "")
}

/// The mean of the points in each of `width` columns of dots, as (column, mean). The noise of many points in one column
/// would hide the curve.
fn thinned(points: &[(u64, f64)], steps: &Axis, width: usize) -> Vec<(usize, f64)> {
    let mut means: Vec<(usize, f64, f64)> = Vec::new();
    for &(step, number) in points {
        let column = (steps.place(step as f64) * (width - 1) as f64).round() as usize;
        match means.last_mut() {
            Some((last, sum, count)) if *last == column => {
                *sum += number;
                *count += 1.0;
            }
            _ => means.push((column, number, 1.0)),
        }
    }
    means.into_iter().map(|(column, sum, count)| (column, sum / count)).collect()
}

/// A grid of dots, two by four per character.
struct Grid {
    columns: usize,
    lines: usize,
    /// The low byte of each character: a bit for each dot.
    cells: Vec<u8>,
    /// The characters with a mark.
    marked: Vec<bool>,
}

/// Shows a mark.
const MARK: char = '●';

/// The bits of a Braille pattern, by line and column of the dot (Unicode, block U+2800).
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

impl Grid {
    fn new(columns: usize, lines: usize) -> Self {
        Self { columns, lines, cells: vec![0; columns * lines], marked: vec![false; columns * lines] }
    }

    /// The width in dots.
    fn width(&self) -> usize {
        2 * self.columns
    }

    /// Draws a line from point to point.
    fn curve(&mut self, points: &[(usize, f64)], axis: &Axis) {
        let rows: Vec<usize> = points.iter().map(|&(_, number)| self.row(number, axis)).collect();
        for (nth, &(x, _)) in points.iter().enumerate() {
            let from = nth.saturating_sub(1);
            self.segment((points[from].0, rows[from]), (x, rows[nth]));
        }
    }

    /// Draws a mark at each point.
    fn marks(&mut self, points: &[(usize, f64)], axis: &Axis) {
        for &(x, number) in points {
            let row = self.row(number, axis);
            self.marked[row / 4 * self.columns + x / 2] = true;
        }
    }

    /// The row of dots of a number, from the top.
    fn row(&self, number: f64, axis: &Axis) -> usize {
        ((1.0 - axis.place(number)) * (4 * self.lines - 1) as f64).round() as usize
    }

    fn segment(&mut self, from: (usize, usize), to: (usize, usize)) {
        let dots = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1)).max(1);
        let between = |from: usize, to: usize, nth: usize| {
            let share = nth as f64 / dots as f64;
            (from as f64 + (to as f64 - from as f64) * share).round() as usize
        };
        for nth in 0..=dots {
            self.dot(between(from.0, to.0, nth), between(from.1, to.1, nth));
        }
    }

    fn dot(&mut self, x: usize, y: usize) {
        self.cells[y / 4 * self.columns + x / 2] |= DOTS[y % 4][x % 2];
    }

    fn line(&self, line: usize) -> String {
        let cells = line * self.columns..(line + 1) * self.columns;
        let shown = |cell: usize| match (self.marked[cell], self.cells[cell]) {
            (true, _) => MARK,
            (false, 0) => ' ',
            (false, dots) => char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '),
        };
        cells.map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Marks;
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn lines_fit_the_width_without_trailing_spaces() {
        for width in [40, 80, 133] {
            let shown = terminal(&sample(), width);
            let widest =
                shown.lines().skip(1).filter(|line| !line.contains("last")).map(|line| line.chars().count());
            assert!(widest.max().is_some_and(|widest| widest <= width), "{shown}");
            assert!(shown.lines().all(|line| line == line.trim_end()), "{shown}");
            assert_eq!(shown.matches("└").count(), 2, "{shown}");
        }
    }

    #[test]
    fn a_single_panel_has_the_given_size() {
        let curve = &sample().curves[0];
        let marks = Marks { name: "held-out".into(), points: vec![(50, 0.5)] };
        for (curve, lines) in [(curve.clone(), 10), (Curve { marks: Some(marks), ..curve.clone() }, 12)] {
            let drawn = panel(&curve, 50, lines);
            assert_eq!(drawn.lines().count(), lines, "{drawn}");
            assert!(drawn.starts_with("loss  last"), "{drawn}");
        }
    }

    #[test]
    fn rising_line_spans_the_grid() {
        let points = vec![(0, 0.0), (100, 1.0)];
        let plot = Plot::new("t", vec![Curve { name: "auc".into(), points, marks: None }]);
        let shown = terminal(&plot, LABELS + 2 + MIN_COLUMNS);
        let rows: Vec<&str> = shown.lines().filter(|line| line.contains(['│', '┤'])).collect();
        assert_eq!(rows.len(), FIRST_LINES);
        let dots = |line: &str| line.split(['│', '┤']).nth(1).map(|dots| dots.chars().collect::<Vec<_>>());
        let (top, bottom) =
            (dots(rows[0]).unwrap_or_default(), dots(rows[FIRST_LINES - 1]).unwrap_or_default());
        assert_eq!(top.len(), MIN_COLUMNS, "the line ends at the right");
        assert!(top[..MIN_COLUMNS - 4].iter().all(|&char| char == ' '));
        assert!(bottom[0] != ' ' && bottom.len() < 4);
    }

    #[test]
    fn marks_share_the_scale_of_their_curve() {
        let marks = Marks { name: "held-out".into(), points: vec![(50, 2.0), (100, 0.0)] };
        let curve = Curve { name: "loss".into(), points: vec![(0, 1.0), (100, 0.5)], marks: Some(marks) };
        let shown = terminal(&Plot::new("t", vec![curve]), 60);
        assert!(shown.contains("● held-out  last 0.0000"), "{shown}");
        let rows: Vec<&str> = shown.lines().filter(|line| line.contains(['│', '┤'])).collect();
        assert!(rows[0].contains(MARK) && rows[FIRST_LINES - 1].contains(MARK), "{shown}");
    }

    #[test]
    fn single_points_and_constants_are_drawn() {
        for points in [vec![(7, 0.5)], vec![(7, 0.5), (9, 0.5)], vec![(0, 0.5)]] {
            let shown =
                terminal(&Plot::new("t", vec![Curve { name: "loss".into(), points, marks: None }]), 80);
            let dots = shown.chars().filter(|char| ('\u{2801}'..='\u{28ff}').contains(char)).count();
            assert!(dots >= 1, "{shown}");
        }
    }
}
