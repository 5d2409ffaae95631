//! How a lane hands a window to the packer: one at a time, face to face.
//!
//! [`Handover::put`] returns only when the item was taken. So a lane begins its next window when the
//! packer has begun this one, and at most two windows of a lane exist: that bounds the shuffle pool.
//! Closing wakes both sides for good, from any thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A place for one item between one giver and one taker.
pub(crate) struct Handover<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Empty,
    Offered(T),
    Closed,
}

/// It was closed: nobody will take or give anything any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl<T> Handover<T> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::Empty), changed: Condvar::new() }
    }

    /// Offers `item` and waits until it was taken.
    pub(crate) fn put(&self, item: T) -> Result<(), Closed> {
        let mut state = self.lock();
        if let State::Closed = *state {
            return Err(Closed);
        }
        *state = State::Offered(item);
        self.changed.notify_all();
        loop {
            match *state {
                State::Empty => return Ok(()),
                State::Closed => return Err(Closed),
                State::Offered(_) => state = self.wait(state),
            }
        }
    }

    /// Waits for an item.
    pub(crate) fn take(&self) -> Result<T, Closed> {
        let mut state = self.lock();
        loop {
            match std::mem::replace(&mut *state, State::Empty) {
                State::Offered(item) => {
                    self.changed.notify_all();
                    return Ok(item);
                }
                State::Closed => {
                    *state = State::Closed;
                    return Err(Closed);
                }
                State::Empty => state = self.wait(state),
            }
        }
    }

    /// Ends every wait, present and future. What is on offer is dropped.
    pub(crate) fn close(&self) {
        *self.lock() = State::Closed;
        self.changed.notify_all();
    }

    /// Whether [`Handover::take`] would return at once.
    pub(crate) fn is_ready(&self) -> bool {
        !matches!(*self.lock(), State::Empty)
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.lock(), State::Closed)
    }

    /// No code under the lock can leave it half-changed, so a panic elsewhere does not poison it.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn the_giver_is_never_more_than_one_ahead() {
        let handover = Handover::new();
        let given = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..1000 {
                    given.store(i, Ordering::SeqCst);
                    assert_eq!(handover.put(i), Ok(()));
                }
                handover.close();
            });
            for i in 0..1000 {
                assert_eq!(handover.take(), Ok(i));
                assert!(given.load(Ordering::SeqCst) <= i + 1);
            }
            assert_eq!(handover.take(), Err(Closed));
        });
    }

    #[test]
    fn closing_wakes_both_sides() {
        let (offered, wanted) = (Handover::new(), Handover::<u32>::new());
        thread::scope(|scope| {
            let giver = scope.spawn(|| offered.put(1));
            let taker = scope.spawn(|| wanted.take());
            thread::sleep(std::time::Duration::from_millis(5));
            offered.close();
            wanted.close();
            assert_eq!(giver.join().ok(), Some(Err(Closed)));
            assert_eq!(taker.join().ok(), Some(Err(Closed)));
        });
        assert_eq!(offered.put(2), Err(Closed));
        assert!(wanted.is_closed());
    }
}
