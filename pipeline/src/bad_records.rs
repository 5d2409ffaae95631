//! What becomes of records that cannot be used.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::spec::OnBadRecord;

/// What becomes of records that cannot be used; shared by all who read in one pass over the data.
#[derive(Clone, Debug)]
pub struct BadRecords {
    policy: OnBadRecord,
    skipped: Arc<AtomicU64>,
    last: Arc<Mutex<Option<Error>>>,
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
