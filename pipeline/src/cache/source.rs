//! A source of chunks with a cache in front.

use std::sync::Arc;

use millstream_batch::{BatchSchema, RaggedFeature};
use millstream_format::Error as FormatError;
use millstream_io::permits::Permit;
use millstream_trace::Category;
use serde::{Deserialize, Serialize};

use super::block::{BLOCK_BYTES, Shape};
use super::key::{Key, Specification};
use super::reader::{self, CacheReader};
use super::store::Cache;
use super::writer::{self, PartWriter};
use crate::chunk::Chunk;
use crate::dataset::Dataset;
use crate::error::Error;
use crate::ingest::{
    ChunkReader, ChunkSize, ChunkSource, Counters, Elastic, Opened, SkippedRecords, Stopwatch,
};
use crate::spec::OnBadRecord;

/// Serves splits from their cache files, and writes the files of other splits as they are read.
pub struct CachedSource {
    shared: Arc<Shared>,
    /// Maximum size of a decoded row.
    row_bytes: u64,
    on_bad_record: OnBadRecord,
}

/// What readers keep of a source.
struct Shared {
    inner: Arc<dyn ChunkSource>,
    cache: Arc<Cache>,
    splits: Vec<Split>,
    shape: Shape,
}

/// The key of a split's cache file.
pub(super) struct Split {
    pub(super) key: Key,
    /// Path of the source file, for messages.
    pub(super) path: Arc<str>,
}

impl CachedSource {
    /// Puts `cache` in front of `inner`, which reads `dataset` into rows of `schema` as identified by
    /// `specification`.
    ///
    /// # Errors
    /// `schema` has typed columns, which cache files do not hold.
    pub fn new(
        inner: Arc<dyn ChunkSource>,
        cache: Arc<Cache>,
        dataset: &Dataset,
        schema: &BatchSchema,
        specification: &Specification,
        on_bad_record: OnBadRecord,
    ) -> Result<Self, Error> {
        if let Some(column) = schema.columns.first() {
            let name = &column.name;
            let message = format!("column `{name}`: the cache holds no typed columns; remove the cache");
            return Err(Error::Invalid(message));
        }
        let splits = dataset.splits().iter().map(|split| Split {
            key: Key::of(specification, dataset, split),
            path: dataset.objects()[split.object].path().clone(),
        });
        let shape = Shape {
            more_labels: schema.label_count() as u32 - 1,
            weighted: schema.weighted,
            dense: schema.dense.len() as u32,
            ids: schema.ids.len() as u32,
            ragged: schema.ragged.len() as u32,
            weighted_ragged: schema.ragged.iter().filter(|feature| feature.weighted).count() as u32,
        };
        let words = |feature: &RaggedFeature| (1 + u64::from(feature.weighted)) * u64::from(feature.maximum);
        let row_bytes = shape.row_bytes() + 4 * schema.ragged.iter().map(words).sum::<u64>();
        Ok(Self::of_splits(inner, cache, splits.collect(), shape, row_bytes, on_bad_record))
    }

    pub(super) fn of_splits(
        inner: Arc<dyn ChunkSource>,
        cache: Arc<Cache>,
        splits: Vec<Split>,
        shape: Shape,
        row_bytes: u64,
        on_bad_record: OnBadRecord,
    ) -> Self {
        cache.protect(splits.iter().map(|split| split.key));
        Self { shared: Arc::new(Shared { inner, cache, splits, shape }), row_bytes, on_bad_record }
    }

    /// Whether the job's policy allows `left_out` skipped records in one split.
    fn allows(&self, left_out: u64) -> bool {
        match self.on_bad_record {
            OnBadRecord::Fail => left_out == 0,
            OnBadRecord::Skip { limit } => left_out <= limit,
        }
    }

    fn open_cached(&self, split: u32, from: u64, permit: &Permit) -> Option<CacheReader> {
        let Shared { cache, splits, shape, .. } = &*self.shared;
        let mut reader = cache.open(&splits[split as usize].key, shape, permit)?;
        // The source reports the error.
        if !self.allows(reader.left_out()) || from > reader.rows() {
            return None;
        }
        reader.start(from);
        Some(reader)
    }
}

impl ChunkSource for CachedSource {
    fn splits(&self) -> u32 {
        self.shared.inner.splits()
    }

    fn cuts(&self) -> u64 {
        self.shared.inner.cuts()
    }

    fn has_filter(&self) -> bool {
        self.shared.inner.has_filter()
    }

    fn chunk_size(&self) -> ChunkSize {
        self.shared.inner.chunk_size()
    }

    /// A lane has two splits open, each from its file or from the source, and writes one file.
    fn lane_bytes(&self, chunk_rows: usize) -> u64 {
        let blocks = self.row_bytes.div_ceil(BLOCK_BYTES as u64).max(1);
        let (inner, reading) = (self.shared.inner.lane_bytes(chunk_rows), blocks * reader::HELD_BYTES);
        inner.max(reading).saturating_add(reading).saturating_add(blocks * writer::HELD_BYTES)
    }

    fn held_bytes(&self) -> u64 {
        self.shared.inner.held_bytes()
    }

    fn shared_bytes(&self) -> u64 {
        self.shared.inner.shared_bytes().saturating_add(self.shared.cache.queue_bytes())
    }

    fn allow(&self, bytes: u64) {
        self.shared.inner.allow(bytes);
    }

    fn elastic(&self) -> Option<Elastic<'_>> {
        self.shared.inner.elastic()
    }

    fn ahead(&self, upcoming: &mut dyn Iterator<Item = u32>) -> usize {
        self.shared.inner.ahead(upcoming)
    }

    fn open(
        &self,
        split: u32,
        from: u64,
        permit: &Permit,
        counters: &Arc<Counters>,
    ) -> Result<Opened, Error> {
        let opening = Opening {
            shared: Arc::clone(&self.shared),
            split,
            permit: permit.clone(),
            counters: Arc::clone(counters),
        };
        if let Some(cached) = self.open_cached(split, from, permit) {
            counters.cache_hits.add(1);
            let reader = Reader { opening, returned: from, origin: Origin::Cache(Box::new(cached)) };
            return Ok(Opened { reader: Box::new(reader), passed: from });
        }
        counters.cache_misses.add(1);
        let (source, passed) = opening.source(from, 0)?;
        let reader = Reader { opening, returned: passed, origin: Origin::Source(Box::new(source)) };
        Ok(Opened { reader: Box::new(reader), passed })
    }
}

/// The parameters for opening a split, kept to open its source later.
struct Opening {
    shared: Arc<Shared>,
    split: u32,
    permit: Permit,
    counters: Arc<Counters>,
}

/// Reads a split.
struct Reader {
    opening: Opening,
    /// Rows of the split that were returned or skipped.
    returned: u64,
    origin: Origin,
}

enum Origin {
    Cache(Box<CacheReader>),
    Source(Box<Source>),
}

/// Reads a split from its source.
struct Source {
    reader: Box<dyn ChunkReader>,
    /// Rows still to be dropped, because they were served from the cache file before it proved damaged.
    to_drop: u64,
    /// Truncated rows already counted.
    truncated_rows: u64,
    tee: Tee,
    /// Set at the end of the split.
    left_out: Option<SkippedRecords>,
}

/// Whether the rows read are also written to the cache.
enum Tee {
    /// Writing starts with the first rows.
    Pending,
    Writing(Box<PartWriter>),
    Off,
}

impl Opening {
    fn split(&self) -> &Split {
        &self.shared.splits[self.split as usize]
    }

    /// Starts to write the split's cache file, if possible.
    fn write(&self) -> Option<PartWriter> {
        self.shared.cache.write(&self.split().key, &self.shared.shape)
    }

    /// Opens the source at row `from`. The reader drops the rows before row `drop_before` that the source does not skip.
    /// Also returns the number of rows that the source skips.
    fn source(&self, from: u64, drop_before: u64) -> Result<(Source, u64), Error> {
        let inner = &self.shared.inner;
        let Opened { reader, passed } = inner.open(self.split, from, &self.permit, &self.counters)?;
        let tee = if passed == 0 { Tee::Pending } else { Tee::Off };
        let to_drop = drop_before.saturating_sub(passed);
        Ok((Source { reader, to_drop, truncated_rows: 0, tee, left_out: None }, passed))
    }
}

impl ChunkReader for Reader {
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error> {
        let chunk = loop {
            match &mut self.origin {
                Origin::Source(source) => break source.next(max_rows, &self.opening)?,
                Origin::Cache(cached) => match read_cached(cached, max_rows, &self.opening.counters) {
                    Ok(chunk) => break chunk,
                    Err(why) => {
                        self.opening.shared.cache.discard(&self.opening.split().key, &why);
                        let (source, _) = self.opening.source(self.returned, self.returned)?;
                        self.origin = Origin::Source(Box::new(source));
                    }
                },
            }
        };
        self.returned += chunk.as_ref().map_or(0, |chunk| chunk.rows() as u64);
        Ok(chunk)
    }

    fn left_out(&mut self) -> SkippedRecords {
        match &mut self.origin {
            Origin::Source(source) => source.left_out.take().unwrap_or_else(|| source.reader.left_out()),
            Origin::Cache(cached) => {
                let last = StoredFault::decode(cached.fault(), &self.opening.split().path);
                SkippedRecords { records: cached.left_out(), last }
            }
        }
    }
}

fn read_cached(
    cached: &mut CacheReader,
    max_rows: usize,
    counters: &Counters,
) -> Result<Option<Chunk>, reader::Unreadable> {
    let (decoding, start) = (Stopwatch::start(), counters.recorder.start());
    let chunk = cached.next(max_rows);
    let work = cached.take_work();
    counters.cache_read_bytes.add(work.read_bytes);
    counters.truncated_rows.add(work.truncated_rows);
    counters.decode.add(&decoding, work.waited);
    if let Ok(Some(chunk)) = &chunk {
        let done = || millstream_trace::Work { rows: chunk.rows() as u64, bytes: work.read_bytes, flops: 0 };
        counters.recorder.add(start, Category::Ingest, "decode", done);
    }
    chunk
}

impl Source {
    fn next(&mut self, max_rows: usize, opening: &Opening) -> Result<Option<Chunk>, Error> {
        loop {
            let chunk = self.reader.next(max_rows)?;
            let truncated = self.reader.truncated_rows();
            let newly_truncated = truncated - std::mem::replace(&mut self.truncated_rows, truncated);
            let Some(mut chunk) = chunk else {
                self.end(newly_truncated, opening);
                return Ok(None);
            };
            self.tee(&chunk, newly_truncated, opening);
            let rows = chunk.rows() as u64;
            let dropped = rows.min(self.to_drop);
            self.to_drop -= dropped;
            if dropped == rows {
                continue;
            }
            if dropped > 0 {
                chunk.retain_rows(&(0..rows).map(|row| row >= dropped).collect::<Vec<_>>());
            }
            return Ok(Some(chunk));
        }
    }

    fn tee(&mut self, chunk: &Chunk, truncated_rows: u64, opening: &Opening) {
        if matches!(self.tee, Tee::Pending) {
            self.tee = opening.write().map_or(Tee::Off, |writer| Tee::Writing(Box::new(writer)));
        }
        if let Tee::Writing(writer) = &mut self.tee
            && !writer.push(chunk, truncated_rows)
        {
            self.tee = Tee::Off;
        }
    }

    fn end(&mut self, truncated_rows: u64, opening: &Opening) {
        let left_out = self.reader.left_out();
        let writer = match std::mem::replace(&mut self.tee, Tee::Off) {
            Tee::Writing(writer) => Some(*writer),
            Tee::Pending => opening.write(),
            Tee::Off => None,
        };
        let fault = left_out.last.as_ref().and_then(StoredFault::encode);
        if let Some(writer) = writer
            && fault.is_some() == left_out.last.is_some()
            && let Some(bytes) = writer.end(truncated_rows, left_out.records, fault.unwrap_or_default())
        {
            opening.counters.cache_written_bytes.add(bytes);
        }
        self.left_out = Some(left_out);
    }
}

/// The error of a skipped record, without the path of its file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredFault {
    Damage { offset: u64, record: u64, message: String },
    BadValue { record: u64, column: String, message: String },
}

impl StoredFault {
    /// `None` for an error that does not concern a record.
    fn encode(error: &Error) -> Option<Vec<u8>> {
        let fault = match error {
            Error::Format(FormatError::Damage { offset, record, message, .. }) => {
                Self::Damage { offset: *offset, record: *record, message: message.clone() }
            }
            Error::Format(FormatError::BadValue { record, column, message, .. }) => {
                Self::BadValue { record: *record, column: column.clone(), message: message.clone() }
            }
            _ => return None,
        };
        serde_json::to_vec(&fault).ok()
    }

    fn decode(bytes: &[u8], path: &str) -> Option<Error> {
        let path = path.to_owned();
        Some(match serde_json::from_slice(bytes).ok()? {
            Self::Damage { offset, record, message } => {
                Error::Format(FormatError::Damage { path, offset, record, message })
            }
            Self::BadValue { record, column, message } => {
                Error::Format(FormatError::BadValue { path, record, column, message })
            }
        })
    }
}
