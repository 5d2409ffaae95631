//! A dataset: listed files of one format, cut into splits, each read as a stream of raw chunks.
//!
//! Opening lists and freezes what there is; everything after it reads exactly that, or fails. Reading a
//! split is synchronous for the caller: fetches run ahead of it on a tokio runtime, within a bound, and
//! decoding happens on the thread that asks for the next chunk.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use futures::{StreamExt, TryStreamExt};
use tokio::runtime::Handle;

use crate::error::Error;
use crate::fetch::FetchedRanges;
use crate::format::parquet::{ParquetFile, Plan, RowGroupReader};
use crate::format::{Content, format_by_name};
use crate::ingest::Limits;
use crate::records::RecordsReader;
use crate::spec::{FormatName, OnBadRecord};
use crate::storage::{self, Object};

/// The columns that a job reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    /// In the order they have in a chunk; names are unique.
    pub columns: Vec<ProjectedColumn>,
}

/// One column that a job reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectedColumn {
    /// Its name in the data.
    pub name: String,
    /// Whether a row may hold several values. If so the column of a chunk is a list (or all absent).
    pub multi: bool,
}

/// Bytes that tell a file's format.
const SNIFFED_BYTES: u64 = 512;
/// Files looked at at once when a dataset is opened.
const OPENING: usize = 16;
/// Records looked at for a feature before it is held to be missing from the data.
const CHECKED_RECORDS: usize = 65_536;

/// Listed files of one format, cut into splits.
#[derive(Debug)]
pub struct Dataset {
    objects: Vec<Object>,
    splits: Vec<Split>,
    files: Files,
    limits: Arc<Limits>,
    /// Bytes of the longest record that [`Dataset::check`] saw.
    longest_record: OnceLock<u64>,
}

/// What is known of the files before they are read.
#[derive(Debug)]
enum Files {
    TfRecord,
    /// One for each object.
    Parquet(Vec<ParquetFile>),
}

/// The smallest unit of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Position of its file in the listing.
    pub object: usize,
    /// Which part of the file.
    pub part: SplitPart,
    /// The number, in its file, of its first record.
    pub first_record: u64,
    /// Rows, where the file says so before it is read.
    pub rows: Option<u64>,
    /// Bytes in storage.
    pub bytes: u64,
}

/// Which part of a file a split is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitPart {
    /// All of it.
    Whole,
    /// This row group of a Parquet file.
    RowGroup(u32),
}

/// Reads one split from start to end.
pub struct SplitReader {
    path: Arc<str>,
    inner: Inner,
}

enum Inner {
    Records(Box<RecordsReader>),
    RowGroup(Box<RowGroup>),
}

/// Reading of one Parquet row group.
struct RowGroup {
    file: ParquetFile,
    group: usize,
    state: RowGroupState,
    bad: BadRecords,
    /// Rows left out at the start.
    skip: u64,
    /// Decoded rows not yet handed out.
    batch: Option<RecordBatch>,
    next_record: u64,
    fetched_bytes: u64,
    waited: Duration,
}

enum RowGroupState {
    Fetching(FetchedRanges, Plan),
    Decoding(Box<RowGroupReader>),
    Ended,
}

/// Some rows of one split, as they are in the data.
#[derive(Clone, Debug)]
pub struct RawChunk {
    path: Arc<str>,
    columns: RecordBatch,
    first_record: u64,
    numbers: Option<Vec<u64>>,
}

/// What becomes of records that cannot be used; shared by all who read in one pass over the data.
#[derive(Clone, Debug)]
pub struct BadRecords {
    policy: OnBadRecord,
    skipped: Arc<AtomicU64>,
    last: Arc<Mutex<Option<Error>>>,
}

impl Dataset {
    /// Lists the files that `patterns` (paths and globs, relative to `base`) name, and reads what must be
    /// known of them to cut them into splits. Without `format` the files' names say it, or else their bytes.
    pub async fn open(patterns: &[String], base: &Path, format: Option<FormatName>) -> Result<Self, Error> {
        let objects = storage::list(patterns, base).await?;
        match common_format(&objects, format).await? {
            FormatName::TfRecord => Ok(Self::of_records(objects)),
            FormatName::Parquet => Self::of_parquet(objects).await,
        }
    }

    fn of_records(objects: Vec<Object>) -> Self {
        let whole = |(object, listed): (usize, &Object)| Split {
            object,
            part: SplitPart::Whole,
            first_record: 0,
            rows: None,
            bytes: listed.size(),
        };
        let splits = objects.iter().enumerate().map(whole).collect();
        Self {
            objects,
            splits,
            files: Files::TfRecord,
            limits: Arc::default(),
            longest_record: OnceLock::new(),
        }
    }

    async fn of_parquet(objects: Vec<Object>) -> Result<Self, Error> {
        let files: Vec<ParquetFile> = futures::stream::iter(objects.clone())
            .map(ParquetFile::open)
            .buffered(OPENING)
            .try_collect()
            .await?;
        let mut splits = Vec::new();
        for (object, file) in files.iter().enumerate() {
            for (group, described) in (0..).zip(file.groups()) {
                splits.push(Split {
                    object,
                    part: SplitPart::RowGroup(group),
                    first_record: described.first_row,
                    rows: Some(described.rows),
                    bytes: described.bytes,
                });
            }
        }
        Ok(Self {
            objects,
            splits,
            files: Files::Parquet(files),
            limits: Arc::default(),
            longest_record: OnceLock::new(),
        })
    }

    /// The files, in the order of the listing.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// Splits, in the order of the listing.
    pub fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// Rows in all, where the files say so before they are read.
    pub fn rows(&self) -> Option<u64> {
        self.splits.iter().map(|split| split.rows).sum()
    }

    /// What reading it may use; it can be changed while it is read.
    pub fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    /// The most bytes that reading one of its objects can make use of, where its [`Limits`] have a say in
    /// it: TFRecord files, which are read from end to end. A row group is fetched whole.
    pub fn elastic_bytes(&self) -> Option<u64> {
        match self.files {
            Files::TfRecord => self.splits.iter().map(|split| split.bytes).max(),
            Files::Parquet(_) => None,
        }
    }

    /// Refuses a projection that the data cannot serve, before any work: a Parquet column that is absent
    /// from a file or of an unusable type, a feature that none of the first 65,536 records holds. Blocks;
    /// call it once after opening, outside of async code.
    ///
    /// Reading does not look for absent features again: a rare one may be absent from a whole file.
    pub fn check(&self, projection: &Projection, runtime: &Handle) -> Result<(), Error> {
        match &self.files {
            Files::Parquet(files) => files.iter().try_for_each(|file| file.plan(projection).map(drop)),
            Files::TfRecord => {
                crate::records::check_features(&self.objects, projection, CHECKED_RECORDS, runtime)
                    .map(|longest| _ = self.longest_record.set(longest))
            }
        }
    }

    /// The most bytes that a reader of this split holds at a time, besides the chunk it has returned; where
    /// reading is elastic, with the least that its [`Limits`] can be.
    pub fn reader_bytes(&self, split: usize, projection: &Projection) -> u64 {
        let split = &self.splits[split];
        match (&self.files, split.part) {
            (Files::Parquet(files), SplitPart::RowGroup(group)) => {
                let file = &files[split.object];
                file.plan(projection).map_or(split.bytes, |plan| file.decoding_bytes(group as usize, &plan))
            }
            _ => {
                // The record and what was made of it.
                let longest = 2 * self.longest_record.get().copied().unwrap_or(0);
                Limits::FEWEST_OBJECT_BYTES.min(split.bytes) + crate::records::HELD_BYTES + longest
            }
        }
    }

    /// Starts to read a split: fetching begins now, on `runtime`.
    ///
    /// # Panics
    /// If there is no such split.
    pub fn read(
        &self,
        split: usize,
        projection: &Projection,
        bad: &BadRecords,
        runtime: &Handle,
    ) -> Result<SplitReader, Error> {
        let split = &self.splits[split];
        let object = self.objects[split.object].clone();
        let path = object.path().clone();
        let inner = match (&self.files, split.part) {
            (Files::Parquet(files), SplitPart::RowGroup(group)) => {
                let file = &files[split.object];
                let plan = file.plan(projection)?;
                let fetching = FetchedRanges::start(object, file.ranges(group as usize, &plan), runtime);
                Inner::RowGroup(Box::new(RowGroup {
                    file: file.clone(),
                    group: group as usize,
                    state: RowGroupState::Fetching(fetching, plan),
                    bad: bad.clone(),
                    skip: 0,
                    batch: None,
                    next_record: split.first_record,
                    fetched_bytes: 0,
                    waited: Duration::ZERO,
                }))
            }
            _ => {
                let (bad, limits) = (bad.clone(), &self.limits);
                Inner::Records(Box::new(RecordsReader::start(object, projection, bad, limits, runtime)))
            }
        };
        Ok(SplitReader { path, inner })
    }
}

/// The one format of all files.
async fn common_format(objects: &[Object], told: Option<FormatName>) -> Result<FormatName, Error> {
    if let Some(format) = told {
        return Ok(format);
    }
    let formats: Vec<FormatName> =
        futures::stream::iter(objects).map(format_of).buffered(OPENING).try_collect().await?;
    let first = *formats.first().ok_or_else(|| Error::Invalid("no files are given".to_owned()))?;
    match formats.iter().position(|&format| format != first) {
        None => Ok(first),
        Some(other) => Err(Error::WrongFormat {
            path: objects[other].path().to_string(),
            expected: format!("{}, as {} is", name_of(first), objects[0].path()),
            found: name_of(formats[other]).to_owned(),
        }),
    }
}

async fn format_of(object: &Object) -> Result<FormatName, Error> {
    if let Some(format) = format_by_name(object.path()) {
        return Ok(format);
    }
    let start = object.read(0..object.size().min(SNIFFED_BYTES)).await?;
    match Content::of(&start) {
        Content::TfRecord(_) => Ok(FormatName::TfRecord),
        Content::Parquet => Ok(FormatName::Parquet),
        other => Err(Error::WrongFormat {
            path: object.path().to_string(),
            expected: "TFRecord or Parquet".to_owned(),
            found: other.to_string(),
        }),
    }
}

fn name_of(format: FormatName) -> &'static str {
    match format {
        FormatName::TfRecord => "TFRecord",
        FormatName::Parquet => "Parquet",
    }
}

impl SplitReader {
    /// Leaves out the records (of the file, counted from 0, bad ones included) before `record`, without
    /// decoding them. Only before the first chunk: it is how a job resumes within a split.
    pub fn skip_to(&mut self, record: u64) {
        match &mut self.inner {
            Inner::Records(reader) => reader.skip_to(record),
            Inner::RowGroup(group) => {
                group.skip = record.saturating_sub(group.next_record);
                group.next_record += group.skip;
            }
        }
    }

    /// Bytes taken from storage so far.
    pub fn fetched_bytes(&self) -> u64 {
        match &self.inner {
            Inner::Records(reader) => reader.records().bytes_read(),
            Inner::RowGroup(group) => group.fetched_bytes,
        }
    }

    /// Time that [`SplitReader::next_chunk`] has spent waiting for bytes.
    pub fn fetch_wait(&self) -> Duration {
        match &self.inner {
            Inner::Records(reader) => reader.records().waited(),
            Inner::RowGroup(group) => group.waited,
        }
    }

    /// The next rows, at least one and at most `max_rows`; `None` at the end. Blocks until they are
    /// fetched, so it must not be called in async code. How rows fall into chunks means nothing.
    pub fn next_chunk(&mut self, max_rows: usize) -> Result<Option<RawChunk>, Error> {
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
        }
    }
}

impl RowGroup {
    fn next_chunk(&mut self, max_rows: usize) -> Result<Option<(RecordBatch, u64)>, Error> {
        let batch = match self.batch.take() {
            Some(batch) => batch,
            None => match self.next_batch() {
                Ok(Some(batch)) => batch,
                Ok(None) => return Ok(None),
                // Nothing tells which of the rows are good, so all that are left count as one.
                Err(error) => {
                    self.state = RowGroupState::Ended;
                    return self.bad.skip(error).map(|()| None);
                }
            },
        };
        let rows = batch.num_rows().min(max_rows.max(1));
        let first_record = self.next_record;
        self.next_record += rows as u64;
        if rows < batch.num_rows() {
            self.batch = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        Ok(Some((batch.slice(0, rows), first_record)))
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, Error> {
        loop {
            match std::mem::replace(&mut self.state, RowGroupState::Ended) {
                RowGroupState::Ended => return Ok(None),
                RowGroupState::Fetching(fetching, plan) => {
                    let start = Instant::now();
                    let fetched = fetching.wait()?;
                    self.waited = start.elapsed();
                    self.fetched_bytes = fetched.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                    let reader = self.file.decode(self.group, plan, fetched, self.skip)?;
                    self.state = RowGroupState::Decoding(Box::new(reader));
                }
                RowGroupState::Decoding(mut reader) => match reader.next_batch()? {
                    None => return Ok(None),
                    Some(batch) => {
                        self.state = RowGroupState::Decoding(reader);
                        if batch.num_rows() > 0 {
                            return Ok(Some(batch));
                        }
                    }
                },
            }
        }
    }
}

impl RawChunk {
    /// Consecutive records of the file `path`, from `first_record` on.
    pub fn new(path: Arc<str>, columns: RecordBatch, first_record: u64) -> Self {
        Self { path, columns, first_record, numbers: None }
    }

    /// The records that `numbers` says, one for each row and ascending.
    pub(crate) fn of_records(path: Arc<str>, columns: RecordBatch, numbers: Vec<u64>) -> Self {
        let first_record = numbers.first().copied().unwrap_or(0);
        let consecutive = numbers.last().is_none_or(|last| last - first_record + 1 == numbers.len() as u64);
        Self { path, columns, first_record, numbers: (!consecutive).then_some(numbers) }
    }

    /// Rows held.
    pub fn rows(&self) -> usize {
        self.columns.num_rows()
    }

    /// One column for each of the projection, in its order.
    pub fn columns(&self) -> &RecordBatch {
        &self.columns
    }

    /// The file the rows are from, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The number, in its file, of the record that row `row` is.
    pub fn record(&self, row: usize) -> u64 {
        self.numbers.as_ref().map_or(self.first_record + row as u64, |numbers| numbers[row])
    }
}

impl BadRecords {
    /// None so far.
    pub fn new(policy: OnBadRecord) -> Self {
        Self { policy, skipped: Arc::default(), last: Arc::default() }
    }

    /// Whether bad records are left out rather than fatal.
    pub fn skips(&self) -> bool {
        matches!(self.policy, OnBadRecord::Skip { .. })
    }

    /// Records left out so far.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Decides on a record that cannot be used: `Ok` to leave it out, else the error to end with.
    pub fn skip(&self, error: Error) -> Result<(), Error> {
        let OnBadRecord::Skip { limit } = self.policy else { return Err(error) };
        if !error.is_bad_record() {
            return Err(error);
        }
        if self.skipped.fetch_add(1, Ordering::Relaxed) >= limit {
            return Err(Error::TooManyBadRecords { limit, last: Box::new(error) });
        }
        tracing::warn!(%error, "record left out");
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        Ok(())
    }

    /// What was wrong with the record left out last, once.
    pub fn take_last(&self) -> Option<Error> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
#[path = "dataset_tests.rs"]
mod tests;
