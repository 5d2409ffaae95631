//! Reads one split as a sequence of raw chunks.

use std::sync::Arc;
use std::time::Duration;

use millstream_format::RawChunk;
use millstream_format::filter::ResolvedFilter;

use super::negatives::Negatives;
use crate::bad_records::BadRecords;
use crate::error::Error;
use crate::parquet::row_group::RowGroup;
use crate::records::RecordsReader;

/// Reads one split from start to end.
pub struct SplitReader {
    path: Arc<str>,
    inner: Inner,
    selection: Option<(Selection, BadRecords)>,
}

/// Which rows of a split belong to the dataset.
pub(super) struct Selection {
    pub(super) filter: ResolvedFilter,
    /// With the position of the label's column.
    pub(super) negatives: Option<(Negatives, usize)>,
}

impl Selection {
    fn apply(&self, chunk: RawChunk, bad: &BadRecords) -> Result<Option<RawChunk>, Error> {
        let chunk = match &self.negatives {
            Some((negatives, place)) => negatives.apply(chunk, *place)?,
            None => chunk,
        };
        self.filter.apply(&chunk, |error| bad.skip(error.into()))
    }
}

pub(super) enum Inner {
    /// No row of the split passes the filter.
    Nothing,
    Records(Box<RecordsReader>),
    RowGroup(Box<RowGroup>),
}

impl SplitReader {
    pub(super) fn new(path: Arc<str>, inner: Inner, selection: Option<(Selection, BadRecords)>) -> Self {
        Self { path, inner, selection }
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
            let passing = match &self.selection {
                None => Some(chunk),
                Some((selection, bad)) => selection.apply(chunk, bad)?,
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
