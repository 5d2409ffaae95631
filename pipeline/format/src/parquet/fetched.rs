//! The fetched ranges of a file, addressed as in the whole file.

use std::collections::BTreeMap;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};

/// Some ranges of a file, keyed by their offset.
pub(super) struct FetchedFile {
    parts: BTreeMap<u64, Bytes>,
}

impl FetchedFile {
    pub(super) fn new(parts: Vec<(u64, Bytes)>) -> Self {
        Self { parts: parts.into_iter().collect() }
    }

    /// The `length` bytes at `start`, which one range contains.
    pub(super) fn bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let found = self.parts.range(..=start).next_back().and_then(|(&at, part)| {
            let first = usize::try_from(start - at).ok()?;
            let end = first.checked_add(length)?;
            (end <= part.len()).then(|| part.slice(first..end))
        });
        found.ok_or_else(|| ParquetError::EOF(format!("{length} bytes at {start} are outside the columns")))
    }
}
