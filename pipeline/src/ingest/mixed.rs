//! The splits of one epoch of mixed data: a source of chunks in front of the job's source.
//!
//! It serves copies of the source's splits ([`Mix`]) and drops the rows of a last copy that are not drawn. It is in front
//! of the cache, which thus contains whole splits, the same ones in every epoch and for any weights. A bad record counts
//! once per epoch, in the first copy of its split.

use std::sync::Arc;

use millstream_io::permits::Permit;

use super::source::{ChunkReader, ChunkSource, Opened, SkippedRecords};
use super::stats::Counters;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::order::{Mix, Sample};

/// Reads the splits of `epoch`.
pub(crate) struct MixedSource<'a> {
    pub(crate) source: &'a dyn ChunkSource,
    pub(crate) mix: &'a Mix,
    pub(crate) seed: u64,
    pub(crate) epoch: u32,
}

/// Reads a copy of a split.
struct CopyReader {
    reader: Box<dyn ChunkReader>,
    /// The rows of the copy; `None` for all.
    sample: Option<Sample>,
    /// The next row of the split.
    row: u64,
    is_first: bool,
}

impl ChunkSource for MixedSource<'_> {
    fn splits(&self) -> u32 {
        self.mix.splits()
    }

    fn cuts(&self) -> u64 {
        self.source.cuts() ^ self.mix.key()
    }

    fn lane_bytes(&self, chunk_rows: usize) -> u64 {
        self.source.lane_bytes(chunk_rows)
    }

    fn ahead(&self, upcoming: &mut dyn Iterator<Item = u32>) -> usize {
        self.source.ahead(&mut upcoming.map(|index| self.mix.copy(index).split))
    }

    /// Of a copy of drawn rows, the reader must draw earlier rows again to know which of them are rows of the copy.
    fn open(
        &self,
        split: u32,
        from: u64,
        permit: &Permit,
        counters: &Arc<Counters>,
    ) -> Result<Opened, Error> {
        let copy = self.mix.copy(split);
        let sample = copy.sample(self.seed, self.epoch);
        let from = if sample.is_some() { 0 } else { from };
        let Opened { reader, passed } = self.source.open(copy.split, from, permit, counters)?;
        let reader = CopyReader { reader, sample, row: 0, is_first: copy.number == 0 };
        Ok(Opened { reader: Box::new(reader), passed })
    }
}

impl ChunkReader for CopyReader {
    /// Drawn rows of several chunks are joined, so that a small fraction does not result in chunks of few rows.
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error> {
        let Some(sample) = self.sample else { return self.reader.next(max_rows) };
        let mut drawn = Chunk::default();
        while 2 * drawn.rows() < max_rows {
            let Some(mut chunk) = self.reader.next(max_rows - drawn.rows())? else { break };
            let end = self.row + chunk.rows() as u64;
            let keep: Vec<bool> = (self.row..end).map(|row| sample.holds(row)).collect();
            self.row = end;
            chunk.retain_rows(&keep);
            drawn.append(&chunk);
        }
        drawn.shrink_to_fit();
        Ok((drawn.rows() > 0).then_some(drawn))
    }

    fn truncated_rows(&self) -> u64 {
        self.reader.truncated_rows()
    }

    fn left_out(&mut self) -> SkippedRecords {
        if self.is_first { self.reader.left_out() } else { SkippedRecords::default() }
    }
}
