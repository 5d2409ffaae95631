//! Reads one split as a sequence of raw chunks.

use std::sync::Arc;
use std::time::Duration;

use millstream_format::RawChunk;
use millstream_format::filter::ResolvedFilter;

use crate::bad_records::BadRecords;
use crate::error::Error;
use crate::parquet::row_group::RowGroup;
use crate::records::RecordsReader;

/// Reads one split from start to end.
pub struct SplitReader {
    path: Arc<str>,
    inner: Inner,
    filter: Option<(ResolvedFilter, BadRecords)>,
}

pub(super) enum Inner {
    /// No row of the split passes the filter.
    Nothing,
    Records(Box<RecordsReader>),
    RowGroup(Box<RowGroup>),
}

impl SplitReader {
    pub(super) fn new(path: Arc<str>, inner: Inner, filter: Option<(ResolvedFilter, BadRecords)>) -> Self {
        Self { path, inner, filter }
    }

    /// Skips the records before `record` without decoding them. Record numbers are those used in messages and include
    /// bad records. Must be called before the first chunk; a job resumes within a split this way.
    pub fn skip_to(&mut self, record: u64) {
        match &mut self.inner {
            Inner::Records(reader) => reader.skip_to(record),
            Inner::RowGroup(group) => group.skip_to(record),
            Inner::Nothing => {}
        }
    }

    /// Bytes fetched from storage so far.
    pub fn fetched_bytes(&self) -> u64 {
        match &self.inner {
            Inner::Records(reader) => reader.records().bytes_read(),
            Inner::RowGroup(group) => group.fetched_bytes(),
            Inner::Nothing => 0,
        }
    }

    /// The time that [`SplitReader::next_chunk`] has spent waiting for bytes.
    pub fn fetch_wait(&self) -> Duration {
        match &self.inner {
            Inner::Records(reader) => reader.records().waited(),
            Inner::RowGroup(group) => group.waited(),
            Inner::Nothing => Duration::ZERO,
        }
    }

    /// Returns the next rows, at least one and at most `max_rows`; `None` at the end. Blocks until they are fetched, so
    /// it must not be called in async code. Chunk boundaries carry no meaning.
    pub fn next_chunk(&mut self, max_rows: usize) -> Result<Option<RawChunk>, Error> {
        while let Some(chunk) = self.next_unfiltered(max_rows)? {
            let passing = match &self.filter {
                None => Some(chunk),
                Some((filter, bad)) => filter.apply(&chunk, |error| bad.skip(error.into()))?,
            };
            if passing.is_some() {
                return Ok(passing);
            }
        }
        Ok(None)
    }

    fn next_unfiltered(&mut self, max_rows: usize) -> Result<Option<RawChunk>, Error> {
        let path = self.path.clone();
        match &mut self.inner {
            Inner::Records(reader) => {
                let chunk = reader.next_chunk(max_rows)?;
                Ok(chunk.map(|(columns, numbers)| RawChunk::of_records(path, columns, numbers)))
            }
            Inner::RowGroup(group) => {
                let chunk = group.next_chunk(max_rows)?;
                Ok(chunk.map(|(columns, first_record)| RawChunk::new(path, columns, first_record)))
            }
            Inner::Nothing => Ok(None),
        }
    }
}
