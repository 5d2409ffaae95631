//! Decodes one row group from its fetched bytes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, RowSelection};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;

use super::fetched::FetchedFile;
use super::flat::FlatColumn;
use super::guard::guarded;
use super::leaf::{Leaf, delivered_type};
use super::list::ListColumn;
use super::meter::Meter;
use super::page::Pages;
use super::plan::{Found, Plan, Planned, PlannedColumns, descend, lists_of_one, schema_of};
use super::rest::Rest;
use super::selection::SelectedRows;
use super::values::Values;
use super::{ParquetFile, RowGroup};
use crate::Error;
use crate::filter::Condition;

/// Maximum rows decoded at a time.
const DECODE_ROWS: usize = 8192;
/// The same if numbers are delivered as values, which need more memory than keys of a dictionary. Feeds do not ask for more.
const DECODE_ROWS_OF_VALUES: usize = 2048;
/// Maximum bytes decoded at a time, unless a single row is larger.
const BATCH_BYTES: u64 = 32 << 20;
/// Minimum bytes of a column decoded at a time, if it has that many rows.
const LEAST_BATCH_BYTES: u64 = 16 << 10;
/// Usual maximum size of a page and of a dictionary.
const PAGE_BYTES: u64 = 1 << 20;
/// Usual maximum number of values of a page.
const PAGE_VALUES: u64 = 1 << 16;

/// Reads all or some rows of one row group.
pub struct RowGroupReader {
    path: Arc<str>,
    columns: Columns,
    group: RowGroup,
    meter: Arc<Meter>,
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
    All(Rest),
    Some(Box<Projected>),
}

struct Projected {
    planned: Vec<Planned>,
    /// The source of each of `planned`, and its decoded rows that have not been delivered.
    sources: Vec<(Source, Option<ArrayRef>)>,
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
    List(Box<ListColumn>),
    /// The index of a column in `rest`, and the path of fields within it.
    Rest(usize, Vec<String>),
}

/// Parameters for decoding a row group.
struct Reading<'a> {
    source: Arc<FetchedFile>,
    group: usize,
    batch_rows: usize,
    meter: &'a Arc<Meter>,
    rows: &'a VecDeque<Range<u64>>,
    places: BTreeMap<usize, Vec<PageLocation>>,
}

impl ParquetFile {
    /// Maximum rows of a row group decoded at a time.
    fn batch_rows(&self, group: usize, plan: &Plan) -> usize {
        let rows = self.groups()[group].rows;
        let bytes = self.decoded_bytes(group, plan).max(1);
        let fitting = u128::from(BATCH_BYTES) * u128::from(rows) / u128::from(bytes);
        let most = if plan.numbers_as_values() { DECODE_ROWS_OF_VALUES } else { DECODE_ROWS };
        usize::try_from(fitting).unwrap_or(usize::MAX).clamp(1, most)
    }

    /// The memory that decoding a row group usually needs at most, including the fetched bytes: pages can be larger than
    /// usual, which shows only when they are read. [`ParquetFile::decode`] enforces a limit.
    pub fn decoding_bytes(&self, group: usize, plan: &Plan) -> u64 {
        let fetched: u64 = self.ranges(group, plan).iter().map(|range| range.end - range.start).sum();
        let decoded_here = self.leaves_decoded_here(group, plan);
        // A page and a dictionary per column, besides the batch.
        let pages = self.column_chunks(group, plan).map(|(leaf, column)| {
            let values = match decoded_here.contains(&leaf) {
                true => 0,
                false => (column.num_values().max(0) as u64).min(PAGE_VALUES) * Rest::ENTRY_BYTES,
            };
            uncompressed(column).min(2 * PAGE_BYTES) + values
        });
        fetched.saturating_add(pages.sum()).saturating_add(self.batch_bytes(group, plan))
    }

    /// The leaves of a plan that the `parquet` crate does not decode.
    fn leaves_decoded_here(&self, group: usize, plan: &Plan) -> Vec<usize> {
        let Plan::Columns(planned) = plan else { return Vec::new() };
        let metadata = self.footer.plain.metadata().row_group(group);
        let found = planned.columns.iter().filter_map(|column| column.found.as_ref());
        found
            .filter_map(|found| shape_of(found, |leaf| metadata.column(leaf)).map(|(leaf, _)| leaf))
            .collect()
    }

    fn decoded_bytes(&self, group: usize, plan: &Plan) -> u64 {
        let decoded = |(_, column)| decoded_bytes(column, plan.numbers_as_values());
        self.column_chunks(group, plan).map(decoded).fold(0, u64::saturating_add)
    }

    /// Memory for the batch being decoded and the one being delivered.
    fn batch_bytes(&self, group: usize, plan: &Plan) -> u64 {
        let batches = self.groups()[group].rows.max(1).div_ceil(self.batch_rows(group, plan) as u64);
        let least = self.column_chunks(group, plan).count() as u64 * LEAST_BATCH_BYTES;
        (self.decoded_bytes(group, plan) / batches).max(least).saturating_mul(2)
    }

    /// Prepares decoding of the `wanted` rows of a row group from its fetched ranges, within `limit` bytes of memory,
    /// including the fetched ones.
    ///
    /// # Errors
    /// When the row group is damaged, or needs more memory.
    pub fn decode(
        &self,
        group: usize,
        plan: Plan,
        fetched: Vec<(u64, Bytes)>,
        wanted: WantedRows<'_>,
        limit: u64,
    ) -> Result<RowGroupReader, Error> {
        let described = self.groups()[group];
        let batch_rows = self.batch_rows(group, &plan);
        let held: u64 = fetched.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let meter = Meter::new(limit.saturating_sub(held).saturating_sub(self.batch_bytes(group, &plan)));
        let source = Arc::new(FetchedFile::new(fetched));
        let selected = self.selected_rows(group, &plan, wanted.conditions, &source);
        let selected = selected.unwrap_or_else(|| SelectedRows::all(described.rows));
        let skip = wanted.skip.min(described.rows);
        let clipped = selected.rows.into_iter().map(|range| range.start.max(skip)..range.end);
        let rows: VecDeque<Range<u64>> = clipped.filter(|range| !range.is_empty()).collect();
        let read = Reading { source, group, batch_rows, meter: &meter, rows: &rows, places: selected.places };
        let columns = guarded(|| match plan {
            Plan::All => self.rest(&read, &self.footer.as_written, ProjectionMask::all()).map(Columns::All),
            Plan::Columns(planned) => self.projected(&read, planned).map(Box::new).map(Columns::Some),
        });
        let columns = columns.map_err(|message| failed(&self.path, described, &meter, message))?;
        Ok(RowGroupReader {
            path: Arc::clone(&self.path),
            columns,
            group: described,
            meter,
            batch_rows,
            rows,
        })
    }

    fn projected(&self, read: &Reading<'_>, planned: PlannedColumns) -> Result<Projected, ParquetError> {
        let PlannedColumns { columns: planned, numbers_as_values, .. } = planned;
        let metadata = self.footer.plain.metadata().row_group(read.group);
        let rows = self.groups()[read.group].rows;
        let mut sources = Vec::with_capacity(planned.len());
        let (mut leaves, mut roots) = (Vec::new(), Vec::new());
        for column in &planned {
            let Some(found) = &column.found else {
                sources.push(Source::Absent);
                continue;
            };
            let Some((leaf, delivered)) = shape_of(found, |leaf| metadata.column(leaf)) else {
                leaves.extend_from_slice(&found.leaves);
                roots.push(found.root);
                sources.push(Source::Rest(found.root, found.path.clone()));
                continue;
            };
            let chunk = metadata.column(leaf);
            let places = read.places.get(&leaf).cloned();
            let pages = Pages::new(&read.source, chunk, rows as usize, places, read.meter)?;
            // Twice the average: where rows are longer than usual, batches have fewer of them.
            let batches = rows.max(1).div_ceil(read.batch_rows as u64);
            let decoded = decoded_bytes(chunk, numbers_as_values);
            let batch = (decoded / batches).saturating_mul(2).clamp(LEAST_BATCH_BYTES, BATCH_BYTES) as usize;
            let decoder = Leaf::new(pages, chunk, delivered, numbers_as_values)?;
            sources.push(match chunk.column_descr().max_rep_level() {
                0 => Source::Flat(Box::new(FlatColumn::new(decoder, batch))),
                _ => {
                    let element = chunk.column_descr().repeated_ancestor_def_level().max(0) as u32;
                    let mean = chunk.num_values().max(0) as u64 / rows.max(1);
                    Source::List(Box::new(ListColumn::new(
                        decoder,
                        element,
                        mean as usize,
                        batch,
                        read.meter,
                    )))
                }
            });
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
            false => Some(self.rest(read, &self.footer.plain, self.mask_of(leaves))?),
        };
        let sources = sources.into_iter().map(|source| (source, None)).collect();
        Ok(Projected { planned, sources, rest, schema: Arc::new(Schema::empty()), position: 0 })
    }

    /// Reads columns through the `parquet` crate.
    fn rest(
        &self,
        read: &Reading<'_>,
        metadata: &ArrowReaderMetadata,
        mask: ProjectionMask,
    ) -> Result<Rest, ParquetError> {
        let all = self.groups()[read.group].rows;
        let selection = read.rows.iter().ne([&(0..all)]).then(|| {
            let ranges = read.rows.iter().map(|range| range.start as usize..range.end as usize);
            RowSelection::from_consecutive_ranges(ranges, all as usize)
        });
        Rest::new(metadata, read.group, mask, selection, read.batch_rows, &read.source, read.meter)
    }
}

/// The leaf and delivered type of values of `found`, if it is a column that this crate decodes itself.
pub(super) fn shape_of<'a>(
    found: &Found,
    chunk: impl Fn(usize) -> &'a ColumnChunkMetaData,
) -> Option<(usize, DataType)> {
    let [leaf] = found.leaves[..] else { return None };
    let chunk = chunk(leaf);
    let values = match (chunk.column_descr().max_rep_level(), &found.data_type) {
        (0, data_type) => data_type,
        (1, DataType::List(item)) => item.data_type(),
        _ => return None,
    };
    delivered_type(chunk, values).map(|delivered| (leaf, delivered))
}

impl RowGroupReader {
    /// The next rows, at least one and at most `most`, and the index of the first one in the row group; `None` at
    /// the end.
    pub fn next_rows(&mut self, most: usize) -> Result<Option<(RecordBatch, u64)>, Error> {
        let Some(range) = self.rows.front().cloned() else { return Ok(None) };
        let most = most.clamp(1, self.batch_rows);
        let most = usize::try_from(range.end - range.start).map_or(most, |left| most.min(left));
        let batch = guarded(|| match &mut self.columns {
            Columns::All(reader) => reader.next(most),
            Columns::Some(projected) => projected.next(range.start, most),
        });
        let batch = batch.map_err(|message| failed(&self.path, self.group, &self.meter, message))?;
        let Some(batch) = batch else {
            let left: u64 = self.rows.iter().map(|range| range.end - range.start).sum();
            return Err(damage(&self.path, self.group, format!("rows are missing: {left}")));
        };
        let next = range.start + batch.num_rows() as u64;
        if next > range.end {
            return Err(damage(&self.path, self.group, "more rows than the footer states".to_owned()));
        }
        if next < range.end {
            self.rows[0].start = next;
        } else {
            self.rows.pop_front();
        }
        Ok(Some((batch, range.start)))
    }
}

impl Projected {
    /// Reads at most `most` consecutive rows from `start`, skipping the rows before.
    fn next(&mut self, start: u64, most: usize) -> Result<Option<RecordBatch>, ParquetError> {
        let skipped = start.saturating_sub(self.position) as usize;
        if skipped > 0 {
            self.skip(skipped)?;
        }
        let mut rows = most;
        let mut rest = None;
        let is_left =
            |(source, left): &(Source, Option<_>)| matches!(source, Source::Rest(..)) && left.is_some();
        if let Some(others) = &mut self.rest
            && !self.sources.iter().any(is_left)
        {
            let Some(batch) = others.next(most)? else { return Ok(None) };
            rows = batch.num_rows();
            rest = Some(batch);
        }
        // Each column ends its batch where it must; the shortest one ends them all.
        let mut arrays = Vec::with_capacity(self.planned.len());
        for (column, (source, left)) in self.planned.iter().zip(&mut self.sources) {
            let named = |error| in_column(&column.name, &error);
            let array = match (left.take(), source) {
                // Within one range of rows, so at most as many as are left of it.
                (Some(left), _) => Some(left),
                (None, Source::Absent) => Some(new_null_array(&DataType::Null, rows)),
                (None, Source::Flat(flat)) => Some(flat.read(rows).map_err(named)?),
                (None, Source::List(list)) => Some(list.read(rows).map_err(named)?),
                (None, Source::Rest(place, path)) => {
                    rest.as_ref().and_then(|batch| descend(batch.columns().get(*place)?, path))
                }
            };
            let array: ArrayRef = array.ok_or_else(|| {
                ParquetError::General(format!("column `{}` does not match the schema", column.name))
            })?;
            rows = rows.min(array.len());
            arrays.push(array);
        }
        for ((column, (_, left)), array) in self.planned.iter().zip(&mut self.sources).zip(&mut arrays) {
            if array.len() > rows {
                *left = Some(array.slice(rows, array.len() - rows));
                *array = array.slice(0, rows);
            }
            if column.wrap {
                *array = lists_of_one(Arc::clone(array));
            }
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

    /// Skips `rows` rows between two ranges, except in the columns that the `parquet` crate decodes: it has been given the
    /// ranges. No decoded rows are left at the end of a range.
    fn skip(&mut self, rows: usize) -> Result<(), ParquetError> {
        for (column, (source, _)) in self.planned.iter().zip(&mut self.sources) {
            let skipped = match source {
                Source::Flat(flat) => flat.skip(rows),
                Source::List(list) => list.skip(rows),
                Source::Absent | Source::Rest(..) => Ok(()),
            };
            skipped.map_err(|error| in_column(&column.name, &error))?;
        }
        Ok(())
    }
}

/// The error of a failed decoder: it needs more memory than `meter` grants, or the row group is damaged.
fn failed(path: &str, group: RowGroup, meter: &Meter, message: String) -> Error {
    match meter.refused() {
        Some(refused) => Error::TooLarge {
            path: path.to_owned(),
            offset: group.offset,
            record: group.first_row,
            message: refused.to_owned(),
        },
        None => damage(path, group, message),
    }
}

fn damage(path: &str, group: RowGroup, message: String) -> Error {
    Error::Damage { path: path.to_owned(), offset: group.offset, record: group.first_row, message }
}

fn in_column(name: &str, error: &ParquetError) -> ParquetError {
    ParquetError::General(format!("column `{name}`: {error}"))
}

fn uncompressed(column: &ColumnChunkMetaData) -> u64 {
    column.uncompressed_size().max(0) as u64
}

/// The bytes of a column when it is decoded. Keys of a dictionary have no more than their values, which are counted only
/// if these are delivered.
fn decoded_bytes(column: &ColumnChunkMetaData, numbers_as_values: bool) -> u64 {
    let width = Values::width(column.column_type()).filter(|_| numbers_as_values).unwrap_or(0);
    let values = (column.num_values().max(0) as u64).saturating_mul(width);
    uncompressed(column).max(values)
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
