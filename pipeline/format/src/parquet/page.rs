//! Reads the pages of a column chunk from its fetched bytes.
//!
//! Own reader, also for the columns that the `parquet` crate decodes: it knows the size of a page before it allocates
//! memory for it, reserves that memory with the row group's [`Meter`], and never decompresses more.
//!
//! Source: the Parquet format's `parquet.thrift`, `PageHeader`.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;

use super::codec::Decompressor;
use super::fetched::FetchedFile;
use super::footer::byte_range;
use super::header::{Header, Kind};
use super::meter::{Meter, Reserved};
use crate::inflate::checksum::Checksum;

/// The pages of a column chunk, from the first to the last.
pub(super) struct Pages {
    column: String,
    source: Arc<FetchedFile>,
    place: Place,
    decompressor: Decompressor,
    meter: Arc<Meter>,
    /// The memory of the page returned last. A dictionary is kept, so its memory is never released.
    page: Option<Reserved>,
    dictionary: Option<Reserved>,
}

/// Where the next pages lie in the file.
enum Place {
    /// One after the other in this range.
    Consecutive {
        rest: Range<u64>,
        /// The header of the next page, if it has been read; `rest` then starts at the page's body.
        next: Option<Header>,
    },
    /// At the locations of an index.
    Located {
        dictionary: Option<Range<u64>>,
        pages: VecDeque<PageLocation>,
        /// The number of rows of the column chunk.
        rows: usize,
    },
}

impl Pages {
    /// All pages of `column`, which has `rows` rows; its data pages are at `places`, if given.
    pub(super) fn new(
        source: &Arc<FetchedFile>,
        column: &ColumnChunkMetaData,
        rows: usize,
        places: Option<Vec<PageLocation>>,
        meter: &Arc<Meter>,
    ) -> Result<Self> {
        let whole = byte_range(column).ok_or_else(|| damaged("the column lies outside the file"))?;
        let place = match places {
            None => Place::Consecutive { rest: whole, next: None },
            Some(places) => {
                let first = places.first().map_or(whole.end, |place| place.offset.max(0) as u64);
                let dictionary = Some(whole.start..first).filter(|range| !range.is_empty());
                Place::Located { dictionary, pages: places.into(), rows }
            }
        };
        Ok(Self {
            column: column.column_path().string(),
            source: Arc::clone(source),
            place,
            decompressor: Decompressor::new(column.compression()),
            meter: Arc::clone(meter),
            page: None,
            dictionary: None,
        })
    }

    /// The name of the column, for messages.
    pub(super) fn column(&self) -> &str {
        &self.column
    }

    /// The header of the next page and the bytes of its body; `None` at the end.
    fn next_body(&mut self) -> Result<Option<(Header, Bytes)>> {
        match &mut self.place {
            Place::Consecutive { rest, next } => {
                let Some(header) = next_header(&self.source, rest, next)? else { return Ok(None) };
                *next = None;
                let body = self.source.bytes(rest.start, header.compressed)?;
                rest.start += header.compressed as u64;
                Ok(Some((header, body)))
            }
            Place::Located { dictionary, pages, .. } => {
                let mut range = match dictionary.take() {
                    Some(range) => range,
                    None => match pages.pop_front() {
                        Some(place) => {
                            let start = place.offset.max(0) as u64;
                            start..start + place.compressed_page_size.max(0) as u64
                        }
                        None => return Ok(None),
                    },
                };
                match next_header(&self.source, &mut range, &mut None)? {
                    Some(header) => Ok(Some((header, self.source.bytes(range.start, header.compressed)?))),
                    None => Err(damaged("the index locates a page where none is")),
                }
            }
        }
    }

    /// Verifies the checksum of a page and decompresses it.
    fn open(&mut self, header: Header, body: Bytes) -> Result<Page> {
        if let Some(expected) = header.checksum {
            let mut checksum = Checksum::crc32();
            checksum.update(&body);
            if checksum.value() != expected {
                return Err(damaged("the checksum of a page differs from its content"));
            }
        }
        let is_dictionary = matches!(header.kind, Kind::Dictionary { .. });
        let (plain, is_compressed) = match header.kind {
            // The levels of these pages are never compressed.
            Kind::DataV2 { repetition_bytes, definition_bytes, is_compressed, .. } => {
                (repetition_bytes + definition_bytes, is_compressed)
            }
            _ => (0, true),
        };
        let what = if is_dictionary { "the dictionary" } else { "a page" };
        let reserved = match is_compressed && self.decompressor.is_needed() {
            false => None,
            true => {
                if plain > body.len() || plain > header.uncompressed {
                    return Err(damaged("the levels of a page exceed it"));
                }
                let column = &self.column;
                // Released first: the decoder has consumed the page before.
                self.page = None;
                let bytes = header.uncompressed as u64;
                Some(self.meter.reserve(bytes, || format!("{what} of column `{column}`"))?)
            }
        };
        let body = match reserved {
            None => body,
            Some(_) => {
                let mut content = Vec::with_capacity(header.uncompressed);
                content.extend_from_slice(&body[..plain]);
                // A page without values may consist of levels alone.
                if header.uncompressed > plain {
                    self.decompressor.decompress(
                        &body[plain..],
                        header.uncompressed - plain,
                        &mut content,
                    )?;
                }
                content.into()
            }
        };
        *(if is_dictionary { &mut self.dictionary } else { &mut self.page }) = reserved;
        Ok(match header.kind {
            Kind::Dictionary { values, encoding, is_sorted } => {
                Page::DictionaryPage { buf: body, num_values: values, encoding, is_sorted }
            }
            Kind::Data { values, encoding, definition_encoding, repetition_encoding } => Page::DataPage {
                buf: body,
                num_values: values,
                encoding,
                def_level_encoding: definition_encoding,
                rep_level_encoding: repetition_encoding,
                statistics: None,
            },
            Kind::DataV2 {
                values,
                encoding,
                rows,
                nulls,
                repetition_bytes,
                definition_bytes,
                is_compressed,
            } => Page::DataPageV2 {
                buf: body,
                num_values: values,
                encoding,
                num_nulls: nulls,
                num_rows: rows,
                def_levels_byte_len: definition_bytes as u32,
                rep_levels_byte_len: repetition_bytes as u32,
                is_compressed,
                statistics: None,
            },
            Kind::Index => return Err(damaged("a page of an index among the pages of a column")),
        })
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some((header, body)) = self.next_body()? else { return Ok(None) };
        self.open(header, body).map(Some)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        match &mut self.place {
            Place::Consecutive { rest, next } => Ok(next_header(&self.source, rest, next)?.map(describe)),
            Place::Located { dictionary: Some(_), .. } => {
                Ok(Some(PageMetadata { num_rows: None, num_levels: None, is_dict: true }))
            }
            Place::Located { pages, rows, .. } => Ok(pages.front().map(|page| {
                let first = |page: &PageLocation| page.first_row_index.max(0) as usize;
                let end = pages.get(1).map_or(*rows, first);
                let rows = end.saturating_sub(first(page));
                PageMetadata { num_rows: Some(rows), num_levels: None, is_dict: false }
            })),
        }
    }

    fn skip_next_page(&mut self) -> Result<()> {
        match &mut self.place {
            Place::Consecutive { rest, next } => {
                if let Some(header) = next_header(&self.source, rest, next)? {
                    *next = None;
                    rest.start += header.compressed as u64;
                }
            }
            Place::Located { dictionary, pages, .. } => {
                if dictionary.take().is_none() {
                    pages.pop_front();
                }
            }
        }
        Ok(())
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        match self.place {
            // Pages with an index start with a row, and so do pages that state their number of rows.
            Place::Located { .. } => Ok(true),
            Place::Consecutive { .. } => {
                Ok(self.peek_next_page()?.is_none_or(|page| page.num_rows.is_some()))
            }
        }
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// The header of the page at the start of `rest`, which it moves to the page's body; or `next`, if that is set. Skips
/// the pages of indexes. `None` at the end of `rest`.
fn next_header(
    source: &FetchedFile,
    rest: &mut Range<u64>,
    next: &mut Option<Header>,
) -> Result<Option<Header>> {
    while next.is_none() && !rest.is_empty() {
        let length = usize::try_from(rest.end - rest.start).map_err(|_| damaged("a column is too large"))?;
        let bytes = source.bytes(rest.start, length)?;
        let (header, header_bytes) = Header::read(&bytes).map_err(ParquetError::General)?;
        if header.compressed > length - header_bytes {
            return Err(damaged("a page exceeds its column"));
        }
        rest.start += header_bytes as u64;
        match header.kind {
            Kind::Index => rest.start += header.compressed as u64,
            _ => *next = Some(header),
        }
    }
    Ok(*next)
}

fn describe(header: Header) -> PageMetadata {
    let (num_rows, num_levels, is_dict) = match header.kind {
        Kind::Data { values, .. } => (None, Some(values as usize), false),
        Kind::DataV2 { values, rows, .. } => (Some(rows as usize), Some(values as usize), false),
        Kind::Dictionary { .. } | Kind::Index => (None, None, true),
    };
    PageMetadata { num_rows, num_levels, is_dict }
}

fn damaged(what: &str) -> ParquetError {
    ParquetError::General(what.to_owned())
}
