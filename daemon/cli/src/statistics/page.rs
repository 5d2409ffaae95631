//! Column statistics as a page of HTML: `inspect --html`. Nothing is loaded from elsewhere, so a page can be mailed.

use std::fmt::Write;

use millstream_tools::stats::{ColumnSummary, NumberSummary, TopValue};
use serde_json::Value;

use super::{distinct, figure, text_reason};
use crate::figures;

/// Size of a histogram in pixels.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 110.0;
/// The space between two bars.
const GAP: f64 = 2.0;
/// The least height of a bar of any values.
const MIN_BAR: f64 = 1.5;

const STYLE: &str = "body { font: 14px/1.5 'Noto Sans', 'DejaVu Sans', sans-serif; color: #333; margin: 2em auto; \
                     max-width: 840px; padding: 0 1em }\n\
                     h1 { font-size: 20px } h2 { font-size: 16px; margin: 0 0 .4em; overflow-wrap: anywhere }\n\
                     section { border-top: 1px solid #e4e4e4; padding: 1em 0; display: flex; flex-wrap: wrap; gap: 2em }\n\
                     section > div { flex: 1 1 360px; min-width: 0 }\n\
                     table { border-collapse: collapse } td { padding: .05em 1em .05em 0; overflow-wrap: anywhere }\n\
                     td + td { text-align: right; font-variant-numeric: tabular-nums }\n\
                     svg { display: block } .faint { color: #777 } rect, .share { fill: #0072b2; background: #0072b2 }\n\
                     .share { display: inline-block; height: .7em }\n";

/// A page with a section for each of the columns, under the heading `title`; `facts` are the files' properties.
pub(crate) fn render(title: &str, facts: &[(&str, String)], columns: &[(&str, &ColumnSummary)]) -> String {
    let heading = escaped(title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{heading}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n"
    );
    page += &table(facts);
    for (name, column) in columns {
        page += &section(name, column);
    }
    page + "</body>\n</html>\n"
}

fn section(name: &str, column: &ColumnSummary) -> String {
    let mut rows = vec![("values", figures::count(column.values)), ("distinct", distinct(column))];
    let mut drawing = String::new();
    if let Some(numbers) = &column.numbers {
        let [min, max] = [&numbers.min, &numbers.max].map(shown);
        rows.extend([("minimum", min), ("median", figure(numbers.median)), ("mean", figure(numbers.mean))]);
        rows.extend([("maximum", max), ("standard deviation", figure(numbers.deviation))]);
        if numbers.non_finite > 0 {
            rows.push(("not finite", figures::count(numbers.non_finite)));
        }
        drawing = histogram(numbers);
    }
    let reason = text_reason(column).map(|reason| format!("<p class=\"faint\">{}</p>\n", escaped(&reason)));
    let left = format!("<h2>{}</h2>\n{}{}", escaped(name), table(&rows), reason.unwrap_or_default());
    let right = drawing + &frequent(column);
    format!("<section>\n<div>\n{left}</div>\n<div>\n{right}</div>\n</section>\n")
}

fn table(rows: &[(&str, String)]) -> String {
    let mut table = "<table>\n".to_owned();
    for (name, value) in rows {
        table += &format!("<tr><td class=\"faint\">{}</td><td>{}</td></tr>\n", escaped(name), escaped(value));
    }
    table + "</table>\n"
}

/// Bars from the minimum to the maximum. Each has its count as a tooltip.
fn histogram(numbers: &NumberSummary) -> String {
    let bins = &numbers.histogram;
    let most = bins.iter().copied().max().unwrap_or(0).max(1) as f64;
    let pitch = (WIDTH + GAP) / bins.len().max(1) as f64;
    let mut picture = format!(
        "<svg width=\"{WIDTH}\" height=\"{}\" role=\"img\" aria-label=\"histogram\">\n",
        HEIGHT + 20.0
    );
    for (at, &count) in bins.iter().enumerate().filter(|(_, count)| **count > 0) {
        let tall = (count as f64 / most * HEIGHT).max(MIN_BAR);
        let (x, y, wide) = (at as f64 * pitch, HEIGHT - tall, (pitch - GAP).max(1.0));
        let count = figures::count(count);
        // Writing to a string cannot fail.
        let _ = writeln!(
            picture,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{tall:.1}\"><title>{count}</title></rect>"
        );
    }
    let labels = [(&numbers.min, 0.0, "start"), (&numbers.max, WIDTH, "end")];
    for (value, x, anchor) in labels {
        let _ = writeln!(
            picture,
            "<text x=\"{x}\" y=\"{}\" font-size=\"11\" fill=\"#777\" text-anchor=\"{anchor}\">{}</text>",
            HEIGHT + 15.0,
            escaped(&shown(value))
        );
    }
    picture + "</svg>\n"
}

/// The most frequent values of a column, each with its share and a bar.
fn frequent(column: &ColumnSummary) -> String {
    if column.top.is_empty() {
        return String::new();
    }
    let share = |top: &TopValue| top.count as f64 / column.values.max(1) as f64;
    let most = column.top.iter().map(share).fold(f64::MIN_POSITIVE, f64::max);
    let mut rows = "<table>\n".to_owned();
    for top in &column.top {
        let (value, percent) = (escaped(&shown(&top.value)), figures::percent(share(top)));
        let wide = share(top) / most * 100.0;
        rows += &format!(
            "<tr><td>{value}</td><td>{percent}</td><td style=\"text-align: left\">\
             <span class=\"share\" style=\"width: {wide:.0}px\"></span></td></tr>\n"
        );
    }
    rows + "</table>\n"
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), figure),
        other => other.to_string(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use millstream_tools::stats::TextReason;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_shows_every_column_and_no_markup_of_the_data() {
        let number = ColumnSummary {
            values: 1000,
            distinct: 40,
            distinct_is_exact: true,
            top: Vec::new(),
            top_undercount: 0,
            numbers: Some(NumberSummary {
                min: json!(-1.5),
                max: json!(7),
                mean: 2.0,
                deviation: 1.0,
                median: 1.0,
                non_finite: 3,
                histogram: vec![0, 900, 1, 99],
            }),
            text_because: None,
        };
        let text = ColumnSummary {
            top: vec![TopValue { value: json!("<script>alert(1)</script>"), count: 700 }],
            numbers: None,
            text_because: Some(TextReason { value: "N/A".to_owned(), line: 7, texts: 3, numbers: 997 }),
            ..number
        };
        let facts = [("records", "1,000".to_owned())];
        let page = render("a & b.csv", &facts, &[("x", &number), ("<b>", &text)]);
        for shown in [
            "<title>a &amp; b.csv</title>",
            "<h2>x</h2>",
            "<h2>&lt;b&gt;</h2>",
            "<title>900</title>",
            ">-1.5</text>",
            "<td>3</td>",
            "&lt;script&gt;alert(1)&lt;/script&gt;",
            "70.0 %",
            "because of `N/A` in line 7",
        ] {
            assert!(page.contains(shown), "{shown}\n{page}");
        }
        assert!(!page.contains("<script") && !page.contains("http"), "{page}");
        assert_eq!(page.matches("<rect").count(), 3, "an empty interval has no bar");
    }
}
