//! The ring's algorithm under loom, which explores all interleavings allowed by the memory model.
//!
//! The code under test is that of the ring: [`Control`] and [`retry_until`]. The model replaces the operating
//! system (an eventfd is a counter under a lock, with a hang-up flag) and a slot's bytes (a cell in which loom
//! reports any access that the states do not order). A lost wake-up shows as a deadlock.
//!
//! ```text
//! RUSTC_WORKSPACE_WRAPPER="$PWD/tests/loom-rustc" cargo test --release -p millstream-batch --lib loom
//! ```

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::state::{BatchNumber, Control, Corrupt, Next, Peer, Word, retry_until};

/// The descriptors that an end polls: its event counter, and whether its peer hung up.
#[derive(Default)]
struct Waiter {
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Waiter {
    fn signal(&self) {
        self.state.lock().unwrap().0 += 1;
        self.changed.notify_one();
    }

    fn hang_up(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_one();
    }

    /// Models `signal::Waiter::wait`: one poll, then a reset.
    fn wait(&self) -> Result<Peer, Corrupt> {
        let (_, hung_up) = self.poll_and_reset();
        Ok(if hung_up { Peer::Gone } else { Peer::Alive })
    }

    /// Returns the counter before the reset, and whether the peer had hung up.
    fn poll_and_reset(&self) -> (u64, bool) {
        let mut state = self.state.lock().unwrap();
        while state.0 == 0 && !state.1 {
            state = self.changed.wait(state).unwrap();
        }
        (std::mem::take(&mut state.0), state.1)
    }
}

struct Ring {
    end: Word,
    slots: Vec<Word>,
    bytes: Vec<UnsafeCell<u64>>,
    ready: Waiter,
    freed: Waiter,
}

impl Ring {
    fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self {
            end: Word::new(0),
            slots: (0..slots).map(|_| Word::new(0)).collect(),
            bytes: (0..slots).map(|_| UnsafeCell::new(u64::MAX)).collect(),
            ready: Waiter::default(),
            freed: Waiter::default(),
        })
    }

    fn control(&self) -> Control<'_> {
        Control { end: &self.end, slots: &self.slots }
    }

    /// Models `Producer::claim`; `None` when the peer is gone.
    fn claim(&self) -> Option<usize> {
        retry_until(|| self.control().claim(0), || self.freed.wait()).unwrap()
    }

    fn write(&self, slot: usize, value: u64) {
        // SAFETY: loom reports any concurrent access, which is the property under test.
        self.bytes[slot].with_mut(|bytes| unsafe { *bytes = value });
    }

    fn publish(&self, slot: usize, batch: u64) {
        self.control().publish(slot, number(batch)).unwrap();
        self.ready.signal();
    }

    /// Models the publication of a whole batch, whose value is its number.
    fn produce(&self, batch: u64) {
        let slot = self.claim().unwrap();
        self.write(slot, batch);
        self.publish(slot, batch);
    }

    fn finish(&self) {
        self.control().finish();
        self.ready.signal();
    }

    /// Models `Consumer::next`; `None` when the peer is gone.
    fn next(&self, batch: u64) -> Option<Next> {
        retry_until(|| self.control().next(0, number(batch)), || self.ready.wait()).unwrap()
    }

    /// The slot of this batch, which is leased.
    fn lease(&self, batch: u64) -> usize {
        match self.next(batch) {
            Some(Next::Leased(slot)) => slot,
            other => panic!("batch {batch}: {other:?}"),
        }
    }

    fn read(&self, slot: usize) -> u64 {
        // SAFETY: as in `write`.
        self.bytes[slot].with(|bytes| unsafe { *bytes })
    }

    fn release(&self, slot: usize) {
        self.control().release(slot).unwrap();
        self.freed.signal();
    }
}

/// The number of batch `batch`.
fn number(batch: u64) -> BatchNumber {
    (0..batch).fold(BatchNumber::default(), |number, _| number.next())
}

/// Runs `test` in all interleavings with at most `preemptions` switches away from a runnable thread.
fn explore(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

#[test]
fn loom_batches_arrive_complete_and_in_order() {
    for slots in [1, 2] {
        explore(3, move || {
            let ring = Ring::new(slots);
            let producer = Arc::clone(&ring);
            let producing = thread::spawn(move || {
                (0..3).for_each(|batch| producer.produce(batch));
                producer.finish();
            });
            for batch in 0..3 {
                let slot = ring.lease(batch);
                assert_eq!(ring.read(slot), batch);
                ring.release(slot);
            }
            assert_eq!(ring.next(3), Some(Next::End));
            producing.join().unwrap();
            assert_eq!(ring.control().occupied_slots(), 0);
        });
    }
}

/// Whether in some interleaving a consumer that waits with `poll` misses the publication of a batch, so that only
/// the producer's later hang-up wakes it.
fn misses_wake_up(poll: fn(&Waiter) -> (u64, bool)) -> bool {
    let missed = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = std::sync::Arc::clone(&missed);
    explore(3, move || {
        let ring = Ring::new(1);
        let producer = Arc::clone(&ring);
        let producing = thread::spawn(move || {
            let slot = producer.claim().unwrap();
            producer.publish(slot, 0);
            producer.ready.hang_up();
        });
        let wait = || {
            let (count, _) = poll(&ring.ready);
            found.fetch_or(count == 0, std::sync::atomic::Ordering::Relaxed);
            Ok(Peer::Alive)
        };
        assert_eq!(retry_until(|| ring.control().next(0, number(0)), wait), Ok(Some(Next::Leased(0))));
        producing.join().unwrap();
    });
    missed.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn loom_reset_after_poll_loses_no_wake_up() {
    assert!(!misses_wake_up(Waiter::poll_and_reset));
    // The model detects a lost wake-up: a reset before the poll loses a signal that precedes the reset.
    assert!(misses_wake_up(|waiter| {
        waiter.state.lock().unwrap().0 = 0;
        waiter.poll_and_reset()
    }));
}

#[test]
fn loom_an_abandoned_slot_is_never_leased() {
    explore(3, || {
        let ring = Ring::new(2);
        let producer = Arc::clone(&ring);
        let producing = thread::spawn(move || {
            let abandon = || {
                let slot = producer.claim().unwrap();
                producer.write(slot, 666);
                producer.control().abandon(slot).unwrap();
            };
            abandon();
            producer.produce(0);
            abandon();
            producer.finish();
        });
        let slot = ring.lease(0);
        assert_eq!(ring.read(slot), 0);
        ring.release(slot);
        assert_eq!(ring.next(1), Some(Next::End));
        producing.join().unwrap();
    });
}

#[test]
fn loom_another_thread_releases_leases_out_of_order() {
    explore(3, || {
        let ring = Ring::new(2);
        let producer = Arc::clone(&ring);
        let producing = thread::spawn(move || {
            (0..3).for_each(|batch| producer.produce(batch));
        });
        let (first, second) = (ring.lease(0), ring.lease(1));
        let freeing = Arc::clone(&ring);
        let freeing = thread::spawn(move || {
            assert_eq!(freeing.read(second), 1);
            freeing.release(second);
            assert_eq!(freeing.read(first), 0);
            freeing.release(first);
        });
        // Both slots are leased: wait for the other thread to release one and the producer to fill it.
        let third = ring.lease(2);
        assert_eq!(ring.read(third), 2);
        producing.join().unwrap();
        freeing.join().unwrap();
    });
}

#[test]
fn loom_a_lease_that_is_held_delays_no_later_batch() {
    explore(3, || {
        let ring = Ring::new(2);
        let producer = Arc::clone(&ring);
        let producing = thread::spawn(move || {
            (0..3).for_each(|batch| producer.produce(batch));
            producer.finish();
        });
        let held = ring.lease(0);
        for batch in 1..3 {
            let slot = ring.lease(batch);
            assert_eq!(ring.read(slot), batch);
            ring.release(slot);
        }
        assert_eq!(ring.next(3), Some(Next::End));
        assert_eq!(ring.read(held), 0);
        producing.join().unwrap();
    });
}

#[test]
fn loom_batches_published_before_death_are_delivered() {
    explore(3, || {
        let ring = Ring::new(2);
        let producer = Arc::clone(&ring);
        let producing = thread::spawn(move || {
            let slot = producer.claim().unwrap();
            producer.write(slot, 7);
            // Publishes without a signal, then dies while it fills the next slot.
            producer.control().publish(slot, number(0)).unwrap();
            let slot = producer.claim().unwrap();
            producer.write(slot, 666);
            producer.ready.hang_up();
        });
        let slot = ring.lease(0);
        assert_eq!(ring.read(slot), 7);
        ring.release(slot);
        assert_eq!(ring.next(1), None);
        producing.join().unwrap();
    });
}

#[test]
fn loom_consumer_death_ends_the_producers_wait() {
    explore(3, || {
        let ring = Ring::new(1);
        let consumer = Arc::clone(&ring);
        let consuming = thread::spawn(move || {
            consumer.lease(0);
            // Dies holding the lease.
            consumer.freed.hang_up();
        });
        ring.produce(0);
        assert_eq!(ring.claim(), None);
        consuming.join().unwrap();
    });
}
