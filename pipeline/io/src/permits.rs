//! Decode permits: control which lanes decode concurrently, and how many.
//!
//! There are many lanes, because lanes determine the order of rows, and few cores. If hundreds of lanes decoded
//! concurrently, the kernel would time-slice them with cold caches, and the lane whose window the packer needs would be
//! one of many. So a lane decodes only while it holds one of a few permits per core:
//!
//! * A lane keeps its permit over many chunks, until its window is complete or it waits for bytes. So threads switch
//!   once per window, not once per chunk.
//! * It releases the permit while it waits for bytes ([`Permit::released_while`]).
//! * A free permit goes to the lane that the packer is waiting for, or else to the lane that started its window first.
//!   A lane starts a window when the packer has taken the previous one, and the packer takes rows from all lanes at the
//!   same rate. So that lane's window is needed first: earliest deadline first.
//! * Between two chunks, a lane yields its permit to a lane with an earlier deadline.
//!
//! The number of permits may change at any time. Closing them cancels the ingest's waits, for a permit or for bytes.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use millstream_trace::{Category, Recorder, Work};
use parking_lot::{Condvar, Mutex};

use crate::Error;
use crate::cancel::Cancel;
use crate::clock::Clock;

/// The permits of one ingest, and the lanes that wait for one.
#[derive(Debug)]
pub struct DecodePermits {
    state: Mutex<State>,
    /// Wakes each lane.
    turns: Vec<Condvar>,
    /// The earliest deadline of a waiting lane; `u64::MAX` if none waits.
    earliest: AtomicU64,
    /// Time that lanes waited for a permit.
    pub queueing: Clock,
    /// Time that lanes waited for bytes.
    pub fetching: Clock,
    /// Cancels the reads of all lanes.
    cancel: Cancel,
    recorder: Arc<Recorder>,
}

#[derive(Debug)]
struct State {
    permits: u32,
    held: u32,
    closed: bool,
    /// The deadline of the next window that starts.
    next: u64,
    lanes: Vec<Lane>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    deadline: u64,
    waits: bool,
    granted: bool,
}

/// The permit of one lane, held or not. Clones are the same permit: each reader of the lane has one, to release it while
/// the reader waits. The default permit belongs to no lane and is always held.
#[derive(Clone, Debug, Default)]
pub struct Permit(Option<Arc<LanePermit>>);

#[derive(Debug)]
struct LanePermit {
    permits: Arc<DecodePermits>,
    lane: u32,
    /// Only the lane's thread changes it.
    held: AtomicBool,
}

impl DecodePermits {
    /// `permits` permits for `lanes` lanes, whose waits are recorded by `recorder`.
    pub fn new(lanes: u32, permits: u32, recorder: &Arc<Recorder>) -> Self {
        let state = State {
            permits: permits.max(1),
            held: 0,
            closed: false,
            next: 1,
            lanes: vec![Lane::default(); lanes as usize],
        };
        Self {
            state: Mutex::new(state),
            turns: (0..lanes).map(|_| Condvar::new()).collect(),
            earliest: AtomicU64::new(u64::MAX),
            queueing: Clock::default(),
            fetching: Clock::default(),
            cancel: Cancel::default(),
            recorder: Arc::clone(recorder),
        }
    }

    /// Changes the number of permits. Lanes above a lower number release theirs between two chunks.
    pub fn set_permits(&self, permits: u32) {
        let mut state = self.state.lock();
        state.permits = permits.max(1);
        self.grant(&mut state);
    }

    /// Gives `lane` the earliest deadline: the packer is waiting for it.
    pub fn prioritize(&self, lane: u32) {
        let mut state = self.state.lock();
        let lane = &mut state.lanes[lane as usize];
        if lane.deadline > 0 {
            lane.deadline = 0;
            self.update_earliest(&state);
        }
    }

    /// Lets every lane pass from now on and cancels its reads, even if storage hangs: ingest is cancelled.
    pub fn close(&self) {
        self.cancel.cancel();
        self.state.lock().closed = true;
        for turn in &self.turns {
            turn.notify_all();
        }
    }

    /// The permit of `lane`, initially not held. Only the lane's thread may use it.
    pub fn of_lane(self: &Arc<Self>, lane: u32) -> Permit {
        let held = AtomicBool::new(false);
        Permit(Some(Arc::new(LanePermit { permits: Arc::clone(self), lane, held })))
    }

    fn acquire(&self, lane: u32) {
        let mut state = self.state.lock();
        if state.held < state.permits && self.earliest.load(Ordering::Relaxed) == u64::MAX {
            state.held += 1;
            return;
        }
        let (began, start) = (Instant::now(), self.recorder.start());
        state.lanes[lane as usize].waits = true;
        self.grant(&mut state);
        while !state.lanes[lane as usize].granted && !state.closed {
            self.turns[lane as usize].wait(&mut state);
        }
        let entry = &mut state.lanes[lane as usize];
        entry.waits = false;
        if !std::mem::take(&mut entry.granted) {
            // Closed: the limit no longer holds, but every release must have its acquisition.
            state.held += 1;
        }
        self.update_earliest(&state);
        self.queueing.add(began.elapsed());
        drop(state);
        self.recorder.add(start, Category::Wait, "wait for a decode permit", Work::default);
    }

    fn release(&self) {
        let mut state = self.state.lock();
        state.held -= 1;
        self.grant(&mut state);
    }

    /// Grants free permits to waiting lanes, by deadline.
    fn grant(&self, state: &mut State) {
        while state.held < state.permits {
            let waiting = state.lanes.iter().enumerate().filter(|(_, lane)| lane.waits && !lane.granted);
            let Some((lane, _)) = waiting.min_by_key(|(_, lane)| lane.deadline) else { break };
            state.lanes[lane].granted = true;
            state.held += 1;
            self.turns[lane].notify_one();
        }
        self.update_earliest(state);
    }

    fn update_earliest(&self, state: &State) {
        let waiting = state.lanes.iter().filter(|lane| lane.waits && !lane.granted);
        let earliest = waiting.map(|lane| lane.deadline).min().unwrap_or(u64::MAX);
        self.earliest.store(earliest, Ordering::Relaxed);
    }
}

impl Permit {
    /// Starts a window: its deadline is after those of all windows started before.
    pub fn start_window(&self) {
        let Some(lane) = &self.0 else { return };
        let mut state = lane.permits.state.lock();
        let deadline = state.next;
        state.next += 1;
        state.lanes[lane.lane as usize].deadline = deadline;
    }

    /// Returns once the permit is held. Yields a held one first to a lane with an earlier deadline.
    pub fn acquire(&self) {
        let Some(lane) = &self.0 else { return };
        if lane.is_held() {
            if !lane.must_yield() {
                return;
            }
            lane.permits.release();
        }
        lane.acquire();
    }

    /// Releases the permit if it is held.
    pub fn release(&self) {
        if let Some(lane) = &self.0 {
            lane.release();
        }
    }

    /// Returns the result of `work`, a read of the lane, unless the permits are closed first.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub async fn unless_closed<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        match &self.0 {
            Some(lane) => lane.permits.cancel.or(work).await,
            None => Ok(work.await),
        }
    }

    /// Calls `wait`, which blocks on something other than a core, while the permit is released.
    pub fn released_while<T>(&self, wait: impl FnOnce() -> T) -> T {
        let Some(lane) = &self.0 else { return wait() };
        let permits = &lane.permits;
        let was_held = lane.release();
        let (began, start) = (Instant::now(), permits.recorder.start());
        let result = wait();
        permits.fetching.add(began.elapsed());
        permits.recorder.add(start, Category::Wait, "wait for bytes", Work::default);
        if was_held {
            lane.acquire();
        }
        result
    }
}

impl LanePermit {
    fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    fn acquire(&self) {
        self.permits.acquire(self.lane);
        self.held.store(true, Ordering::Relaxed);
    }

    /// Whether it was held.
    fn release(&self) -> bool {
        let was_held = self.held.swap(false, Ordering::Relaxed);
        if was_held {
            self.permits.release();
        }
        was_held
    }

    fn must_yield(&self) -> bool {
        let earliest = self.permits.earliest.load(Ordering::Relaxed);
        if earliest == u64::MAX {
            return false;
        }
        let state = self.permits.state.lock();
        earliest < state.lanes[self.lane as usize].deadline || state.held > state.permits
    }
}

impl Drop for LanePermit {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Waits until `lanes` lanes wait for a permit.
    fn until_waiting(permits: &DecodePermits, lanes: usize) {
        while permits.state.lock().lanes.iter().filter(|lane| lane.waits).count() < lanes {
            thread::yield_now();
        }
    }

    #[test]
    fn no_more_lanes_decode_than_there_are_permits() {
        const LANES: u32 = 9;
        let permits = Arc::new(DecodePermits::new(LANES, 3, &Arc::default()));
        let (decoding, most) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for lane in 0..LANES {
                let (permits, decoding, most) = (&permits, &decoding, &most);
                scope.spawn(move || {
                    let permit = permits.of_lane(lane);
                    for round in 0..200 {
                        permit.start_window();
                        permit.acquire();
                        most.fetch_max(decoding.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        decoding.fetch_sub(1, Ordering::SeqCst);
                        if round % 7 == 0 {
                            permit.clone().released_while(thread::yield_now);
                        }
                        if round % 3 == 0 {
                            permit.release();
                        }
                    }
                });
            }
        });
        assert!((1..=3).contains(&most.into_inner()));
        assert_eq!(permits.state.lock().held, 0);
    }

    #[test]
    fn permits_go_to_the_prioritized_lane_and_then_by_start_of_window() {
        let permits = Arc::new(DecodePermits::new(4, 1, &Arc::default()));
        let order = Mutex::new(Vec::new());
        let holder = permits.of_lane(0);
        holder.start_window();
        holder.acquire();
        thread::scope(|scope| {
            for (waiting, lane) in [2, 1, 3].into_iter().enumerate() {
                let (permits, order) = (&permits, &order);
                scope.spawn(move || {
                    let permit = permits.of_lane(lane);
                    permit.start_window();
                    permit.acquire();
                    order.lock().push(lane);
                });
                until_waiting(permits, waiting + 1);
            }
            permits.prioritize(3);
            holder.acquire();
            holder.release();
        });
        assert_eq!(order.into_inner(), [3, 2, 1]);
    }

    #[test]
    fn a_lane_that_waits_for_bytes_lets_others_decode() {
        let permits = Arc::new(DecodePermits::new(2, 1, &Arc::default()));
        let first = permits.of_lane(0);
        first.start_window();
        first.acquire();
        let other = Arc::clone(&permits);
        first.released_while(|| {
            let decodes = thread::spawn(move || {
                let permit = other.of_lane(1);
                permit.start_window();
                permit.acquire();
            });
            assert!(decodes.join().is_ok());
        });
        assert_eq!(permits.state.lock().held, 1);
        drop(first);
        assert_eq!(permits.state.lock().held, 0);
        assert_eq!(Permit::default().released_while(|| 7), 7);
    }

    #[test]
    fn more_permits_admit_more_lanes_and_closing_admits_all() {
        let permits = Arc::new(DecodePermits::new(3, 1, &Arc::default()));
        let permit = permits.of_lane(0);
        permit.acquire();
        thread::scope(|scope| {
            for lane in 1..3 {
                let permits = &permits;
                scope.spawn(move || {
                    let permit = permits.of_lane(lane);
                    permit.acquire();
                    thread::sleep(Duration::from_millis(1));
                });
            }
            until_waiting(&permits, 2);
            permits.set_permits(2);
            while permits.state.lock().lanes.iter().any(|lane| lane.waits) {
                thread::yield_now();
            }
        });
        drop(permit);
        let permit = permits.of_lane(0);
        permit.acquire();
        permits.set_permits(1);
        let other = Arc::clone(&permits);
        let waits = thread::spawn(move || other.of_lane(1).acquire());
        until_waiting(&permits, 1);
        permits.close();
        assert!(waits.join().is_ok());
    }
}
