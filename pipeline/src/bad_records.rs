//! The policy for records that cannot be used.
//!
//! Every row that is lost counts: a job that skips bad records reports how many rows it did not train on, and fails
//! if that exceeds its limit. Damage can lose more than one record. In Parquet their number is known. In TFRecord it is
//! estimated from the bytes that cannot be read and the length of the records before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::Error;
use crate::spec::OnBadRecord;

/// Applies the job's policy to bad records; shared by all readers of one pass over the data.
#[derive(Clone, Debug)]
pub struct BadRecords {
    policy: OnBadRecord,
    skipped: Arc<AtomicU64>,
    last: Arc<Mutex<Option<Error>>>,
}

impl BadRecords {
    /// Starts with no skipped records.
    pub fn new(policy: OnBadRecord) -> Self {
        Self { policy, skipped: Arc::default(), last: Arc::default() }
    }

    /// Whether bad records are skipped instead of ending the job.
    pub fn skips(&self) -> bool {
        matches!(self.policy, OnBadRecord::Skip { .. })
    }

    /// The number of records skipped so far.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Decides on a bad record: `Ok` skips it, `Err` holds the error that ends the pass.
    pub fn skip(&self, error: Error) -> Result<(), Error> {
        self.skip_all(error, 1)
    }

    /// Decides on damage that loses this many records.
    pub fn skip_all(&self, error: Error, records: u64) -> Result<(), Error> {
        let OnBadRecord::Skip { limit } = self.policy else { return Err(error) };
        if !error.is_bad_record() {
            return Err(error);
        }
        let add = |skipped: u64| Some(skipped.saturating_add(records));
        let before = self.skipped.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).unwrap_or(u64::MAX);
        if before.saturating_add(records) > limit {
            return Err(Error::TooManyBadRecords { limit, last: Box::new(error) });
        }
        tracing::warn!(%error, records, "skipped");
        *self.last.lock() = Some(error);
        Ok(())
    }

    /// Takes the error of the last skipped record; `None` when called again.
    pub fn take_last(&self) -> Option<Error> {
        self.last.lock().take()
    }
}
