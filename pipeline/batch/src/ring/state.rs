//! Who owns each slot, and what both ends wait for.
//!
//! This is the ring's algorithm without its memory and its operating system, so that loom can run it:
//! see `model.rs`, and [`super`] for the argument.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

/// Nobody's. The producer may claim it.
const FREE: u32 = 0;
/// The producer's, who writes it.
const FILLING: u32 = 1;
/// A whole batch. The consumer may lease it.
const READY: u32 = 2;
/// The consumer's, who reads it.
const LEASED: u32 = 3;

/// The end mark while more may follow.
const OPEN: u32 = 0;
/// The end mark once nothing follows.
const FINISHED: u32 = 1;

/// A word of the shared memory, on a cache line of its own. Zeroed memory is a valid word.
#[repr(C, align(64))]
pub(super) struct Word(AtomicU32);

/// The shared words: the end mark, and the state of each slot.
#[derive(Clone, Copy)]
pub(super) struct Control<'a> {
    pub(super) end: &'a Word,
    pub(super) slots: &'a [Word],
}

/// What the consumer finds when it need not wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The slot is leased now.
    Leased,
    /// Nothing follows.
    End,
}

/// Whether the other end is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// It is, or was a moment ago.
    Here,
    /// It has died, and all it ever wrote is visible.
    Gone,
}

/// A value in the shared memory that a correct peer never writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// A slot in a state it cannot be in.
    #[error("slot {slot} is in state {found} where it should be {expected}")]
    Slot {
        /// The slot's number.
        slot: usize,
        /// Its state.
        found: u32,
        /// The states it may be in.
        expected: &'static str,
    },
    /// An end mark that is none.
    #[error("the end mark is {found} where it should be open or finished")]
    End {
        /// The mark.
        found: u32,
    },
}

/// Each state can be left by one end only, so what an end finds on its turn is still so when it writes: a
/// load and a store do, and no compare-and-swap is needed.
impl Control<'_> {
    /// Producer: makes a free slot its own; `false` when the consumer has yet to free it.
    pub(super) fn claim(self, slot: usize) -> Result<bool, Corrupt> {
        // Acquire: the consumer's last read of the slot happens before the first write to it.
        match self.slots[slot].0.load(Ordering::Acquire) {
            FREE => {
                self.slots[slot].0.store(FILLING, Ordering::Relaxed);
                Ok(true)
            }
            READY | LEASED => Ok(false),
            found => Err(Corrupt::Slot { slot, found, expected: "free, ready or leased" }),
        }
    }

    /// Producer: hands its slot over.
    pub(super) fn publish(self, slot: usize) -> Result<(), Corrupt> {
        // Release: all writes to the slot happen before the consumer's first read.
        self.pass(slot, FILLING, "filling", READY, Ordering::Release)
    }

    /// Producer: gives its slot back unpublished.
    pub(super) fn abandon(self, slot: usize) -> Result<(), Corrupt> {
        // Nobody else looks at the bytes of a slot before the producer claims it again.
        self.pass(slot, FILLING, "filling", FREE, Ordering::Relaxed)
    }

    /// Producer: says that nothing follows.
    pub(super) fn finish(self) {
        // Release: what was published before is visible to whoever sees the mark.
        self.end.0.store(FINISHED, Ordering::Release);
    }

    /// Consumer: leases a slot, or finds that nothing follows; `None` when neither is so yet.
    pub(super) fn next(self, slot: usize) -> Result<Option<Next>, Corrupt> {
        // The mark is read before the slot: seen finished, a slot that is not ready never will be.
        let finished = match self.end.0.load(Ordering::Acquire) {
            OPEN => false,
            FINISHED => true,
            found => return Err(Corrupt::End { found }),
        };
        // Acquire: pairs with `publish`.
        match self.slots[slot].0.load(Ordering::Acquire) {
            READY => {
                self.slots[slot].0.store(LEASED, Ordering::Relaxed);
                Ok(Some(Next::Leased))
            }
            // Leased: the consumer has kept it for a whole round.
            FREE | FILLING | LEASED => Ok(finished.then_some(Next::End)),
            found => Err(Corrupt::Slot { slot, found, expected: "free, filling, ready or leased" }),
        }
    }

    /// Consumer: whether a slot can be leased.
    #[cfg(not(loom))]
    pub(super) fn is_ready(self, slot: usize) -> bool {
        // Whoever leases it looks again.
        self.slots[slot].0.load(Ordering::Relaxed) == READY
    }

    /// Consumer: frees a slot it had leased.
    pub(super) fn release(self, slot: usize) -> Result<(), Corrupt> {
        // Release: pairs with `claim`.
        self.pass(slot, LEASED, "leased", FREE, Ordering::Release)
    }

    /// Slots published and not yet released, at about this time.
    pub(super) fn occupied(self) -> usize {
        let occupied = |slot: &&Word| matches!(slot.0.load(Ordering::Relaxed), READY | LEASED);
        self.slots.iter().filter(occupied).count()
    }

    /// Moves a slot of the caller's on to its next state.
    fn pass(
        self,
        slot: usize,
        from: u32,
        expected: &'static str,
        to: u32,
        order: Ordering,
    ) -> Result<(), Corrupt> {
        let word = &self.slots[slot].0;
        match word.load(Ordering::Relaxed) {
            found if found == from => {
                word.store(to, order);
                Ok(())
            }
            found => Err(Corrupt::Slot { slot, found, expected }),
        }
    }
}

/// Attempts something until it can be done, sleeping in between; `None` when the peer is gone and it
/// never can.
///
/// `sleep` returns when the peer has done anything since the attempt before it, or has gone.
pub(super) fn until<T, E>(
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
    mut sleep: impl FnMut() -> Result<Peer, E>,
) -> Result<Option<T>, E> {
    let mut peer = Peer::Here;
    loop {
        // Also once more after the peer was seen gone: its last act may have been to publish.
        if let Some(done) = attempt()? {
            return Ok(Some(done));
        }
        if peer == Peer::Gone {
            return Ok(None);
        }
        peer = sleep()?;
    }
}

#[cfg(all(test, loom))]
impl Word {
    /// A word holding `value`.
    pub(super) fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }
}
