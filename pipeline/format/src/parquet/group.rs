//! Decodes one row group from its fetched bytes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection,
};
use parquet::errors::ParquetError;
use parquet::file::page_index::offset_index::PageLocation;

use super::fetched::FetchedFile;
use super::flat::FlatColumn;
use super::guard::guarded;
use super::pages::Pages;
use super::plan::{Plan, Planned, descend, lists_of_one, schema_of};
use super::{ParquetFile, RowGroup};
use crate::Error;
use crate::filter::Condition;

/// Maximum rows decoded at a time.
const DECODE_ROWS: usize = 8192;
/// Maximum bytes decoded at a time, unless a single row is larger.
const BATCH_BYTES: u64 = 32 << 20;
/// Usual maximum size of a page and of a dictionary.
const PAGE_BYTES: u64 = 1 << 20;

/// Reads all or some rows of one row group.
pub struct RowGroupReader {
    path: Arc<str>,
    columns: Columns,
    group: RowGroup,
    /// Maximum rows decoded at a time.
    batch_rows: usize,
    /// Ranges of rows still to be read, next range first.
    rows: VecDeque<Range<u64>>,
}

/// The rows of a row group to decode.
#[derive(Clone, Copy, Debug, Default)]
pub struct WantedRows<'a> {
    /// Number of leading rows to skip.
    pub skip: u64,
    /// Skip pages whose index proves that no row meets all of these. Other pages are read completely, including rows
    /// that do not meet them.
    pub conditions: &'a [Condition],
}

enum Columns {
    All(ParquetRecordBatchReader),
    Some(Box<Projected>),
}

struct Projected {
    planned: Vec<Planned>,
    /// The source of each of `planned`.
    sources: Vec<Source>,
    /// Decodes the other columns.
    rest: Option<Rest>,
    /// Schema of the previous batch, reused if the types are the same.
    schema: Arc<Schema>,
    /// The next row of the flat columns.
    position: u64,
}

enum Source {
    Absent,
    Flat(Box<FlatColumn>),
    /// The index of a column in `rest`, and the path of fields within it.
    Rest(usize, Vec<String>),
}

/// Parameters for decoding a row group.
struct Reading<'a> {
    source: Arc<FetchedFile>,
    group: usize,
    batch_rows: usize,
    rows: &'a VecDeque<Range<u64>>,
    places: BTreeMap<usize, Vec<PageLocation>>,
}

struct Rest {
    reader: ParquetRecordBatchReader,
    /// Decoded rows not yet delivered.
    batch: Option<RecordBatch>,
}

impl ParquetFile {
    /// Maximum rows of a row group decoded at a time.
    fn batch_rows(&self, group: usize, plan: &Plan) -> usize {
        let rows = self.groups()[group].rows;
        let bytes = self.decoded_bytes(group, plan).max(1);
        let fitting = u128::from(BATCH_BYTES) * u128::from(rows) / u128::from(bytes);
        usize::try_from(fitting).unwrap_or(usize::MAX).clamp(1, DECODE_ROWS)
    }

    /// Maximum memory for decoding a row group, including the fetched bytes.
    pub fn decoding_bytes(&self, group: usize, plan: &Plan) -> u64 {
        let fetched: u64 = self.ranges(group, plan).iter().map(|range| range.end - range.start).sum();
        let columns = self.column_chunks(group, plan);
        // A page and a dictionary per column, besides the batch.
        let pages: u64 = columns.map(|(_, column)| uncompressed(column).min(2 * PAGE_BYTES)).sum();
        let rows = self.groups()[group].rows.max(1);
        let batch = self.decoded_bytes(group, plan) / rows.div_ceil(self.batch_rows(group, plan) as u64);
        fetched.saturating_add(pages).saturating_add(2 * batch)
    }

    fn decoded_bytes(&self, group: usize, plan: &Plan) -> u64 {
        self.column_chunks(group, plan).map(|(_, column)| uncompressed(column)).fold(0, u64::saturating_add)
    }

    /// Prepares decoding of the `wanted` rows of a row group from its fetched ranges.
    pub fn decode(
        &self,
        group: usize,
        plan: Plan,
        fetched: Vec<(u64, Bytes)>,
        wanted: WantedRows<'_>,
    ) -> Result<RowGroupReader, Error> {
        let described = self.groups()[group];
        let batch_rows = self.batch_rows(group, &plan);
        let source = Arc::new(FetchedFile::new(self.size, fetched));
        let pages = self.pages(group, &plan, wanted.conditions, &source);
        let pages = pages.unwrap_or_else(|| Pages::whole(described.rows));
        let skip = wanted.skip.min(described.rows);
        let clipped = pages.rows.into_iter().map(|range| range.start.max(skip)..range.end);
        let rows: VecDeque<Range<u64>> = clipped.filter(|range| !range.is_empty()).collect();
        let read = Reading { source, group, batch_rows, rows: &rows, places: pages.places };
        let columns = guarded(|| match plan {
            Plan::All => self.arrow(&read, &self.footer.as_written, None).map(Columns::All),
            Plan::Columns(planned, _) => self.projected(&read, planned).map(Box::new).map(Columns::Some),
        });
        let columns = columns.map_err(|message| damage(&self.path, described, message))?;
        Ok(RowGroupReader { path: Arc::clone(&self.path), columns, group: described, batch_rows, rows })
    }

    fn projected(&self, read: &Reading<'_>, planned: Vec<Planned>) -> Result<Projected, ParquetError> {
        let metadata = self.footer.plain.metadata().row_group(read.group);
        let rows = self.groups()[read.group].rows as usize;
        let mut sources = Vec::with_capacity(planned.len());
        let (mut leaves, mut roots) = (Vec::new(), Vec::new());
        for column in &planned {
            let Some(found) = &column.found else {
                sources.push(Source::Absent);
                continue;
            };
            if let [leaf] = found.leaves[..]
                && let Some(delivered) = FlatColumn::delivered_type(metadata.column(leaf), &found.data_type)
            {
                let places = read.places.get(&leaf).cloned();
                let flat = FlatColumn::new(&read.source, metadata.column(leaf), rows, delivered, places)?;
                sources.push(Source::Flat(Box::new(flat)));
                continue;
            }
            leaves.extend_from_slice(&found.leaves);
            roots.push(found.root);
            sources.push(Source::Rest(found.root, found.path.clone()));
        }
        roots.sort_unstable();
        roots.dedup();
        for source in &mut sources {
            if let Source::Rest(place, _) = source {
                *place = roots.partition_point(|root| root < place);
            }
        }
        let rest = match leaves.is_empty() {
            true => None,
            false => {
                let reader = self.arrow(read, &self.footer.plain, Some(leaves))?;
                Some(Rest { reader, batch: None })
            }
        };
        Ok(Projected { planned, sources, rest, schema: Arc::new(Schema::empty()), position: 0 })
    }

    fn arrow(
        &self,
        read: &Reading<'_>,
        metadata: &ArrowReaderMetadata,
        leaves: Option<Vec<usize>>,
    ) -> Result<ParquetRecordBatchReader, ParquetError> {
        let source = FetchedFile::clone(&read.source);
        let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(source, metadata.clone())
            .with_row_groups(vec![read.group])
            .with_batch_size(read.batch_rows);
        if let Some(leaves) = leaves {
            builder = builder.with_projection(self.mask_of(leaves));
        }
        let all = self.groups()[read.group].rows;
        if read.rows.iter().ne([&(0..all)]) {
            let ranges = read.rows.iter().map(|range| range.start as usize..range.end as usize);
            builder = builder.with_row_selection(RowSelection::from_consecutive_ranges(ranges, all as usize));
        }
        builder.build()
    }
}

impl RowGroupReader {
    /// The next rows, at least one and at most `most`, and the index of the first one in the row group; `None` at
    /// the end.
    pub fn next_rows(&mut self, most: usize) -> Result<Option<(RecordBatch, u64)>, Error> {
        let Some(range) = self.rows.front().cloned() else { return Ok(None) };
        let most = most.clamp(1, self.batch_rows);
        let most = usize::try_from(range.end - range.start).map_or(most, |left| most.min(left));
        let batch = guarded(|| match &mut self.columns {
            Columns::All(reader) => reader.next().transpose().map_err(ParquetError::from),
            Columns::Some(projected) => projected.next(range.start, most),
        });
        let batch = batch.map_err(|message| self.damage(message))?;
        let Some(batch) = batch else {
            let left: u64 = self.rows.iter().map(|range| range.end - range.start).sum();
            return Err(self.damage(format!("{left} rows are missing")));
        };
        let next = range.start + batch.num_rows() as u64;
        if next > range.end {
            return Err(self.damage("more rows than the footer states".to_owned()));
        }
        if next < range.end {
            self.rows[0].start = next;
        } else {
            self.rows.pop_front();
        }
        Ok(Some((batch, range.start)))
    }

    fn damage(&self, message: String) -> Error {
        damage(&self.path, self.group, message)
    }
}

impl Projected {
    /// Reads at most `most` consecutive rows from `start`, skipping the rows before.
    fn next(&mut self, start: u64, most: usize) -> Result<Option<RecordBatch>, ParquetError> {
        let skipped = start.saturating_sub(self.position) as usize;
        if skipped > 0 {
            for (column, source) in self.planned.iter().zip(&mut self.sources) {
                if let Source::Flat(flat) = source {
                    flat.skip(skipped).map_err(|error| in_column(&column.name, &error))?;
                }
            }
        }
        let mut rows = most;
        let mut rest = None;
        if let Some(others) = &mut self.rest {
            let Some(batch) = others.next(most)? else { return Ok(None) };
            rows = batch.num_rows();
            rest = Some(batch);
        }
        let mut arrays = Vec::with_capacity(self.planned.len());
        for (column, source) in self.planned.iter().zip(&mut self.sources) {
            let array = match source {
                Source::Absent => Some(new_null_array(&DataType::Null, rows)),
                Source::Flat(flat) => Some(flat.read(rows).map_err(|error| in_column(&column.name, &error))?),
                Source::Rest(place, path) => {
                    rest.as_ref().and_then(|batch| descend(batch.columns().get(*place)?, path))
                }
            };
            let array: ArrayRef = array.ok_or_else(|| {
                ParquetError::General(format!("column `{}` does not match the schema", column.name))
            })?;
            arrays.push(if column.wrap { lists_of_one(array) } else { array });
        }
        self.position = start + rows as u64;
        let same = self.schema.fields().len() == arrays.len()
            && self
                .schema
                .fields()
                .iter()
                .zip(&arrays)
                .all(|(field, array)| field.data_type() == array.data_type());
        if !same {
            self.schema = schema_of(&self.planned, &arrays);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(Some(RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)?))
    }
}

impl Rest {
    /// The next rows, at most `most`.
    fn next(&mut self, most: usize) -> Result<Option<RecordBatch>, ParquetError> {
        let batch = match self.batch.take() {
            Some(batch) => batch,
            None => {
                match self.reader.find(|batch| !batch.as_ref().is_ok_and(|batch| batch.num_rows() == 0)) {
                    Some(batch) => batch?,
                    None => return Ok(None),
                }
            }
        };
        let taken = most.min(batch.num_rows());
        if taken < batch.num_rows() {
            self.batch = Some(batch.slice(taken, batch.num_rows() - taken));
        }
        Ok(Some(batch.slice(0, taken)))
    }
}

fn damage(path: &str, group: RowGroup, message: String) -> Error {
    Error::Damage { path: path.to_owned(), offset: group.offset, record: group.first_row, message }
}

fn in_column(name: &str, error: &ParquetError) -> ParquetError {
    ParquetError::General(format!("column `{name}`: {error}"))
}

fn uncompressed(column: &parquet::file::metadata::ColumnChunkMetaData) -> u64 {
    column.uncompressed_size().max(0) as u64
}
