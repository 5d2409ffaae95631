//! A chunk source that reads a dataset and applies a job's transform.

use std::sync::Arc;
use std::time::Duration;

use millstream_format::Projection;
use millstream_io::ReadContext;
use millstream_io::limits::ReadLimits;
use millstream_io::permits::Permit;
use millstream_trace::{Category, Work};
use tokio::runtime::Handle;

use super::kept::{KeptColumns, KeptRows};
use super::source::{ChunkReader, ChunkSize, ChunkSource, Elastic, Opened, SkippedRecords};
use super::stats::{Counters, Stopwatch};
use crate::bad_records::BadRecords;
use crate::chunk::Chunk;
use crate::dataset::{Absent, Dataset, SplitReader};
use crate::error::Error;
use crate::images::ImageColumn;
use crate::sequences::SequenceColumns;
use crate::spec::{DataSpec, OnBadRecord};
use crate::transform::{Scratch, Transform, project};

/// The maximum number of splits of a lane that are opened early. Small splits benefit, because reading them is mostly
/// latency.
const MOST_AHEAD: usize = 8;

/// Reads and transforms the splits of a dataset. Fetches run on a tokio runtime.
pub struct DatasetSource {
    dataset: Arc<Dataset>,
    transform: Arc<Transform>,
    on_bad_record: OnBadRecord,
    runtime: Handle,
    projection: Projection,
    kept: Option<KeptColumns>,
}

struct Reader {
    split: SplitReader,
    /// The number of the split.
    number: u32,
    transform: Arc<Transform>,
    scratch: Scratch,
    bad: BadRecords,
    counters: Arc<Counters>,
    /// The part of the split's fetch wait that is already counted.
    waited: Duration,
    bytes: u64,
    truncated_rows: u64,
    kept: Option<KeptColumns>,
}

impl DatasetSource {
    /// Reads `dataset` for `transform`.
    pub fn new(
        dataset: Arc<Dataset>,
        transform: Arc<Transform>,
        on_bad_record: OnBadRecord,
        runtime: Handle,
    ) -> Self {
        let projection = transform.projection().clone();
        Self { dataset, transform, on_bad_record, runtime, projection, kept: None }
    }

    /// Reads `dataset` for `transform`, as the data section says. In files of records, features may be `absent`. Blocks, so it
    /// must not be called from async code.
    ///
    /// # Errors
    /// The dataset lacks a column that the transform needs.
    pub fn open(
        dataset: Arc<Dataset>,
        transform: &Arc<Transform>,
        data: &DataSpec,
        absent: Absent<'_>,
        runtime: &Handle,
    ) -> Result<Arc<Self>, Error> {
        dataset.check(transform.projection(), absent, runtime)?;
        Ok(Arc::new(Self::new(dataset, Arc::clone(transform), data.on_bad_record, runtime.clone())))
    }

    /// Also reads the columns `names`, for `rows`.
    #[must_use]
    pub fn keeping(mut self, names: &[String], rows: Arc<KeptRows>) -> Self {
        // A Parquet column has lists or single values by its type; a record may have several values of any feature.
        let multi = !self.dataset.is_columnar();
        let place = |name: &String| (project(&mut self.projection, name, multi), name.clone());
        let columns = names.iter().map(place).collect();
        Self { kept: Some(KeptColumns { rows, columns, are_lists: multi }), ..self }
    }

    /// The mean bytes of a row in storage, as far as that is known.
    fn mean_bytes(&self) -> Option<u64> {
        let bytes: u64 = self.dataset.splits().iter().map(|split| split.bytes).sum();
        self.dataset.estimated_rows().map(|rows| bytes / rows.max(1))
    }

    /// The columns that it reads.
    pub fn projection(&self) -> &Projection {
        &self.projection
    }
}

impl ChunkSource for DatasetSource {
    fn splits(&self) -> u32 {
        u32::try_from(self.dataset.splits().len()).unwrap_or(u32::MAX)
    }

    fn has_filter(&self) -> bool {
        self.dataset.row_filter().is_some()
    }

    fn cuts(&self) -> u64 {
        self.dataset.cuts()
    }

    fn images(&self) -> Vec<ImageColumn> {
        let columns = self.transform.images().count().max(1) as u64;
        let mean = self.mean_bytes().map(|bytes| bytes / columns);
        self.transform.images().map(|column| column.with_mean_bytes(mean)).collect()
    }

    fn sequences(&self) -> Option<SequenceColumns> {
        Some(self.transform.sequences()?.with_mean_bytes(self.mean_bytes()))
    }

    fn chunk_size(&self) -> ChunkSize {
        if self.dataset.is_columnar() { ChunkSize::OF_COLUMNS } else { ChunkSize::OF_RECORDS }
    }

    /// The memory for the split being read and the bytes of the next one. For splits that are fetched whole, a raw
    /// chunk is decoded from bytes that the reader holds, and counts as much again. This includes the ids of its
    /// dictionaries, since the reader also holds their texts.
    fn lane_bytes(&self, chunk_rows: usize) -> u64 {
        let splits = 0..self.dataset.splits().len();
        let most = splits.map(|split| self.dataset.reader_bytes(split, &self.projection)).max();
        let most = most.unwrap_or(0);
        let reading = match self.dataset.elastic_bytes() {
            Some(largest) => most.saturating_add(ReadLimits::MIN_OBJECT_BYTES.min(largest)),
            // A footer may claim anything.
            None => most.saturating_mul(3),
        };
        reading.saturating_add(self.transform.column_bytes(chunk_rows))
    }

    fn allow(&self, bytes: u64) {
        self.dataset.limits().set_decode_bytes(bytes);
    }

    fn held_bytes(&self) -> u64 {
        self.dataset.metadata_bytes() + self.transform.held_bytes()
    }

    fn elastic(&self) -> Option<Elastic<'_>> {
        let largest = self.dataset.elastic_bytes()?;
        Some(Elastic { limits: self.dataset.limits(), most_object_bytes: largest })
    }

    fn ahead(&self, upcoming: &mut dyn Iterator<Item = u32>) -> usize {
        let room = self.dataset.limits().object_bytes();
        let bytes = upcoming.take(MOST_AHEAD).map(|split| self.dataset.splits()[split as usize].bytes);
        let ends = bytes.scan(0_u64, |end, bytes| {
            *end = end.saturating_add(bytes);
            Some(*end)
        });
        ends.take_while(|&end| end <= room).count().max(1)
    }

    /// If bad records end the job and no filter is set, every record is a row, and the reader can skip to any row.
    /// Otherwise it must read earlier records again to know which of them are rows.
    fn open(
        &self,
        split: u32,
        from: u64,
        permit: &Permit,
        counters: &Arc<Counters>,
    ) -> Result<Opened, Error> {
        let bad = BadRecords::new(self.on_bad_record);
        let place = split as usize;
        let context = ReadContext { runtime: self.runtime.clone(), permit: permit.clone() };
        let mut reader = self.dataset.read(place, &self.projection, &bad, context)?;
        let passed = if bad.skips() || self.dataset.is_filtered() { 0 } else { from };
        if passed > 0 {
            reader.skip_to(self.dataset.splits()[place].first_record + passed);
        }
        let reader = Reader {
            split: reader,
            number: split,
            transform: Arc::clone(&self.transform),
            scratch: Scratch::default(),
            bad,
            counters: Arc::clone(counters),
            waited: Duration::ZERO,
            bytes: 0,
            truncated_rows: 0,
            kept: self.kept.clone(),
        };
        Ok(Opened { reader: Box::new(reader), passed })
    }
}

impl ChunkReader for Reader {
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error> {
        loop {
            let (decoding, start) = (Stopwatch::start(), self.counters.recorder.start());
            let raw = self.split.next_chunk(max_rows);
            let bytes = self.count_decoding(&decoding);
            let Some(raw) = raw? else {
                if let Some(kept) = &self.kept {
                    kept.end(self.number);
                }
                return Ok(None);
            };
            let work = |bytes| Work { rows: raw.rows() as u64, bytes, flops: 0 };
            self.counters.recorder.add(start, Category::Ingest, "decode", || work(bytes));
            let Self { transform, scratch, bad, counters, .. } = self;
            let start = counters.recorder.start();
            let transformed = counters.transform.time(|| transform.apply_with(scratch, &raw, bad))?;
            counters.recorder.add(start, Category::Ingest, "transform", || work(0));
            self.counters.truncated_rows.add(transformed.truncated_rows);
            self.truncated_rows += transformed.truncated_rows;
            if let Some(kept) = &self.kept {
                kept.add(self.number, &raw, transformed.usable.as_deref())?;
            }
            let mut chunk = transformed.chunk;
            if chunk.rows() > 0 {
                // The chunk has most of its buffers alone now, and the pool counts what is used.
                drop(raw);
                chunk.shrink_to_fit();
                chunk.set_split(self.number);
                return Ok(Some(chunk));
            }
        }
    }

    fn truncated_rows(&self) -> u64 {
        self.truncated_rows
    }

    fn left_out(&mut self) -> SkippedRecords {
        SkippedRecords { records: self.bad.skipped(), last: self.bad.take_last() }
    }
}

impl Reader {
    /// Counts the time of a call, except for waits for bytes, which are counted elsewhere. Returns the number of bytes
    /// fetched.
    fn count_decoding(&mut self, decoding: &Stopwatch) -> u64 {
        let (bytes, waited) = (self.split.fetched_bytes(), self.split.fetch_wait());
        let waited_now = waited - self.waited;
        let taken = bytes - self.bytes;
        self.counters.bytes.add(taken);
        self.counters.decode.add(decoding, waited_now);
        (self.bytes, self.waited) = (bytes, waited);
        taken
    }
}
