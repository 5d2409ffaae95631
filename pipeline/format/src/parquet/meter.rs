//! The memory that decoding one row group may use.
//!
//! A file states the size of each of its pages, but a page can be as large as its writer wanted, and a few bytes of it
//! can stand for millions of values. So memory is reserved here before it is allocated, and exceeding the limit is an
//! error that names the column, rather than the end of the process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parquet::errors::ParquetError;

/// More bytes than any memory has, and few enough for sums of them.
const MAX_BYTES: u64 = 1 << 56;

/// Counts the bytes that the readers of a row group's columns hold.
#[derive(Debug)]
pub(super) struct Meter {
    limit: u64,
    held: AtomicU64,
    /// The reservation that exceeded the limit.
    refused: OnceLock<String>,
}

/// Reserved bytes, released when dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    meter: Arc<Meter>,
    bytes: u64,
}

impl Meter {
    /// A meter of `limit` bytes.
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, held: AtomicU64::new(0), refused: OnceLock::new() })
    }

    /// Reserves `bytes` for `what`, such as "a page of column `a`".
    ///
    /// # Errors
    /// The limit would be exceeded.
    pub(super) fn reserve(
        self: &Arc<Self>,
        bytes: u64,
        what: impl FnOnce() -> String,
    ) -> Result<Reserved, ParquetError> {
        let bytes = bytes.min(MAX_BYTES);
        // From here on, dropping gives the bytes back.
        let held = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let reserved = Reserved { meter: Arc::clone(self), bytes };
        if held <= self.limit {
            return Ok(reserved);
        }
        let message = format!(
            "{} needs {bytes} bytes, of which {} are left for this row group",
            what(),
            self.limit.saturating_sub(held - bytes)
        );
        Err(ParquetError::General(self.refused.get_or_init(|| message).clone()))
    }

    /// The first reservation that was refused.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.get().map(String::as_str)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.meter.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
