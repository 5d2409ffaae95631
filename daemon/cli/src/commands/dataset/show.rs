//! `millstream dataset list`, `show` and `rollback`.

use millstream_io::storage::{Choice, Division, Entry, Reference, Version};
use serde::Serialize;

use super::{Open, division, now_ms, user};
use crate::arguments::{Rollback, ShowDataset};
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::screen::output_width;
use crate::table::Table;

/// Without `--files`, at most this many files are named.
const SHOWN_FILES: usize = 5;

/// A line of `list`.
#[derive(Serialize)]
struct Listed {
    name: String,
    versions: Vec<u32>,
    current: u32,
    files: usize,
    bytes: u64,
    rows: u64,
    /// The names of the splits.
    splits: Vec<String>,
    registered_ms: u64,
    by: String,
}

/// A version, as `show` prints it.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    version: &'a Version,
    is_current: bool,
    files: usize,
    bytes: u64,
}

impl Open {
    pub(super) fn list(&self, context: &Context) -> Result<(), Failure> {
        let listed = self.runtime.block_on(async {
            let mut listed = Vec::new();
            for name in self.catalog.names().await? {
                let numbers = self.catalog.numbers(&name).await?;
                let current = Reference { name: name.clone(), version: Some(numbers.current), split: None };
                let version = self.catalog.version(&current).await?;
                let files = version.files()?;
                listed.push(Listed {
                    name,
                    versions: numbers.versions,
                    current: numbers.current,
                    files: files.len(),
                    bytes: files.bytes(),
                    rows: version.rows,
                    splits: version.division.iter().flat_map(Division::names).map(str::to_owned).collect(),
                    registered_ms: version.registered_ms,
                    by: version.by,
                });
            }
            Ok::<_, millstream_io::Error>(listed)
        })?;
        context.answer(&listed, || {
            if listed.is_empty() {
                return format!("no datasets in {}\n", self.catalog.address());
            }
            let mut table = Table::with_titles(&[
                "NAME",
                ">VERSIONS",
                ">CURRENT",
                ">FILES",
                ">SIZE",
                ">ROWS",
                "SPLITS",
                "REGISTERED",
                "BY",
            ]);
            for dataset in &listed {
                table.row([
                    dataset.name.clone(),
                    dataset.versions.len().to_string(),
                    dataset.current.to_string(),
                    figures::count(dataset.files as u64),
                    figures::bytes(dataset.bytes),
                    figures::count(dataset.rows),
                    dataset.splits.join(", "),
                    figures::moment(dataset.registered_ms),
                    dataset.by.clone(),
                ]);
            }
            table.fitted(output_width(), &["BY", "REGISTERED", "SIZE", "SPLITS"]).render()
        })
    }

    pub(super) fn show(&self, arguments: &ShowDataset, context: &Context) -> Result<(), Failure> {
        let version = self.version(&arguments.dataset)?;
        let numbers = self.runtime.block_on(self.catalog.numbers(&version.dataset))?;
        let files = version.files()?;
        let is_current = numbers.current == version.version;
        let shown = Shown { version: &version, is_current, files: files.len(), bytes: files.bytes() };
        context.answer(&shown, || {
            let mut facts = Table::default();
            let mut current = match is_current {
                true => ", the current version".to_owned(),
                false => format!("; version {} is current", numbers.current),
            };
            if let Some(Choice { by, chosen_ms, .. }) = &numbers.choice {
                current += &format!(", chosen {} by {by}", figures::moment(*chosen_ms));
            }
            facts.row(["dataset".to_owned(), format!("{}{current}", version.reference())]);
            facts.row([
                "registered".to_owned(),
                format!("{} by {}", figures::moment(version.registered_ms), version.by),
            ]);
            if !version.description.is_empty() {
                facts.row(["description", &version.description]);
            }
            version.patterns.iter().for_each(|pattern| facts.row(["from", pattern]));
            facts.row(["format", &version.format]);
            facts.row(["rows".to_owned(), figures::count(version.rows)]);
            let (count, bytes) =
                (figures::counted(files.len() as u64, "file"), figures::bytes(files.bytes()));
            facts.row(["files".to_owned(), format!("{count}, {bytes}; SHA-256 {}", &files.hash()[..12])]);
            let splits = version.division.as_ref().map(|splits| {
                facts.row(["splits".to_owned(), division::rule(splits)]);
                format!("{}\n", division::table(splits).render())
            });
            let mut columns = Table::with_titles(&["COLUMN", "TYPE", ">ABSENT"]);
            for column in &version.columns {
                let list = if column.multi { "list of " } else { "" };
                columns.row([
                    column.name.clone(),
                    format!("{list}{}", column.data_type),
                    figures::count(column.absent),
                ]);
            }
            let most = if arguments.files { usize::MAX } else { SHOWN_FILES };
            let files = files_table(files.entries(), most);
            format!("{}\n{}{}\n{files}", facts.render(), splits.unwrap_or_default(), columns.render())
        })
    }

    pub(super) fn roll_back(&self, arguments: &Rollback, context: &Context) -> Result<(), Failure> {
        let reference = Reference::parse_whole(&arguments.dataset)?;
        let Some(number) = reference.version else {
            return Err(Failure::Usage(format!("give the version too, such as {}/1", reference.name)));
        };
        let version = self.version(&arguments.dataset)?;
        let before = self.runtime.block_on(async {
            let before = self.catalog.numbers(&reference.name).await?.current;
            self.catalog.choose(&reference.name, number, &user(), now_ms()).await?;
            Ok::<_, millstream_io::Error>(before)
        })?;
        context.answer(&version, || {
            format!("the current version of {} is {number}, was {before}; new jobs read it\n", reference.name)
        })
    }

    /// The version that `text` names.
    pub(super) fn version(&self, text: &str) -> Result<Version, Failure> {
        let reference = Reference::parse_whole(text)?;
        Ok(self.runtime.block_on(self.catalog.version(&reference))?)
    }
}

/// The first files.
pub(super) fn files_table(files: &[Entry], most: usize) -> String {
    let mut table = Table::with_titles(&["FILE", ">SIZE", "VERSION"]);
    for Entry { address, size, version } in files.iter().take(most) {
        table.row([address.clone(), figures::bytes(*size), version.clone()]);
    }
    let more = files.len().saturating_sub(most);
    let rest = if more > 0 {
        format!("and {}; --files names all\n", figures::counted(more as u64, "more file"))
    } else {
        String::new()
    };
    table.fitted(output_width(), &["VERSION", "SIZE"]).render() + &rest
}
