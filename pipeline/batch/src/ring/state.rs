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
/// Holds a complete batch, whose number is in the other bits. The consumer may lease it.
const READY: u32 = 2;
/// Owned by the consumer, which reads it.
const LEASED: u32 = 3;

/// The bits of a word that hold the state.
const STATE_BITS: u32 = 2;

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

/// The number of a batch: how many were published before it, modulo 2^30. No ring has so many slots, so the batches in
/// it have different numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchNumber(u32);

impl BatchNumber {
    const MODULUS: u32 = 1 << (u32::BITS - STATE_BITS);

    /// The number of the batch after this one.
    #[must_use]
    pub(super) fn next(self) -> Self {
        Self((self.0 + 1) % Self::MODULUS)
    }

    /// How many batches after `earlier` it is.
    fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) % Self::MODULUS
    }

    /// The word of a slot that holds the batch.
    fn ready(self) -> u32 {
        self.0 << STATE_BITS | READY
    }

    /// The number of the batch that is ready in a slot with this word.
    fn of_ready(word: u32) -> Option<Self> {
        (word & ((1 << STATE_BITS) - 1) == READY).then_some(Self(word >> STATE_BITS))
    }
}

/// The result of a consumer's attempt that needs no waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This slot is now leased.
    Leased(usize),
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
    /// A slot holds a batch that cannot be in the ring.
    #[error("slot {slot} holds batch {found}; the next one is {next}")]
    Batch {
        /// The slot's number.
        slot: usize,
        /// The number of its batch, modulo 2^30.
        found: u32,
        /// The number of the next batch.
        next: u32,
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
    /// Producer: claims a free slot, from `first` on; `None` if the consumer has not freed any.
    pub(super) fn claim(self, first: usize) -> Result<Option<usize>, Corrupt> {
        for slot in self.from(first) {
            // Acquire: the consumer's last read of the slot happens before the first write to it.
            match self.slots[slot].0.load(Ordering::Acquire) {
                FREE => {
                    self.slots[slot].0.store(FILLING, Ordering::Relaxed);
                    return Ok(Some(slot));
                }
                LEASED => {}
                word if BatchNumber::of_ready(word).is_some() => {}
                found => return Err(Corrupt::Slot { slot, found, expected: "free, ready or leased" }),
            }
        }
        Ok(None)
    }

    /// Producer: publishes its claimed slot as this batch.
    pub(super) fn publish(self, slot: usize, batch: BatchNumber) -> Result<(), Corrupt> {
        // Release: all writes to the slot happen before the consumer's first read.
        self.transition(slot, FILLING, "filling", batch.ready(), Ordering::Release)
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

    /// Consumer: leases the slot of this batch, looking from slot `first` on, or detects the end; `None` if it must
    /// wait.
    pub(super) fn next(self, first: usize, batch: BatchNumber) -> Result<Option<Next>, Corrupt> {
        // Read the mark before the slots: once it is finished, a slot that is not ready never becomes ready.
        let finished = match self.end.0.load(Ordering::Acquire) {
            OPEN => false,
            FINISHED => true,
            found => return Err(Corrupt::End { found }),
        };
        for slot in self.from(first) {
            // Acquire: pairs with `publish`.
            let word = self.slots[slot].0.load(Ordering::Acquire);
            match BatchNumber::of_ready(word) {
                Some(found) if found == batch => {
                    self.slots[slot].0.store(LEASED, Ordering::Relaxed);
                    return Ok(Some(Next::Leased(slot)));
                }
                Some(found) if found.since(batch) as usize >= self.slots.len() => {
                    return Err(Corrupt::Batch { slot, found: found.0, next: batch.0 });
                }
                Some(_) => {}
                None if matches!(word, FREE | FILLING | LEASED) => {}
                None => {
                    let expected = "free, filling, ready or leased";
                    return Err(Corrupt::Slot { slot, found: word, expected });
                }
            }
        }
        Ok(finished.then_some(Next::End))
    }

    /// Consumer: whether the batch is ready to be leased.
    #[cfg(not(loom))]
    pub(super) fn is_ready(self, batch: BatchNumber) -> bool {
        // Relaxed: `next` loads the state again before it leases the slot.
        self.slots.iter().any(|slot| slot.0.load(Ordering::Relaxed) == batch.ready())
    }

    /// Consumer: whether [`Control::next`] would have to wait.
    #[cfg(not(loom))]
    pub(super) fn must_wait(self, batch: BatchNumber) -> bool {
        let is_regular = |slot: &Word| {
            let word = slot.0.load(Ordering::Relaxed);
            let number = BatchNumber::of_ready(word);
            number.map_or(matches!(word, FREE | FILLING | LEASED), |number| {
                number != batch && (number.since(batch) as usize) < self.slots.len()
            })
        };
        // Relaxed: `next` loads all again.
        self.end.0.load(Ordering::Relaxed) == OPEN && self.slots.iter().all(is_regular)
    }

    /// Consumer: frees a leased slot.
    pub(super) fn release(self, slot: usize) -> Result<(), Corrupt> {
        // Release: pairs with `claim`.
        self.transition(slot, LEASED, "leased", FREE, Ordering::Release)
    }

    /// Number of slots published and not yet released: a snapshot, possibly stale.
    pub(super) fn occupied_slots(self) -> usize {
        let occupied = |slot: &&Word| !matches!(slot.0.load(Ordering::Relaxed), FREE | FILLING);
        self.slots.iter().filter(occupied).count()
    }

    /// All slots, from `first` on.
    fn from(self, first: usize) -> impl Iterator<Item = usize> {
        (first..self.slots.len()).chain(0..first)
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
