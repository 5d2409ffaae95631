//! Slot ownership and waiting.
//!
//! This is the ring's algorithm without its memory mapping and system calls, so that loom can run it: see
//! `model.rs`. [`super`] has the proof.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

/// Unowned. The producer may claim it.
const FREE: u32 = 0;
/// Owned by the producer, which writes it.
const FILLING: u32 = 1;
/// Holds a complete batch. The consumer may lease it.
const READY: u32 = 2;
/// Owned by the consumer, which reads it.
const LEASED: u32 = 3;

/// End mark: more batches may follow.
const OPEN: u32 = 0;
/// End mark: no more batches follow.
const FINISHED: u32 = 1;

/// A word of shared memory on its own cache line. Zeroed memory is a valid word.
#[repr(C, align(64))]
pub(super) struct Word(AtomicU32);

/// The shared words: the end mark, and the state of each slot.
#[derive(Clone, Copy)]
pub(super) struct Control<'a> {
    pub(super) end: &'a Word,
    pub(super) slots: &'a [Word],
}

/// The result of a consumer's attempt that needs no waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The slot is now leased.
    Leased,
    /// No more batches follow.
    End,
}

/// Whether the process at the other end is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// It was alive when last checked.
    Alive,
    /// It has exited, and all of its writes are visible.
    Gone,
}

/// A value in shared memory that a correct peer never writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// A slot in an impossible state.
    #[error("slot {slot} is in state {found}; expected {expected}")]
    Slot {
        /// The slot's number.
        slot: usize,
        /// Its state.
        found: u32,
        /// The states it may be in.
        expected: &'static str,
    },
    /// An undefined end mark.
    #[error("the end mark is {found}; expected open (0) or finished (1)")]
    End {
        /// The mark.
        found: u32,
    },
}

/// Only one end may leave a given state, so a state that an end reads on its turn cannot change before it
/// writes: a load and a store suffice, and no compare-and-swap is needed.
impl Control<'_> {
    /// Producer: claims a free slot; `false` if the consumer has not freed it yet.
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

    /// Producer: publishes its claimed slot.
    pub(super) fn publish(self, slot: usize) -> Result<(), Corrupt> {
        // Release: all writes to the slot happen before the consumer's first read.
        self.transition(slot, FILLING, "filling", READY, Ordering::Release)
    }

    /// Producer: frees its claimed slot unpublished.
    pub(super) fn abandon(self, slot: usize) -> Result<(), Corrupt> {
        // Relaxed: only the producer accesses the slot's bytes before it claims the slot again.
        self.transition(slot, FILLING, "filling", FREE, Ordering::Relaxed)
    }

    /// Producer: marks the end of the stream.
    pub(super) fn finish(self) {
        // Release: a consumer that sees the mark sees all earlier publications.
        self.end.0.store(FINISHED, Ordering::Release);
    }

    /// Consumer: leases a slot or detects the end; `None` if it must wait.
    pub(super) fn next(self, slot: usize) -> Result<Option<Next>, Corrupt> {
        // Read the mark before the slot: once it is finished, a slot that is not ready never becomes ready.
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
            // Leased: the consumer has held the lease for a whole round of the ring.
            FREE | FILLING | LEASED => Ok(finished.then_some(Next::End)),
            found => Err(Corrupt::Slot { slot, found, expected: "free, filling, ready or leased" }),
        }
    }

    /// Consumer: whether a slot is ready to be leased.
    #[cfg(not(loom))]
    pub(super) fn is_ready(self, slot: usize) -> bool {
        // Relaxed: `next` loads the state again before it leases the slot.
        self.slots[slot].0.load(Ordering::Relaxed) == READY
    }

    /// Consumer: whether [`Control::next`] would have to wait.
    #[cfg(not(loom))]
    pub(super) fn must_wait(self, slot: usize) -> bool {
        // Relaxed: `next` loads both again.
        let (end, state) = (self.end.0.load(Ordering::Relaxed), self.slots[slot].0.load(Ordering::Relaxed));
        end == OPEN && matches!(state, FREE | FILLING | LEASED)
    }

    /// Consumer: frees a leased slot.
    pub(super) fn release(self, slot: usize) -> Result<(), Corrupt> {
        // Release: pairs with `claim`.
        self.transition(slot, LEASED, "leased", FREE, Ordering::Release)
    }

    /// Number of slots published and not yet released: a snapshot, possibly stale.
    pub(super) fn occupied_slots(self) -> usize {
        let occupied = |slot: &&Word| matches!(slot.0.load(Ordering::Relaxed), READY | LEASED);
        self.slots.iter().filter(occupied).count()
    }

    /// Moves a slot that the caller owns to its next state.
    fn transition(
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

/// Repeats `attempt` until it succeeds, waiting between attempts; `None` if the peer is gone and it can never
/// succeed.
///
/// `wait` returns when the peer has changed anything since the preceding attempt, or has exited.
pub(super) fn retry_until<T, E>(
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
    mut wait: impl FnMut() -> Result<Peer, E>,
) -> Result<Option<T>, E> {
    let mut peer = Peer::Alive;
    loop {
        // Attempt once more after the peer is gone: its last action may have been to publish.
        if let Some(done) = attempt()? {
            return Ok(Some(done));
        }
        if peer == Peer::Gone {
            return Ok(None);
        }
        peer = wait()?;
    }
}

#[cfg(all(test, loom))]
impl Word {
    /// A word holding `value`.
    pub(super) fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }
}
