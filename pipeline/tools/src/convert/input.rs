//! Reads all inputs as one stream of rows with the common columns, from any row on, cut into blocks.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{DataType, Field, Schema};
use millstream_format::csv::CsvOptions;
use millstream_format::parquet::WantedRows;
use millstream_format::record::RecordFormat;
use millstream_format::type_name::TypeName;
use millstream_format::{Error as FormatError, FileFormat, ProjectedColumn, Projection, RawChunk};
use millstream_io::fetch::FetchedRanges;
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::parquet::{Decoding, ParquetObject};
use millstream_pipeline::records::{Records, RecordsReader};
use millstream_pipeline::spec::OnBadRecord;
use tokio::runtime::Handle;

use super::schema::OutputColumn;
use super::weight;
use crate::EXTRA_DECODE_BYTES;
use crate::conform::conform;
use crate::images::{COLUMNS, ImageFolder, ImageRows};
use crate::output::{Block, BlockBounds};
use crate::progress::{Progress, Reading};
use crate::text::{TextRows, TextRules};
use crate::typed::{ColumnBuilder, Raw};
use crate::values::{JsonColumn, Room};

/// Rows per chunk.
const CHUNK_ROWS: usize = 4096;
/// The size at which a chunk of CSV ends.
const CHUNK_BYTES: usize = 16 << 20;
/// The memory use of a block during encoding, per byte of its values: the values, the encoded bytes and,
/// briefly, the compressed bytes.
const HELD_PER_BYTE: usize = 3;

/// A surveyed input.
pub(super) struct Source<'a> {
    pub(super) object: &'a Object,
    pub(super) format: FileFormat,
    /// The layout of CSV.
    pub(super) csv: CsvOptions,
    pub(super) rows: u64,
    /// The number of positions at which reading can start independently: row groups.
    pub(super) parts: usize,
}

/// All inputs and the schema of their rows.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) sources: &'a [Source<'a>],
    /// The only source, if the inputs are images.
    pub(super) folder: Option<&'a ImageFolder<'a>>,
    pub(super) schema: &'a Arc<Schema>,
    /// Where the columns of the schema come from.
    pub(super) columns: &'a [OutputColumn],
    pub(super) rules: &'a TextRules,
    pub(super) runtime: &'a Handle,
    pub(super) progress: &'a Progress,
}

/// A stream of rows across the inputs.
pub(super) struct Rows<'a> {
    inputs: Inputs<'a>,
    /// The input after the one being read.
    next: usize,
    /// Rows to skip at the start of the next input.
    skip: u64,
    reader: Option<(InputRows<'a>, Reading<'a>)>,
    /// Rows read but not yet placed in a block.
    left: Option<RawChunk>,
}

impl<'a> Inputs<'a> {
    /// A stream of all rows from row `first` on.
    pub(super) fn rows_from(self, first: u64) -> Result<Rows<'a>, Error> {
        let (mut next, mut skip) = (0, first);
        while let Some(source) = self.sources.get(next).filter(|source| source.rows <= skip) {
            skip -= source.rows;
            next += 1;
        }
        Ok(Rows { inputs: self, next, skip, reader: None, left: None })
    }
}

impl Rows<'_> {
    /// The next block: at most `most_rows` rows within the bytes of `bounds`, but at least one row. Block
    /// boundaries do not depend on how the rows were read.
    pub(super) fn block(
        &mut self,
        most_rows: u64,
        bounds: &BlockBounds,
    ) -> Result<Option<Block<Vec<RawChunk>>>, Error> {
        let forms = &bounds.forms;
        let mut block = Block { item: Vec::new(), rows: 0, bytes: 0 };
        while block.rows < most_rows {
            let Some(chunk) = self.chunk()? else { break };
            let room = usize::try_from(most_rows - block.rows).unwrap_or(usize::MAX).min(chunk.rows());
            let left_bytes = bounds.bytes.saturating_sub(block.bytes);
            let fitting = weight::rows_within(chunk.columns(), room, left_bytes, forms);
            let taken = if block.rows == 0 { fitting.max(1) } else { fitting };
            block.bytes += weight::of_rows(chunk.columns(), taken, forms);
            block.rows += taken as u64;
            if taken > 0 {
                block.item.push(part(&chunk, 0, taken));
            }
            self.left = (taken < chunk.rows()).then(|| part(&chunk, taken, chunk.rows() - taken));
            if taken < room {
                break;
            }
        }
        block.bytes = block.bytes.saturating_mul(HELD_PER_BYTE);
        Ok((block.rows > 0).then_some(block))
    }

    fn chunk(&mut self) -> Result<Option<RawChunk>, Error> {
        if let Some(chunk) = self.left.take() {
            return Ok(Some(chunk));
        }
        loop {
            if let Some((reader, reading)) = &mut self.reader {
                let chunk = reader.next_chunk()?;
                reading.at(reader.bytes_read())?;
                if chunk.is_some() {
                    return Ok(chunk);
                }
                // Each image has been counted.
                if self.inputs.folder.is_none() {
                    self.inputs.progress.add_file();
                }
                self.reader = None;
            }
            let Some(source) = self.inputs.sources.get(self.next) else { return Ok(None) };
            let reader = InputRows::open(source, self.inputs, std::mem::take(&mut self.skip))?;
            self.reader = Some((reader, self.inputs.progress.reading()));
            self.next += 1;
        }
    }
}

/// A range of a chunk's rows, which must be consecutive records.
fn part(chunk: &RawChunk, from: usize, rows: usize) -> RawChunk {
    RawChunk::new(chunk.path().into(), chunk.columns().slice(from, rows), chunk.record(from))
}

/// A reader of one input.
struct InputRows<'a> {
    /// The file of the next row, or of the last image.
    object: &'a Object,
    inputs: Inputs<'a>,
    source: Contents<'a>,
    /// The record number of the next row in its file.
    next: u64,
}

enum Contents<'a> {
    Text(Box<TextRows>),
    Images(Box<ImageRows<'a>>),
    Records(Box<RecordsReader>),
    Parquet(Box<Groups>),
}

/// The row groups of a Parquet file.
struct Groups {
    file: ParquetObject,
    next_group: usize,
    /// Rows to skip at the start of the next group.
    skip: u64,
    reader: Option<Box<Decoding>>,
    bytes: u64,
}

impl<'a> InputRows<'a> {
    fn open(source: &'a Source<'a>, inputs: Inputs<'a>, skip: u64) -> Result<Self, Error> {
        let Inputs { rules, runtime, .. } = inputs;
        let object = source.object;
        if let Some(folder) = inputs.folder {
            let source = Contents::Images(Box::new(folder.rows_from(skip, runtime)));
            return Ok(Self { object, inputs, source, next: skip });
        }
        let contents = match source.format.records() {
            _ if source.format.is_text() => {
                let mut rows = TextRows::open(object, source.format, &source.csv, rules, runtime)?;
                for _ in 0..skip {
                    rows.advance()?;
                }
                Contents::Text(Box::new(rows))
            }
            Some(format) => Self::records(object, format, inputs, skip),
            None => {
                let file = runtime.block_on(ParquetObject::open(object.clone()))?;
                Contents::Parquet(Box::new(Groups::new(file, skip)))
            }
        };
        Ok(Self { object, inputs, source: contents, next: skip })
    }

    fn records(object: &Object, format: RecordFormat, inputs: Inputs<'_>, skip: u64) -> Contents<'a> {
        let Inputs { columns, runtime, .. } = inputs;
        let records = Records::start(object.clone(), format, &Arc::default(), &runtime.into());
        let fatal = BadRecords::new(OnBadRecord::Fail);
        let mut reader = RecordsReader::of(records, &projection(columns), fatal);
        reader.skip_to(skip);
        Contents::Records(Box::new(reader))
    }

    /// The number of bytes read so far.
    fn bytes_read(&self) -> u64 {
        match &self.source {
            Contents::Text(rows) => self.object.size() - rows.remaining(),
            Contents::Images(images) => images.bytes_read(),
            Contents::Records(reader) => reader.records().bytes_read(),
            Contents::Parquet(groups) => groups.bytes,
        }
    }

    /// The next chunk of rows.
    fn next_chunk(&mut self) -> Result<Option<RawChunk>, Error> {
        let arrays = match &mut self.source {
            Contents::Text(_) => self.text_columns()?,
            Contents::Images(images) => images.next_chunk(self.inputs.progress)?.map(|(object, columns)| {
                // Each file is one row.
                (self.object, self.next) = (object, 0);
                let of_source = |column: &OutputColumn| {
                    let place = COLUMNS.iter().position(|(name, _)| *name == column.source);
                    place.map(|place| Arc::clone(&columns[place]))
                };
                let rows = columns.first().map_or(0, Array::len);
                (rows, self.inputs.columns.iter().filter_map(of_source).collect())
            }),
            Contents::Records(reader) => {
                let chunk = reader.next_chunk(CHUNK_ROWS)?;
                chunk.map(|(batch, _)| (batch.num_rows(), batch.columns().to_vec()))
            }
            Contents::Parquet(groups) => {
                groups.columns(self.object, self.inputs.columns, self.inputs.runtime)?
            }
        };
        let Some((rows, arrays)) = arrays else { return Ok(None) };
        let columns = self.conform(rows, arrays)?;
        let chunk = RawChunk::new(self.object.path().clone(), columns, self.next);
        self.next += rows as u64;
        Ok(Some(chunk))
    }

    fn text_columns(&mut self) -> Result<Option<(usize, Vec<ArrayRef>)>, Error> {
        let Contents::Text(file) = &mut self.source else { return Ok(None) };
        let Inputs { schema, columns, .. } = self.inputs;
        let builder = |(field, column): (&Arc<Field>, &OutputColumn)| {
            ColumnBuilder::new(field.data_type(), column.reading.clone())
        };
        let mut builders: Vec<ColumnBuilder> = schema.fields().iter().zip(columns).map(builder).collect();
        // Maps each column of the file to its position in the schema; files may order columns differently, and the
        // columns of JSON appear as they occur.
        let mut places: Vec<Option<usize>> = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        while rows < CHUNK_ROWS && bytes < CHUNK_BYTES && file.advance()? {
            for name in &file.columns()[places.len()..] {
                places.push(columns.iter().position(|column| column.source == *name));
            }
            let mut bad = None;
            file.each(|column, raw| {
                let Some(place) = places[column] else { return };
                bytes += raw.map_or(0, |raw| raw.bytes());
                if let Err(message) = builders[place].append(raw) {
                    bad.get_or_insert((column, message));
                }
            });
            if let Some((column, message)) = bad {
                return Err(file.bad_value(column, &message));
            }
            rows += 1;
            for builder in &mut builders {
                if builder.len() < rows {
                    builder.append(None).map_err(Error::Invalid)?;
                }
            }
        }
        let arrays = builders.iter_mut().map(ColumnBuilder::finish).collect();
        Ok((rows > 0).then_some((rows, arrays)))
    }

    fn conform(&self, rows: usize, arrays: Vec<ArrayRef>) -> Result<RecordBatch, Error> {
        let Inputs { schema, columns, .. } = self.inputs;
        let fields = schema.fields().iter().zip(columns);
        let columns: Vec<ArrayRef> = fields
            .zip(arrays)
            .map(|((field, column), array)| match conform(&array, field.data_type()) {
                Some(array) => Ok(array),
                None if column.is_given => self.convert(&array, field, column),
                None => Err(Error::Format(FormatError::WrongType {
                    path: self.object.path().to_string(),
                    column: column.source.clone(),
                    found: TypeName(array.data_type()).to_string(),
                    expected: TypeName(field.data_type()).to_string(),
                })),
            })
            .collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options)
            .map_err(|error| Error::Invalid(format!("{}: {error}", self.object.path())))
    }

    /// Converts a column to the type that an option gives, by way of the JSON form of its values.
    fn convert(&self, array: &ArrayRef, field: &Field, column: &OutputColumn) -> Result<ArrayRef, Error> {
        let values = JsonColumn::of(array);
        let mut builder = ColumnBuilder::new(field.data_type(), column.reading.clone());
        for row in 0..array.len() {
            let value = values.value(row, &mut Room::unlimited());
            builder.append((!value.is_null()).then_some(Raw::Json(&value))).map_err(|message| {
                Error::Format(FormatError::BadValue {
                    path: self.object.path().to_string(),
                    record: self.next + row as u64,
                    column: column.source.clone(),
                    message,
                })
            })?;
        }
        Ok(builder.finish())
    }
}

impl Groups {
    /// Reads all rows except the first `skip`.
    fn new(file: ParquetObject, mut skip: u64) -> Self {
        let mut next_group = 0;
        while let Some(group) = file.file().groups().get(next_group).filter(|group| group.rows <= skip) {
            skip -= group.rows;
            next_group += 1;
        }
        Self { file, next_group, skip, reader: None, bytes: 0 }
    }

    fn columns(
        &mut self,
        object: &Object,
        columns: &[OutputColumn],
        runtime: &Handle,
    ) -> Result<Option<(usize, Vec<ArrayRef>)>, Error> {
        loop {
            if let Some(open) = &mut self.reader {
                if let Some((batch, _)) = open.next_rows(usize::MAX)? {
                    let by_name = |name: &String| {
                        batch
                            .column_by_name(name)
                            .cloned()
                            .unwrap_or_else(|| new_null_array(&DataType::Null, batch.num_rows()))
                    };
                    let arrays = columns.iter().map(|column| by_name(&column.source)).collect();
                    return Ok(Some((batch.num_rows(), arrays)));
                }
                self.bytes += self.file.file().groups()[self.next_group - 1].bytes;
                self.reader = None;
            }
            if self.next_group == self.file.file().groups().len() {
                return Ok(None);
            }
            let plan = self.file.file().plan_all();
            let ranges = self.file.file().ranges(self.next_group, &plan);
            let fetched = FetchedRanges::start(object.clone(), ranges, &runtime.into()).wait()?;
            let wanted = WantedRows { skip: std::mem::take(&mut self.skip), ..WantedRows::default() };
            let reader = self.file.decode(self.next_group, plan, fetched, wanted, EXTRA_DECODE_BYTES)?;
            self.reader = Some(Box::new(reader));
            self.next_group += 1;
        }
    }
}

fn projection(columns: &[OutputColumn]) -> Projection {
    let column = |column: &OutputColumn| ProjectedColumn { name: column.source.clone(), multi: column.multi };
    Projection { columns: columns.iter().map(column).collect(), ..Projection::default() }
}
