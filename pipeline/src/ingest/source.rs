//! Where lanes get their chunks from.

use std::sync::Arc;

use millstream_io::limits::ReadLimits;
use millstream_io::permits::Permit;

use super::stats::Counters;
use crate::chunk::Chunk;
use crate::error::Error;

/// Data cut into splits, each read as a stream of transformed chunks.
///
/// Reading must be repeatable: a split gives the same rows, and leaves out the same records, whenever it
/// is read. How rows fall into chunks means nothing.
pub trait ChunkSource: Send + Sync {
    /// Splits there are.
    fn splits(&self) -> u32;

    /// What tells these splits from as many others of the same data: part of the order's fingerprint. 0 where
    /// the data itself says how it is split.
    fn cuts(&self) -> u64;

    /// The size of chunk that it reads fastest.
    fn chunk_size(&self) -> ChunkSize {
        ChunkSize::OF_RECORDS
    }

    /// The most bytes that one lane holds to read chunks of up to `chunk_rows` rows, read-ahead of its
    /// next split included, transformed chunks not. Where reading is elastic, with as little read-ahead as
    /// there can be.
    fn lane_bytes(&self, chunk_rows: usize) -> u64;

    /// The most bytes that it holds besides, however many lanes there are.
    fn shared_bytes(&self) -> u64 {
        0
    }

    /// Where read-ahead can be given more or less memory: how.
    fn elastic(&self) -> Option<Elastic<'_>> {
        None
    }

    /// How many of a lane's `upcoming` splits should be open already, so that their bytes are on their way;
    /// at least 1.
    fn ahead(&self, _upcoming: &mut dyn Iterator<Item = u32>) -> usize {
        1
    }

    /// Starts to read a split, from its row `from` if it can get there cheaply. The reader releases `permit`, its
    /// lane's, while it waits for bytes.
    ///
    /// # Errors
    /// When it is plain already that it cannot be read. An error later comes from the reader.
    fn open(&self, split: u32, from: u64, permit: &Permit, counters: &Arc<Counters>)
    -> Result<Opened, Error>;
}

/// How large a chunk is to be: what is done once a chunk, and what comes from decoding to transforming through the
/// second-level cache, bound it from both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize {
    /// The most rows.
    pub rows: u64,
    /// What wide rows should come to at most, transformed.
    pub bytes: u64,
}

impl ChunkSize {
    /// Of records, which are parsed row by row into columns.
    pub const OF_RECORDS: Self = Self { rows: 512, bytes: 256 << 10 };
    /// Of columns with dictionaries: a chunk draws each from memory again, and finds more of it in the cache the
    /// more rows it has.
    pub const OF_COLUMNS: Self = Self { rows: 2048, bytes: 512 << 10 };
}

/// Reading whose memory can be changed while it works. A lane has two objects' bytes: those of the split
/// being read, and those of the ones that follow.
pub struct Elastic<'a> {
    /// What it may use.
    pub limits: &'a Arc<ReadLimits>,
    /// The most bytes that reading one object could make use of.
    pub most_object_bytes: u64,
}

/// A split being read.
pub struct Opened {
    /// Its chunks.
    pub reader: Box<dyn ChunkReader>,
    /// Rows, from the first on, that the reader leaves out because the caller does not want them: none,
    /// or all that were asked for.
    pub passed: u64,
}

/// The chunks of one split.
pub trait ChunkReader: Send {
    /// The next rows, at least one and at most `max_rows`; `None` at the end.
    ///
    /// # Errors
    /// When the next rows cannot be had. What came before is good.
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error>;

    /// Rows so far that lost values of a multi-valued feature to its maximum, once for each feature.
    fn truncated_rows(&self) -> u64 {
        0
    }

    /// The records left out, once the split has ended.
    fn left_out(&mut self) -> SkippedRecords;
}

/// Records that could not be used and were left out.
#[derive(Debug, Default)]
pub struct SkippedRecords {
    /// How many.
    pub records: u64,
    /// What was wrong with the last of them.
    pub last: Option<Error>,
}
