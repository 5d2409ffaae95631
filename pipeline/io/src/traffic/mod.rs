//! The requests to one bucket.

mod hedge;
mod streams;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hedge::Hedging;
use streams::Streams;

/// An attempt without bytes for this long has failed, or for a quarter of the deadline if that is less.
const SILENCE: Duration = Duration::from_secs(10);

/// Statistics of requests to remote storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchStats {
    /// Requests sent, including retries and hedges.
    pub requests: u64,
    /// Attempts after a failed one.
    pub retries: u64,
    /// Second requests sent because the first was late.
    pub hedges: u64,
    /// Responses that asked for fewer requests.
    pub throttled: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Bytes that another reader had fetched.
    pub shared_bytes: u64,
    /// The current limit on concurrent requests.
    pub streams: usize,
}

/// The requests to one bucket: their limits and statistics.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(super) deadline: Duration,
    pub(super) silence: Duration,
    pub(super) streams: Streams,
    pub(super) hedging: Hedging,
    pub(super) requests: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) hedges: AtomicU64,
    pub(super) throttled: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Traffic {
    pub(crate) fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            silence: SILENCE.min(deadline / 4),
            streams: Streams::new(),
            hedging: Hedging::new(),
            requests: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            hedges: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn add_to(&self, stats: &mut FetchStats) {
        let add = |to: &mut u64, counter: &AtomicU64| *to += counter.load(Ordering::Relaxed);
        add(&mut stats.requests, &self.requests);
        add(&mut stats.retries, &self.retries);
        add(&mut stats.hedges, &self.hedges);
        add(&mut stats.throttled, &self.throttled);
        add(&mut stats.bytes, &self.bytes);
        if self.requests.load(Ordering::Relaxed) > 0 {
            stats.streams += self.streams.limit();
        }
    }
}
