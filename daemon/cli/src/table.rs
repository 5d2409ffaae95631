//! Tables of text with aligned columns.

use crate::screen::output_width;

/// The space between columns.
const GAP: &str = "  ";

/// The least width of a folded last column.
const MIN_FOLDED: usize = 16;

/// Rows of cells; each column is as wide as its widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with a title row. A `>` before a title aligns its column to the right.
    pub(crate) fn with_titles(titles: &[&str]) -> Self {
        let right = titles.iter().map(|title| title.starts_with('>')).collect();
        let titles = titles.iter().map(|title| title.trim_start_matches('>').to_owned()).collect();
        Self { rows: vec![titles], right }
    }

    /// Adds a row. Line breaks and tabs within cells, which come from data, become visible.
    pub(crate) fn row<const N: usize>(&mut self, cells: [impl Into<String>; N]) {
        self.cells(cells.map(Into::into).into());
    }

    /// Adds a row, as [`Table::row`].
    pub(crate) fn cells(&mut self, cells: Vec<String>) {
        let on_one_line = |cell: String| {
            if !cell.contains(['\n', '\r', '\t']) {
                return cell;
            }
            cell.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
        };
        self.rows.push(cells.into_iter().map(on_one_line).collect());
    }

    /// Removes columns until the table is at most `width` characters wide: the `expendable` ones, by their titles, the first
    /// one first. The last column can be folded, so only its least width counts.
    pub(crate) fn fitted(mut self, width: Option<usize>, expendable: &[&str]) -> Self {
        let Some(width) = width else { return self };
        for title in expendable {
            let mut widths = self.widths();
            if let (Some(last), Some(false)) = (widths.last_mut(), self.right.last()) {
                *last = MIN_FOLDED.min(*last);
            }
            if widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1) <= width {
                break;
            }
            let column = self.rows.first().and_then(|titles| titles.iter().position(|other| other == title));
            if let Some(column) = column {
                self.right.remove(column);
                self.rows
                    .iter_mut()
                    .filter(|row| column < row.len())
                    .for_each(|row| drop(row.remove(column)));
            }
        }
        self
    }

    /// The width of each column, in characters.
    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        (0..columns).map(width).collect()
    }

    /// The table as text; every line ends with a newline. Cells of the last column are folded at the width of the terminal.
    pub(crate) fn render(&self) -> String {
        self.render_within(output_width())
    }

    fn render_within(&self, width: Option<usize>) -> String {
        let widths = self.widths();
        let before = widths.iter().rev().skip(1).map(|width| width + GAP.len()).sum::<usize>();
        let left = width.and_then(|width| width.checked_sub(before)).filter(|&left| left >= MIN_FOLDED);
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let gap = if column == 0 { "" } else { GAP };
                if self.right.get(column).copied().unwrap_or(false) {
                    line += &format!("{gap}{cell:>width$}");
                } else if let Some(left) = left.filter(|_| column + 1 == widths.len()) {
                    let hanging = format!("\n{:before$}", "");
                    line += &format!("{gap}{}", folded(cell, left).join(&hanging));
                } else {
                    line += &format!("{gap}{cell:<width$}");
                }
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

/// `text` in lines of at most `width` characters, broken at spaces. A longer word is a separate line.
pub(crate) fn folded(text: &str, width: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while rest.chars().count() > width {
        let end = rest.char_indices().nth(width).map_or(rest.len(), |(end, _)| end);
        let last = if rest[end..].starts_with(' ') { Some(end) } else { rest[..end].rfind(' ') };
        let last = last.filter(|&at| !rest[..at].trim().is_empty());
        let Some(at) = last.or_else(|| Some(end + rest[end..].find(' ')?)) else { break };
        lines.push(rest[..at].trim_end());
        rest = rest[at..].trim_start();
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
mod tests {
    use super::{Table, folded};

    #[test]
    fn texts_are_folded_at_spaces() {
        assert_eq!(folded("one two  three", 7), ["one two", "three"]);
        assert_eq!(folded("one two  three", 8), ["one two", "three"]);
        assert_eq!(folded("a /long/word of it", 4), ["a", "/long/word", "of", "it"]);
        assert_eq!(folded("/a/long/word", 4), ["/a/long/word"]);
        assert_eq!(folded("", 4), [""]);
        assert_eq!(folded("naïve naïve", 5), ["naïve", "naïve"]);
    }

    #[test]
    fn the_last_column_is_folded_at_the_width_of_the_terminal() {
        let mut table = Table::default();
        table.row(["batch", "256 rows: 5 dense, 15 single-id"]);
        table.row(["host", "65 MiB"]);
        let wide = "batch  256 rows: 5 dense, 15 single-id\nhost   65 MiB\n";
        assert_eq!(table.render_within(None), wide);
        assert_eq!(table.render_within(Some(38)), wide);
        assert_eq!(table.render_within(Some(20)), wide, "too narrow to fold");
        assert_eq!(
            table.render_within(Some(30)),
            "batch  256 rows: 5 dense, 15\n       single-id\nhost   65 MiB\n"
        );
    }

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let mut table = Table::with_titles(&["NAME", ">ROWS", "NOTE"]);
        table.row(["a", "1,000", ""]);
        table.row(["naïve", "7", "odd"]);
        assert_eq!(table.render(), "NAME    ROWS  NOTE\na      1,000\nnaïve      7  odd\n");
    }

    #[test]
    fn cells_stay_on_one_line() {
        let mut table = Table::default();
        table.row(["a\r\nb\tc", "d"]);
        table.row(["e", "f"]);
        assert_eq!(table.render(), "a\\r\\nb\\tc  d\ne          f\n");
    }

    #[test]
    fn titles_are_optional() {
        let mut table = Table::default();
        table.row(["steps", "10"]);
        table.row(["examples", "2"]);
        assert_eq!(table.render(), "steps     10\nexamples  2\n");
    }
}
