//! The interface through which lanes read chunks.

use std::sync::Arc;

use millstream_io::limits::ReadLimits;
use millstream_io::permits::Permit;

use super::stats::Counters;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::images::ImageColumn;
use crate::sequences::SequenceColumns;

/// Data cut into splits, each read as a stream of transformed chunks.
///
/// Reading must be repeatable: a split yields the same rows and skips the same records each time it is read. Chunk
/// boundaries carry no meaning.
pub trait ChunkSource: Send + Sync {
    /// The number of splits.
    fn splits(&self) -> u32;

    /// Distinguishes these splits from other divisions of the same data into equally many splits; part of the order's
    /// fingerprint. 0 if the data itself determines its splits.
    fn cuts(&self) -> u64;

    /// Whether a filter of the job leaves out rows.
    fn has_filter(&self) -> bool {
        false
    }

    /// The columns that hold encoded images.
    fn images(&self) -> Vec<ImageColumn> {
        Vec::new()
    }

    /// The columns of tokens and how their documents are packed, if rows are documents.
    fn sequences(&self) -> Option<SequenceColumns> {
        None
    }

    /// The chunk size that it reads fastest.
    fn chunk_size(&self) -> ChunkSize {
        ChunkSize::OF_RECORDS
    }

    /// The bytes that one lane usually holds at most to read chunks of up to `chunk_rows` rows. Includes read-ahead of its
    /// next split, excludes transformed chunks. If reading is elastic, assumes minimum read-ahead.
    fn lane_bytes(&self, chunk_rows: usize) -> u64;

    /// Lets each lane hold `bytes` bytes more, where the data turns out to need it.
    fn allow(&self, _bytes: u64) {}

    /// The maximum bytes held in addition, independent of the number of lanes.
    fn shared_bytes(&self) -> u64 {
        0
    }

    /// The bytes that it holds as long as it exists.
    fn held_bytes(&self) -> u64 {
        0
    }

    /// The controls of its read-ahead memory, if that is adjustable.
    fn elastic(&self) -> Option<Elastic<'_>> {
        None
    }

    /// The number of a lane's `upcoming` splits to open in advance, so that fetching starts; at least 1.
    fn ahead(&self, _upcoming: &mut dyn Iterator<Item = u32>) -> usize {
        1
    }

    /// Starts reading a split, at row `from` if the source can skip to it cheaply. The reader releases `permit`, the
    /// permit of its lane, while it waits for bytes.
    ///
    /// # Errors
    /// The split is known to be unreadable. Later errors come from the reader.
    fn open(&self, split: u32, from: u64, permit: &Permit, counters: &Arc<Counters>)
    -> Result<Opened, Error>;
}

/// The target size of a chunk. The overhead per chunk bounds it from below. The data passed from decoding to
/// transforming should stay in the L2 cache, which bounds it from above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize {
    /// The maximum number of rows.
    pub rows: u64,
    /// The target maximum of transformed bytes, for wide rows.
    pub bytes: u64,
}

impl ChunkSize {
    /// For records, which are parsed row by row into columns.
    pub const OF_RECORDS: Self = Self { rows: 512, bytes: 256 << 10 };
    /// For columns with dictionaries. Each chunk loads the dictionaries into the cache again, so larger chunks amortize
    /// more of the misses.
    pub const OF_COLUMNS: Self = Self { rows: 2048, bytes: 512 << 10 };
}

/// Read-ahead memory that can be adjusted while reading. A lane holds the bytes of two objects: of the split being
/// read, and of the splits that follow.
pub struct Elastic<'a> {
    /// The limits in effect.
    pub limits: &'a Arc<ReadLimits>,
    /// The maximum bytes that reading one object can use.
    pub most_object_bytes: u64,
}

/// An opened split.
pub struct Opened {
    /// Its chunks.
    pub reader: Box<dyn ChunkReader>,
    /// The number of leading unwanted rows that the reader skips by itself: either all of them or none.
    pub passed: u64,
}

/// The chunks of one split.
pub trait ChunkReader: Send {
    /// The next rows, at least one and at most `max_rows`; `None` at the end.
    ///
    /// # Errors
    /// The next rows cannot be read. Earlier rows remain valid.
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error>;

    /// The number of rows so far that lost values of a multi-valued feature to its maximum, counted once per feature.
    fn truncated_rows(&self) -> u64 {
        0
    }

    /// The skipped records; call it once the split has ended.
    fn left_out(&mut self) -> SkippedRecords;
}

/// Bad records that were skipped.
#[derive(Debug, Default)]
pub struct SkippedRecords {
    /// Their number.
    pub records: u64,
    /// The error of the last of them.
    pub last: Option<Error>,
}
