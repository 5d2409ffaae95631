//! One input file as chunks of the common columns.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, RecordBatch, RecordBatchOptions, StringArray, new_null_array};
use arrow_schema::{DataType, Schema};
use tokio::runtime::Handle;

use crate::dataset::{BadRecords, ProjectedColumn, Projection, RawChunk};
use crate::error::Error;
use crate::fetch::FetchedRanges;
use crate::format::FileFormat;
use crate::format::csv::{CsvOptions, FieldBuilder};
use crate::format::parquet::{ParquetFile, RowGroupReader};
use crate::records::RecordsReader;
use crate::spec::OnBadRecord;
use crate::storage::Object;
use crate::survey::{CsvFile, is_present, open_csv};

/// Rows of a chunk.
const CHUNK_ROWS: usize = 4096;
/// A chunk of CSV ends at this many bytes.
const CHUNK_BYTES: usize = 16 << 20;

/// Reads one input.
pub(super) struct InputRows<'a> {
    object: &'a Object,
    schema: &'a Arc<Schema>,
    csv: &'a CsvOptions,
    runtime: &'a Handle,
    source: Source,
    /// The number of the next record.
    next: u64,
}

enum Source {
    Csv(Box<CsvFile>),
    Records(Box<RecordsReader>),
    Parquet { file: Box<ParquetFile>, next_group: usize, reader: Option<Box<RowGroupReader>>, bytes: u64 },
}

impl<'a> InputRows<'a> {
    pub(super) fn open(
        object: &'a Object,
        format: FileFormat,
        schema: &'a Arc<Schema>,
        csv: &'a CsvOptions,
        runtime: &'a Handle,
    ) -> Result<Self, Error> {
        let source = match format {
            FileFormat::Csv => Source::Csv(Box::new(open_csv(object, csv, runtime)?)),
            FileFormat::TfRecord => {
                let projection = projection(schema);
                let fatal = BadRecords::new(OnBadRecord::Fail);
                Source::Records(Box::new(RecordsReader::start(
                    object.clone(),
                    &projection,
                    fatal,
                    &Arc::default(),
                    runtime,
                )))
            }
            FileFormat::Parquet => {
                let file = Box::new(runtime.block_on(ParquetFile::open(object.clone()))?);
                Source::Parquet { file, next_group: 0, reader: None, bytes: 0 }
            }
        };
        Ok(Self { object, schema, csv, runtime, source, next: 0 })
    }

    /// Bytes of the file read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        match &self.source {
            Source::Csv(rows) => self.object.size() - rows.input().source().remaining(),
            Source::Records(reader) => reader.records().bytes_read(),
            Source::Parquet { bytes, .. } => *bytes,
        }
    }

    /// The next rows.
    pub(super) fn next_chunk(&mut self) -> Result<Option<RawChunk>, Error> {
        let arrays = match &mut self.source {
            Source::Csv(_) => self.csv_columns()?,
            Source::Records(reader) => {
                let chunk = reader.next_chunk(CHUNK_ROWS)?;
                chunk.map(|(batch, _)| (batch.num_rows(), batch.columns().to_vec()))
            }
            Source::Parquet { .. } => self.parquet_columns()?,
        };
        let Some((rows, arrays)) = arrays else { return Ok(None) };
        let columns = self.conform(rows, arrays)?;
        let chunk = RawChunk::new(self.object.path().clone(), columns, self.next);
        self.next += rows as u64;
        Ok(Some(chunk))
    }

    fn csv_columns(&mut self) -> Result<Option<(usize, Vec<ArrayRef>)>, Error> {
        let Source::Csv(file) = &mut self.source else { return Ok(None) };
        // Where each of the file's columns goes; files may have them in different orders.
        let places: Vec<usize> = file
            .columns()
            .iter()
            .map(|name| {
                self.schema
                    .index_of(name)
                    .map_err(|_| Error::Changed { path: self.object.path().to_string() })
            })
            .collect::<Result<_, _>>()?;
        let mut builders: Vec<FieldBuilder> =
            self.schema.fields().iter().map(|field| FieldBuilder::new(field.data_type())).collect();
        let (mut rows, mut bytes) = (0, 0);
        while rows < CHUNK_ROWS && bytes < CHUNK_BYTES {
            let Some(fields) = file.next_row()? else { break };
            for (&place, field) in places.iter().zip(fields.iter()) {
                bytes += field.len();
                let value = is_present(field, self.csv).then_some(field);
                builders[place].append(value).map_err(|message| Error::BadValue {
                    path: self.object.path().to_string(),
                    record: self.next + rows as u64,
                    column: self.schema.field(place).name().clone(),
                    message,
                })?;
            }
            rows += 1;
        }
        let arrays = builders.iter_mut().map(FieldBuilder::finish).collect();
        Ok((rows > 0).then_some((rows, arrays)))
    }

    fn parquet_columns(&mut self) -> Result<Option<(usize, Vec<ArrayRef>)>, Error> {
        let Source::Parquet { file, next_group, reader, bytes } = &mut self.source else { return Ok(None) };
        loop {
            if let Some(open) = reader {
                if let Some(batch) = open.next_batch()? {
                    let by_name = |name: &String| {
                        batch
                            .column_by_name(name)
                            .cloned()
                            .unwrap_or_else(|| new_null_array(&DataType::Null, batch.num_rows()))
                    };
                    let arrays = self.schema.fields().iter().map(|field| by_name(field.name())).collect();
                    return Ok(Some((batch.num_rows(), arrays)));
                }
                *bytes += file.groups()[*next_group - 1].bytes;
                *reader = None;
            }
            if *next_group == file.groups().len() {
                return Ok(None);
            }
            let plan = file.plan_all();
            let ranges = file.ranges(*next_group, &plan);
            let fetched = FetchedRanges::start(self.object.clone(), ranges, self.runtime).wait()?;
            *reader = Some(Box::new(file.decode(*next_group, plan, fetched, 0)?));
            *next_group += 1;
        }
    }

    fn conform(&self, rows: usize, arrays: Vec<ArrayRef>) -> Result<RecordBatch, Error> {
        let fields = self.schema.fields().iter();
        let columns: Vec<ArrayRef> = fields
            .zip(arrays)
            .map(|(field, array)| {
                conform(&array, field.data_type()).ok_or_else(|| Error::WrongType {
                    path: self.object.path().to_string(),
                    column: field.name().clone(),
                    found: array.data_type().to_string(),
                    expected: field.data_type().to_string(),
                })
            })
            .collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| Error::Invalid(format!("{}: {error}", self.object.path())))
    }
}

fn projection(schema: &Schema) -> Projection {
    let column = |field: &Arc<arrow_schema::Field>| ProjectedColumn {
        name: field.name().clone(),
        multi: matches!(field.data_type(), DataType::List(_)),
    };
    Projection { columns: schema.fields().iter().map(column).collect() }
}

/// The same values as the common type, where it holds them.
fn conform(array: &ArrayRef, wanted: &DataType) -> Option<ArrayRef> {
    match (array.data_type(), wanted) {
        (found, wanted) if found == wanted => Some(array.clone()),
        (DataType::Null, wanted) => Some(new_null_array(wanted, array.len())),
        (DataType::Binary, DataType::Utf8) => {
            Some(Arc::new(StringArray::try_from_binary(array.as_binary::<i32>().clone()).ok()?))
        }
        (DataType::Utf8, DataType::Binary) => {
            Some(Arc::new(arrow_array::BinaryArray::from(array.as_string::<i32>().clone())))
        }
        (DataType::List(_), DataType::List(item)) => {
            let lists = array.as_list::<i32>();
            let values = conform(lists.values(), item.data_type())?;
            let nulls = lists.nulls().cloned();
            Some(Arc::new(ListArray::try_new(item.clone(), lists.offsets().clone(), values, nulls).ok()?))
        }
        _ => None,
    }
}
