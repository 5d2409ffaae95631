//! Decides when to send a second request for a late one, and limits how often.
//!
//! A request that takes longer than nearly all others is probably stuck behind something that a second one is not
//! (Dean and Barroso, "The Tail at Scale", 2013). The second one is sent when the first exceeds 1.5 times the 95th
//! percentile; the first response is used. Each request earns a twentieth of a second one, so that hedges stay at 5 %
//! of all requests even if everything is slow; at most ten are saved up.

use std::time::Duration;

use parking_lot::Mutex;

/// The share of a second request that each request earns.
const SHARE: f64 = 0.05;
const SAVED: f64 = 10.0;
/// Number of durations kept for each size of request.
const REMEMBERED: usize = 128;
/// Until this many durations are known, only a request that takes [`UNKNOWN`] is late.
const ENOUGH: usize = 16;
const UNKNOWN: Duration = Duration::from_secs(2);
const SOONEST: Duration = Duration::from_millis(20);
/// Requests for fewer bytes have separate statistics.
const SMALL_BYTES: u64 = 256 << 10;

/// Durations of requests, and the budget of second ones.
#[derive(Debug)]
pub(crate) struct Hedging {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    small: Times,
    large: Times,
    saved: f64,
}

/// The last durations, and their 95th percentile.
#[derive(Debug, Default)]
struct Times {
    last: Vec<Duration>,
    next: usize,
    since_sorted: usize,
    most: Option<Duration>,
}

impl Hedging {
    pub(crate) fn new() -> Self {
        let state = State { small: Times::default(), large: Times::default(), saved: 1.0 };
        Self { state: Mutex::new(state) }
    }

    /// Records the duration of a request for `bytes`.
    pub(crate) fn note(&self, bytes: u64, time: Duration) {
        self.state.lock().times(bytes).note(time);
    }

    /// Records a request for `bytes`; returns when it will be late.
    pub(crate) fn begin(&self, bytes: u64) -> Duration {
        let mut state = self.state.lock();
        state.saved = (state.saved + SHARE).min(SAVED);
        state.times(bytes).most.map_or(UNKNOWN, |most| most.mul_f64(1.5).max(SOONEST))
    }

    /// Whether a second request may be sent; deducts it from the budget.
    pub(crate) fn pay(&self) -> bool {
        let mut state = self.state.lock();
        let pays = state.saved >= 1.0;
        if pays {
            state.saved -= 1.0;
        }
        pays
    }
}

impl State {
    fn times(&mut self, bytes: u64) -> &mut Times {
        if bytes < SMALL_BYTES { &mut self.small } else { &mut self.large }
    }
}

impl Times {
    fn note(&mut self, time: Duration) {
        if self.last.len() < REMEMBERED {
            self.last.push(time);
        } else {
            self.last[self.next] = time;
            self.next = (self.next + 1) % REMEMBERED;
        }
        self.since_sorted += 1;
        if self.last.len() >= ENOUGH && self.since_sorted >= ENOUGH {
            self.since_sorted = 0;
            let mut sorted = self.last.clone();
            let at = sorted.len() * 95 / 100;
            self.most = Some(*sorted.select_nth_unstable(at).1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_are_late() {
        let hedging = Hedging::new();
        assert_eq!(hedging.begin(SMALL_BYTES), UNKNOWN);
        for time in 0..200 {
            hedging.note(SMALL_BYTES, Duration::from_millis(100 + time % 100));
        }
        let late = hedging.begin(SMALL_BYTES);
        assert!((270..310).contains(&late.as_millis()), "{late:?}");
        assert_eq!(hedging.begin(1), UNKNOWN);
        (0..REMEMBERED).for_each(|_| hedging.note(1, Duration::from_micros(10)));
        assert_eq!(hedging.begin(1), SOONEST);
    }

    #[test]
    fn second_requests_are_a_small_share() {
        let hedging = Hedging::new();
        let sent = (0..10_000).filter(|_| {
            hedging.begin(1);
            hedging.pay()
        });
        assert!((490..=510).contains(&sent.count()));
        (0..10_000).for_each(|_| {
            hedging.begin(1);
        });
        assert_eq!((0..100).filter(|_| hedging.pay()).count(), SAVED as usize);
    }
}
