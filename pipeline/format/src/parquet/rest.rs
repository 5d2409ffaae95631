//! Columns that the `parquet` crate decodes: those of other types, encodings or nesting than `flat.rs` and `list.rs`
//! support, and all columns of a file that is shown or converted.
//!
//! The crate decodes as many rows at a time as asked for, whatever they expand to: a page of a few bytes can hold
//! millions of keys of a long text. So each page's expansion is computed and reserved before the crate sees the page.

use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;
use parking_lot::Mutex;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReader, RowGroups, RowSelection};
use parquet::arrow::parquet_to_arrow_field_levels;
use parquet::basic::{Encoding, Type as Physical};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};

use super::delta;
use super::fetched::FetchedFile;
use super::leaf::{Levels, keys};
use super::meter::{Meter, Reserved};
use super::page::Pages;

/// The bytes of the widest number: a decimal of 256 bits.
const NUMBER_BYTES: u64 = 32;
/// Keys or levels unpacked at a time.
const STEP: usize = 4096;

/// Reads columns of one row group.
pub(super) struct Rest {
    reader: ParquetRecordBatchReader,
    /// Decoded rows not yet delivered.
    batch: Option<RecordBatch>,
    /// The memory of the pages that the next batch no longer needs.
    past: Past,
}

/// The memory of pages that have been decoded completely.
type Past = Arc<Mutex<Vec<Reserved>>>;

/// The columns of a row group, as the crate asks for them.
struct Columns<'a> {
    metadata: &'a ParquetMetaData,
    group: usize,
    source: &'a Arc<FetchedFile>,
    meter: &'a Arc<Meter>,
    past: Past,
}

/// The pages of a column, each reserved at its expanded size.
struct Measured {
    pages: Pages,
    /// The column's most levels.
    repetition: u32,
    definition: u32,
    /// The bytes of a value, unless each has its own length.
    width: Option<u64>,
    /// The lengths of the dictionary's values, if each has its own.
    lengths: Vec<u32>,
    meter: Arc<Meter>,
    dictionary: Option<Reserved>,
    current: Option<Reserved>,
    past: Past,
}

impl Rest {
    /// The bytes of an entry besides its content: two levels, and an offset or the widest number made from a short one.
    pub(super) const ENTRY_BYTES: u64 = 16;

    /// Reads the columns of `mask` in row group `group`, `batch_rows` rows at a time, of which `selection` is wanted.
    pub(super) fn new(
        metadata: &ArrowReaderMetadata,
        group: usize,
        mask: ProjectionMask,
        selection: Option<RowSelection>,
        batch_rows: usize,
        source: &Arc<FetchedFile>,
        meter: &Arc<Meter>,
    ) -> Result<Self> {
        let types = Some(metadata.schema().fields());
        let levels = parquet_to_arrow_field_levels(metadata.parquet_schema(), mask, types)?;
        let past = Past::default();
        let columns =
            Columns { metadata: metadata.metadata(), group, source, meter, past: Arc::clone(&past) };
        let reader =
            ParquetRecordBatchReader::try_new_with_row_groups(&levels, &columns, batch_rows, selection)?;
        Ok(Self { reader, batch: None, past })
    }

    /// The next rows, at most `most`; `None` at the end.
    pub(super) fn next(&mut self, most: usize) -> Result<Option<RecordBatch>> {
        let batch = match self.batch.take() {
            Some(batch) => batch,
            None => {
                self.past.lock().clear();
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

impl RowGroups for Columns<'_> {
    fn num_rows(&self) -> usize {
        self.metadata.row_group(self.group).num_rows().max(0) as usize
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>> {
        let column = self.metadata.row_group(self.group).column(leaf);
        let pages = Pages::new(self.source, column, self.num_rows(), None, self.meter)?;
        let measured = Measured::new(pages, column, self.meter, &self.past);
        Ok(Box::new(OneChunk(Some(Box::new(measured)))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.metadata.row_group(self.group)))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.metadata
    }
}

/// The column chunk of the only row group.
struct OneChunk(Option<Box<dyn PageReader>>);

impl Iterator for OneChunk {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for OneChunk {}

impl Measured {
    fn new(pages: Pages, column: &ColumnChunkMetaData, meter: &Arc<Meter>, past: &Past) -> Self {
        let descriptor = column.column_descr();
        let width = match column.column_type() {
            Physical::BYTE_ARRAY => None,
            Physical::FIXED_LEN_BYTE_ARRAY => Some(NUMBER_BYTES.max(descriptor.type_length().max(0) as u64)),
            _ => Some(NUMBER_BYTES),
        };
        Self {
            pages,
            repetition: descriptor.max_rep_level().max(0) as u32,
            definition: descriptor.max_def_level().max(0) as u32,
            width,
            lengths: Vec::new(),
            meter: Arc::clone(meter),
            dictionary: None,
            current: None,
            past: Arc::clone(past),
        }
    }

    /// Reserves what a page expands to.
    fn reserve(&mut self, page: &Page) -> Result<()> {
        let column = self.pages.column();
        if let Page::DictionaryPage { buf, num_values, .. } = page {
            let bytes = buf.len() as u64 + u64::from(*num_values) * Rest::ENTRY_BYTES;
            let what = || format!("the decoded dictionary of column `{column}`");
            self.dictionary = Some(self.meter.reserve(bytes, what)?);
            if self.width.is_none() {
                self.lengths = lengths(buf)?;
            }
            return Ok(());
        }
        self.past.lock().extend(self.current.take());
        let bytes = self.expanded_bytes(page)?;
        self.current = Some(self.meter.reserve(bytes, || format!("a decoded page of column `{column}`"))?);
        Ok(())
    }

    /// The bytes of a data page's content when decoded.
    fn expanded_bytes(&self, page: &Page) -> Result<u64> {
        let encoding = page.encoding();
        let entries = u64::from(page.num_values());
        let values = match (encoding, self.width) {
            (Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY, Some(width)) => entries * width,
            (Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY, None) => {
                let Levels { entries, definitions, values, .. } =
                    Levels::of(page.clone(), self.repetition, self.definition)?;
                self.dictionary_bytes(entries, definitions, &values)?
            }
            (Encoding::DELTA_BINARY_PACKED, _) => entries * NUMBER_BYTES,
            (Encoding::DELTA_BYTE_ARRAY, _) => {
                // Each value repeats a prefix of the one before.
                let Levels { values, .. } = Levels::of(page.clone(), self.repetition, self.definition)?;
                let prefixes = if values.is_empty() { 0 } else { delta::sum(&values)? };
                prefixes.saturating_add(values.len() as u64)
            }
            _ => page.buffer().len() as u64,
        };
        Ok(values.saturating_add(entries * Rest::ENTRY_BYTES))
    }

    /// The bytes of a page of dictionary keys, without those of absent entries.
    fn dictionary_bytes(
        &self,
        entries: usize,
        definitions: Option<super::hybrid::Hybrid>,
        values: &Bytes,
    ) -> Result<u64> {
        let mut present = entries;
        let mut unpacked = Vec::with_capacity(STEP);
        if let Some(mut definitions) = definitions {
            present = 0;
            let mut left = entries;
            while left > 0 {
                unpacked.clear();
                definitions.take(left.min(STEP), &mut unpacked)?;
                left -= unpacked.len();
                present += unpacked.iter().filter(|&&level| level == self.definition).count();
            }
        }
        let (mut keys, mut bytes) = (keys(values)?, 0_u64);
        while present > 0 {
            unpacked.clear();
            keys.take(present.min(STEP), &mut unpacked)?;
            present -= unpacked.len();
            let lengths = unpacked.iter().map(|&key| self.lengths.get(key as usize).copied().unwrap_or(0));
            bytes += lengths.map(u64::from).sum::<u64>();
        }
        Ok(bytes)
    }
}

impl PageReader for Measured {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(page) = self.pages.get_next_page()? else { return Ok(None) };
        self.reserve(&page)?;
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for Measured {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// The lengths of the PLAIN-encoded texts in `bytes`.
fn lengths(bytes: &[u8]) -> Result<Vec<u32>> {
    let mut lengths = Vec::new();
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length);
        lengths.push(length);
        let end = || ParquetError::EOF("a dictionary is truncated".to_owned());
        rest = after.get(length as usize..).ok_or_else(end)?;
    }
    Ok(lengths)
}
