//! `millstream dataset diff`: what changed between two versions.

use std::collections::BTreeMap;

use millstream_io::storage::{Column, Division, Entry, Listing, Version};
use millstream_tools::stats::{Drift, drift};
use serde::Serialize;

use super::{ColumnRecord, Open, division};
use crate::arguments::DiffDatasets;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::screen::output_width;
use crate::table::Table;

/// Without `--files`, at most this many files are named.
const SHOWN_FILES: usize = 5;

/// The difference, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Difference {
    before: String,
    after: String,
    rows: [u64; 2],
    bytes: [u64; 2],
    /// How the rows are divided; null without splits.
    divisions: [Option<Division>; 2],
    files: Files,
    /// Those with the largest drift first.
    columns: Vec<ColumnDifference>,
}

/// The addresses of the files that differ.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Files {
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<String>,
    same: usize,
}

/// A column in two versions.
#[derive(Debug, Serialize)]
pub(super) struct ColumnDifference {
    pub(super) name: String,
    /// Its types; null where there is no such column.
    types: [Option<String>; 2],
    /// The shares of rows without a value.
    absent: [Option<f64>; 2],
    /// The population stability index; null if the kind of its values has changed, or there are no statistics.
    pub(super) psi: Option<f64>,
    drift: Option<Drift>,
    /// The means of numbers.
    means: [Option<f64>; 2],
}

impl Open {
    pub(super) fn diff(&self, arguments: &DiffDatasets, context: &Context) -> Result<(), Failure> {
        let versions = [self.version(&arguments.before)?, self.version(&arguments.after)?];
        let records =
            [self.records(&versions[0])?, self.records(&versions[1])?].map(Option::unwrap_or_default);
        let listings = [versions[0].files()?, versions[1].files()?];
        let difference = Difference {
            before: versions[0].reference().to_string(),
            after: versions[1].reference().to_string(),
            rows: [versions[0].rows, versions[1].rows],
            bytes: [listings[0].bytes(), listings[1].bytes()],
            divisions: versions.each_ref().map(|version| version.division.clone()),
            files: Files::of(listings.each_ref().map(Listing::entries)),
            columns: columns(&versions, &records),
        };
        context.answer(&difference, || difference.describe(arguments.files))
    }
}

impl Files {
    fn of([before, after]: [&[Entry]; 2]) -> Self {
        let mut earlier: BTreeMap<&str, &Entry> =
            before.iter().map(|entry| (entry.address.as_str(), entry)).collect();
        let mut files = Self::default();
        for entry in after {
            match earlier.remove(entry.address.as_str()) {
                None => files.added.push(entry.address.clone()),
                Some(known) if known == entry => files.same += 1,
                Some(_) => files.changed.push(entry.address.clone()),
            }
        }
        files.removed = earlier.into_keys().map(str::to_owned).collect();
        files
    }
}

/// The columns of either version, those with the largest drift first.
pub(super) fn columns(versions: &[Version; 2], records: &[Vec<ColumnRecord>; 2]) -> Vec<ColumnDifference> {
    let find =
        |version: &Version, name: &str| version.columns.iter().find(|column| column.name == name).cloned();
    let mut names: Vec<&str> = Vec::new();
    for column in versions.iter().flat_map(|version| &version.columns) {
        if !names.contains(&column.name.as_str()) {
            names.push(&column.name);
        }
    }
    let mut columns: Vec<_> = names
        .into_iter()
        .map(|name| {
            let found = [find(&versions[0], name), find(&versions[1], name)];
            let statistics =
                [&records[0], &records[1]].map(|records| records.iter().find(|it| it.name == name));
            let psi = match statistics {
                [Some(before), Some(after)] => {
                    drift((&before.distribution, before.absent), (&after.distribution, after.absent))
                }
                _ => None,
            };
            let share = |place: usize| {
                let column: &Column = found[place].as_ref()?;
                Some(column.absent as f64 / (versions[place].rows as f64).max(1.0))
            };
            ColumnDifference {
                name: name.to_owned(),
                absent: [share(0), share(1)],
                psi,
                drift: psi.map(Drift::of),
                means: statistics.map(|it| it?.summary.numbers.as_ref().map(|numbers| numbers.mean)),
                types: found.map(|column| column.map(|column| column.data_type)),
            }
        })
        .collect();
    let rank = |column: &ColumnDifference| {
        if column.is_the_same_kind() { column.psi.unwrap_or(0.0) } else { f64::INFINITY }
    };
    columns.sort_by(|one, other| rank(other).total_cmp(&rank(one)));
    columns
}

impl ColumnDifference {
    fn is_the_same_kind(&self) -> bool {
        self.types[0].is_some() && self.types[0] == self.types[1]
    }

    /// What happened to it.
    pub(super) fn verdict(&self) -> String {
        match &self.types {
            [None, _] => "added".to_owned(),
            [_, None] => "removed".to_owned(),
            [Some(before), Some(after)] if before != after => format!("{before}, now {after}"),
            _ => self.drift.map_or("?", Drift::name).to_owned(),
        }
    }
}

impl Difference {
    /// How the rows are divided, and the rows of each split.
    fn describe_splits(&self, facts: &mut Table) {
        let [before, after] = self.divisions.each_ref().map(|it| division::summary(it.as_ref()));
        facts.row([
            "splits".to_owned(),
            if before == after { before } else { format!("{before}; now {after}") },
        ]);
        let splits = self.divisions.each_ref().map(|it| it.as_ref().map_or(&[][..], |it| &it.splits));
        let mut names: Vec<&str> = Vec::new();
        for split in splits.iter().copied().flatten() {
            if !names.contains(&split.name.as_str()) {
                names.push(&split.name);
            }
        }
        for name in names {
            let rows = splits.map(|splits| {
                let split = splits.iter().find(|split| split.name == name);
                split.map_or_else(|| "none".to_owned(), |split| figures::count(split.rows))
            });
            facts.row([format!("  {name}"), changed(rows)]);
        }
    }

    fn describe(&self, names_all_files: bool) -> String {
        let mut facts = Table::default();
        facts.row(["before", &self.before]);
        facts.row(["after", &self.after]);
        facts.row(["rows".to_owned(), changed(self.rows.map(figures::count))]);
        facts.row(["size".to_owned(), changed(self.bytes.map(figures::bytes))]);
        if self.divisions.iter().any(Option::is_some) {
            self.describe_splits(&mut facts);
        }
        let Files { added, removed, changed, same } = &self.files;
        let counts = [
            ("added", added.len()),
            ("removed", removed.len()),
            ("changed", changed.len()),
            ("the same", *same),
        ];
        let counts = counts.iter().filter(|(_, count)| *count > 0);
        let counts: Vec<_> =
            counts.map(|(what, count)| format!("{} {what}", figures::count(*count as u64))).collect();
        facts.row(["files".to_owned(), counts.join(", ")]);
        let most = if names_all_files { usize::MAX } else { SHOWN_FILES };
        for (what, files) in [("+", added), ("-", removed), ("~", changed)] {
            files.iter().take(most).for_each(|file| facts.row([format!("  {what}"), file.clone()]));
            if let Some(more) = files.len().checked_sub(most).filter(|&more| more > 0) {
                facts.row([
                    format!("  {what}"),
                    format!("{} more; --files names all", figures::count(more as u64)),
                ]);
            }
        }
        let mut table = Table::with_titles(&["COLUMN", ">PSI", "DRIFT", ">ABSENT", ">MEAN"]);
        let pair = |[before, after]: [Option<String>; 2]| match (before, after) {
            (Some(before), Some(after)) if before != after => format!("{before} > {after}"),
            (before, after) => after.or(before).unwrap_or_default(),
        };
        for column in &self.columns {
            table.row([
                column.name.clone(),
                column.psi.map_or_else(String::new, |psi| format!("{psi:.3}")),
                column.verdict(),
                pair(column.absent.map(|share| share.map(figures::percent))),
                pair(column.means.map(|mean| mean.map(figures::metric))),
            ]);
        }
        format!("{}\n{}", facts.render(), table.fitted(output_width(), &["MEAN", "ABSENT"]).render())
    }
}

/// A value before and after.
fn changed([before, after]: [String; 2]) -> String {
    if before == after { before } else { format!("{before}, now {after}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_added_removed_changed_or_the_same() {
        let of = |entries: [(&str, &str); 3]| {
            entries.map(|(address, version)| Entry {
                address: address.into(),
                size: 1,
                version: version.into(),
            })
        };
        let before = of([("a", "1"), ("b", "1"), ("c", "1")]);
        let after = of([("b", "1"), ("c", "2"), ("d", "1")]);
        let wanted =
            Files { added: vec!["d".into()], removed: vec!["a".into()], changed: vec!["c".into()], same: 1 };
        assert_eq!(Files::of([&before, &after]), wanted);
    }
}
