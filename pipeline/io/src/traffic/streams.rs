//! The limit on concurrent requests to one bucket, tuned at run time. How it relates to the tuner of a job's ingest is on
//! the page of `ingest/tuner` in `millstream-pipeline`.
//!
//! A hill climb on measured throughput: while requests wait for their turn, the limit changes by a step, and the bytes
//! per second of the next window decide whether the step is kept. More streams must gain 8 %; fewer may lose 3 %.
//! Between steps the limit rests for some windows; if the rate falls by a third, the rest ends early. So the limit
//! settles, and adapts when other load starts or storage slows down. If the service asks for fewer requests (429, 503),
//! the limit drops by 30 % (multiplicative decrease, as in Chiu and Jain 1989), at most once per window.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

const FEWEST: usize = 2;
const FIRST: usize = 8;
/// With blocks of 2 MiB, 128 MiB in flight; readers request no more than their budgets allow.
const MOST: usize = 64;
/// A window lasts this long, or until two requests per stream have completed.
const WINDOW: Duration = Duration::from_millis(250);
const REST_WINDOWS: u32 = 8;

/// The limit on concurrent requests to one bucket.
#[derive(Debug)]
pub(crate) struct Streams {
    permits: Semaphore,
    /// Permits to discard when they are returned.
    surplus: AtomicUsize,
    measured: Mutex<Measured>,
}

#[derive(Debug)]
struct Measured {
    since: Instant,
    bytes: u64,
    ended: usize,
    /// Whether requests had to wait for their turn.
    saturated: bool,
    throttled: bool,
    climb: Climb,
}

/// A turn to send a request, returned on drop.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    streams: &'a Streams,
    permit: Option<SemaphorePermit<'a>>,
}

impl Streams {
    pub(crate) fn new() -> Self {
        let measured = Measured {
            since: Instant::now(),
            bytes: 0,
            ended: 0,
            saturated: false,
            throttled: false,
            climb: Climb::new(FIRST),
        };
        Self { permits: Semaphore::new(FIRST), surplus: AtomicUsize::new(0), measured: Mutex::new(measured) }
    }

    /// The current limit.
    pub(crate) fn limit(&self) -> usize {
        self.measured.lock().climb.limit
    }

    pub(crate) async fn turn(&self) -> Turn<'_> {
        let permit = match self.permits.try_acquire() {
            Ok(permit) => Some(permit),
            Err(_) => {
                self.measured.lock().saturated = true;
                // The semaphore is never closed.
                self.permits.acquire().await.ok()
            }
        };
        Turn { streams: self, permit }
    }

    /// Records that the service asks for fewer requests.
    pub(crate) fn throttled(&self) {
        self.measured.lock().throttled = true;
        self.ended(0);
    }

    /// Records that a request has received `bytes`.
    pub(crate) fn ended(&self, bytes: u64) {
        let mut measured = self.measured.lock();
        measured.bytes += bytes;
        measured.ended += 1;
        let (elapsed, before) = (measured.since.elapsed(), measured.climb.limit);
        if elapsed < WINDOW || (measured.ended < 2 * before && !measured.throttled) {
            return;
        }
        let rate = measured.bytes as f64 / elapsed.as_secs_f64();
        let (saturated, throttled) = (measured.saturated, measured.throttled);
        measured.climb.window(rate, saturated, throttled);
        let after = measured.climb.limit;
        (measured.since, measured.bytes, measured.ended) = (Instant::now(), 0, 0);
        (measured.saturated, measured.throttled) = (false, false);
        if after > before {
            let cancelled = self.take_surplus(after - before);
            self.permits.add_permits(after - before - cancelled);
        } else {
            self.surplus.fetch_add(before - after, Ordering::Relaxed);
        }
    }

    /// Removes up to `most` from the surplus; returns how many.
    fn take_surplus(&self, most: usize) -> usize {
        let taken = self
            .surplus
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |surplus| Some(surplus.saturating_sub(most)));
        taken.map_or(0, |surplus| surplus.min(most))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.streams.take_surplus(1) == 1
            && let Some(permit) = self.permit.take()
        {
            permit.forget();
        }
    }
}

/// The hill climb, window by window.
#[derive(Debug)]
struct Climb {
    limit: usize,
    phase: Phase,
    /// The direction of the next step.
    up: bool,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Resting at a rate, for a number of windows.
    Rest { rate: f64, windows: u32 },
    /// After a step from a limit and a rate.
    Step { from: usize, rate: f64 },
}

impl Climb {
    fn new(limit: usize) -> Self {
        // Starts as fully rested, so that the first window takes a step.
        Self { limit, phase: Phase::Rest { rate: 0.0, windows: REST_WINDOWS }, up: true }
    }

    fn window(&mut self, rate: f64, saturated: bool, throttled: bool) {
        if throttled {
            self.limit = (self.limit * 7 / 10).max(FEWEST);
            self.phase = Phase::Rest { rate, windows: 0 };
            self.up = true;
            return;
        }
        if !saturated {
            // Readers do not use the limit, so nothing can be learned.
            if let Phase::Step { from, rate } = self.phase {
                self.limit = from;
                self.phase = Phase::Rest { rate, windows: 0 };
            }
            return;
        }
        match self.phase {
            Phase::Rest { rate: before, windows } if windows < REST_WINDOWS && rate > before * 0.67 => {
                self.phase = Phase::Rest { rate: before.max(rate), windows: windows + 1 };
            }
            Phase::Rest { .. } => self.step(rate),
            Phase::Step { rate: before, .. } if rate >= before * if self.up { 1.08 } else { 0.97 } => {
                self.step(rate);
            }
            Phase::Step { from, rate: before } => {
                self.limit = from;
                self.phase = Phase::Rest { rate: before, windows: 0 };
                self.up = !self.up;
            }
        }
    }

    fn step(&mut self, rate: f64) {
        let from = self.limit;
        self.limit = if self.up { from + (from / 3).max(1) } else { from - (from / 4).max(1).min(from) };
        self.limit = self.limit.clamp(FEWEST, MOST);
        if self.limit == from {
            self.up = !self.up;
            self.phase = Phase::Rest { rate, windows: 0 };
        } else {
            self.phase = Phase::Step { from, rate };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service that serves each stream at 10 MB/s and all of them at `total`, and slows down when overloaded.
    fn settled(climb: &mut Climb, total: f64, windows: usize) -> Vec<usize> {
        let rate =
            |limit: usize| (limit as f64 * 10.0).min(total) - (limit as f64 * 10.0 - total).max(0.0) * 0.02;
        let mut limits = Vec::new();
        for _ in 0..windows {
            climb.window(rate(climb.limit), true, false);
            limits.push(climb.limit);
        }
        limits
    }

    #[test]
    fn it_settles_near_the_knee_and_settles_again() {
        let mut climb = Climb::new(FIRST);
        let limits = settled(&mut climb, 300.0, 200);
        let last = &limits[100..];
        assert!(last.iter().all(|limit| (20..=48).contains(limit)), "{last:?}");
        let limits = settled(&mut climb, 80.0, 400);
        assert!(limits[300..].iter().all(|limit| (5..=16).contains(limit)), "{:?}", &limits[300..]);
        let limits = settled(&mut climb, 300.0, 200);
        assert!(limits[100..].iter().all(|limit| (20..=48).contains(limit)), "{limits:?}");
    }

    #[test]
    fn a_throttling_service_gets_fewer_requests_down_to_a_floor() {
        let mut climb = Climb::new(FIRST);
        climb.window(1.0, true, true);
        assert_eq!(climb.limit, 5);
        (0..10).for_each(|_| climb.window(1.0, true, true));
        assert_eq!(climb.limit, FEWEST);
    }

    #[test]
    fn without_waiting_nothing_is_learned() {
        let mut climb = Climb::new(FIRST);
        (0..50).for_each(|_| climb.window(1.0, false, false));
        assert_eq!(climb.limit, FIRST);
    }

    #[tokio::test]
    async fn permits_follow_the_limit() {
        let streams = Streams::new();
        let turns: Vec<_> = futures::future::join_all((0..FIRST).map(|_| streams.turn())).await;
        streams.surplus.store(3, Ordering::Relaxed);
        drop(turns);
        assert_eq!(streams.permits.available_permits(), FIRST - 3);
    }
}
