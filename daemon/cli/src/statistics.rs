//! Statistics of columns, for `inspect --stats`: tables of text, and a page of HTML.

mod page;

use millstream_tools::stats::{ColumnSummary, NumberSummary};
use serde_json::Value;

use crate::figures;
use crate::screen::output_width;
use crate::table::Table;

pub(crate) use page::render as render_page;

/// Widths in characters: of a line without a terminal, a column's name, a date or timestamp, and a histogram.
const USUAL_WIDTH: usize = 80;
const NAME_WIDTH: usize = 14;
const MOMENT_WIDTH: usize = 19;
const HISTOGRAM_WIDTH: usize = 10;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The width of a line of a report: that of the terminal, within reason.
pub(crate) fn line_width() -> usize {
    output_width().unwrap_or(USUAL_WIDTH).clamp(40, 160)
}

/// The statistics of columns, by kind: numbers, dates and times, other values. Lines have at most `width` characters, or 60.
pub(crate) fn render(columns: &[(&str, &ColumnSummary)], width: usize) -> String {
    let mut numbers =
        Table::with_titles(&["NUMBERS", ">MIN", ">MEDIAN", ">MEAN", ">MAX", ">DISTINCT", "HISTOGRAM"]);
    let mut moments = Table::with_titles(&["TIMES", "MIN", "MAX", ">DISTINCT", "HISTOGRAM"]);
    let mut values = Table::with_titles(&["VALUES", ">DISTINCT", "MOST FREQUENT"]);
    let mut used = [false; 3];
    let mut notes = Vec::new();
    for (name, column) in columns {
        let (short, distinct) = (cut(name, NAME_WIDTH), distinct(column));
        match &column.numbers {
            Some(NumberSummary { min: Value::String(min), max: Value::String(max), histogram, .. }) => {
                used[1] = true;
                moments.row([short, clipped(min), clipped(max), distinct, bars(histogram)]);
            }
            Some(found) => {
                used[0] = true;
                let [min, max] =
                    [&found.min, &found.max].map(|value| figure(value.as_f64().unwrap_or(f64::NAN)));
                let (median, mean) = (figure(found.median), figure(found.mean));
                numbers.row([short, min, median, mean, max, distinct, bars(&found.histogram)]);
            }
            None => {
                used[2] = true;
                let left = width.saturating_sub(NAME_WIDTH + 2 + distinct.len().max("DISTINCT".len()) + 2);
                values.row([short, distinct, cut(&frequent(column), left)]);
            }
        }
        notes.extend(text_reason(column).map(|why| format!("`{name}` is text {why}\n")));
    }
    let tables = [numbers, moments, values].into_iter().zip(used).filter(|(_, used)| *used);
    let fitted = |table: Table| table.fitted(Some(width), &["HISTOGRAM", "MEDIAN", "DISTINCT"]).render();
    let mut parts: Vec<String> = tables.map(|(table, _)| fitted(table)).collect();
    if !notes.is_empty() {
        parts.push(notes.concat());
    }
    parts.join("\n")
}

/// Why a column of mostly numbers is text, if it is.
fn text_reason(column: &ColumnSummary) -> Option<String> {
    let reason = column.text_because.as_ref().filter(|reason| reason.numbers >= reason.texts)?;
    let (texts, all) = (figures::count(reason.texts), figures::count(reason.texts + reason.numbers));
    let (value, line) = (cut(&reason.value, 20), reason.line);
    Some(format!("because of `{value}` in line {line}: {texts} of {all} values are not numbers"))
}

fn distinct(column: &ColumnSummary) -> String {
    let about = if column.distinct_is_exact { "" } else { "~" };
    format!("{about}{}", figures::count(column.distinct))
}

/// The most frequent values with their shares.
fn frequent(column: &ColumnSummary) -> String {
    let shown = column.top.iter().map(|top| {
        let value = top.value.as_str().map_or_else(|| top.value.to_string(), |text| cut(text, 24));
        format!("{value} {}", figures::percent(top.count as f64 / column.values as f64))
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// A number in at most 9 characters.
fn figure(number: f64) -> String {
    let size = number.abs();
    if number == 0.0 || (number.fract() == 0.0 && size < 1e7) {
        return format!("{number}");
    }
    if !(1e-3..1e6).contains(&size) {
        return format!("{number:.2e}");
    }
    let places = (3 - size.log10().floor() as i32).max(0) as usize;
    let text = format!("{number:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn bars(counts: &[u64]) -> String {
    let wide = counts.chunks(counts.len().div_ceil(HISTOGRAM_WIDTH).max(1)).map(|chunk| chunk.iter().sum());
    let counts: Vec<u64> = wide.collect();
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let bar = |&count: &u64| match count {
        0 => ' ',
        count => {
            let eighths = (u128::from(count) * BARS.len() as u128).div_ceil(u128::from(most));
            BARS[eighths as usize - 1]
        }
    };
    counts.iter().map(bar).collect()
}

fn clipped(moment: &str) -> String {
    moment.chars().take(MOMENT_WIDTH).collect()
}

/// `text` in at most `width` characters.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let end = text.char_indices().nth(width.saturating_sub(3)).map_or(text.len(), |(end, _)| end);
    format!("{}...", &text[..end])
}

#[cfg(test)]
mod tests {
    use millstream_tools::stats::{TextReason, TopValue};
    use serde_json::json;

    use super::*;

    fn summary(numbers: Option<NumberSummary>) -> ColumnSummary {
        ColumnSummary {
            values: 1000,
            distinct: 1_234_567,
            distinct_is_exact: false,
            top: vec![
                TopValue { value: json!("x".repeat(90)), count: 697 },
                TopValue { value: json!("y"), count: 3 },
            ],
            top_undercount: 0,
            numbers,
            text_because: None,
        }
    }

    #[test]
    fn statistics_fit_80_columns() {
        let numbers = |min: Value, max: Value| NumberSummary {
            min,
            max,
            mean: -123_456.789,
            deviation: 1.0,
            median: 1e-9,
            non_finite: 0,
            histogram: (0..20).collect(),
        };
        let number = summary(Some(numbers(json!(-1.797e308), json!(9_999_999.0))));
        let moment =
            summary(Some(numbers(json!("2026-11-21T12:38:00.25Z"), json!("2026-11-21T12:38:00.25Z"))));
        let reason = TextReason { value: "N/A".to_owned(), line: 7, texts: 3, numbers: 997 };
        let text = ColumnSummary { text_because: Some(reason), ..summary(None) };
        let name = "a_column_with_a_long_name";
        let columns = [(name, &number), (name, &moment), (name, &text)];
        for width in [60, 80, 120] {
            let table = render(&columns, width);
            assert!(table.lines().take(8).all(|line| line.chars().count() <= width), "{table}");
        }
        let table = render(&columns, 80);
        for shown in [
            "~1,234,567",
            "▁▂▂▃▄▅▆▇██",
            "2026-11-21T12:38:00",
            "69.7 %",
            "because of `N/A` in line 7: 3 of 1,000",
        ] {
            assert!(table.contains(shown), "{shown}\n{table}");
        }
    }

    #[test]
    fn figures_are_short() {
        let cases = [
            (0.0, "0"),
            (42.0, "42"),
            (1234.5678, "1235"),
            (0.012_345, "0.01235"),
            (2.5, "2.5"),
            (1e9, "1.00e9"),
        ];
        for (number, text) in cases {
            assert_eq!(figure(number), text);
        }
    }
}
