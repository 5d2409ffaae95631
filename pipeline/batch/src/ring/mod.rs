//! The ring: slots in a sealed memfd that one process fills and another one empties, in order.
//!
//! ```text
//!              claim              publish             next              drop of the lease
//!      free ----------> filling ----------> ready ----------> leased ----------> free
//!            <----------
//!              drop of the filling
//!      \_______ producer's turn ________/  \______ consumer's turn ______/
//! ```
//!
//! A ring has n slots, a state word for each of them, and an end mark, all in memory that both processes
//! map (`ring/memory.rs` has the bytes). Producer and consumer each keep a cursor of their own: the slot they
//! turn to next, 0, 1, ... n - 1, 0, ... Nothing else is shared; there is no lock that a dying process
//! could leave locked.
//!
//! # Nobody reads a half-written slot
//!
//! *Invariant: at any time exactly one end may change a slot's state, and its bytes are touched only by
//! the producer while it is filling and only by the consumer while it is leased.*
//!
//! Each state says whose turn it is: only the producer moves a slot out of free and filling, only the
//! consumer out of ready and leased. So the word is passed like a baton, and a load and a store do; there
//! is nobody to race with. `publish` is a release that the consumer's acquire in
//! `next` pairs with: all that was written is seen. The drop of a lease is a release that `claim` pairs
//! with: what is written next is not seen by a read that came before. A producer that dies in the middle
//! leaves its slot filling, and nothing ever makes a filling slot ready but its own producer.
//!
//! *Order:* the producer publishes slots in cursor order, as it moves its cursor only by publishing, and
//! the consumer leases them in cursor order. Batch number i lies in slot i mod n for both. Leases can be
//! dropped in any order: a slot freed early just waits for the producer's cursor. Back-pressure follows:
//! the producer is at most n batches ahead of the oldest lease.
//!
//! # Nobody sleeps for ever
//!
//! Each end has a *bell*, an eventfd counter, that the other end rings after every change it makes (one
//! write; a batch takes far longer than that). Waiting is
//!
//! ```text
//! loop {
//!     if attempt() succeeds { return it }                  // look at the words
//!     if the peer was gone before this attempt { fail }
//!     poll(bell, liveness, interrupt)                      // sleep
//!     if the bell is readable { read it: back to zero }
//! }
//! ```
//!
//! *Claim: a change made by the peer is either seen by the attempt, or ends the poll that follows it.*
//! The peer changes a word (C), then rings (R). The waiter silences its bell (S), attempts (A), polls (P),
//! in this order; before its first attempt nothing was silenced. Reads and writes of an eventfd take a
//! lock in the kernel, so R and S are ordered. If R came before S, then C happens before S and hence before A,
//! and A sees it. If R came after S, the counter is not zero and stays so until the next S, which comes after
//! P: so P returns. ∎ A bell that rang for something already seen costs one more turn of the loop, never
//! a wake-up. With a slot there at once, neither end makes a system call to find it.
//!
//! *Death.* Each end holds one end of a socket pair, over which nothing is ever sent. The kernel closes a
//! dead process's descriptors, whatever killed it; that hangs up the socket and ends the poll. No timeouts,
//! no heartbeats, no process ids. All that the peer wrote happened before its end was closed, so one more
//! attempt after the hang-up sees all of it: a consumer gets every batch that was published. (A process
//! that inherits the descriptors by `fork` without `exec` keeps its parent alive in this sense; all of
//! them are close-on-exec.)
//!
//! *End.* `finish` sets the end mark, a release, and rings. The consumer reads the mark before it reads the
//! slot: a slot that was not ready after the mark was seen never will be.
//!
//! *Interruption* is a bell of each end's own that is never silenced: no poll outlasts it.
//!
//! # Nobody trusts the words blindly
//!
//! The consumer checks seals, size, magic number, version, slot count and the schema's fingerprint before
//! it uses a ring, and neither end ever takes an offset, a length or an index from shared memory after
//! that. A state that a correct peer cannot have written is [`RingError::Corrupt`]. Whatever a batch
//! holds is valid (any bits are a number) and every length in it is bounded by its reader. What remains
//! is trust that the peer does not write to a slot out of its turn, which no check can see; it can spoil
//! the batch, never memory outside the ring.

#[cfg(any(not(loom), test))]
mod state;

#[cfg(not(loom))]
mod consumer;
#[cfg(not(loom))]
mod handoff;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod producer;
#[cfg(not(loom))]
mod signal;

#[cfg(all(test, loom))]
mod model;

#[cfg(not(loom))]
pub use self::{
    consumer::{Consumer, Leased, Pages},
    handoff::HandOff,
    memory::MAX_SLOTS,
    producer::{Filling, Producer},
    signal::Interrupter,
};

#[cfg(any(not(loom), test))]
pub use self::state::Corrupt;

/// Why a ring cannot be used, or not further.
#[cfg(not(loom))]
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The process at the other end has gone.
    #[error("the process at the other end of the ring has gone")]
    PeerGone,
    /// The wait was ended by [`Producer::interrupter`] or [`Consumer::interrupter`].
    #[error("the wait for the ring was interrupted")]
    Interrupted,
    /// What was handed over is not a ring of the agreed layout.
    #[error("what was handed over is not a ring of the agreed layout: {0}")]
    Mismatch(String),
    /// The other end has written nonsense to the ring's shared words.
    #[error("the ring is corrupt: {0}")]
    Corrupt(#[from] Corrupt),
    /// A number of slots that no ring can have.
    #[error("a ring has from 1 to {MAX_SLOTS} slots, not {0}")]
    Slots(u32),
    /// A schema that no slot can hold.
    #[error(transparent)]
    Layout(#[from] crate::layout::LayoutError),
    /// The operating system refused.
    #[error("the operating system refused a ring's memory or descriptors: {0}")]
    Os(#[from] std::io::Error),
}
