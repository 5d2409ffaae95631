//! Rows of CSV and JSON lines as a source for scoring.
//!
//! The model determines the type of a column, not the values in the file, so that a row has the same score whatever
//! else the file contains. A value is built in the type that the column had in the training data ([`StoredType`]), and
//! as text if that is unknown: features read numbers from text too. It then means what it meant in training.
//!
//! Each file is one split, read as a stream in chunks of bounded size.

mod reader;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use millstream_format::csv::CsvOptions;
use millstream_format::filter::{ResolvedFilter, RowFilter};
use millstream_format::{Error as FormatError, FileFormat, ProjectedColumn};
use millstream_io::ReadContext;
use millstream_io::fetch::FetchedBytes;
use millstream_io::limits::ReadLimits;
use millstream_io::permits::Permit;
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_pipeline::analysis::StoredType;
use millstream_pipeline::dataset::Absent;
use millstream_pipeline::ingest::{ChunkSource, Counters, Elastic, KeptColumns, KeptRows, Opened};
use millstream_pipeline::spec::OnBadRecord;
use millstream_pipeline::transform::Transform;
use tokio::runtime::Handle;

use crate::detect::detect;
use crate::text::{TextRows, TextRules};
use crate::typed::list_of;

use reader::Reader;

/// The memory of a reader besides fetched bytes: the decompressor's window and output, and the chunk under construction
/// with its unused capacity.
const HELD_BYTES: u64 = 6 << 20;
/// The number of first records in which a key of JSON lines must occur at least once; otherwise it counts as missing.
const CHECKED_RECORDS: usize = 4096;
/// Marks a kept column of JSON texts, in the metadata of its field.
pub(crate) const IS_JSON: &str = "millstream.json";

/// Files of CSV or JSON lines.
#[derive(Clone, Debug)]
pub struct TextFiles {
    objects: Vec<Object>,
    csv: CsvOptions,
    rules: TextRules,
    runtime: Handle,
    /// The columns of the first file, in the order of its first records.
    columns: Vec<String>,
    /// Whether the first file lists all its columns.
    has_header: bool,
}

/// What is read of text files, and how.
pub struct TextSpec<'a> {
    /// The features.
    pub transform: Arc<Transform>,
    /// The rows to read.
    pub filter: &'a RowFilter,
    /// The types of the training data's columns, as far as known.
    pub stored_types: &'a BTreeMap<String, StoredType>,
    /// What to do about unusable rows.
    pub on_bad_record: OnBadRecord,
    /// Which columns JSON lines may lack.
    pub absent: Absent<'a>,
    /// Columns to pass on as they are written, and the receiver.
    pub kept: Option<(&'a [String], Arc<KeptRows>)>,
}

/// The rows of text files, transformed.
pub struct TextSource {
    shared: Arc<Shared>,
    limits: Arc<ReadLimits>,
}

/// What all readers share.
struct Shared {
    files: TextFiles,
    transform: Arc<Transform>,
    filter: ResolvedFilter,
    on_bad_record: OnBadRecord,
    /// The columns of a chunk: those of the transform, those to keep, then those that only the filter reads.
    columns: Vec<Column>,
    schema: Arc<Schema>,
    kept: Option<KeptColumns>,
}

/// A column of a chunk.
struct Column {
    /// Its name in the file.
    name: String,
    /// Whether it is passed on as written, instead of built in a type.
    is_kept: bool,
    /// The type of its values.
    value: DataType,
    is_list: bool,
    /// The given separator of list elements.
    separator: Option<String>,
}

impl TextFiles {
    /// Opens the first of these files. `None` if it is neither CSV nor JSON lines by its name and content.
    /// `separators` has those of list elements, for columns in which it is not `|`. Blocks, so it must not be called
    /// from async code.
    ///
    /// # Errors
    /// The file cannot be read, or has an unknown format.
    pub fn detect(
        objects: &[Object],
        csv: CsvOptions,
        separators: BTreeMap<String, String>,
        runtime: &Handle,
    ) -> Result<Option<Self>, Error> {
        let Some(first) = objects.first() else { return Ok(None) };
        let is_binary = |format| matches!(format, FileFormat::Parquet | FileFormat::TfRecord);
        if FileFormat::from_name(first.path()).is_some_and(is_binary)
            || is_binary(detect(first, &csv, None, runtime)?.format)
        {
            return Ok(None);
        }
        let rules = TextRules { separators, ..TextRules::default() };
        let (objects, runtime) = (objects.to_vec(), runtime.clone());
        let mut files = Self { objects, csv, rules, runtime, columns: Vec::new(), has_header: true };
        files.examine()?;
        Ok(Some(files))
    }

    /// The columns of the first file; of JSON lines, those of its first records.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Learns the columns of the first file.
    fn examine(&mut self) -> Result<(), Error> {
        let limits = Arc::default();
        let mut rows = self.open(0, &limits, &Permit::default())?;
        self.has_header = !rows.is_json();
        let mut records = 0;
        while rows.is_json() && records < CHECKED_RECORDS {
            match rows.advance() {
                Ok(true) => records += 1,
                Ok(false) => break,
                // Bad records are handled when the file is read for its rows.
                Err(error) if error.is_bad_record() && rows.can_continue() => records += 1,
                Err(error) if error.is_bad_record() => break,
                Err(error) => return Err(error),
            }
        }
        self.columns = rows.columns().to_vec();
        Ok(())
    }

    fn open(&self, file: usize, limits: &Arc<ReadLimits>, permit: &Permit) -> Result<TextRows, Error> {
        let object = &self.objects[file];
        let detected = detect(object, &self.csv, None, &self.runtime)?;
        if !matches!(detected.format, FileFormat::Csv | FileFormat::JsonLines) {
            return Err(Error::Format(FormatError::WrongFormat {
                path: object.path().to_string(),
                expected: format!("CSV or JSON lines, as {} is", self.objects[0].path()),
                found: detected.format.name().to_owned(),
            }));
        }
        let context = ReadContext { runtime: self.runtime.clone(), permit: permit.clone() };
        let bytes = FetchedBytes::start(object.clone(), limits, &context);
        TextRows::of(object, bytes, detected.format, &detected.csv, &self.rules)
    }
}

impl TextSource {
    /// The rows of `files`.
    ///
    /// # Errors
    /// The first file lacks a column that is read.
    pub fn new(files: TextFiles, spec: TextSpec<'_>) -> Result<Self, Error> {
        let features = spec.transform.projection();
        let mut projection = features.clone();
        let (kept, receiver) = spec.kept.unzip();
        let kept = kept.unwrap_or_default();
        // The filter finds its columns by name, and must not find those to keep, which are not typed.
        let hidden = |name: &String| ProjectedColumn { name: format!("\0{name}"), multi: false };
        projection.columns.extend(kept.iter().map(hidden));
        let (extended, filter) = ResolvedFilter::new(spec.filter, &projection);
        let first_kept = features.columns.len();
        let is_kept = |place: usize| (first_kept..first_kept + kept.len()).contains(&place);
        let columns: Vec<Column> = (extended.columns.iter().enumerate())
            .map(|(place, column)| {
                let name = column.name.trim_start_matches('\0').to_owned();
                let stored = spec.stored_types.get(&name).filter(|_| !is_kept(place));
                let value = stored.map_or(DataType::Utf8, |stored| stored.data_type());
                let separator = files.rules.separators.get(&name).cloned();
                Column { name, is_kept: is_kept(place), value, is_list: column.multi, separator }
            })
            .collect();
        let schema =
            Arc::new(Schema::new(columns.iter().map(|column| column.field(&files)).collect::<Vec<_>>()));
        let names = kept.iter().enumerate().map(|(at, name)| (first_kept + at, name.clone())).collect();
        let kept = receiver.map(|rows| KeptColumns { rows, columns: names, are_lists: false });
        let shared = Shared {
            files,
            transform: spec.transform,
            filter,
            on_bad_record: spec.on_bad_record,
            columns,
            schema,
            kept,
        };
        shared.check(spec.absent)?;
        Ok(Self { shared: Arc::new(shared), limits: Arc::default() })
    }

    fn largest(&self) -> u64 {
        self.shared.files.objects.iter().map(Object::size).max().unwrap_or(0)
    }
}

impl ChunkSource for TextSource {
    fn splits(&self) -> u32 {
        u32::try_from(self.shared.files.objects.len()).unwrap_or(u32::MAX)
    }

    fn cuts(&self) -> u64 {
        0
    }

    fn lane_bytes(&self, chunk_rows: usize) -> u64 {
        let fetched = ReadLimits::MIN_OBJECT_BYTES.min(self.largest());
        HELD_BYTES + 2 * fetched + self.shared.transform.column_bytes(chunk_rows)
    }

    fn elastic(&self) -> Option<Elastic<'_>> {
        Some(Elastic { limits: &self.limits, most_object_bytes: self.largest() })
    }

    fn open(&self, split: u32, _: u64, permit: &Permit, counters: &Arc<Counters>) -> Result<Opened, Error> {
        let reader = Reader::new(Arc::clone(&self.shared), &self.limits, permit, counters, split);
        Ok(Opened { reader: Box::new(reader), passed: 0 })
    }
}

impl Shared {
    /// Checks the columns of the first file. A file with a header has all columns; keys of JSON may be absent as the
    /// features of TFRecord may.
    fn check(&self, absent: Absent<'_>) -> Result<(), Error> {
        let Some(first) = self.files.objects.first() else { return Ok(()) };
        if self.files.has_header {
            return self.check_header(first, &self.files.columns);
        }
        let is_present = |column: &&Column| self.files.columns.contains(&column.name);
        let typed = || self.columns.iter().filter(|column| !column.is_kept);
        let mut missing = typed().filter(|column| !is_present(column));
        let rejected = match absent {
            Absent::Rejected => missing.next(),
            // Of other data, no column is known.
            Absent::AllowedExcept(_) if !typed().any(|column| is_present(&column)) => missing.next(),
            Absent::AllowedExcept(needed) => missing.find(|column| needed.contains(&column.name.as_str())),
        };
        // A column that is only passed on was named on purpose.
        let kept = || self.columns.iter().find(|column| column.is_kept && !is_present(column));
        match rejected.or_else(kept) {
            Some(column) => Err(missing_column(first, column, &self.files.columns)),
            None => Ok(()),
        }
    }

    fn check_header(&self, object: &Object, header: &[String]) -> Result<(), Error> {
        let missing = self.columns.iter().find(|column| !header.contains(&column.name));
        missing.map_or(Ok(()), |column| Err(missing_column(object, column, header)))
    }
}

fn missing_column(object: &Object, column: &Column, present: &[String]) -> Error {
    FormatError::missing_column(object.path(), &column.name, present.iter().map(String::as_str)).into()
}

impl Column {
    fn data_type(&self) -> DataType {
        if self.is_list { list_of(self.value.clone()) } else { self.value.clone() }
    }

    fn field(&self, files: &TextFiles) -> Field {
        let field = Field::new(&self.name, self.data_type(), true);
        let is_json = self.is_kept && !files.has_header;
        if is_json { field.with_metadata([(IS_JSON.to_owned(), String::new())]) } else { field }
    }
}
