//! Reports of refused connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two lines in the log.
const INTERVAL: Duration = Duration::from_secs(5);

/// Counts refused connections, and logs some of them: a port scan must not fill the log.
#[derive(Debug, Default)]
pub struct Refusals {
    count: AtomicU64,
    logged: Mutex<Logged>,
}

#[derive(Debug, Default)]
struct Logged {
    last: Option<Instant>,
    /// The number of refusals since then.
    suppressed: u64,
}

impl Refusals {
    /// The number of connections and greetings that were refused.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn refuse(&self, address: SocketAddr, reason: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            logged.suppressed += 1;
            return;
        }
        let more = match std::mem::take(&mut logged.suppressed) {
            0 => String::new(),
            more => format!("; {more} more were refused since the last such message"),
        };
        logged.last = Some(Instant::now());
        tracing::warn!("refused a connection from {address} to the peer port: {reason}{more}");
    }
}
