//! A dataset and a job's transform, as the lanes' source of chunks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::source::{ChunkReader, ChunkSource, LeftOut, Opened};
use super::stats::Counters;
use crate::chunk::Chunk;
use crate::dataset::{BadRecords, Dataset, SplitReader};
use crate::error::Error;
use crate::spec::OnBadRecord;
use crate::transform::{Memory, Transform};

/// Reads and transforms the splits of a dataset. Fetches run on a tokio runtime.
pub struct DatasetSource {
    dataset: Arc<Dataset>,
    transform: Arc<Transform>,
    on_bad_record: OnBadRecord,
    runtime: Handle,
}

struct Reader {
    split: SplitReader,
    transform: Arc<Transform>,
    memory: Memory,
    bad: BadRecords,
    counters: Arc<Counters>,
    /// Of the split's fetching, what is counted already.
    waited: Duration,
    bytes: u64,
}

impl DatasetSource {
    /// Reads `dataset` for `transform`.
    pub fn new(
        dataset: Arc<Dataset>,
        transform: Arc<Transform>,
        on_bad_record: OnBadRecord,
        runtime: Handle,
    ) -> Self {
        Self { dataset, transform, on_bad_record, runtime }
    }
}

impl ChunkSource for DatasetSource {
    fn splits(&self) -> u32 {
        u32::try_from(self.dataset.splits().len()).unwrap_or(u32::MAX)
    }

    /// A raw chunk is decoded from bytes that its reader holds, and counts as much again; the ids of its
    /// dictionaries, of which it holds the texts, are within that.
    fn lane_bytes(&self, chunk_rows: usize) -> u64 {
        let splits = 0..self.dataset.splits().len();
        let most = splits.map(|split| self.dataset.reader_bytes(split, self.transform.projection())).max();
        3 * most.unwrap_or(0) + self.transform.column_bytes(chunk_rows)
    }

    /// Where bad records end the job, every record is a row, and the reader can go straight to one.
    /// Where they are left out, it must look at each again to know which rows there are.
    fn open(&self, split: u32, from: u64, counters: &Arc<Counters>) -> Result<Opened, Error> {
        let bad = BadRecords::new(self.on_bad_record);
        let place = split as usize;
        let mut reader = self.dataset.read(place, self.transform.projection(), &bad, &self.runtime)?;
        let passed = if bad.skips() { 0 } else { from };
        if passed > 0 {
            reader.skip_to(self.dataset.splits()[place].first_record + passed);
        }
        let reader = Reader {
            split: reader,
            transform: Arc::clone(&self.transform),
            memory: Memory::default(),
            bad,
            counters: Arc::clone(counters),
            waited: Duration::ZERO,
            bytes: 0,
        };
        Ok(Opened { reader: Box::new(reader), passed })
    }
}

impl ChunkReader for Reader {
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error> {
        loop {
            let start = Instant::now();
            let raw = self.split.next_chunk(max_rows);
            self.count_fetch(start.elapsed());
            let Some(raw) = raw? else { return Ok(None) };
            let Self { transform, memory, bad, counters, .. } = self;
            let transformed = counters.transform.time(|| transform.apply_with(memory, &raw, bad))?;
            self.counters.truncated_rows.add(transformed.truncated_rows);
            if transformed.chunk.rows() > 0 {
                return Ok(Some(transformed.chunk));
            }
        }
    }

    fn left_out(&mut self) -> LeftOut {
        LeftOut { records: self.bad.skipped(), last: self.bad.take_last() }
    }
}

impl Reader {
    /// Splits the time of a call into waiting for bytes and decoding them.
    fn count_fetch(&mut self, elapsed: Duration) {
        let (bytes, waited) = (self.split.fetched_bytes(), self.split.fetch_wait());
        let waited_now = waited - self.waited;
        self.counters.bytes.add(bytes - self.bytes);
        self.counters.fetch_wait.add(waited_now);
        self.counters.decode.add(elapsed.saturating_sub(waited_now));
        (self.bytes, self.waited) = (bytes, waited);
    }
}
