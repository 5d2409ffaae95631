//! `millstream inspect`: describes data files.

use std::collections::BTreeMap;

use millstream_format::FileFormat;
use millstream_tools::inspect::{self, ColumnReport, InspectOptions, Inspected, Report};
use millstream_tools::stats::ColumnSummary;
use serde_json::Value;

use crate::arguments::Inspect;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::files::{FileWork, Goal};
use crate::statistics::{self, cut};
use crate::table::Table;
use crate::unfinished;

/// The least width of the first values of a column, in characters.
const MIN_VALUES_WIDTH: usize = 24;
/// Width of the type of a column; longer ones are cut.
const TYPE_WIDTH: usize = 40;
/// Without `--all`, at most this many files are reported one by one.
const MAX_SINGLE_REPORTS: usize = 10;
/// Damaged files named in a summary.
const MAX_NAMED_DAMAGED: usize = 20;

pub(crate) fn run(arguments: Inspect, context: &Context) -> Result<(), Failure> {
    let options = InspectOptions {
        rows: arguments.rows,
        statistics: arguments.stats || arguments.html.is_some(),
        csv: arguments.csv.into(),
        threads: arguments.threads.count(),
    };
    let work = FileWork::start(context, "reading")?;
    let objects = work.list(&arguments.files)?;
    let goal = Goal { files: Some(objects.len() as u64), rows: None };
    let Inspected { reports, totals, .. } =
        work.run(goal, |storage, progress| inspect::inspect(&objects, &options, &storage.runtime, progress))?;
    let notes = reports.iter().filter_map(|report| report.note.as_ref());
    notes.take(1).for_each(|note| context.screen.note(note));
    if let Some(path) = &arguments.html {
        unfinished::write(path, page(&reports, &totals).as_bytes())?;
        context.screen.note(&format!("wrote {}", path.display()));
    }
    let width = statistics::line_width();
    let each = arguments.all || reports.len() <= MAX_SINGLE_REPORTS;
    context.answer(&reports, || {
        if each {
            reports.iter().map(|report| describe(report, width)).collect::<Vec<_>>().join("\n")
        } else {
            summary(&reports, &totals, width)
        }
    })?;
    let damaged: Vec<_> = reports.iter().filter_map(|report| report.error.as_ref()).collect();
    if damaged.is_empty() {
        return Ok(());
    }
    let named = if each { damaged.len() } else { MAX_NAMED_DAMAGED };
    damaged.iter().take(named).for_each(|damage| context.screen.error(&damage.message));
    if damaged.len() > named {
        let more = figures::count((damaged.len() - named) as u64);
        context.screen.error(&format!("and {more} more damaged files; --all names each"));
    }
    Err(Failure::AlreadyReported)
}

/// The statistics of all files, as HTML.
fn page(reports: &[Report], totals: &[(String, ColumnSummary)]) -> String {
    let title = match reports {
        [only] => only.path.clone(),
        several => figures::counted(several.len() as u64, "file"),
    };
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let facts = [
        ("size", figures::bytes(sum(|report| report.bytes))),
        ("records", figures::count(sum(|report| report.records))),
    ];
    statistics::render_page(&title, &facts, &by_name(totals))
}

fn by_name(totals: &[(String, ColumnSummary)]) -> Vec<(&str, &ColumnSummary)> {
    totals.iter().map(|(name, statistics)| (name.as_str(), statistics)).collect()
}

/// A summary of many files: counts by format, and all columns.
fn summary(reports: &[Report], totals: &[(String, ColumnSummary)], width: usize) -> String {
    let damaged = reports.iter().filter(|report| report.error.is_some()).count() as u64;
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let mut facts = Table::default();
    facts.row(["files", &figures::count(reports.len() as u64)]);
    facts.row(["size", &figures::bytes(sum(|report| report.bytes))]);
    facts.row(["records", &figures::count(sum(|report| report.records))]);
    facts.row(["damaged", &figures::count(damaged)]);
    let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for report in reports {
        *kinds.entry((format_of(report), &report.compression)).or_default() += 1;
    }
    for ((format, compression), files) in kinds {
        facts.row(["format", &format!("{format}, {compression}: {}", figures::counted(files, "file"))]);
    }
    // Columns in order of first appearance, which is the order within most files.
    let mut places: BTreeMap<(&str, &str, bool), usize> = BTreeMap::new();
    let mut columns: Vec<(&ColumnReport, u64, u64)> = Vec::new();
    for column in reports.iter().flat_map(|report| &report.columns) {
        let place = *places.entry((&column.name, &column.data_type, column.multi)).or_insert(columns.len());
        if place == columns.len() {
            columns.push((column, 0, 0));
        }
        columns[place].1 += 1;
        columns[place].2 += column.absent;
    }
    let mut table = Table::with_titles(&["COLUMN", "TYPE", ">FILES", ">ABSENT"]);
    for (column, files, absent) in columns {
        table.row([column.name.clone(), type_of(column), figures::count(files), figures::count(absent)]);
    }
    with_statistics(format!("{}\n{}", facts.render(), table.render()), &by_name(totals), width)
}

fn format_of(report: &Report) -> &'static str {
    report.format.map_or("unknown", FileFormat::name)
}

fn type_of(column: &ColumnReport) -> String {
    format!("{}{}", if column.multi { "list of " } else { "" }, column.data_type)
}

fn describe(report: &Report, width: usize) -> String {
    let mut facts = Table::default();
    facts.row(["file", &report.path]);
    facts.row(["format", format_of(report)]);
    facts.row(["compression", &report.compression]);
    facts.row(["records", &figures::count(report.records)]);
    if report.columns.is_empty() {
        return facts.render();
    }
    let mut columns = Table::with_titles(&["COLUMN", "TYPE", ">ABSENT", "FIRST VALUES"]);
    let cells = report.columns.iter().map(|column| {
        let data_type = cut(&type_of(column), TYPE_WIDTH);
        [column.name.clone(), data_type, figures::count(column.absent)]
    });
    let cells: Vec<_> = cells.collect();
    let widest = |cell: usize| cells.iter().map(|cells| cells[cell].chars().count()).max().unwrap_or(0);
    let used =
        widest(0).max("COLUMN".len()) + widest(1).max("TYPE".len()) + widest(2).max("ABSENT".len()) + 6;
    let left = width.saturating_sub(used).max(MIN_VALUES_WIDTH);
    for (column, [name, data_type, absent]) in report.columns.iter().zip(cells) {
        let values = report.rows.iter().map(|row| row.get(&column.name).unwrap_or(&Value::Null));
        let values: Vec<_> = values.map(|value| shown(value, column.multi)).collect();
        columns.row([name, data_type, absent, cut(&values.join("  "), left)]);
    }
    let statistics = report.columns.iter();
    let statistics =
        statistics.filter_map(|column| Some((column.name.as_str(), column.statistics.as_ref()?)));
    with_statistics(
        format!("{}\n{}", facts.render(), columns.render()),
        &statistics.collect::<Vec<_>>(),
        width,
    )
}

fn with_statistics(text: String, statistics: &[(&str, &ColumnSummary)], width: usize) -> String {
    if statistics.is_empty() { text } else { format!("{text}\n{}", statistics::render(statistics, width)) }
}

fn shown(value: &Value, multi: bool) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        // Every value of an Example is a list, usually of one element.
        Value::Array(values) if values.len() == 1 && !multi => shown(&values[0], multi),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use millstream_tools::inspect::ColumnReport;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_description_fits_80_columns() {
        let column = |name: &str, data_type: &str| ColumnReport {
            name: name.to_owned(),
            data_type: data_type.to_owned(),
            multi: false,
            absent: 1_234_567,
            statistics: None,
        };
        let columns = vec![
            column("a_column_with_a_name", &"struct {a: text, b: text}".repeat(4)),
            column("other", "text"),
        ];
        let row =
            json!({ "a_column_with_a_name": { "a": "x".repeat(100), "b": null }, "other": "y".repeat(100) });
        let report = Report {
            path: "a.parquet".to_owned(),
            format: Some(FileFormat::Parquet),
            compression: "snappy".to_owned(),
            bytes: 1,
            records: 1,
            columns,
            rows: vec![row.as_object().cloned().unwrap_or_default()],
            note: None,
            error: None,
        };
        let text = describe(&report, 80);
        assert!(text.contains(r#"{"a":"xxx"#) && text.contains("1,234,567  yyyy"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 20 + 2 + 40 + 2 + 9 + 2 + 24), "{text}");
        let narrow = Report { columns: vec![column("other", "text")], ..report };
        assert!(describe(&narrow, 80).lines().all(|line| line.chars().count() <= 80));
    }
}
