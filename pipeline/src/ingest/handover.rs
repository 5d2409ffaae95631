//! The handover of windows from a lane to the packer: a rendezvous channel.
//!
//! [`Handover::send`] returns only once the item was received. So a lane starts its next window when the packer starts
//! this one, and at most two windows per lane exist, which bounds the shuffle pool. Closing permanently wakes both
//! sides, from any thread.
//!
//! A receiver that takes from whichever of several lanes is ready checks [`Handover::is_ready`] and waits for a shared
//! [`Notify`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// A channel for one item between one sender and one receiver.
pub(crate) struct Handover<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    notify: Option<Arc<Notify>>,
}

/// Counts the changes of several handovers.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    changes: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Notify {
    /// The number of changes so far. A thread that reads it also sees the effects of all earlier changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Waits until there are more than `seen` changes.
    pub(crate) fn wait(&self, seen: u64) {
        let mut guard = self.lock.lock();
        self.changed.wait_while(&mut guard, |()| self.changes() <= seen);
    }

    fn notify(&self) {
        let _guard = self.lock.lock();
        self.changes.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }
}

enum State<T> {
    Empty,
    Offered(T),
    Closed,
}

/// The handover is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl<T> Handover<T> {
    /// If set, `notify` also counts offers and the end.
    pub(crate) fn new(notify: Option<Arc<Notify>>) -> Self {
        Self { state: Mutex::new(State::Empty), changed: Condvar::new(), notify }
    }

    /// Offers `item` and waits until it was received.
    pub(crate) fn send(&self, item: T) -> Result<(), Closed> {
        let mut state = self.state.lock();
        if let State::Closed = *state {
            return Err(Closed);
        }
        *state = State::Offered(item);
        self.changed.notify_all();
        self.notify();
        loop {
            match *state {
                State::Empty => return Ok(()),
                State::Closed => return Err(Closed),
                State::Offered(_) => self.changed.wait(&mut state),
            }
        }
    }

    /// Waits for an item.
    pub(crate) fn recv(&self) -> Result<T, Closed> {
        let mut state = self.state.lock();
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
                State::Empty => self.changed.wait(&mut state),
            }
        }
    }

    /// Ends every wait, present and future, and drops an offered item.
    pub(crate) fn close(&self) {
        *self.state.lock() = State::Closed;
        self.changed.notify_all();
        self.notify();
    }

    /// Whether [`Handover::recv`] would return immediately.
    pub(crate) fn is_ready(&self) -> bool {
        !matches!(*self.state.lock(), State::Empty)
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.state.lock(), State::Closed)
    }

    fn notify(&self) {
        if let Some(notify) = &self.notify {
            notify.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn the_sender_is_never_more_than_one_ahead() {
        let handover = Handover::new(None);
        let given = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..1000 {
                    given.store(i, Ordering::SeqCst);
                    assert_eq!(handover.send(i), Ok(()));
                }
                handover.close();
            });
            for i in 0..1000 {
                assert_eq!(handover.recv(), Ok(i));
                assert!(given.load(Ordering::SeqCst) <= i + 1);
            }
            assert_eq!(handover.recv(), Err(Closed));
        });
    }

    #[test]
    fn every_offer_notifies() {
        let notify = Arc::new(Notify::default());
        let handovers: Vec<_> = (0..4).map(|_| Handover::new(Some(Arc::clone(&notify)))).collect();
        thread::scope(|scope| {
            for handover in &handovers {
                scope.spawn(move || (0..200).try_for_each(|i| handover.send(i)));
            }
            let mut taken = 0;
            while taken < 4 * 200 {
                let seen = notify.changes();
                let ready: Vec<_> = handovers.iter().filter(|handover| handover.is_ready()).collect();
                if ready.is_empty() {
                    notify.wait(seen);
                }
                for handover in ready {
                    handover.recv().unwrap();
                    taken += 1;
                }
            }
        });
    }

    #[test]
    fn closing_wakes_both_sides() {
        let (offered, wanted) = (Handover::new(None), Handover::<u32>::new(None));
        thread::scope(|scope| {
            let sender = scope.spawn(|| offered.send(1));
            let receiver = scope.spawn(|| wanted.recv());
            thread::sleep(std::time::Duration::from_millis(5));
            offered.close();
            wanted.close();
            assert_eq!(sender.join().ok(), Some(Err(Closed)));
            assert_eq!(receiver.join().ok(), Some(Err(Closed)));
        });
        assert_eq!(offered.send(2), Err(Closed));
        assert!(wanted.is_closed());
    }
}
