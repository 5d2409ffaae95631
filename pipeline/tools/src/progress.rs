//! The progress of work on files: worker threads report it, and a caller displays it.
//!
//! It consists of monotonic counters and a cancellation flag. The threads never wait for the reader, and the reader
//! chooses its polling interval.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millstream_pipeline::Error;

/// The counters of running work, and its cancellation flag.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    /// The total bytes to read, as far as known.
    total_bytes: AtomicU64,
    cancelled: AtomicBool,
}

/// A snapshot of the progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Files completely read or generated.
    pub files: u64,
    /// Rows read or generated.
    pub rows: u64,
    /// Bytes read from storage.
    pub bytes: u64,
    /// The total bytes to read; 0 if unknown.
    pub total_bytes: u64,
}

impl Progress {
    /// Cancels the work, which then ends with [`Error::Cancelled`] at its next check.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// The progress so far.
    pub fn done(&self) -> Done {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Done {
            files: load(&self.files),
            rows: load(&self.rows),
            bytes: load(&self.bytes),
            total_bytes: load(&self.total_bytes),
        }
    }

    pub(crate) fn expect_bytes(&self, bytes: u64) {
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// Fails if the work was cancelled.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Starts reporting the reading of one file or part of a file.
    pub(crate) fn reading(&self) -> Reading<'_> {
        Reading { progress: self, bytes: 0 }
    }
}

/// Reports the bytes read from one file.
pub(crate) struct Reading<'a> {
    progress: &'a Progress,
    bytes: u64,
}

impl Reading<'_> {
    /// Reports that `bytes` bytes of the file have been read in total.
    pub(crate) fn at(&mut self, bytes: u64) -> Result<(), Error> {
        self.progress.bytes.fetch_add(bytes.saturating_sub(self.bytes), Ordering::Relaxed);
        self.bytes = self.bytes.max(bytes);
        self.progress.check()
    }
}
