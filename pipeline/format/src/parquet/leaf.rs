//! Decodes the pages of a leaf: its levels and its values, as the shapes of columns in `flat.rs` and `list.rs` need them.
//!
//! Supports numbers, text and bytes in the PLAIN and dictionary encodings. Text is delivered as bytes, as hashing and
//! parsing do not require valid UTF-8.

use std::sync::Arc;

use arrow_array::types::UInt32Type;
use arrow_array::{ArrayRef, DictionaryArray, UInt32Array};
use arrow_buffer::bit_chunk_iterator::BitChunks;
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_schema::{DataType, TimeUnit};
use bytes::Bytes;
use parquet::basic::{Encoding, Type as Physical};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;

use super::hybrid::Hybrid;
use super::page::Pages;
use super::values::{Dictionary, Values, spread, truncated};

/// Keys that are unpacked at a time before their values are looked up, so that they stay in the L1 cache.
const EXPANDED_KEYS: usize = 2048;

/// Reads one leaf of a row group.
pub(super) struct Leaf {
    pages: Pages,
    data_type: DataType,
    /// The levels of a present value.
    definition: u32,
    repetition: u32,
    /// The column chunk's dictionary, of `data_type`.
    dictionary: Option<Dictionary>,
    /// An empty vector of the leaf's physical type.
    prototype: Values,
    /// Whether the values of keys are delivered.
    expands: bool,
}

/// Working memory.
#[derive(Default)]
pub(super) struct Scratch {
    keys: Vec<u32>,
    /// Keys at the places of their rows.
    spread: Vec<u32>,
}

/// A data page. Each of its entries has a level of each kind, and a value if it is present.
pub(super) struct DataPage {
    /// Entries that have not been read.
    pub(super) entries: usize,
    /// Repetition levels; `None` if each entry is a row.
    pub(super) repetitions: Option<Hybrid>,
    /// Definition levels; `None` if every entry is present.
    pub(super) definitions: Option<Hybrid>,
    pub(super) body: Body,
}

/// The values of a page that have not been read.
pub(super) enum Body {
    Plain(Bytes),
    Keys(Hybrid),
}

/// Values under construction: keys of the leaf's dictionary, or the values themselves.
pub(super) enum Content {
    Keys(Vec<u32>),
    Values(Values),
}

/// The type in which a leaf with values of type `data_type` is delivered, if [`Leaf`] decodes it.
#[expect(deprecated, reason = "old files contain BIT_PACKED levels")]
pub(super) fn delivered_type(column: &ColumnChunkMetaData, data_type: &DataType) -> Option<DataType> {
    use DataType::{
        Binary, Date32, Float32, Float64, Int8, Int16, Int32, Int64, Time32, Time64, Timestamp, UInt8,
        UInt16, UInt32, UInt64, Utf8,
    };
    use Encoding::{BIT_PACKED, PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY};
    let descriptor = column.column_descr();
    let has_levels = descriptor.max_def_level() > 0;
    let readable = |encoding| match encoding {
        PLAIN | PLAIN_DICTIONARY | RLE_DICTIONARY | RLE => true,
        // The encoding of levels before 2013; old writers also list it for columns without levels.
        BIT_PACKED => !has_levels,
        _ => false,
    };
    if !column.encodings().all(readable) {
        return None;
    }
    Some(match (column.column_type(), data_type) {
        // Stored as signed 32-bit numbers with the same values.
        (Physical::INT32, Int8 | Int16 | Int32 | UInt8 | UInt16) => Int32,
        (Physical::INT32, UInt32 | Date32 | Time32(TimeUnit::Millisecond)) => data_type.clone(),
        (Physical::INT64, Int64 | UInt64 | Time64(_) | Timestamp(..)) => data_type.clone(),
        (Physical::FLOAT, Float32) | (Physical::DOUBLE, Float64) => data_type.clone(),
        (Physical::BYTE_ARRAY, Utf8 | Binary) => Binary,
        _ => return None,
    })
}

impl Leaf {
    /// Reads `pages` as `data_type`, a [`delivered_type`] of `column`; with `numbers_as_values`, numbers without a dictionary.
    pub(super) fn new(
        pages: Pages,
        column: &ColumnChunkMetaData,
        data_type: DataType,
        numbers_as_values: bool,
    ) -> Result<Self, ParquetError> {
        let descriptor = column.column_descr();
        let prototype = Values::new(column.column_type())
            .ok_or_else(|| ParquetError::General(format!("not a flat column: {}", column.column_type())))?;
        Ok(Self {
            pages,
            data_type,
            definition: descriptor.max_def_level().max(0) as u32,
            repetition: descriptor.max_rep_level().max(0) as u32,
            dictionary: None,
            expands: numbers_as_values && !matches!(prototype, Values::Bytes(_)),
            prototype,
        })
    }

    /// The definition level of a present value.
    pub(super) fn definition(&self) -> u32 {
        self.definition
    }

    /// The name of the column, for messages.
    pub(super) fn column(&self) -> &str {
        self.pages.column()
    }

    /// The next data page that has entries; `None` at the end.
    pub(super) fn next_page(&mut self) -> Result<Option<DataPage>, ParquetError> {
        loop {
            match self.pages.get_next_page()? {
                None => return Ok(None),
                Some(Page::DictionaryPage { buf, num_values, .. }) => {
                    if self.dictionary.is_some() {
                        return Err(ParquetError::General("the column has two dictionaries".to_owned()));
                    }
                    self.dictionary = Some(self.dictionary_of(buf, num_values as usize)?);
                }
                Some(page) => match self.open(page)? {
                    page if page.entries == 0 => {}
                    page => return Ok(Some(page)),
                },
            }
        }
    }

    /// The next data page, without reading it.
    pub(super) fn peek(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        while let Some(next) = self.pages.peek_next_page()? {
            if !next.is_dict {
                return Ok(Some(next));
            }
            if let Some(Page::DictionaryPage { buf, num_values, .. }) = self.pages.get_next_page()? {
                self.dictionary = Some(self.dictionary_of(buf, num_values as usize)?);
            }
        }
        Ok(None)
    }

    /// Skips the page that [`Leaf::peek`] has described.
    pub(super) fn skip_page(&mut self) -> Result<(), ParquetError> {
        self.pages.skip_next_page()
    }

    /// Empty content for the values of `body`, with capacity for `count`.
    pub(super) fn content_for(&self, body: &Body, count: usize) -> Content {
        match body {
            Body::Keys(_) if !self.expands => Content::Keys(Vec::with_capacity(count)),
            _ => Content::Values(self.prototype.empty(count)),
        }
    }

    /// Whether the values of `body` can be appended to `content`.
    pub(super) fn can_append(&self, content: &Content, body: &Body) -> bool {
        match (content, body) {
            (Content::Keys(_), Body::Keys(_)) | (Content::Values(_), Body::Plain(_)) => true,
            (Content::Values(_), Body::Keys(_)) => self.expands,
            (Content::Keys(_), Body::Plain(_)) => false,
        }
    }

    /// Appends the next `count` values of `body` to `content`, if they [can be](Self::can_append).
    pub(super) fn append(
        &self,
        content: &mut Content,
        mut count: usize,
        body: &mut Body,
        scratch: &mut Scratch,
    ) -> Result<(), ParquetError> {
        match (content, body) {
            (Content::Keys(keys), Body::Keys(stream)) => stream.take(count, keys),
            (Content::Values(values), Body::Plain(input)) => values.take_plain(count, input),
            (Content::Values(values), Body::Keys(stream)) if self.expands => {
                while count > 0 {
                    let block = count.min(EXPANDED_KEYS);
                    scratch.keys.clear();
                    stream.take(block, &mut scratch.keys)?;
                    values.extend_from(self.dictionary()?, &scratch.keys)?;
                    count -= block;
                }
                Ok(())
            }
            _ => Err(ParquetError::General("a page of another encoding within a batch".to_owned())),
        }
    }

    /// Appends the next `count` values of `body` to `content` at the `present` places, which are equal in number. The
    /// values of other places are unspecified.
    pub(super) fn append_spread(
        &self,
        content: &mut Content,
        count: usize,
        present: &BitChunks<'_>,
        body: &mut Body,
        scratch: &mut Scratch,
    ) -> Result<(), ParquetError> {
        let Body::Keys(stream) = body else {
            let start = content.len();
            self.append(content, count, body, scratch)?;
            content.spread(start, present);
            return Ok(());
        };
        let Scratch { keys: packed, spread: places } = scratch;
        packed.clear();
        stream.take(count, packed)?;
        match content {
            Content::Keys(keys) => spread(packed, present, keys),
            Content::Values(values) => {
                places.clear();
                spread(packed, present, places);
                // The keys of other places are some of the others, or 0, which a dictionary with any value has.
                values.extend_from(self.dictionary()?, places)?;
            }
        }
        Ok(())
    }

    /// Skips the next `count` values of `body`.
    pub(super) fn skip_values(
        &self,
        body: &mut Body,
        count: usize,
        scratch: &mut Scratch,
    ) -> Result<(), ParquetError> {
        match body {
            Body::Plain(input) => self.prototype.skip_plain(count, input),
            Body::Keys(stream) => {
                scratch.keys.clear();
                stream.take(count, &mut scratch.keys)
            }
        }
    }

    /// The bytes of `keys`' values.
    pub(super) fn expanded_bytes(&self, keys: &[u32]) -> Result<u64, ParquetError> {
        self.prototype.bytes_of(self.dictionary()?, keys)
    }

    /// Appends the values of `keys` to `values`, or to none.
    pub(super) fn expand(&self, values: Option<Values>, keys: &[u32]) -> Result<Values, ParquetError> {
        let mut values = values.unwrap_or_else(|| self.prototype.empty(keys.len()));
        values.extend_from(self.dictionary()?, keys)?;
        Ok(values)
    }

    /// An array of `content`, whose length is that of `nulls`, if given.
    pub(super) fn array(
        &self,
        content: Content,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef, ParquetError> {
        match content {
            Content::Values(values) => values.into_array(nulls, &self.data_type),
            Content::Keys(keys) => {
                let keys = UInt32Array::try_new(ScalarBuffer::from(keys), nulls)?;
                let array =
                    DictionaryArray::<UInt32Type>::try_new(keys, Arc::clone(&self.dictionary()?.array))?;
                Ok(Arc::new(array))
            }
        }
    }

    fn dictionary(&self) -> Result<&Dictionary, ParquetError> {
        let missing = || ParquetError::General("dictionary keys without a dictionary".to_owned());
        self.dictionary.as_ref().ok_or_else(missing)
    }

    fn dictionary_of(&self, mut bytes: Bytes, count: usize) -> Result<Dictionary, ParquetError> {
        // Every value has at least 4 bytes, which bounds the capacity.
        let mut values = self.prototype.empty(count.min(bytes.len() / 4));
        values.take_plain(count, &mut bytes)?;
        values.into_array(None, &self.data_type).map(Dictionary::new)
    }

    fn open(&self, page: Page) -> Result<DataPage, ParquetError> {
        let encoding = page.encoding();
        let Levels { entries, repetitions, definitions, values } =
            Levels::of(page, self.repetition, self.definition)?;
        let body = match encoding {
            Encoding::PLAIN => Body::Plain(values),
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => Body::Keys(keys(&values)?),
            other => {
                let message = format!("a page has encoding {other}, which the footer does not list");
                return Err(ParquetError::General(message));
            }
        };
        Ok(DataPage { entries, repetitions, definitions, body })
    }
}

/// The levels of a data page, separated from its encoded values.
pub(super) struct Levels {
    pub(super) entries: usize,
    /// `None` if all are 0.
    pub(super) repetitions: Option<Hybrid>,
    pub(super) definitions: Option<Hybrid>,
    pub(super) values: Bytes,
}

impl Levels {
    /// Separates the levels of `page`, which are at most `repetition` and `definition`.
    pub(super) fn of(page: Page, repetition: u32, definition: u32) -> Result<Self, ParquetError> {
        let (entries, repetitions, definitions, values) = match page {
            Page::DataPage { mut buf, num_values, .. } => {
                let repetitions = prefixed_levels(repetition, &mut buf)?;
                let definitions = prefixed_levels(definition, &mut buf)?;
                (num_values, repetitions, definitions, buf)
            }
            Page::DataPageV2 { buf, num_values, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let start = rep_levels_byte_len as usize;
                let end = start + def_levels_byte_len as usize;
                if end > buf.len() {
                    return Err(truncated());
                }
                let repetitions = levels(repetition, buf.slice(..start))?;
                let definitions = levels(definition, buf.slice(start..end))?;
                (num_values, repetitions, definitions, buf.slice(end..))
            }
            Page::DictionaryPage { .. } => {
                return Err(ParquetError::General("a dictionary in place of data".to_owned()));
            }
        };
        Ok(Self { entries: entries as usize, repetitions, definitions, values })
    }
}

/// The dictionary keys that are the `values` of a page. A page of absent values may be empty.
pub(super) fn keys(values: &Bytes) -> Result<Hybrid, ParquetError> {
    let width = values.first().copied().unwrap_or(0);
    Hybrid::new(values.slice(values.len().min(1)..), width)
}

impl DataPage {
    /// A page without entries.
    pub(super) fn empty() -> Self {
        Self { entries: 0, repetitions: None, definitions: None, body: Body::Plain(Bytes::new()) }
    }
}

impl Content {
    /// The number of values.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.len(),
            Self::Values(values) => values.len(),
        }
    }

    /// The bytes of the values, once they are spread over `places`.
    pub(super) fn bytes(&self, places: usize) -> usize {
        match self {
            Self::Keys(_) => places * size_of::<u32>(),
            Self::Values(values) => values.bytes(places),
        }
    }

    /// Appends `count` absent values.
    pub(super) fn extend_absent(&mut self, count: usize) {
        match self {
            Self::Keys(keys) => keys.resize(keys.len() + count, 0),
            Self::Values(values) => values.extend_absent(count),
        }
    }

    /// Moves the values after the first `start` to the `present` places. The values of other places are unspecified.
    pub(super) fn spread(&mut self, start: usize, present: &BitChunks<'_>) {
        match self {
            Self::Keys(keys) => spread(&keys.split_off(start), present, keys),
            Self::Values(values) => values.spread(start, present),
        }
    }
}

/// The levels up to `most`, whose length in bytes precedes them at the start of `buffer`; removes both from it.
fn prefixed_levels(most: u32, buffer: &mut Bytes) -> Result<Option<Hybrid>, ParquetError> {
    if most == 0 {
        return Ok(None);
    }
    let length = buffer.first_chunk::<4>().ok_or_else(truncated)?;
    let end = 4 + u32::from_le_bytes(*length) as usize;
    if end > buffer.len() {
        return Err(truncated());
    }
    let found = levels(most, buffer.slice(4..end))?;
    *buffer = buffer.slice(end..);
    Ok(found)
}

/// A stream of levels up to `most`; `None` if all are 0.
fn levels(most: u32, bytes: Bytes) -> Result<Option<Hybrid>, ParquetError> {
    let width = (u32::BITS - most.leading_zeros()) as u8;
    if width == 0 { Ok(None) } else { Hybrid::new(bytes, width).map(Some) }
}

/// A column has fewer rows than its row group.
pub(super) fn ended_early() -> ParquetError {
    ParquetError::EOF("the column ends before its row group".to_owned())
}
