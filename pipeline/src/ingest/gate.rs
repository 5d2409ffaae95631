//! Who decodes: no more lanes at once than there are permits, whatever the number of lanes.
//!
//! Lanes are many (they fix the order), cores are few. Were hundreds of lanes to decode at once, they would
//! take turns by the kernel's time slices, each with a cold cache, and the one whose window the packer waits
//! for would be one of many. So a lane decodes only while it holds one of the gate's permits, of which there are
//! a few for each core, and
//!
//! * it keeps its permit over many chunks, until its window is made or it has to wait for bytes, so that
//!   threads change places once a window and not once a chunk;
//! * it gives it up whenever it waits for bytes ([`waiting`]): no permit ever sleeps;
//! * permits go to the lane that the packer waits for, else to the one whose window was begun first. A
//!   lane begins a window when the packer has taken its last, and all lanes are drawn from at the same
//!   rate, so that is also the lane whose window is needed first: earliest deadline first;
//! * a lane gives way, between two chunks, to one that is needed before it.
//!
//! The number of permits may change at any time; see [`super::tuner`].
//!
//! [`waiting`] finds the lane that it is called by through a variable of its thread, as tokio's
//! `block_in_place` does, so that what fetches and decodes need not know of lanes.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use millstream_trace::{Category, Recorder, Work};

use super::stats::Clock;

thread_local! {
    static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
}

/// Permits to decode, and who waits for one.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    /// Where each lane waits.
    turns: Vec<Condvar>,
    /// The urgency of the most urgent lane that waits; `u64::MAX` when none does.
    first: AtomicU64,
    /// Time that lanes have waited for a permit, and for bytes.
    pub(crate) queueing: Clock,
    pub(crate) fetching: Clock,
    recorder: Arc<Recorder>,
}

#[derive(Debug)]
struct State {
    permits: u32,
    held: u32,
    closed: bool,
    /// Number of the next window that is begun.
    next: u64,
    lanes: Vec<Lane>,
}

/// Where a lane stands; the smaller its urgency, the sooner its turn.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    urgency: u64,
    waits: bool,
    granted: bool,
}

/// A lane's own end of the gate, which lives in a variable of its thread.
#[derive(Debug)]
struct Seat {
    gate: Arc<Gate>,
    lane: u32,
    holds: bool,
}

/// The thread's seat at a gate. Dropped, the lane has left for good.
pub(crate) struct Seated(());

impl Gate {
    /// A gate of `permits` permits for `lanes` lanes, whose waits are recorded by `recorder`.
    pub(crate) fn new(lanes: u32, permits: u32, recorder: &Arc<Recorder>) -> Self {
        let waiting = Lane::default();
        let state = State {
            permits: permits.max(1),
            held: 0,
            closed: false,
            next: 1,
            lanes: vec![waiting; lanes as usize],
        };
        Self {
            state: Mutex::new(state),
            turns: (0..lanes).map(|_| Condvar::new()).collect(),
            first: AtomicU64::new(u64::MAX),
            queueing: Clock::default(),
            fetching: Clock::default(),
            recorder: Arc::clone(recorder),
        }
    }

    /// Has so many permits from now on. Lanes that hold one too many give it up by and by.
    pub(crate) fn set_permits(&self, permits: u32) {
        let mut state = self.lock();
        state.permits = permits.max(1);
        self.grant(&mut state);
    }

    /// The packer waits for what `lane` comes up with: nobody is more urgent.
    pub(crate) fn wanted(&self, lane: u32) {
        let mut state = self.lock();
        let lane = &mut state.lanes[lane as usize];
        if lane.urgency > 0 {
            lane.urgency = 0;
            self.note_first(&state);
        }
    }

    /// Lets everybody through, now and always: the work is called off.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        for turn in &self.turns {
            turn.notify_all();
        }
    }

    /// Makes the calling thread that of `lane`, which holds no permit yet.
    pub(crate) fn seat(self: &Arc<Self>, lane: u32) -> Seated {
        SEAT.set(Some(Seat { gate: Arc::clone(self), lane, holds: false }));
        Seated(())
    }

    fn enter(&self, lane: u32) {
        let mut state = self.lock();
        if state.held < state.permits && self.first.load(Ordering::Relaxed) == u64::MAX {
            state.held += 1;
            return;
        }
        let (began, start) = (Instant::now(), self.recorder.start());
        state.lanes[lane as usize].waits = true;
        self.grant(&mut state);
        while !state.lanes[lane as usize].granted && !state.closed {
            state = self.turns[lane as usize].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let entry = &mut state.lanes[lane as usize];
        entry.waits = false;
        if !std::mem::take(&mut entry.granted) {
            // Closed: nobody counts any more, but what leaves must have entered.
            state.held += 1;
        }
        self.note_first(&state);
        self.queueing.add(began.elapsed());
        drop(state);
        self.recorder.add(start, Category::Wait, "wait for a turn", Work::default);
    }

    fn leave(&self) {
        let mut state = self.lock();
        state.held -= 1;
        self.grant(&mut state);
    }

    /// Gives free permits to those who wait, the most urgent first.
    fn grant(&self, state: &mut State) {
        while state.held < state.permits {
            let waiting = state.lanes.iter().enumerate().filter(|(_, lane)| lane.waits && !lane.granted);
            let Some((lane, _)) = waiting.min_by_key(|(_, lane)| lane.urgency) else { break };
            state.lanes[lane].granted = true;
            state.held += 1;
            self.turns[lane].notify_one();
        }
        self.note_first(state);
    }

    fn note_first(&self, state: &State) {
        let waiting = state.lanes.iter().filter(|lane| lane.waits && !lane.granted);
        let first = waiting.map(|lane| lane.urgency).min().unwrap_or(u64::MAX);
        self.first.store(first, Ordering::Relaxed);
    }

    /// No code under the lock can leave it half-changed, so a panic elsewhere does not poison it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seated {
    /// A new window is begun.
    pub(crate) fn begin(&self) {
        with_seat(|seat| {
            let mut state = seat.gate.lock();
            let number = state.next;
            state.next += 1;
            state.lanes[seat.lane as usize].urgency = number;
        });
    }

    /// Returns once the lane holds a permit, after having given way to any lane that is needed sooner.
    pub(crate) fn enter(&self) {
        with_seat(|seat| {
            if seat.holds {
                if !seat.gives_way() {
                    return;
                }
                seat.gate.leave();
            }
            seat.gate.enter(seat.lane);
            seat.holds = true;
        });
    }

    /// Gives the permit up, if the lane holds one.
    pub(crate) fn leave(&self) {
        with_seat(Seat::leave);
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.leave();
        SEAT.set(None);
    }
}

impl Seat {
    fn leave(&mut self) {
        if std::mem::take(&mut self.holds) {
            self.gate.leave();
        }
    }

    fn gives_way(&self) -> bool {
        let first = self.gate.first.load(Ordering::Relaxed);
        if first == u64::MAX {
            return false;
        }
        let state = self.gate.lock();
        first < state.lanes[self.lane as usize].urgency || state.held > state.permits
    }
}

fn with_seat(act: impl FnOnce(&mut Seat)) {
    SEAT.with_borrow_mut(|seat| {
        if let Some(seat) = seat {
            act(seat);
        }
    });
}

/// Does `wait`, which blocks for something else than a core, while the thread's lane holds no permit. On
/// any thread that is not a lane's, it is just done.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let (mut held, mut start) = (false, None);
    with_seat(|seat| {
        held = seat.holds;
        seat.leave();
        start = Some(seat.gate.recorder.start());
    });
    let began = Instant::now();
    let result = wait();
    let waited = began.elapsed();
    with_seat(|seat| {
        seat.gate.fetching.add(waited);
        if let Some(start) = start {
            seat.gate.recorder.add(start, Category::Wait, "wait for bytes", Work::default);
        }
        if held {
            seat.gate.enter(seat.lane);
            seat.holds = true;
        }
    });
    result
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Waits until so many lanes wait for a permit.
    fn until_waiting(gate: &Gate, lanes: usize) {
        while gate.lock().lanes.iter().filter(|lane| lane.waits).count() < lanes {
            thread::yield_now();
        }
    }

    #[test]
    fn no_more_than_the_permits_are_inside() {
        const LANES: u32 = 9;
        let gate = Arc::new(Gate::new(LANES, 3, &Arc::default()));
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for lane in 0..LANES {
                let (gate, inside, most) = (&gate, &inside, &most);
                scope.spawn(move || {
                    let seat = gate.seat(lane);
                    for round in 0..200 {
                        seat.begin();
                        seat.enter();
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        if round % 7 == 0 {
                            waiting(thread::yield_now);
                        }
                        if round % 3 == 0 {
                            seat.leave();
                        }
                    }
                });
            }
        });
        assert!((1..=3).contains(&most.into_inner()));
        assert_eq!(gate.lock().held, 0);
    }

    #[test]
    fn permits_go_by_the_order_of_windows_and_first_to_the_one_wanted() {
        let gate = Arc::new(Gate::new(4, 1, &Arc::default()));
        let order = Mutex::new(Vec::new());
        let holder = gate.seat(0);
        holder.begin();
        holder.enter();
        thread::scope(|scope| {
            for (waiting, lane) in [2, 1, 3].into_iter().enumerate() {
                let (gate, order) = (&gate, &order);
                scope.spawn(move || {
                    let seat = gate.seat(lane);
                    seat.begin();
                    seat.enter();
                    order.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
                });
                until_waiting(gate, waiting + 1);
            }
            gate.wanted(3);
            holder.enter();
            holder.leave();
        });
        assert_eq!(order.into_inner().ok(), Some(vec![3, 2, 1]));
    }

    #[test]
    fn a_lane_that_waits_for_bytes_lets_others_decode() {
        let gate = Arc::new(Gate::new(2, 1, &Arc::default()));
        let first = gate.seat(0);
        first.begin();
        first.enter();
        let other = Arc::clone(&gate);
        waiting(|| {
            let decodes = thread::spawn(move || {
                let seat = other.seat(1);
                seat.begin();
                seat.enter();
            });
            assert!(decodes.join().is_ok());
        });
        assert_eq!(gate.lock().held, 1);
        drop(first);
        assert_eq!(gate.lock().held, 0);
        // Where there is no lane, there is nothing to give up.
        assert_eq!(waiting(|| 7), 7);
    }

    #[test]
    fn more_permits_let_more_in_and_closing_lets_all() {
        let gate = Arc::new(Gate::new(3, 1, &Arc::default()));
        let seat = gate.seat(0);
        seat.enter();
        thread::scope(|scope| {
            for lane in 1..3 {
                let gate = &gate;
                scope.spawn(move || {
                    let seat = gate.seat(lane);
                    seat.enter();
                    thread::sleep(Duration::from_millis(1));
                });
            }
            until_waiting(&gate, 2);
            gate.set_permits(2);
            while gate.lock().lanes.iter().any(|lane| lane.waits) {
                thread::yield_now();
            }
        });
        drop(seat);
        let seat = gate.seat(0);
        seat.enter();
        gate.set_permits(1);
        let other = Arc::clone(&gate);
        let waits = thread::spawn(move || other.seat(1).enter());
        until_waiting(&gate, 1);
        gate.close();
        assert!(waits.join().is_ok());
    }
}
