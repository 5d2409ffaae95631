//! Describes the contents of files: `millstream inspect`.
//!
//! Reads whole files, to find any damage.

use std::fmt::{self, Write};

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;
use millstream_format::cells::Cells;
use millstream_format::csv::{CsvOptions, numbered_columns};
use millstream_format::{Error as FormatError, FileFormat};
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_pipeline::parallel::{Bounds, Weighed, in_order};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use crate::progress::Progress;
use crate::survey::{Surveyor, file_format};

/// The length of the prefix searched for a CSV file's first line.
const FIRST_LINE_BYTES: u64 = 64 << 10;

/// The length of a shown text or type; longer ones end with `...`. One value may be as long as a file.
const SHOWN_BYTES: usize = 4 << 10;
/// The number of shown elements of a list; longer lists end with `"..."`.
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
    /// The first damage found.
    pub error: Option<DamageReport>,
}

/// The contents of a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ColumnReport {
    /// The name.
    pub name: String,
    /// The type of one value.
    #[serde(rename = "type")]
    pub data_type: String,
    /// Whether a record may have several values.
    pub multi: bool,
    /// Records without a value.
    pub absent: u64,
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
    /// The layout of CSV files.
    pub csv: CsvOptions,
    /// The number of threads. Each reads a file or, if there are fewer files than threads, a row group.
    pub threads: usize,
}

/// Reads all of `objects` and returns a report for each, in order. Blocks, so it must not be called from
/// async code.
///
/// # Errors
/// A file cannot be read at all, or the inspection was cancelled. Damage is part of a report instead.
pub fn inspect(
    objects: &[Object],
    options: &InspectOptions,
    runtime: &Handle,
    progress: &Progress,
) -> Result<Vec<Report>, Error> {
    progress.expect_bytes(objects.iter().map(Object::size).sum());
    let threads = options.threads.max(1);
    let side_by_side = threads.min(objects.len()).max(1);
    let mut reports = Vec::with_capacity(objects.len());
    let mut waiting = objects.iter();
    in_order(
        Bounds { threads: side_by_side, bytes: usize::MAX },
        || Ok(waiting.next().map(|item| Weighed { item, bytes: 0 })),
        |object| {
            let surveyor = Surveyor {
                csv: &options.csv,
                rows: options.rows,
                threads: threads / side_by_side,
                runtime,
                progress,
            };
            let report = report(object, surveyor)?;
            progress.add_file();
            Ok(report)
        },
        |report| {
            reports.push(report);
            Ok(())
        },
    )?;
    Ok(reports)
}

fn report(object: &Object, surveyor: Surveyor<'_>) -> Result<Report, Error> {
    let mut report = Report {
        path: object.path().to_string(),
        format: None,
        compression: "none".to_owned(),
        bytes: object.size(),
        records: 0,
        columns: Vec::new(),
        rows: Vec::new(),
        error: None,
    };
    let runtime = surveyor.runtime;
    let format = match file_format(object, runtime) {
        Ok(format) => format,
        Err(error @ Error::Format(FormatError::WrongFormat { .. })) => {
            report.error = Some(DamageReport::of(&error));
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    let mut numbered = surveyor.csv.clone();
    if format == FileFormat::Csv && numbered.columns.is_none() {
        let start = runtime.block_on(object.read(0..object.size().min(FIRST_LINE_BYTES)))?;
        numbered.columns = numbered_columns(&start, &numbered);
    }
    let survey = Surveyor { csv: &numbered, ..surveyor }.survey(object, format)?;
    report.format = Some(format);
    report.compression = survey.compression;
    report.records = survey.records;
    report.rows = survey.rows.iter().flat_map(json_rows).collect();
    report.error = survey.error.as_ref().map(DamageReport::of);
    let columns = survey.columns.into_iter().map(|column| ColumnReport {
        name: column.name,
        data_type: type_name(&column.data_type),
        multi: column.multi,
        absent: column.absent,
    });
    report.columns = columns.collect();
    Ok(report)
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

fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "text".to_owned(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "bytes".to_owned(),
        DataType::Dictionary(_, values) => type_name(values),
        other => Limited::of(format_args!("{other}")).to_lowercase(),
    }
}

/// A text of at most [`SHOWN_BYTES`].
#[derive(Default)]
struct Limited {
    text: String,
    is_cut: bool,
}

impl Limited {
    /// Formats at most the shown part of `arguments`.
    fn of(arguments: fmt::Arguments<'_>) -> String {
        let mut limited = Self::default();
        // An error ends formatting where the text is cut.
        let _ = limited.write_fmt(arguments);
        limited.text
    }
}

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = SHOWN_BYTES - self.text.len().min(SHOWN_BYTES);
        if self.is_cut || text.len() > room {
            let end = if self.is_cut { 0 } else { text.floor_char_boundary(room) };
            self.text.push_str(&text[..end]);
            self.text.push_str(if self.is_cut { "" } else { "..." });
            self.is_cut = true;
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

fn json_rows(batch: &RecordBatch) -> Vec<Map<String, Value>> {
    let schema = batch.schema();
    let columns: Vec<Option<Cells>> = batch.columns().iter().map(Cells::of).collect();
    (0..batch.num_rows())
        .map(|row| {
            let cell = |column: usize| match &columns[column] {
                Some(cells) => json_cell(cells, row),
                None => Value::String(shown(batch.column(column), row)),
            };
            schema
                .fields()
                .iter()
                .enumerate()
                .map(|(column, field)| (field.name().clone(), cell(column)))
                .collect()
        })
        .collect()
}

fn json_cell(cells: &Cells, row: usize) -> Value {
    if !cells.is_present(row) {
        return Value::Null;
    }
    match cells {
        Cells::Int(values) => values.value(row).into(),
        // The shortest digits that identify this f32, instead of those of the nearest f64.
        Cells::Float(values) => values.value(row).to_string().parse::<f64>().map_or(Value::Null, number),
        Cells::Double(values) => number(values.value(row)),
        Cells::Bytes(values) => match std::str::from_utf8(values.value(row)) {
            Ok(text) => Limited::of(format_args!("{text}")).into(),
            Err(_) => Limited::of(format_args!("{}", values.value(row).escape_ascii())).into(),
        },
        Cells::List(values, ends, _) => {
            let shown = ends[row + 1].min(ends[row].saturating_add(SHOWN_ELEMENTS));
            let rest = (shown < ends[row + 1]).then(|| "...".into());
            (ends[row]..shown).map(|at| json_cell(values, at)).chain(rest).collect()
        }
        Cells::Absent => Value::Null,
    }
}

/// A JSON number, or text for a non-finite value, which JSON cannot represent.
fn number(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number)
}

/// A value of a type that only Parquet has, as Arrow's debug output shows it within its brackets.
fn shown(array: &ArrayRef, row: usize) -> String {
    let printed = Limited::of(format_args!("{:?}", array.slice(row, 1)));
    let inside = printed.split_once('[').map_or("", |(_, rest)| rest);
    // A cut text has no end.
    let inside =
        if inside.ends_with("...") { inside } else { inside.rsplit_once(']').map_or("", |(value, _)| value) };
    inside.trim().trim_end_matches(',').to_owned()
}

#[cfg(test)]
#[path = "inspect_tests.rs"]
mod tests;
