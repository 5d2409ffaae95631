//! Reads one file in chunks.
//!
//! A row with an unusable value gets absent values at first, and is removed when its chunk is complete: columns are
//! built value by value, and cannot take a value back.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use millstream_format::{Error as FormatError, RawChunk};
use millstream_io::limits::ReadLimits;
use millstream_io::permits::Permit;
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::chunk::Chunk;
use millstream_pipeline::ingest::{ChunkReader, Counters, SkippedRecords};
use millstream_pipeline::transform::Scratch;
use serde_json::Value;

use super::{Column, Shared, TextFiles};
use crate::text::TextRows;
use crate::typed::{ColumnBuilder, Raw, Reading};

/// The size of the values at which a chunk ends.
const CHUNK_BYTES: usize = 1 << 20;
/// Separates the elements of a list in a field of CSV.
const SEPARATOR: &str = "|";

/// Reads one file.
pub(super) struct Reader {
    shared: Arc<Shared>,
    limits: Arc<ReadLimits>,
    permit: Permit,
    counters: Arc<Counters>,
    split: u32,
    /// `None` before the first chunk.
    file: Option<OpenFile>,
    /// The number of the next record.
    record: u64,
    scratch: Scratch,
    bad: BadRecords,
    truncated_rows: u64,
}

/// The column of an unusable value, and the problem.
type Fault = (usize, String);

struct OpenFile {
    rows: TextRows,
    is_json: bool,
    /// The columns of chunks that each column of the file fills: typed, and as written.
    places: Vec<(Option<usize>, Option<usize>)>,
}

impl ChunkReader for Reader {
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error> {
        while let Some(raw) = self.read(max_rows)? {
            let shared = Arc::clone(&self.shared);
            let Some(raw) = shared.filter.apply(&raw, |error| self.bad.skip(error.into()))? else { continue };
            let transform = || shared.transform.apply_with(&mut self.scratch, &raw, &self.bad);
            let transformed = self.counters.transform.time(transform)?;
            if let Some(kept) = &shared.kept {
                kept.add(self.split, &raw, transformed.usable.as_deref())?;
            }
            self.truncated_rows += transformed.truncated_rows;
            if transformed.chunk.rows() > 0 {
                return Ok(Some(transformed.chunk));
            }
        }
        if let Some(kept) = &self.shared.kept {
            kept.end(self.split);
        }
        Ok(None)
    }

    fn truncated_rows(&self) -> u64 {
        self.truncated_rows
    }

    fn left_out(&mut self) -> SkippedRecords {
        SkippedRecords { records: self.bad.skipped(), last: self.bad.take_last() }
    }
}

impl Reader {
    /// Reads file number `split`.
    pub(super) fn new(
        shared: Arc<Shared>,
        limits: &Arc<ReadLimits>,
        permit: &Permit,
        counters: &Arc<Counters>,
        split: u32,
    ) -> Self {
        let bad = BadRecords::new(shared.on_bad_record);
        Self {
            shared,
            limits: Arc::clone(limits),
            permit: permit.clone(),
            counters: Arc::clone(counters),
            split,
            file: None,
            record: 0,
            scratch: Scratch::default(),
            bad,
            truncated_rows: 0,
        }
    }

    /// Reads the next rows; `None` at the end.
    fn read(&mut self, max_rows: usize) -> Result<Option<RawChunk>, Error> {
        if self.file.is_none() {
            self.file = Some(self.open()?);
        }
        let shared = Arc::clone(&self.shared);
        let Some(file) = &mut self.file else { return Ok(None) };
        let mut builders: Vec<Builder> =
            shared.columns.iter().map(|column| column.builder(&shared.files, file.is_json)).collect();
        let (mut numbers, mut lines, mut is_good) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        while lines.len() < max_rows.max(1) && bytes < CHUNK_BYTES {
            match file.rows.advance() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.is_bad_record() && file.rows.can_continue() => {
                    self.record += 1;
                    self.bad.skip(error)?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            bytes += file.row_bytes();
            let fault = file.fill(&shared, &mut builders, lines.len());
            is_good.push(fault.is_none());
            numbers.push(self.record);
            lines.push(file.rows.line());
            if let Some(fault) = fault {
                self.bad.skip(file.bad_value(
                    fault,
                    &shared.files.objects[self.split as usize],
                    self.record,
                ))?;
            }
            self.record += 1;
        }
        if lines.is_empty() {
            return Ok(None);
        }
        let path = shared.files.objects[self.split as usize].path().clone();
        let invalid = |error| Error::Invalid(format!("{path}: {error}"));
        let arrays = builders.iter_mut().map(Builder::finish).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(lines.len()));
        let schema = Arc::clone(&shared.schema);
        let columns = RecordBatch::try_new_with_options(schema, arrays, &options).map_err(invalid)?;
        let all: Vec<usize> = (0..columns.num_columns()).collect();
        let rows = RawChunk::of_records(path, columns, numbers).at_lines(lines);
        Ok(Some(if is_good.contains(&false) { rows.retain(&is_good, &all)? } else { rows }))
    }

    fn open(&self) -> Result<OpenFile, Error> {
        let Shared { files, .. } = &*self.shared;
        let rows = files.open(self.split as usize, &self.limits, &self.permit)?;
        let is_json = rows.is_json();
        if !is_json {
            self.shared.check_header(&files.objects[self.split as usize], rows.columns())?;
        }
        Ok(OpenFile { rows, is_json, places: Vec::new() })
    }
}

impl OpenFile {
    /// The approximate size of the current row in memory.
    fn row_bytes(&self) -> usize {
        let mut bytes = 0;
        self.rows.each_written(|_, raw| bytes += raw.bytes());
        bytes
    }

    /// Appends the current row to `builders`, which hold `row` rows. Returns the first unusable value.
    fn fill(&mut self, shared: &Shared, builders: &mut [Builder], row: usize) -> Option<Fault> {
        for name in &self.rows.columns()[self.places.len()..] {
            let place = |is_kept: bool| {
                let is_it = |column: &Column| column.is_kept == is_kept && column.name == *name;
                shared.columns.iter().position(is_it)
            };
            self.places.push((place(false), place(true)));
        }
        let mut fault: Option<Fault> = None;
        self.rows.each_written(|column, raw| {
            let (typed, kept) = self.places[column];
            if let Some(typed) = typed.filter(|_| self.rows.is_present(raw)) {
                let appended = builders[typed].append(raw, shared.columns[typed].is_list);
                if let Err(message) = appended {
                    fault.get_or_insert((column, message));
                }
            }
            if let Some(kept) = kept {
                let appended = builders[kept].append(raw, false);
                appended.unwrap_or_else(|message| {
                    fault.get_or_insert((column, message));
                });
            }
        });
        builders.iter_mut().for_each(|builder| builder.pad(row + 1));
        fault
    }

    /// The error of an unusable value of the current row, which is record number `record` of `object`.
    fn bad_value(&self, (column, message): Fault, object: &Object, record: u64) -> Error {
        Error::Format(FormatError::BadValue {
            path: object.path().to_string(),
            record,
            column: self.rows.columns()[column].clone(),
            message: format!("line {}: {message}", self.rows.line()),
        })
    }
}

/// Builds a column of a chunk.
enum Builder {
    Typed(ColumnBuilder),
    /// Fields as written.
    Text(StringBuilder),
    /// JSON texts.
    Json(StringBuilder),
}

impl Column {
    fn builder(&self, files: &TextFiles, is_json: bool) -> Builder {
        if self.is_kept {
            let builder = StringBuilder::new();
            return if files.has_header { Builder::Text(builder) } else { Builder::Json(builder) };
        }
        // JSON has lists; in CSV they are texts.
        let by_default = (self.is_list && !is_json).then(|| SEPARATOR.to_owned());
        let separator = self.separator.clone().filter(|_| self.is_list).or(by_default);
        Builder::Typed(ColumnBuilder::new(&self.data_type(), Reading { pattern: None, separator }))
    }
}

impl Builder {
    /// Appends a value; a list only to a list column.
    fn append(&mut self, raw: Raw<'_>, is_list: bool) -> Result<(), String> {
        match (self, raw) {
            (Self::Typed(builder), Raw::Json(Value::Array(elements))) if !is_list => {
                match elements.as_slice() {
                    [] => builder.append(None),
                    [single] => builder.append(Some(Raw::Json(single)).filter(|_| !single.is_null())),
                    several => Err(format!(
                        "expected one value, found {}; set `multi = true` in the feature, with `maximum`",
                        several.len()
                    )),
                }
            }
            (Self::Typed(builder), raw) => builder.append(Some(raw)),
            (Self::Text(texts), raw) => {
                texts.append_option(text_of(raw));
                Ok(())
            }
            (Self::Json(texts), raw) => {
                texts.append_option(json_of(raw));
                Ok(())
            }
        }
    }

    /// Appends absent values until there are `rows`.
    fn pad(&mut self, rows: usize) {
        match self {
            Self::Typed(builder) => {
                // An absent value suits every type.
                while builder.len() < rows && builder.append(None).is_ok() {}
            }
            Self::Text(texts) | Self::Json(texts) => {
                texts.append_nulls(rows.saturating_sub(texts.len()));
            }
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Typed(builder) => builder.finish(),
            Self::Text(texts) | Self::Json(texts) => Arc::new(texts.finish()),
        }
    }
}

/// A value as text.
fn text_of(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    match raw {
        Raw::Text([]) | Raw::Json(Value::Null) => None,
        Raw::Text(field) => Some(String::from_utf8_lossy(field)),
        Raw::Json(Value::String(text)) => Some(text.into()),
        Raw::Json(value) => Some(value.to_string().into()),
    }
}

/// A value as JSON.
fn json_of(raw: Raw<'_>) -> Option<String> {
    match raw {
        Raw::Text(_) => text_of(raw).map(|text| Value::from(text).to_string()),
        Raw::Json(value) => (!value.is_null()).then(|| value.to_string()),
    }
}
