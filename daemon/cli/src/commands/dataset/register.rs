//! `millstream dataset register`: reads files and adds a version.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::anyhow;
use millstream_format::csv::CsvOptions;
use millstream_format::{FileFormat, FormatName};
use millstream_io::storage::{
    Catalog, Column, Division, Listing, Numbers, Object, Reference, Version, is_local,
};
use millstream_tools::divide;
use millstream_tools::inspect::{self, ColumnReport, InspectOptions, Inspected, Report};
use millstream_tools::progress::Progress;
use tokio::runtime::Handle;

use super::{ColumnRecord, division, now_ms, stores_at, user};
use crate::arguments::Register;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::files::{FileWork, Goal, expand_directory};

pub(super) fn run(arguments: &Register, context: &Context) -> Result<(), Failure> {
    let Reference { name, version: None, split: None } = Reference::parse(&arguments.name)? else {
        return Err(Failure::Usage(
            "a version gets its number when it is registered: give a name only".to_owned(),
        ));
    };
    let division = arguments.splits.division()?;
    let patterns: Vec<String> =
        arguments.data.iter().map(|pattern| absolute(pattern)).collect::<Result<_, _>>()?;
    let stores = stores_at(&arguments.place);
    let catalog = Catalog::of(&stores)?;
    let work = FileWork::with(stores, context, "reading")?;
    let objects = work.list(&patterns)?;
    let listing = Listing::of(&objects);
    let goal = Goal { files: Some(objects.len() as u64), rows: None };
    let options = InspectOptions {
        rows: 0,
        statistics: true,
        csv: CsvOptions::default(),
        threads: arguments.threads.count(),
    };
    let (version, is_new) = work.run(goal, |storage, progress| -> Result<_, Failure> {
        let known = storage.runtime.block_on(newest(&catalog, &name))?;
        if let Some(known) = known.filter(|known| is_same(known, &patterns, &listing, division.as_ref())) {
            return Ok((known, false));
        }
        let inspected = inspect::inspect(&objects, &options, &storage.runtime, progress)?;
        let (version, records) = describe(&inspected, arguments)?;
        let counted = division.map(|division| {
            let format = inspected.reports.iter().find_map(|report| report.format);
            let threads = arguments.threads.count();
            count(division, format, objects, threads, (&storage.runtime, progress))
        });
        let division = counted.transpose()?;
        let version = Version { dataset: name, patterns, division, listing: listing.to_text(), ..version };
        let statistics = serde_json::to_vec(&records).map_err(anyhow::Error::from)?;
        Ok((
            storage.runtime.block_on(async {
                let version = catalog.add(version).await?;
                catalog.put_statistics(&version.dataset, version.version, statistics).await?;
                Ok::<_, millstream_io::Error>(version)
            })?,
            true,
        ))
    })?;
    context.answer(&version, || {
        let reference = version.reference();
        if !is_new {
            return format!("{reference} has these files and splits already; nothing is registered\n");
        }
        let files = figures::counted(listing.len() as u64, "file");
        let (rows, bytes) = (figures::counted(version.rows, "row"), figures::bytes(listing.bytes()));
        let splits = version.division.as_ref().map(|it| format!("\n{}", division::table(it).render()));
        format!("registered {reference}: {files}, {rows}, {bytes}\n{}", splits.unwrap_or_default())
    })
}

/// Whether a version has these files and splits.
fn is_same(known: &Version, patterns: &[String], listing: &Listing, division: Option<&Division>) -> bool {
    let has_splits = match (&known.division, division) {
        (Some(known), Some(division)) => known.is_like(division),
        (None, None) => true,
        _ => false,
    };
    has_splits && known.patterns == patterns && known.listing == listing.to_text()
}

/// The division with the number of rows in each split.
fn count(
    mut division: Division,
    format: Option<FileFormat>,
    objects: Vec<Object>,
    threads: usize,
    work: (&Handle, &Progress),
) -> Result<Division, Failure> {
    let format = match format {
        Some(FileFormat::Parquet) => FormatName::Parquet,
        Some(FileFormat::TfRecord) => FormatName::TfRecord,
        Some(FileFormat::JsonLines) => FormatName::JsonLines,
        Some(FileFormat::WebDataset) => FormatName::WebDataset,
        Some(FileFormat::Mds) => FormatName::Mds,
        Some(FileFormat::Csv | FileFormat::Images) | None => {
            let message =
                "jobs do not read this format, so it has no splits; `millstream convert` writes others";
            return Err(anyhow!("{message}; nothing is registered").into());
        }
    };
    let counts = divide::count(objects, format, &division, threads, work)
        .map_err(|error| anyhow!("{error}; nothing is registered"))?;
    for (split, rows) in division.splits.iter_mut().zip(counts) {
        split.rows = rows;
    }
    Ok(division)
}

/// The newest version, if there is any.
async fn newest(catalog: &Catalog, name: &str) -> Result<Option<Version>, millstream_io::Error> {
    if !catalog.names().await?.iter().any(|known| known == name) {
        return Ok(None);
    }
    let Numbers { versions, .. } = catalog.numbers(name).await?;
    let reference = Reference { name: name.to_owned(), version: versions.last().copied(), split: None };
    catalog.version(&reference).await.map(Some)
}

/// A pattern that means the same from every directory.
fn absolute(pattern: &str) -> Result<String, Failure> {
    if Reference::in_place_of_path(pattern)?.is_some() {
        return Err(Failure::Usage(format!("{pattern}: a dataset is made of paths, not of other datasets")));
    }
    let pattern = expand_directory(pattern);
    if !is_local(&pattern)? {
        return Ok(pattern);
    }
    let path = std::path::absolute(Path::new(&pattern))?;
    let path = path.to_str().ok_or_else(|| anyhow!("the path {} is not UTF-8", path.display()))?;
    Ok(path.to_owned())
}

/// The version without its name, number and files, and the statistics of its columns.
fn describe(inspected: &Inspected, arguments: &Register) -> Result<(Version, Vec<ColumnRecord>), Failure> {
    let Inspected { reports, totals, distributions } = inspected;
    if let Some(damage) = reports.iter().find_map(|report| report.error.as_ref()) {
        return Err(anyhow!("{}; nothing is registered", damage.message).into());
    }
    let mut formats: Vec<&str> =
        reports.iter().filter_map(|report| report.format).map(|format| format.name()).collect();
    formats.sort_unstable();
    formats.dedup();
    if let [one, other, ..] = formats[..] {
        return Err(
            anyhow!("the files have different formats, {one} and {other}; nothing is registered").into()
        );
    }
    let rows = reports.iter().map(|report| report.records).sum();
    let columns = columns(reports);
    let mut records = Vec::with_capacity(totals.len());
    for ((name, summary), distribution) in totals.iter().zip(distributions) {
        let column = columns.iter().find(|column| column.name == *name);
        records.push(ColumnRecord {
            name: name.clone(),
            absent: column.map_or(0, |column| column.absent),
            summary: summary.clone(),
            distribution: distribution.clone(),
        });
    }
    let version = Version {
        dataset: String::new(),
        version: 0,
        registered_ms: now_ms(),
        by: user(),
        description: arguments.description.clone(),
        patterns: Vec::new(),
        format: formats.first().map(ToString::to_string).unwrap_or_default(),
        rows,
        columns,
        division: None,
        listing: String::new(),
    };
    Ok((version, records))
}

/// The columns of all files. A file without a column has no value of it in any row.
fn columns(reports: &[Report]) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut present = Vec::new();
    for report in reports {
        for ColumnReport { name, data_type, multi, absent, .. } in &report.columns {
            let place = *places.entry(name).or_insert_with(|| {
                present.push(0);
                columns.push(Column {
                    name: name.clone(),
                    data_type: data_type.clone(),
                    multi: *multi,
                    absent: 0,
                });
                columns.len() - 1
            });
            let column = &mut columns[place];
            if column.data_type != *data_type
                && !column.data_type.split(" or ").any(|known| known == data_type)
            {
                column.data_type += &format!(" or {data_type}");
            }
            column.multi |= multi;
            present[place] += report.records.saturating_sub(*absent);
        }
    }
    let rows: u64 = reports.iter().map(|report| report.records).sum();
    for (column, present) in columns.iter_mut().zip(present) {
        column.absent = rows.saturating_sub(present);
    }
    columns
}
