//! Surveys a file's contents by reading it completely: for `inspect`, and to plan `convert`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use arrow_select::concat::concat_batches;
use millstream_format::csv::CsvOptions;
use millstream_format::example::ExampleColumns;
use millstream_format::parquet::WantedRows;
use millstream_format::record::RecordFormat;
use millstream_format::{Error as FormatError, FileFormat};
use millstream_io::fetch::FetchedRanges;
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_pipeline::parallel::{Bounds, Weighed, in_order};
use millstream_pipeline::parquet::ParquetObject;
use millstream_pipeline::records::{self, Records, Step};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::EXTRA_DECODE_BYTES;
use crate::images::{COLUMNS, ImageFolder};
use crate::progress::Progress;
use crate::stats::ColumnStatistics;
use crate::text::{Guess, Skipped, TextRows, TextRules};
use crate::typed::{ColumnBuilder, Raw, list_of};

/// Records per chunk.
const CHUNK_RECORDS: usize = 1024;
/// The bytes of values at which a chunk ends.
const CHUNK_BYTES: usize = 32 << 20;

/// The contents of a file.
#[derive(Default)]
pub(crate) struct Survey {
    pub(crate) compression: String,
    /// The number of readable records.
    pub(crate) records: u64,
    pub(crate) columns: Vec<Surveyed>,
    /// The first records.
    pub(crate) rows: Option<RecordBatch>,
    /// The first damage found.
    pub(crate) error: Option<Error>,
    /// Lines that were skipped.
    pub(crate) skipped: Skipped,
}

/// The contents of a column.
pub(crate) struct Surveyed {
    pub(crate) name: String,
    /// The type of one value.
    pub(crate) data_type: DataType,
    /// Whether some records have several values.
    pub(crate) multi: bool,
    /// Records without a value.
    pub(crate) absent: u64,
    pub(crate) statistics: Option<Box<ColumnStatistics>>,
}

/// Surveys files.
pub(crate) struct Surveyor<'a> {
    pub(crate) csv: &'a CsvOptions,
    /// The number of leading records to keep.
    pub(crate) rows: usize,
    /// Whether to collect statistics of the columns.
    pub(crate) statistics: bool,
    /// The number of threads that a Parquet file's row groups are distributed to.
    pub(crate) threads: usize,
    pub(crate) runtime: &'a Handle,
    pub(crate) progress: &'a Progress,
}

impl Surveyor<'_> {
    /// Surveys a whole file. Damage is part of the survey; `Err` is a storage error or a cancellation.
    pub(crate) fn survey(&self, object: &Object, format: FileFormat) -> Result<Survey, Error> {
        match format.records() {
            _ if format.is_text() => self.text(object, format, &TextRules::default()),
            None if format == FileFormat::Images => {
                match ImageFolder::of(std::slice::from_ref(object), Some(format))? {
                    Some(folder) => self.images(&folder),
                    None => Ok(Survey::default()),
                }
            }
            Some(format) => self.records(object, format),
            None => self.parquet(object),
        }
    }

    /// Surveys a folder of images. Files that are no images are damage.
    pub(crate) fn images(&self, folder: &ImageFolder<'_>) -> Result<Survey, Error> {
        let mut columns: Vec<Surveyed> =
            COLUMNS.iter().map(|(name, found)| Surveyed::of(name, found)).collect();
        let schema = Schema::new(COLUMNS.map(|(name, found)| Field::new(name, found, true)).to_vec());
        let schema = Arc::new(schema);
        let mut survey = Survey { compression: "none".to_owned(), ..Survey::default() };
        // Each chunk is a row.
        let mut first = Vec::new();
        let mut images = folder.rows_from(0, self.runtime).skipping_bad();
        let mut reading = self.progress.reading();
        while let Some((_, arrays)) = images.next_chunk(self.progress)? {
            let chunk = RecordBatch::try_new(Arc::clone(&schema), arrays)
                .map_err(|error| Error::Invalid(format!("{}: {error}", folder.root())))?;
            survey.records += chunk.num_rows() as u64;
            self.progress.add_rows(chunk.num_rows() as u64);
            if self.statistics {
                for (column, array) in columns.iter_mut().zip(chunk.columns()) {
                    column.statistics.get_or_insert_default().add_array(array);
                }
            }
            if first.len() < self.rows {
                first.push(chunk);
            }
            reading.at(images.bytes_read())?;
        }
        survey.rows = concat_batches(&schema, &first).ok();
        survey.error = images.into_first_bad();
        Ok(Survey { columns, ..survey })
    }

    fn records(&self, object: &Object, format: RecordFormat) -> Result<Survey, Error> {
        let mut records = Records::start(object.clone(), format, &Arc::default(), &self.runtime.into());
        let mut columns = ExampleColumns::every();
        let mut features = Features::default();
        let mut rows = None;
        let mut error = None;
        let mut ended = false;
        let mut reading = self.progress.reading();
        while !ended {
            match records.step() {
                Ok(Step::End) => ended = true,
                Ok(Step::Bad { error: bad, ends, .. }) => {
                    ended = ends;
                    error.get_or_insert(bad);
                }
                Ok(Step::Record { number, offset, data }) => {
                    if let Err(why) = columns.push(data) {
                        error.get_or_insert_with(|| {
                            records::fault(object.path(), &columns, why, number, offset)
                        });
                    }
                }
                Err(wrong @ Error::Format(FormatError::WrongFormat { .. })) => {
                    error.get_or_insert(wrong);
                    ended = true;
                }
                Err(other) => return Err(other),
            }
            if ended || columns.rows() >= CHUNK_RECORDS || columns.bytes() >= CHUNK_BYTES {
                let chunk = columns.finish();
                self.progress.add_rows(chunk.num_rows() as u64);
                features.count(&chunk, self.statistics);
                rows.get_or_insert_with(|| chunk.slice(0, chunk.num_rows().min(self.rows)));
                reading.at(records.bytes_read())?;
            }
        }
        let compression = format!("{:?}", records.compression()).to_lowercase();
        let Features { records, columns } = features;
        Ok(Survey {
            compression,
            records,
            columns: sorted(columns, records),
            rows,
            error,
            ..Survey::default()
        })
    }

    fn parquet(&self, object: &Object) -> Result<Survey, Error> {
        let file = match self.runtime.block_on(ParquetObject::open(object.clone())) {
            Ok(file) => file,
            Err(error) => return Survey::failed(error),
        };
        let fields = file.file().schema().fields().iter();
        let mut survey = Survey {
            compression: file.file().codecs(),
            columns: fields.map(|field| Surveyed::of(field.name(), field.data_type())).collect(),
            ..Survey::default()
        };
        let columns = survey.columns.len();
        let mut groups = 0..file.file().groups().len();
        in_order(
            Bounds { threads: self.threads, bytes: usize::MAX },
            || Ok(groups.next().map(|item| Weighed { item, bytes: 0 })),
            |group| {
                let statistics = vec![ColumnStatistics::default(); if self.statistics { columns } else { 0 }];
                let mut found =
                    GroupSurvey { absent: vec![0; columns], statistics, ..GroupSurvey::default() };
                let mut reading = self.progress.reading();
                match self.row_group(&file, group, &mut found) {
                    Err(error) if error.is_bad_record() => found.error = Some(error),
                    read => read?,
                }
                self.progress.add_rows(found.records);
                reading.at(file.file().groups()[group].bytes)?;
                Ok(found)
            },
            |found| {
                survey.records += found.records;
                survey
                    .columns
                    .iter_mut()
                    .zip(found.absent)
                    .for_each(|(column, absent)| column.absent += absent);
                for (column, statistics) in survey.columns.iter_mut().zip(&found.statistics) {
                    column.statistics.get_or_insert_default().merge(statistics);
                }
                survey.rows = survey.rows.take().or(found.rows);
                survey.error = survey.error.take().or(found.error);
                Ok(())
            },
        )?;
        Ok(survey)
    }

    fn row_group(&self, file: &ParquetObject, group: usize, found: &mut GroupSurvey) -> Result<(), Error> {
        let plan = file.file().plan_all();
        let ranges = file.file().ranges(group, &plan);
        let fetched = FetchedRanges::start(file.object().clone(), ranges, &self.runtime.into()).wait()?;
        let mut reader = file.decode(group, plan, fetched, WantedRows::default(), EXTRA_DECODE_BYTES)?;
        while let Some((batch, _)) = reader.next_rows(usize::MAX)? {
            found.records += batch.num_rows() as u64;
            for (absent, array) in found.absent.iter_mut().zip(batch.columns()) {
                *absent += array.logical_null_count() as u64;
            }
            for (statistics, array) in found.statistics.iter_mut().zip(batch.columns()) {
                statistics.add_array(array);
            }
            found.rows.get_or_insert_with(|| batch.slice(0, batch.num_rows().min(self.rows)));
        }
        Ok(())
    }

    /// Surveys a file of a text format, read by `rules`.
    pub(crate) fn text(
        &self,
        object: &Object,
        format: FileFormat,
        rules: &TextRules,
    ) -> Result<Survey, Error> {
        let mut rows = match TextRows::open(object, format, self.csv, rules, self.runtime) {
            Ok(rows) => rows,
            Err(error) => return Survey::failed(error),
        };
        let mut survey = Survey { compression: rows.compression().to_owned(), ..Survey::default() };
        let mut columns: Vec<TextColumn> = Vec::new();
        let mut first = Vec::new();
        let mut reading = self.progress.reading();
        loop {
            match rows.advance() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.is_bad_record() => {
                    survey.error = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            }
            for name in &rows.columns()[columns.len()..] {
                columns.push(TextColumn::of(rules, name, self.statistics));
            }
            let line = rows.line();
            rows.each(|column, raw| {
                let Some(raw) = raw else { return };
                columns[column].include(raw, line);
                if survey.records < self.rows as u64 {
                    first.push((survey.records, column, kept(raw)));
                }
            });
            survey.records += 1;
            if survey.records.is_multiple_of(CHUNK_RECORDS as u64) {
                self.progress.add_rows(CHUNK_RECORDS as u64);
                reading.at(object.size() - rows.remaining())?;
            }
        }
        columns.extend(
            rows.columns()[columns.len()..].iter().map(|name| TextColumn::of(rules, name, self.statistics)),
        );
        let named = rows.columns().iter().zip(columns);
        survey.columns = named.map(|(name, column)| column.surveyed(name, survey.records)).collect();
        survey.rows = survey.first_rows(&first, rules, self.rows);
        survey.skipped = rows.skipped().clone();
        reading.at(object.size())?;
        Ok(survey)
    }
}

/// A column of a text format.
struct TextColumn {
    separator: Option<String>,
    kind: Option<DataType>,
    guess: Guess,
    present: u64,
    statistics: Option<Box<ColumnStatistics>>,
}

impl TextColumn {
    fn of(rules: &TextRules, name: &str, statistics: bool) -> Self {
        Self {
            separator: rules.separators.get(name).cloned(),
            kind: rules.kinds.get(name).map(|kind| kind.data_type().clone()),
            guess: Guess::default(),
            present: 0,
            statistics: statistics.then(Box::default),
        }
    }

    fn include(&mut self, raw: Raw<'_>, line: u64) {
        self.present += 1;
        if let Some(statistics) = &mut self.statistics {
            statistics.add_raw(raw, line);
        }
        self.guess.include(raw, self.separator.as_deref());
    }

    fn surveyed(self, name: &str, records: u64) -> Surveyed {
        Surveyed {
            name: name.to_owned(),
            data_type: self.kind.unwrap_or_else(|| self.guess.data_type()),
            multi: self.guess.is_list,
            absent: records - self.present,
            statistics: self.statistics,
        }
    }
}

/// A value of one of the first rows, kept until the types are known. Bytes that are not text are shown as absent.
fn kept(raw: Raw<'_>) -> Value {
    match raw {
        Raw::Text(field) => std::str::from_utf8(field).map_or(Value::Null, Value::from),
        Raw::Json(value) => value.clone(),
    }
}

/// The contents of a row group.
#[derive(Default)]
struct GroupSurvey {
    records: u64,
    /// The number of absent records, by column.
    absent: Vec<u64>,
    /// By column; empty if they are not collected.
    statistics: Vec<ColumnStatistics>,
    rows: Option<RecordBatch>,
    error: Option<Error>,
}

impl Survey {
    /// The first rows with the types of all. `values` are those that are present, with their rows and columns.
    fn first_rows(
        &self,
        values: &[(u64, usize, Value)],
        rules: &TextRules,
        most: usize,
    ) -> Option<RecordBatch> {
        let rows = self.records.min(most as u64);
        let values: HashMap<_, _> =
            values.iter().map(|(row, column, value)| ((*row, *column), value)).collect();
        let build = |(place, column): (usize, &Surveyed)| {
            let value = column.data_type.clone();
            let data_type = if column.multi { list_of(value) } else { value };
            let mut builder = ColumnBuilder::new(&data_type, rules.reading(&column.name));
            for row in 0..rows {
                let value = values.get(&(row, place)).filter(|value| !value.is_null());
                builder.append(value.map(|value| Raw::Json(value))).ok()?;
            }
            Some((column.name.clone(), builder.finish(), true))
        };
        let columns: Option<Vec<_>> = self.columns.iter().enumerate().map(build).collect();
        RecordBatch::try_from_iter_with_nullable(columns?).ok()
    }

    /// The survey of a file that cannot be opened at all.
    fn failed(error: Error) -> Result<Self, Error> {
        match error {
            Error::Format(
                FormatError::Damage { .. } | FormatError::WrongFormat { .. } | FormatError::Mismatch { .. },
            ) => Ok(Self { compression: "none".to_owned(), error: Some(error), ..Self::default() }),
            other => Err(other),
        }
    }
}

impl Surveyed {
    fn of(name: &str, data_type: &DataType) -> Self {
        let (data_type, multi) = match data_type {
            DataType::List(item) | DataType::LargeList(item) => (item.data_type(), true),
            single => (single, false),
        };
        Self { name: name.to_owned(), data_type: data_type.clone(), multi, absent: 0, statistics: None }
    }
}

/// The features of Examples. Until the end, `absent` counts present records.
#[derive(Default)]
struct Features {
    records: u64,
    columns: Vec<Surveyed>,
}

impl Features {
    fn count(&mut self, chunk: &RecordBatch, statistics: bool) {
        self.records += chunk.num_rows() as u64;
        for (column, (field, array)) in chunk.schema().fields().iter().zip(chunk.columns()).enumerate() {
            if column == self.columns.len() {
                self.columns.push(Surveyed::of(field.name(), &DataType::Null));
            }
            let Some(lists) = array.as_list_opt::<i32>() else { continue };
            let found = &mut self.columns[column];
            if statistics {
                found.statistics.get_or_insert_default().add_array(array);
            }
            for row in 0..lists.len() {
                found.multi |= lists.value_length(row) > 1;
                found.absent += u64::from(lists.is_valid(row) && lists.value_length(row) > 0);
            }
            found.data_type = match lists.values().data_type() {
                DataType::Binary if found.data_type != DataType::Binary && is_text(lists.values()) => {
                    DataType::Utf8
                }
                other => other.clone(),
            };
        }
    }
}

/// Sorts columns by name, because a protobuf map has no order. Converts counts of present records to counts of absent
/// ones.
fn sorted(mut columns: Vec<Surveyed>, records: u64) -> Vec<Surveyed> {
    columns.iter_mut().for_each(|column| column.absent = records - column.absent);
    columns.sort_by(|a, b| a.name.cmp(&b.name));
    columns
}

fn is_text(values: &ArrayRef) -> bool {
    values.as_binary::<i32>().iter().flatten().all(|value| std::str::from_utf8(value).is_ok())
}
