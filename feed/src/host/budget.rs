//! The memory that all open feeds of a host may use together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_batch::Size;

use crate::Error;

/// A limit and what is reserved of it, in bytes.
#[derive(Debug)]
pub(super) struct Budget(Mutex<Bytes>);

#[derive(Clone, Copy, Debug)]
struct Bytes {
    limit: u64,
    reserved: u64,
}

/// Reserved memory, until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self(Mutex::new(Bytes { limit, reserved: 0 }))
    }

    /// Changes the limit. Feeds that are open stay open.
    pub(super) fn set_limit(&self, limit: u64) {
        self.bytes().limit = limit;
    }

    pub(super) fn limit(&self) -> u64 {
        self.bytes().limit
    }

    pub(super) fn reserved(&self) -> u64 {
        self.bytes().reserved
    }

    /// Reserves `bytes` for `what`.
    ///
    /// # Errors
    /// They are more than the limit leaves.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64, what: &str) -> Result<Reservation, Error> {
        let mut now = self.bytes();
        let Bytes { limit, reserved } = *now;
        if bytes > limit.saturating_sub(reserved) {
            return Err(Error::Failed(format!(
                "{what} needs {}; all feeds of this host may use {}, of which {} are in use: lower `memory_budget` of a \
                 feed, wait for the end of another one (`millstream feeds` lists them), or raise `memory` in [feeds] of \
                 the daemon's configuration",
                Size(bytes),
                Size(limit),
                Size(reserved),
            )));
        }
        now.reserved += bytes;
        Ok(Reservation { budget: Arc::clone(self), bytes })
    }

    fn bytes(&self) -> MutexGuard<'_, Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.bytes().reserved -= self.bytes;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reserved_until_it_is_dropped() {
        let budget = Arc::new(Budget::new(10 << 20));
        let first = budget.reserve(6 << 20, "the feed").unwrap();
        let error = budget.reserve(5 << 20, "the feed").unwrap_err().to_string();
        for part in ["the feed needs 5.0 MiB", "may use 10.0 MiB", "6.0 MiB are in use", "[feeds]"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let second = budget.reserve(4 << 20, "the feed").unwrap();
        assert_eq!(budget.reserved(), 10 << 20);
        drop(first);
        budget.set_limit(3 << 20);
        assert!(budget.reserve(1, "the feed").is_err(), "an open feed has more than the new limit");
        drop(second);
        assert_eq!((budget.reserved(), budget.limit()), (0, 3 << 20));
        assert!(budget.reserve(3 << 20, "the feed").is_ok());
    }
}
