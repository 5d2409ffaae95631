//! A source of chunks with a cache before it.

use std::sync::Arc;

use millstream_batch::{BatchSchema, RaggedFeature};
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
use crate::ingest::{ChunkReader, ChunkSize, ChunkSource, Counters, Elastic, LeftOut, Opened, Stretch};
use crate::spec::OnBadRecord;

/// Serves splits from their cache files, and writes those of the others as they are read.
pub struct CachedSource {
    inner: Arc<dyn ChunkSource>,
    cache: Arc<Cache>,
    splits: Arc<[Split]>,
    shape: Shape,
    /// The most that a row takes, decoded.
    row_bytes: u64,
    on_bad_record: OnBadRecord,
}

/// What a split's file is of.
pub(super) struct Split {
    pub(super) key: Key,
    /// The file of the dataset, for messages.
    pub(super) path: Arc<str>,
}

impl CachedSource {
    /// Puts `cache` before `inner`, which reads `dataset` into rows of `schema`, whose values `specification`
    /// decides.
    pub fn new(
        inner: Arc<dyn ChunkSource>,
        cache: Arc<Cache>,
        dataset: &Dataset,
        schema: &BatchSchema,
        specification: &Specification,
        on_bad_record: OnBadRecord,
    ) -> Self {
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
        Self::of_splits(inner, cache, splits.collect(), shape, row_bytes, on_bad_record)
    }

    pub(super) fn of_splits(
        inner: Arc<dyn ChunkSource>,
        cache: Arc<Cache>,
        splits: Arc<[Split]>,
        shape: Shape,
        row_bytes: u64,
        on_bad_record: OnBadRecord,
    ) -> Self {
        cache.claim(splits.iter().map(|split| split.key));
        Self { inner, cache, splits, shape, row_bytes, on_bad_record }
    }

    /// Whether a job would have put up with so many records left out of one split.
    fn allows(&self, left_out: u64) -> bool {
        match self.on_bad_record {
            OnBadRecord::Fail => left_out == 0,
            OnBadRecord::Skip { limit } => left_out <= limit,
        }
    }

    fn open_cached(&self, split: u32, from: u64) -> Option<CacheReader> {
        let mut reader = self.cache.open(&self.splits[split as usize].key, &self.shape)?;
        // What would be an error is left to the source to tell.
        if !self.allows(reader.left_out()) || from > reader.rows() {
            return None;
        }
        reader.start(from);
        Some(reader)
    }
}

impl ChunkSource for CachedSource {
    fn splits(&self) -> u32 {
        self.inner.splits()
    }

    fn cuts(&self) -> u64 {
        self.inner.cuts()
    }

    fn chunk_size(&self) -> ChunkSize {
        self.inner.chunk_size()
    }

    /// A lane has two splits open, each from its file or from the source, and writes one.
    fn lane_bytes(&self, chunk_rows: usize) -> u64 {
        let blocks = self.row_bytes.div_ceil(BLOCK_BYTES as u64).max(1);
        let (inner, reading) = (self.inner.lane_bytes(chunk_rows), blocks * reader::HELD_BYTES);
        inner.max(reading).saturating_add(reading).saturating_add(blocks * writer::HELD_BYTES)
    }

    fn shared_bytes(&self) -> u64 {
        self.inner.shared_bytes().saturating_add(self.cache.queue_bytes())
    }

    fn elastic(&self) -> Option<Elastic<'_>> {
        self.inner.elastic()
    }

    fn ahead(&self, upcoming: &mut dyn Iterator<Item = u32>) -> usize {
        self.inner.ahead(upcoming)
    }

    fn open(&self, split: u32, from: u64, counters: &Arc<Counters>) -> Result<Opened, Error> {
        let opening = Opening {
            inner: Arc::clone(&self.inner),
            cache: Arc::clone(&self.cache),
            splits: Arc::clone(&self.splits),
            shape: self.shape,
            split,
            counters: Arc::clone(counters),
        };
        if let Some(cached) = self.open_cached(split, from) {
            counters.cache_hits.add(1);
            let reader = Reader { opening, given: from, from: From::Cache(Box::new(cached)) };
            return Ok(Opened { reader: Box::new(reader), passed: from });
        }
        counters.cache_misses.add(1);
        let (source, passed) = opening.source(from, 0)?;
        let reader = Reader { opening, given: passed, from: From::Source(Box::new(source)) };
        Ok(Opened { reader: Box::new(reader), passed })
    }
}

/// What it takes to open a split again.
struct Opening {
    inner: Arc<dyn ChunkSource>,
    cache: Arc<Cache>,
    splits: Arc<[Split]>,
    shape: Shape,
    split: u32,
    counters: Arc<Counters>,
}

/// A split being read.
struct Reader {
    opening: Opening,
    /// Rows of the split that were handed out or passed.
    given: u64,
    from: From,
}

enum From {
    Cache(Box<CacheReader>),
    Source(Box<Source>),
}

/// A split read from its source.
struct Source {
    reader: Box<dyn ChunkReader>,
    /// Rows to be dropped: they were served from a file that turned out to be damaged.
    dropped: u64,
    /// Truncated rows that the file's writer knows of.
    truncated_rows: u64,
    tee: Tee,
    /// Once it has ended.
    left_out: Option<LeftOut>,
}

/// Whether what is read is written.
enum Tee {
    /// From the first rows on.
    Wanted,
    Writing(Box<PartWriter>),
    No,
}

impl Opening {
    fn split(&self) -> &Split {
        &self.splits[self.split as usize]
    }

    /// Opens the source for what follows row `from`, of which the reader drops all but the last `keep`. Also
    /// returns how many rows it passes over.
    fn source(&self, from: u64, keep: u64) -> Result<(Source, u64), Error> {
        let Opened { reader, passed } = self.inner.open(self.split, from, &self.counters)?;
        let tee = if passed == 0 { Tee::Wanted } else { Tee::No };
        let dropped = keep.saturating_sub(passed);
        Ok((Source { reader, dropped, truncated_rows: 0, tee, left_out: None }, passed))
    }
}

impl ChunkReader for Reader {
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error> {
        let chunk = loop {
            match &mut self.from {
                From::Source(source) => break source.next(max_rows, &self.opening)?,
                From::Cache(cached) => match read_cached(cached, max_rows, &self.opening.counters) {
                    Ok(chunk) => break chunk,
                    Err(why) => {
                        self.opening.cache.discard(&self.opening.split().key, &why);
                        let (source, _) = self.opening.source(self.given, self.given)?;
                        self.from = From::Source(Box::new(source));
                    }
                },
            }
        };
        self.given += chunk.as_ref().map_or(0, |chunk| chunk.rows() as u64);
        Ok(chunk)
    }

    fn left_out(&mut self) -> LeftOut {
        match &mut self.from {
            From::Source(source) => source.left_out.take().unwrap_or_else(|| source.reader.left_out()),
            From::Cache(cached) => {
                let last = StoredFault::decode(cached.fault(), &self.opening.split().path);
                LeftOut { records: cached.left_out(), last }
            }
        }
    }
}

fn read_cached(
    cached: &mut CacheReader,
    max_rows: usize,
    counters: &Counters,
) -> Result<Option<Chunk>, reader::Unreadable> {
    let (decoding, start) = (Stretch::begin(), counters.recorder.start());
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
            let dropped = rows.min(self.dropped);
            self.dropped -= dropped;
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
        if matches!(self.tee, Tee::Wanted) {
            let writer = opening.cache.write(&opening.split().key, &opening.shape);
            self.tee = writer.map_or(Tee::No, |writer| Tee::Writing(Box::new(writer)));
        }
        if let Tee::Writing(writer) = &mut self.tee
            && !writer.push(chunk, truncated_rows)
        {
            self.tee = Tee::No;
        }
    }

    fn end(&mut self, truncated_rows: u64, opening: &Opening) {
        let left_out = self.reader.left_out();
        let writer = match std::mem::replace(&mut self.tee, Tee::No) {
            Tee::Writing(writer) => Some(*writer),
            Tee::Wanted => opening.cache.write(&opening.split().key, &opening.shape),
            Tee::No => None,
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

/// What was wrong with a record that was left out, without the file that it is in.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredFault {
    Damage { offset: u64, record: u64, message: String },
    BadValue { record: u64, column: String, message: String },
}

impl StoredFault {
    /// `None` for an error that is none of a record.
    fn encode(error: &Error) -> Option<Vec<u8>> {
        let fault = match error {
            Error::Damage { offset, record, message, .. } => {
                Self::Damage { offset: *offset, record: *record, message: message.clone() }
            }
            Error::BadValue { record, column, message, .. } => {
                Self::BadValue { record: *record, column: column.clone(), message: message.clone() }
            }
            _ => return None,
        };
        serde_json::to_vec(&fault).ok()
    }

    fn decode(bytes: &[u8], path: &str) -> Option<Error> {
        let path = path.to_owned();
        Some(match serde_json::from_slice(bytes).ok()? {
            Self::Damage { offset, record, message } => Error::Damage { path, offset, record, message },
            Self::BadValue { record, column, message } => Error::BadValue { path, record, column, message },
        })
    }
}
