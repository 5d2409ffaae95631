//! Tables of text with aligned columns.

/// The space between columns.
const GAP: &str = "  ";

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
        let on_one_line = |cell: String| {
            if !cell.contains(['\n', '\r', '\t']) {
                return cell;
            }
            cell.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
        };
        self.rows.push(cells.map(|cell| on_one_line(cell.into())).into());
    }

    /// Removes columns until the table is at most `width` characters wide: the `expendable` ones, by their titles, the first
    /// one first.
    pub(crate) fn fitted(mut self, width: Option<usize>, expendable: &[&str]) -> Self {
        let Some(width) = width else { return self };
        for title in expendable {
            let widths = self.widths();
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

    /// The table as text; every line ends with a newline.
    pub(crate) fn render(&self) -> String {
        let widths = self.widths();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let gap = if column == 0 { "" } else { GAP };
                if self.right.get(column).copied().unwrap_or(false) {
                    line += &format!("{gap}{cell:>width$}");
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

#[cfg(test)]
mod tests {
    use super::Table;

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
