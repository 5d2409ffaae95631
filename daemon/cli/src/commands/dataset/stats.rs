//! `millstream dataset stats`: the statistics of a version, alone or against another one.

use millstream_io::storage::Version;
use millstream_tools::stats::ColumnSummary;
use serde::Serialize;

use super::diff::{self, ColumnDifference};
use super::{ColumnRecord, Open};
use crate::arguments::DatasetStatistics;
use crate::context::Context;
use crate::failure::Failure;
use crate::{figures, statistics, unfinished};

/// A column in two versions, as `--json` prints it.
#[derive(Serialize)]
struct Compared<'a> {
    #[serde(flatten)]
    difference: ColumnDifference,
    /// Its statistics, of the earlier version first; null where there is no such column.
    summaries: [Option<&'a ColumnSummary>; 2],
}

impl Open {
    pub(super) fn statistics(&self, arguments: &DatasetStatistics, context: &Context) -> Result<(), Failure> {
        let version = self.version(&arguments.dataset)?;
        let records = self.existing_records(&version)?;
        if let Some(against) = &arguments.against {
            let before = self.version(against)?;
            let records = [self.existing_records(&before)?, records];
            return compare(&[before, version], &records, arguments, context);
        }
        let columns: Vec<(&str, &ColumnSummary)> =
            records.iter().map(|ColumnRecord { name, summary, .. }| (name.as_str(), summary)).collect();
        let facts =
            [("rows", figures::count(version.rows)), ("registered", figures::moment(version.registered_ms))];
        write_page(&version.reference().to_string(), &facts, &columns, arguments, context)?;
        context.answer(&records, || statistics::render(&columns, statistics::line_width()))
    }

    fn existing_records(&self, version: &Version) -> Result<Vec<ColumnRecord>, Failure> {
        let records = self.records(version)?;
        Ok(records.ok_or_else(|| anyhow::anyhow!("{} has no statistics", version.reference()))?)
    }
}

/// The statistics of each column in both versions, one below the other, those with the largest drift first.
fn compare(
    versions: &[Version; 2],
    records: &[Vec<ColumnRecord>; 2],
    arguments: &DatasetStatistics,
    context: &Context,
) -> Result<(), Failure> {
    let summary = |place: usize, name: &str| {
        let record = records[place].iter().find(|record| record.name == name);
        record.map(|record| &record.summary)
    };
    let compared: Vec<Compared<'_>> = diff::columns(versions, records)
        .into_iter()
        .map(|difference| {
            let summaries = [0, 1].map(|place| summary(place, &difference.name));
            Compared { difference, summaries }
        })
        .collect();
    let [before, after] = versions.each_ref().map(|version| version.reference().to_string());
    // Headings of the page, and names in the tables, whose lines are short.
    let mut headings = Vec::new();
    let mut names = Vec::new();
    for Compared { difference, summaries: [earlier, later] } in &compared {
        let psi = difference.psi.map_or_else(String::new, |psi| format!(", PSI {psi:.3}"));
        let what = format!("{}: {}{psi}", difference.name, difference.verdict());
        headings.extend(later.map(|summary| (what, summary)));
        headings.extend(earlier.map(|summary| (format!("{} in {before}", difference.name), summary)));
        names.extend(later.map(|summary| (difference.name.clone(), summary)));
        names.extend(earlier.map(|summary| (format!("{} before", difference.name), summary)));
    }
    let facts = [
        ("version", after.clone()),
        ("against", before.clone()),
        ("rows", figures::count(versions[1].rows)),
        ("rows before", figures::count(versions[0].rows)),
    ];
    let title = format!("{after} against {before}");
    write_page(&title, &facts, &borrowed(&headings), arguments, context)?;
    context.answer(&compared, || statistics::render(&borrowed(&names), statistics::line_width()))
}

fn borrowed<'a>(columns: &'a [(String, &'a ColumnSummary)]) -> Vec<(&'a str, &'a ColumnSummary)> {
    columns.iter().map(|(name, summary)| (name.as_str(), *summary)).collect()
}

/// Writes the page that `--html` asks for.
fn write_page(
    title: &str,
    facts: &[(&str, String)],
    columns: &[(&str, &ColumnSummary)],
    arguments: &DatasetStatistics,
    context: &Context,
) -> Result<(), Failure> {
    if let Some(path) = &arguments.html {
        unfinished::write(path, statistics::render_page(title, facts, columns).as_bytes())?;
        context.screen.note(&format!("wrote {}", path.display()));
    }
    Ok(())
}
