//! Decodes a flat column of a row group: the shapes that training data has.
//!
//! Supports numbers, text and bytes, optional or required, one per row, in the PLAIN and dictionary encodings.
//! Writers produce these by default, and unpacking keys takes nearly all the time of reading them. The
//! `parquet` crate decodes all other columns, and is the reference for the tests.
//!
//! Own decoder because the `parquet` crate expands dictionaries. **Dictionaries are kept**: a batch whose rows all
//! come from dictionary-encoded pages is an array of keys over the chunk's dictionary, the same `Arc` for all
//! batches of the row group. So the result of a feature for a value (a hash, a lookup, a logarithm) can be
//! computed once per dictionary value instead of once per row. Writers abandon a dictionary that grows too
//! large in the middle of a column chunk: batches with later rows are arrays of values.
//!
//! Text is delivered as bytes, as hashing and parsing do not require valid UTF-8.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::types::UInt32Type;
use arrow_array::{ArrayRef, DictionaryArray, UInt32Array};
use arrow_buffer::bit_chunk_iterator::{BitChunks, UnalignedBitChunk};
use arrow_buffer::{BooleanBufferBuilder, NullBuffer, ScalarBuffer};
use arrow_schema::{DataType, TimeUnit};
use bytes::Bytes;
use parquet::basic::{Encoding, Type as Physical};
use parquet::column::page::{Page, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::serialized_reader::SerializedPageReader;

use super::fetched::FetchedFile;
use super::hybrid::Hybrid;
use super::values::{Values, spread, truncated};

/// Reads one column of one row group.
pub(super) struct FlatColumn {
    pages: SerializedPageReader<FetchedFile>,
    data_type: DataType,
    /// The definition level of a present value.
    present: u32,
    /// The column chunk's dictionary, of `data_type`.
    dictionary: Option<ArrayRef>,
    page: DataPage,
    /// An empty vector of the column's physical type.
    prototype: Values,
    levels: Vec<u32>,
    keys: Vec<u32>,
}

/// The current data page.
struct DataPage {
    rows: usize,
    /// Definition levels; `None` if every row has a value.
    levels: Option<Hybrid>,
    body: Body,
}

enum Body {
    Plain(Bytes),
    Keys(Hybrid),
}

/// A batch under construction.
struct Batch {
    content: Content,
    /// Whether each row has a value.
    present: BooleanBufferBuilder,
}

enum Content {
    Keys(Vec<u32>),
    Values(Values),
}

impl FlatColumn {
    /// The type in which `column` is delivered, if this decoder supports it. `data_type` is its Arrow type.
    #[expect(deprecated, reason = "old files contain BIT_PACKED levels")]
    pub(super) fn delivered_type(column: &ColumnChunkMetaData, data_type: &DataType) -> Option<DataType> {
        use Encoding::{BIT_PACKED, PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY};
        let descriptor = column.column_descr();
        let levels = descriptor.max_def_level() > 0;
        let readable = |encoding| match encoding {
            PLAIN | PLAIN_DICTIONARY | RLE_DICTIONARY | RLE => true,
            // The encoding of levels before 2013; old writers also list it for columns without levels.
            BIT_PACKED => !levels,
            _ => false,
        };
        if descriptor.max_rep_level() > 0 || !column.encodings().all(readable) {
            return None;
        }
        delivered_type(column.column_type(), data_type)
    }

    pub(super) fn new(
        source: &Arc<FetchedFile>,
        column: &ColumnChunkMetaData,
        rows: usize,
        data_type: DataType,
        places: Option<Vec<PageLocation>>,
    ) -> Result<Self, ParquetError> {
        let prototype = Values::new(column.column_type())
            .ok_or_else(|| ParquetError::General(format!("not a flat column: {}", column.column_type())))?;
        Ok(Self {
            pages: SerializedPageReader::new(Arc::clone(source), column, rows, places)?,
            data_type,
            present: column.column_descr().max_def_level().max(0) as u32,
            dictionary: None,
            page: DataPage { rows: 0, levels: None, body: Body::Plain(Bytes::new()) },
            prototype,
            levels: Vec::new(),
            keys: Vec::new(),
        })
    }

    /// Reads exactly the next `rows` rows.
    pub(super) fn read(&mut self, rows: usize) -> Result<ArrayRef, ParquetError> {
        let present = BooleanBufferBuilder::new(rows);
        let mut batch = Batch { content: Content::Keys(Vec::with_capacity(rows)), present };
        if self.dictionary.is_none() && self.page.rows > 0 {
            batch.content = Content::Values(self.prototype.empty(rows));
        }
        let mut left = rows;
        while left > 0 {
            let taken = self.ready()?.min(left);
            self.read_page(taken, &mut batch)?;
            self.page.rows -= taken;
            left -= taken;
        }
        self.finish(batch)
    }

    /// Skips the next `rows` rows; skips whole pages without decoding them.
    pub(super) fn skip(&mut self, mut rows: usize) -> Result<(), ParquetError> {
        while rows > 0 {
            if self.page.rows == 0
                && let Some(next) = self.pages.peek_next_page()?
            {
                if next.is_dict {
                    self.load()?;
                    continue;
                }
                if let Some(held) = next.num_rows.or(next.num_levels).filter(|&held| held <= rows) {
                    self.pages.skip_next_page()?;
                    rows -= held;
                    continue;
                }
            }
            let taken = self.ready()?.min(rows);
            self.skip_page(taken)?;
            self.page.rows -= taken;
            rows -= taken;
        }
        Ok(())
    }

    /// Loads pages until one has rows left; returns the number of rows.
    fn ready(&mut self) -> Result<usize, ParquetError> {
        while self.page.rows == 0 {
            self.load()?;
        }
        Ok(self.page.rows)
    }

    /// Loads the next page, a dictionary or a data page.
    fn load(&mut self) -> Result<(), ParquetError> {
        match self.pages.get_next_page()? {
            None => return Err(ParquetError::EOF("the column ends before its row group".to_owned())),
            Some(Page::DictionaryPage { buf, num_values, .. }) => {
                self.dictionary = Some(self.dictionary_of(buf, num_values as usize)?);
            }
            Some(page) => self.page = self.open(page)?,
        }
        Ok(())
    }

    fn dictionary_of(&self, mut bytes: Bytes, count: usize) -> Result<ArrayRef, ParquetError> {
        // Every value has at least 4 bytes, which bounds the capacity.
        let mut values = self.prototype.empty(count.min(bytes.len() / 4));
        values.take_plain(count, &mut bytes)?;
        values.into_array(None, &self.data_type)
    }

    fn open(&self, page: Page) -> Result<DataPage, ParquetError> {
        let width = (u32::BITS - self.present.leading_zeros()) as u8;
        let (rows, levels, body, encoding) = match page {
            Page::DataPage { buf, num_values, encoding, .. } => {
                let (levels, body) = if self.present > 0 {
                    let length = buf.first_chunk::<4>().ok_or_else(truncated)?;
                    let end = 4 + u32::from_le_bytes(*length) as usize;
                    if end > buf.len() {
                        return Err(truncated());
                    }
                    (Some(Hybrid::new(buf.slice(4..end), width)?), buf.slice(end..))
                } else {
                    (None, buf)
                };
                (num_values, levels, body, encoding)
            }
            Page::DataPageV2 {
                buf, num_values, encoding, def_levels_byte_len, rep_levels_byte_len, ..
            } => {
                let start = rep_levels_byte_len as usize;
                let end = start + def_levels_byte_len as usize;
                if end > buf.len() {
                    return Err(truncated());
                }
                let levels = match self.present {
                    0 => None,
                    _ => Some(Hybrid::new(buf.slice(start..end), width)?),
                };
                (num_values, levels, buf.slice(end..), encoding)
            }
            Page::DictionaryPage { .. } => {
                return Err(ParquetError::General("the column has two dictionaries".to_owned()));
            }
        };
        let body = match encoding {
            Encoding::PLAIN => Body::Plain(body),
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {
                // A page of absent values may be empty.
                let width = body.first().copied().unwrap_or(0);
                Body::Keys(Hybrid::new(body.slice(body.len().min(1)..), width)?)
            }
            other => {
                let message = format!("a page has encoding {other}, which the footer does not list");
                return Err(ParquetError::General(message));
            }
        };
        Ok(DataPage { rows: rows as usize, levels, body })
    }

    /// Appends the next `rows` rows of the page to `batch`.
    fn read_page(&mut self, rows: usize, batch: &mut Batch) -> Result<(), ParquetError> {
        let Self { page, dictionary, prototype, levels, keys, present, .. } = self;
        if let Body::Plain(_) = page.body {
            batch.expand_keys(dictionary.as_ref(), prototype)?;
        }
        let Some(stream) = &mut page.levels else {
            batch.present.append_n(rows, true);
            return batch.take(rows, &mut page.body, dictionary.as_ref(), keys);
        };
        let before = batch.rows();
        if *present == 1 {
            stream.take_bits(rows, &mut batch.present)?;
        } else {
            levels.clear();
            stream.take(rows, levels)?;
            levels.iter().for_each(|level| batch.present.append(level == present));
        }
        let present_rows = UnalignedBitChunk::new(batch.present.as_slice(), before, rows).count_ones();
        if present_rows == 0 {
            batch.extend_absent(rows);
            return Ok(());
        }
        if present_rows == rows {
            return batch.take(rows, &mut page.body, dictionary.as_ref(), keys);
        }
        batch.take_spread(before..before + rows, present_rows, &mut page.body, dictionary.as_ref(), keys)
    }

    fn skip_page(&mut self, rows: usize) -> Result<(), ParquetError> {
        let mut present_rows = rows;
        if let Some(levels) = &mut self.page.levels {
            self.levels.clear();
            levels.take(rows, &mut self.levels)?;
            present_rows = self.levels.iter().filter(|&&level| level == self.present).count();
        }
        match &mut self.page.body {
            Body::Plain(input) => self.prototype.skip_plain(present_rows, input),
            Body::Keys(keys) => {
                self.keys.clear();
                keys.take(present_rows, &mut self.keys)
            }
        }
    }

    fn finish(&self, batch: Batch) -> Result<ArrayRef, ParquetError> {
        let Batch { content, mut present } = batch;
        let nulls = Some(NullBuffer::new(present.finish())).filter(|nulls| nulls.null_count() > 0);
        match (content, &self.dictionary) {
            (Content::Values(values), _) => values.into_array(nulls, &self.data_type),
            (Content::Keys(keys), Some(dictionary)) => {
                let keys = UInt32Array::try_new(ScalarBuffer::from(keys), nulls)?;
                let array = DictionaryArray::<UInt32Type>::try_new(keys, Arc::clone(dictionary))?;
                Ok(Arc::new(array))
            }
            (Content::Keys(_), None) => Err(no_dictionary()),
        }
    }
}

impl Batch {
    fn rows(&self) -> usize {
        match &self.content {
            Content::Keys(keys) => keys.len(),
            Content::Values(values) => values.len(),
        }
    }

    /// Replaces the keys of the batch by their values.
    fn expand_keys(&mut self, dictionary: Option<&ArrayRef>, prototype: &Values) -> Result<(), ParquetError> {
        let Content::Keys(keys) = &self.content else { return Ok(()) };
        let mut values = prototype.empty(keys.capacity());
        match dictionary {
            None if keys.is_empty() => {}
            None => return Err(no_dictionary()),
            // Absent rows have key 0, which is out of range for an empty dictionary.
            Some(dictionary) if dictionary.is_empty() => values.extend_absent(keys.len()),
            Some(dictionary) => values.extend_from(dictionary, keys)?,
        }
        self.content = Content::Values(values);
        Ok(())
    }

    /// Appends `count` present values.
    fn take(
        &mut self,
        count: usize,
        body: &mut Body,
        dictionary: Option<&ArrayRef>,
        scratch: &mut Vec<u32>,
    ) -> Result<(), ParquetError> {
        match (&mut self.content, body) {
            (Content::Keys(keys), Body::Keys(stream)) => stream.take(count, keys),
            (Content::Values(values), Body::Keys(stream)) => {
                scratch.clear();
                stream.take(count, scratch)?;
                values.extend_from(dictionary.ok_or_else(no_dictionary)?, scratch)
            }
            (Content::Values(values), Body::Plain(input)) => values.take_plain(count, input),
            (Content::Keys(_), Body::Plain(_)) => Err(no_dictionary()),
        }
    }

    fn extend_absent(&mut self, count: usize) {
        match &mut self.content {
            Content::Keys(keys) => keys.resize(keys.len() + count, 0),
            Content::Values(values) => values.extend_absent(count),
        }
    }

    /// Appends `rows`, of which `count` have a value.
    fn take_spread(
        &mut self,
        rows: Range<usize>,
        count: usize,
        body: &mut Body,
        dictionary: Option<&ArrayRef>,
        scratch: &mut Vec<u32>,
    ) -> Result<(), ParquetError> {
        if let (Content::Keys(keys), Body::Keys(stream)) = (&mut self.content, &mut *body) {
            scratch.clear();
            stream.take(count, scratch)?;
            let present = BitChunks::new(self.present.as_slice(), rows.start, rows.len());
            spread(scratch, &present, keys);
            return Ok(());
        }
        self.take(count, body, dictionary, scratch)?;
        if let Content::Values(values) = &mut self.content {
            let present = BitChunks::new(self.present.as_slice(), rows.start, rows.len());
            values.spread(rows.start, &present);
        }
        Ok(())
    }
}

/// The type in which a column of `physical` values and Arrow type `data_type` is delivered.
fn delivered_type(physical: Physical, data_type: &DataType) -> Option<DataType> {
    use DataType::{
        Binary, Date32, Float32, Float64, Int8, Int16, Int32, Int64, Time32, Time64, Timestamp, UInt8,
        UInt16, UInt32, UInt64, Utf8,
    };
    Some(match (physical, data_type) {
        // Stored as signed 32-bit numbers with the same values.
        (Physical::INT32, Int8 | Int16 | Int32 | UInt8 | UInt16) => Int32,
        (Physical::INT32, UInt32 | Date32 | Time32(TimeUnit::Millisecond)) => data_type.clone(),
        (Physical::INT64, Int64 | UInt64 | Time64(_) | Timestamp(..)) => data_type.clone(),
        (Physical::FLOAT, Float32) | (Physical::DOUBLE, Float64) => data_type.clone(),
        (Physical::BYTE_ARRAY, Utf8 | Binary) => Binary,
        _ => return None,
    })
}

fn no_dictionary() -> ParquetError {
    ParquetError::General("dictionary keys without a dictionary".to_owned())
}

#[cfg(test)]
#[path = "flat_tests.rs"]
mod tests;
