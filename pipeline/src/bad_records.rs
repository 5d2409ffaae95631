//! The policy for records that cannot be used.

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
        let OnBadRecord::Skip { limit } = self.policy else { return Err(error) };
        if !error.is_bad_record() {
            return Err(error);
        }
        if self.skipped.fetch_add(1, Ordering::Relaxed) >= limit {
            return Err(Error::TooManyBadRecords { limit, last: Box::new(error) });
        }
        tracing::warn!(%error, "record skipped");
        *self.last.lock() = Some(error);
        Ok(())
    }

    /// Takes the error of the last skipped record; `None` when called again.
    pub fn take_last(&self) -> Option<Error> {
        self.last.lock().take()
    }
}
