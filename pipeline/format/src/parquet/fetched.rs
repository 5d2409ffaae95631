//! The fetched ranges of a file, presented to the decoders as the whole file.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes, buf};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// Some ranges of a file of `size` bytes, keyed by their offset.
#[derive(Clone)]
pub(super) struct FetchedFile {
    size: u64,
    parts: BTreeMap<u64, Bytes>,
}

impl FetchedFile {
    pub(super) fn new(size: u64, parts: Vec<(u64, Bytes)>) -> Self {
        Self { size, parts: parts.into_iter().collect() }
    }

    /// The bytes from `start` to the end of the range that contains it.
    fn from(&self, start: u64) -> Result<Bytes> {
        let part = self.parts.range(..=start).next_back();
        part.and_then(|(&at, bytes)| {
            let skip = usize::try_from(start - at).ok()?;
            (skip <= bytes.len()).then(|| bytes.slice(skip..))
        })
        .ok_or_else(|| ParquetError::EOF(format!("byte {start} is outside the columns")))
    }
}

impl Length for FetchedFile {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for FetchedFile {
    type T = buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.from(start)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} exceed their column")));
        }
        Ok(bytes.slice(..length))
    }
}
