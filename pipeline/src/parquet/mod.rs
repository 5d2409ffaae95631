//! Parquet objects: the footer is read when the object is opened; row groups are fetched ahead of decoding.

pub(crate) mod row_group;

use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use bytes::Bytes;
use millstream_format::parquet::{self, ParquetFile, Plan, RowGroupReader, TAIL_BYTES, WantedRows};
use millstream_io::storage::Object;
use tokio::sync::Semaphore;

use crate::error::Error;

/// The bytes of footers fetched at a time; at least the longest footer.
const FETCHED_BYTES: u64 = 256 << 20;
/// The unit in which footers are counted while they are fetched.
const UNIT_BYTES: u64 = 1 << 10;

/// Memory for the footers of files that are opened side by side.
pub(crate) struct FooterRoom {
    /// Permits to hold undecoded footers.
    fetched: Semaphore,
    budget_bytes: u64,
    /// Memory of the decoded footers.
    held_bytes: AtomicU64,
    files: AtomicU64,
}

impl FooterRoom {
    pub(crate) fn new(budget_bytes: u64) -> Self {
        Self {
            fetched: Semaphore::new((FETCHED_BYTES / UNIT_BYTES) as usize),
            budget_bytes,
            held_bytes: AtomicU64::new(0),
            files: AtomicU64::new(0),
        }
    }

    fn hold(&self, file: &ParquetFile) -> Result<(), Error> {
        let bytes = file.metadata_bytes();
        let needed_bytes = self.held_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        if needed_bytes <= self.budget_bytes {
            return Ok(());
        }
        let what = format!(
            "the metadata of {files} Parquet files (write larger files with fewer columns and row groups, or raise \
             memory_budget)"
        );
        Err(Error::OverBudget { what, needed_bytes, budget_bytes: self.budget_bytes })
    }
}

/// A Parquet object whose footer has been read. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ParquetObject {
    object: Object,
    file: ParquetFile,
}

impl ParquetObject {
    /// Reads the footer.
    ///
    /// # Errors
    /// The object cannot be read or is not a Parquet file.
    pub async fn open(object: Object) -> Result<Self, Error> {
        Self::open_within(object, &FooterRoom::new(u64::MAX)).await
    }

    /// Reads the footer while there is room for it.
    pub(crate) async fn open_within(object: Object, room: &FooterRoom) -> Result<Self, Error> {
        let file =
            read_footer(&object, room).await.inspect_err(|error| distrust_if_damaged(&object, error))?;
        room.hold(&file)?;
        Ok(Self { object, file })
    }

    /// The object.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// The file's metadata, from its footer.
    pub fn file(&self) -> &ParquetFile {
        &self.file
    }

    /// See [`ParquetFile::decode`]. Decoding may use `extra_bytes` more than it usually needs.
    ///
    /// # Errors
    /// The row group is damaged, or needs more memory.
    pub fn decode(
        &self,
        group: usize,
        plan: Plan,
        fetched: Vec<(u64, Bytes)>,
        wanted: WantedRows<'_>,
        extra_bytes: u64,
    ) -> Result<Decoding, Error> {
        let limit = self.file.decoding_bytes(group, &plan).saturating_add(extra_bytes);
        let reader = self.file.decode(group, plan, fetched, wanted, limit).map_err(Error::from);
        let reader = reader.inspect_err(|error| distrust_if_damaged(&self.object, error))?;
        Ok(Decoding { object: self.object.clone(), reader })
    }
}

/// A row group being decoded.
pub struct Decoding {
    object: Object,
    reader: RowGroupReader,
}

impl Decoding {
    /// See [`RowGroupReader::next_rows`].
    ///
    /// # Errors
    /// The row group is damaged, or needs more memory.
    pub fn next_rows(&mut self, most: usize) -> Result<Option<(RecordBatch, u64)>, Error> {
        let rows = self.reader.next_rows(most).map_err(Error::from);
        rows.inspect_err(|error| distrust_if_damaged(&self.object, error))
    }
}

async fn read_footer(object: &Object, room: &FooterRoom) -> Result<ParquetFile, Error> {
    let (path, size) = (object.path(), object.size());
    let tail_start = size.saturating_sub(TAIL_BYTES);
    let tail = object.read(tail_start..size).await?;
    let Some(range) = parquet::footer_range(path, size, &tail)? else {
        let head = object.read(0..size.min(64)).await?;
        return Err(parquet::no_footer(path, size, &head).into());
    };
    let units = (range.end - range.start).div_ceil(UNIT_BYTES) as u32;
    // The semaphore is never closed.
    let _permit = room.fetched.acquire_many(units).await.map_err(|_| Error::Cancelled)?;
    let footer = match range.start.checked_sub(tail_start) {
        Some(at) => tail.slice(at as usize..(range.end - tail_start) as usize),
        None => object.read(range.clone()).await?,
    };
    Ok(ParquetFile::new(path.clone(), size, range.start, &footer)?)
}

/// Stops sharing cached bytes that proved damaged with later readers.
fn distrust_if_damaged(object: &Object, error: &Error) {
    if matches!(error, Error::Format(millstream_format::Error::Damage { .. })) {
        object.distrust();
    }
}
