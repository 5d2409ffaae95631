//! Describes the contents of files: `millstream inspect`.
//!
//! Reads whole files, to find any damage.

use arrow_array::RecordBatch;
use millstream_format::csv::{CsvOptions, numbered_columns};
use millstream_format::type_name::TypeName;
use millstream_format::{Error as FormatError, FileFormat};
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_pipeline::parallel::{Bounds, Weighed, in_order};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use crate::detect::{Detected, detect};
use crate::images::ImageFolder;
use crate::progress::Progress;
use crate::stats::{ColumnStatistics, ColumnSummary, Distribution};
use crate::survey::{Survey, Surveyor};
use crate::values::{JsonColumn, Limited, Room};

/// The bytes of texts that a shown value or type holds; longer ones end with `...`. One value may be as long as a file.
const SHOWN_BYTES: usize = 4 << 10;
/// The number of elements that a shown value holds; longer lists end with `"..."`.
const SHOWN_ELEMENTS: usize = 1000;

/// The contents of a file.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The path of the file.
    pub path: String,
    /// The format, if it is a supported one.
    pub format: Option<FileFormat>,
    /// The compression of the file, or of the columns of a Parquet file.
    pub compression: String,
    /// The stored size in bytes.
    pub bytes: u64,
    /// The number of readable records.
    pub records: u64,
    /// The columns, in file order; those of Examples, which have no order, by name.
    pub columns: Vec<ColumnReport>,
    /// The first records. Long texts and lists are cut.
    pub rows: Vec<Map<String, Value>>,
    /// What was assumed about the file, such as the separator of its fields.
    pub note: Option<String>,
    /// The first damage found.
    pub error: Option<DamageReport>,
}

/// The contents of a column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColumnReport {
    /// The name.
    pub name: String,
    /// The type of one value, in words.
    #[serde(rename = "type")]
    pub data_type: String,
    /// Whether a record may have several values.
    pub multi: bool,
    /// Records without a value.
    pub absent: u64,
    /// Statistics of the values, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<ColumnSummary>,
}

/// Damage and its location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamageReport {
    /// The error message, including the path of the file.
    pub message: String,
    /// The offset in uncompressed bytes.
    pub offset: Option<u64>,
    /// The record number, from 0.
    pub record: Option<u64>,
}

/// Options of an inspection.
#[derive(Clone, Debug)]
pub struct InspectOptions {
    /// The number of leading records of each file to show.
    pub rows: usize,
    /// Whether to collect statistics of the columns.
    pub statistics: bool,
    /// The layout of CSV files.
    pub csv: CsvOptions,
    /// The number of threads. Each reads a file or, if there are fewer files than threads, a row group.
    pub threads: usize,
}

/// Files with one report.
#[derive(Clone, Copy)]
enum Subject<'a> {
    File(&'a Object),
    Images(&'a ImageFolder<'a>),
}

/// The contents of files.
#[derive(Clone, Debug, Default)]
pub struct Inspected {
    /// One for each file, in order; one for all if they are images.
    pub reports: Vec<Report>,
    /// Statistics of each column over all files, if they were requested, in order of first appearance.
    pub totals: Vec<(String, ColumnSummary)>,
    /// The distributions of the same columns.
    pub distributions: Vec<Distribution>,
}

/// Reads all of `objects` and returns a report for each, in order, or one for all if they are images. Blocks, so it must not
/// be called from async code.
///
/// # Errors
/// A file cannot be read at all, or the inspection was cancelled. Damage is part of a report instead.
pub fn inspect(
    objects: &[Object],
    options: &InspectOptions,
    runtime: &Handle,
    progress: &Progress,
) -> Result<Inspected, Error> {
    progress.expect_bytes(objects.iter().map(Object::size).sum());
    let threads = options.threads.max(1);
    let is_image = |object: &Object| FileFormat::from_name(object.path()) == Some(FileFormat::Images);
    let folder = match objects.iter().all(is_image) {
        true => ImageFolder::of(objects, None)?,
        false => None,
    };
    let subjects: Vec<Subject<'_>> = match &folder {
        Some(folder) => vec![Subject::Images(folder)],
        None => objects.iter().map(Subject::File).collect(),
    };
    let side_by_side = threads.min(subjects.len()).max(1);
    let mut reports = Vec::with_capacity(subjects.len());
    let mut totals: Vec<(String, ColumnStatistics)> = Vec::new();
    let mut waiting = subjects.iter();
    in_order(
        Bounds { threads: side_by_side, bytes: usize::MAX },
        || Ok(waiting.next().map(|item| Weighed { item, bytes: 0 })),
        |subject| {
            let surveyor = Surveyor {
                csv: &options.csv,
                rows: options.rows,
                statistics: options.statistics,
                threads: threads / side_by_side,
                runtime,
                progress,
            };
            let object = match subject {
                Subject::File(object) => object,
                Subject::Images(folder) => return of_images(folder, &surveyor),
            };
            let report = report(object, surveyor)?;
            progress.add_file();
            Ok(report)
        },
        |(report, statistics)| {
            reports.push(report);
            for (name, found) in statistics {
                match totals.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, total)) => total.merge(&found),
                    None => totals.push((name, *found)),
                }
            }
            Ok(())
        },
    )?;
    let distributions = totals.iter().map(|(_, total)| total.distribution()).collect();
    let totals = totals.into_iter().map(|(name, total)| (name, total.summary())).collect();
    Ok(Inspected { reports, totals, distributions })
}

/// The statistics of the columns of a file.
type Statistics = Vec<(String, Box<ColumnStatistics>)>;

fn report(object: &Object, surveyor: Surveyor<'_>) -> Result<(Report, Statistics), Error> {
    let mut report = Report::new(object.path(), object.size());
    let runtime = surveyor.runtime;
    let Detected { format, mut csv, start, note } = match detect(object, surveyor.csv, None, runtime) {
        Ok(detected) => detected,
        Err(error @ Error::Format(FormatError::WrongFormat { .. })) => {
            report.error = Some(DamageReport::of(&error));
            return Ok((report, Vec::new()));
        }
        Err(error) => return Err(error),
    };
    report.note = note;
    if format == FileFormat::Csv && csv.columns.is_none() {
        csv.columns = numbered_columns(&start, &csv);
    }
    let survey = Surveyor { csv: &csv, ..surveyor }.survey(object, format)?;
    Ok(report.with(format, survey))
}

/// The report of a folder of images.
fn of_images(folder: &ImageFolder<'_>, surveyor: &Surveyor<'_>) -> Result<(Report, Statistics), Error> {
    let report = Report { note: Some(folder.note()), ..Report::new(folder.root(), folder.bytes()) };
    Ok(report.with(FileFormat::Images, surveyor.images(folder)?))
}

impl Report {
    /// The report of a file of which nothing is known.
    fn new(path: &str, bytes: u64) -> Self {
        Self {
            path: path.to_owned(),
            format: None,
            compression: "none".to_owned(),
            bytes,
            records: 0,
            columns: Vec::new(),
            rows: Vec::new(),
            note: None,
            error: None,
        }
    }

    /// The report of a surveyed file.
    fn with(self, format: FileFormat, survey: Survey) -> (Self, Statistics) {
        let mut report = self;
        report.format = Some(format);
        report.compression = survey.compression;
        report.records = survey.records;
        report.rows = survey.rows.iter().flat_map(json_rows).collect();
        report.error = survey.error.as_ref().map(DamageReport::of);
        let columns = survey.columns.iter().map(|column| ColumnReport {
            name: column.name.clone(),
            data_type: Limited::of(SHOWN_BYTES, format_args!("{}", TypeName(&column.data_type))),
            multi: column.multi,
            absent: column.absent,
            statistics: column.statistics.as_ref().map(|statistics| statistics.summary()),
        });
        report.columns = columns.collect();
        let named = survey.columns.into_iter().map(|column| (column.name, column.statistics));
        let statistics = named.filter_map(|(name, statistics)| Some((name, statistics?)));
        (report, statistics.collect())
    }
}

impl DamageReport {
    fn of(error: &Error) -> Self {
        let (offset, record) = match error {
            Error::Format(FormatError::Damage { offset, record, .. }) => (Some(*offset), Some(*record)),
            Error::Format(FormatError::BadValue { record, .. }) => (None, Some(*record)),
            _ => (None, None),
        };
        Self { message: error.to_string(), offset, record }
    }
}

/// The first rows as JSON objects.
fn json_rows(batch: &RecordBatch) -> Vec<Map<String, Value>> {
    let schema = batch.schema();
    let columns: Vec<JsonColumn> = batch.columns().iter().map(JsonColumn::of).collect();
    let cell = |column: &JsonColumn, row| {
        column.value(row, &mut Room { bytes: SHOWN_BYTES, elements: SHOWN_ELEMENTS })
    };
    (0..batch.num_rows())
        .map(|row| {
            let fields = schema.fields().iter().zip(&columns);
            fields.map(|(field, column)| (field.name().clone(), cell(column, row))).collect()
        })
        .collect()
}

#[cfg(test)]
#[path = "inspect_tests.rs"]
mod tests;
