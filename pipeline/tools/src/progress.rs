//! How far some work on files is, told by its threads and looked at by whoever shows it.
//!
//! Counters that are only ever added to, and a flag that calls the work off: the threads never wait for who
//! looks, and who looks decides how often.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millstream_pipeline::Error;

/// What is done of some work, and what there is to do.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    /// Bytes to be read in all, where that is known.
    total_bytes: AtomicU64,
    cancelled: AtomicBool,
}

/// What was done when it was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Files read, or made, to their end.
    pub files: u64,
    /// Rows read or made.
    pub rows: u64,
    /// Bytes read from storage.
    pub bytes: u64,
    /// Bytes to be read in all, 0 where that is not known.
    pub total_bytes: u64,
}

impl Progress {
    /// Calls the work off: it ends with [`Error::Cancelled`] as soon as its threads look.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// What is done by now.
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

    /// Fails once the work was called off.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Follows the reading of one file, or of a part of one.
    pub(crate) fn reading(&self) -> Reading<'_> {
        Reading { progress: self, bytes: 0 }
    }
}

/// The reading of one file: tells its bytes as they grow.
pub(crate) struct Reading<'a> {
    progress: &'a Progress,
    bytes: u64,
}

impl Reading<'_> {
    /// So many bytes of the file are read by now.
    pub(crate) fn at(&mut self, bytes: u64) -> Result<(), Error> {
        self.progress.bytes.fetch_add(bytes.saturating_sub(self.bytes), Ordering::Relaxed);
        self.bytes = self.bytes.max(bytes);
        self.progress.check()
    }
}
