//! Parquet objects: the footer is read when the object is opened; row groups are fetched ahead of decoding.

pub(crate) mod row_group;

use arrow_array::RecordBatch;
use bytes::Bytes;
use millstream_format::parquet::{self, ParquetFile, Plan, RowGroupReader, TAIL_BYTES, WantedRows};
use millstream_io::storage::Object;

use crate::error::Error;

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
        let file = read_footer(&object).await.inspect_err(|error| distrust_if_damaged(&object, error))?;
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

async fn read_footer(object: &Object) -> Result<ParquetFile, Error> {
    let (path, size) = (object.path(), object.size());
    let tail_start = size.saturating_sub(TAIL_BYTES);
    let tail = object.read(tail_start..size).await?;
    let Some(range) = parquet::footer_range(path, size, &tail)? else {
        let head = object.read(0..size.min(64)).await?;
        return Err(parquet::no_footer(path, size, &head).into());
    };
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
