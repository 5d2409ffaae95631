//! The ring's algorithm under loom, which runs it in every order that threads and memory allow.
//!
//! The code is that of the ring: [`Control`] and [`until`]. Modelled are what the operating system does (an
//! eventfd: a counter under a lock, with a hang-up) and a slot's bytes (a cell in which loom reports any
//! access that the states do not order). A lost wake-up shows as a deadlock.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p millstream-batch --release --target-dir target/loom loom
//! ```

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::state::{Control, Corrupt, Next, Peer, Word, until};

/// What an end sleeps on: its bell, and whether its peer hung up.
#[derive(Default)]
struct Watched {
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Watched {
    fn ring(&self) {
        self.state.lock().unwrap().0 += 1;
        self.changed.notify_one();
    }

    fn hang_up(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_one();
    }

    /// As `Watch::sleep`: one poll, then silence.
    fn sleep(&self) -> Result<Peer, Corrupt> {
        let (_, hung_up) = self.poll_and_silence();
        Ok(if hung_up { Peer::Gone } else { Peer::Here })
    }

    /// How often the bell had rung, and whether the peer had hung up.
    fn poll_and_silence(&self) -> (u64, bool) {
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
    ready: Watched,
    freed: Watched,
}

impl Ring {
    fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self {
            end: Word::new(0),
            slots: (0..slots).map(|_| Word::new(0)).collect(),
            bytes: (0..slots).map(|_| UnsafeCell::new(u64::MAX)).collect(),
            ready: Watched::default(),
            freed: Watched::default(),
        })
    }

    fn control(&self) -> Control<'_> {
        Control { end: &self.end, slots: &self.slots }
    }

    /// As `Producer::fill`; whether the peer is there to fill for.
    fn claim(&self, slot: usize) -> bool {
        until(|| Ok(self.control().claim(slot)?.then_some(())), || self.freed.sleep()).unwrap().is_some()
    }

    fn write(&self, slot: usize, value: u64) {
        // SAFETY: loom checks that no other access is concurrent; that is what is being tested.
        self.bytes[slot].with_mut(|bytes| unsafe { *bytes = value });
    }

    fn publish(&self, slot: usize) {
        self.control().publish(slot).unwrap();
        self.ready.ring();
    }

    fn finish(&self) {
        self.control().finish();
        self.ready.ring();
    }

    /// As `Consumer::next`; `None` when the peer is gone.
    fn next(&self, slot: usize) -> Option<Next> {
        until(|| self.control().next(slot), || self.ready.sleep()).unwrap()
    }

    fn read(&self, slot: usize) -> u64 {
        // SAFETY: as in `write`.
        self.bytes[slot].with(|bytes| unsafe { *bytes })
    }

    fn release(&self, slot: usize) {
        self.control().release(slot).unwrap();
        self.freed.ring();
    }
}

/// Runs `test` in every order with at most `preemptions` switches away from a thread that could go on.
fn explore(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

#[test]
fn loom_batches_pass_whole_and_in_order_and_both_ends_wake() {
    for slots in [1, 2] {
        explore(3, move || {
            let ring = Ring::new(slots);
            let producer = Arc::clone(&ring);
            let producing = thread::spawn(move || {
                for number in 0..3 {
                    let slot = number as usize % slots;
                    assert!(producer.claim(slot));
                    producer.write(slot, number);
                    producer.publish(slot);
                }
                producer.finish();
            });
            for number in 0..3 {
                let slot = number as usize % slots;
                assert_eq!(ring.next(slot), Some(Next::Leased));
                assert_eq!(ring.read(slot), number);
                ring.release(slot);
            }
            assert_eq!(ring.next(3 % slots), Some(Next::End));
            producing.join().unwrap();
            assert_eq!(ring.control().occupied(), 0);
        });
    }
}

/// Whether in some order a consumer of one batch, sleeping by `poll`, sleeps through its publication: is
/// woken only by the producer's hanging up, long after.
fn sleeps_through(poll: fn(&Watched) -> (u64, bool)) -> bool {
    let slept_through = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = std::sync::Arc::clone(&slept_through);
    explore(3, move || {
        let ring = Ring::new(1);
        let producer = Arc::clone(&ring);
        let producing = thread::spawn(move || {
            assert!(producer.claim(0));
            producer.publish(0);
            producer.ready.hang_up();
        });
        let sleep = || {
            let (rung, _) = poll(&ring.ready);
            found.fetch_or(rung == 0, std::sync::atomic::Ordering::Relaxed);
            Ok(Peer::Here)
        };
        assert_eq!(until(|| ring.control().next(0), sleep), Ok(Some(Next::Leased)));
        producing.join().unwrap();
    });
    slept_through.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn loom_no_wake_up_is_lost_because_silence_comes_after_sleep() {
    assert!(!sleeps_through(Watched::poll_and_silence));
    // The model can tell: this order loses what was rung between the attempt and the silence.
    assert!(sleeps_through(|watched| {
        watched.state.lock().unwrap().0 = 0;
        watched.poll_and_silence()
    }));
}

#[test]
fn loom_a_dropped_filling_is_never_seen() {
    explore(3, || {
        let ring = Ring::new(2);
        let producer = Arc::clone(&ring);
        let producing = thread::spawn(move || {
            assert!(producer.claim(0));
            producer.write(0, 666);
            producer.control().abandon(0).unwrap();
            assert!(producer.claim(0));
            producer.write(0, 1);
            producer.publish(0);
            assert!(producer.claim(1));
            producer.write(1, 666);
            producer.control().abandon(1).unwrap();
            producer.finish();
        });
        assert_eq!(ring.next(0), Some(Next::Leased));
        assert_eq!(ring.read(0), 1);
        ring.release(0);
        assert_eq!(ring.next(1), Some(Next::End));
        producing.join().unwrap();
    });
}

#[test]
fn loom_leases_freed_out_of_order_by_another_thread() {
    explore(3, || {
        let ring = Ring::new(2);
        let producer = Arc::clone(&ring);
        let producing = thread::spawn(move || {
            for number in 0..3 {
                let slot = number as usize % 2;
                assert!(producer.claim(slot));
                producer.write(slot, number);
                producer.publish(slot);
            }
        });
        assert_eq!(ring.next(0), Some(Next::Leased));
        assert_eq!(ring.next(1), Some(Next::Leased));
        let freeing = Arc::clone(&ring);
        let freeing = thread::spawn(move || {
            assert_eq!(freeing.read(1), 1);
            freeing.release(1);
            assert_eq!(freeing.read(0), 0);
            freeing.release(0);
        });
        // Holds both slots: waits for the other thread, and for the producer after it.
        assert_eq!(ring.next(0), Some(Next::Leased));
        assert_eq!(ring.read(0), 2);
        producing.join().unwrap();
        freeing.join().unwrap();
    });
}

#[test]
fn loom_a_producer_that_dies_delivers_what_it_had_published() {
    explore(3, || {
        let ring = Ring::new(2);
        let producer = Arc::clone(&ring);
        let producing = thread::spawn(move || {
            assert!(producer.claim(0));
            producer.write(0, 7);
            // Dies before it rings, and then in the middle of a slot.
            producer.control().publish(0).unwrap();
            assert!(producer.claim(1));
            producer.write(1, 666);
            producer.ready.hang_up();
        });
        assert_eq!(ring.next(0), Some(Next::Leased));
        assert_eq!(ring.read(0), 7);
        ring.release(0);
        assert_eq!(ring.next(1), None);
        producing.join().unwrap();
    });
}

#[test]
fn loom_a_blocked_producer_learns_that_its_consumer_died() {
    explore(3, || {
        let ring = Ring::new(1);
        let consumer = Arc::clone(&ring);
        let consuming = thread::spawn(move || {
            assert_eq!(consumer.next(0), Some(Next::Leased));
            // Dies with the lease.
            consumer.freed.hang_up();
        });
        assert!(ring.claim(0));
        ring.write(0, 0);
        ring.publish(0);
        assert!(!ring.claim(0));
        consuming.join().unwrap();
    });
}
