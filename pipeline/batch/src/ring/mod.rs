//! The ring: slots in a sealed memfd that one process fills and another reads, in order.
//!
//! ```text
//!             claim             publish           next             drop the lease
//!      free ---------> filling ---------> ready ---------> leased ---------> free
//!           <---------
//!        drop the claimed slot
//!      \_______ producer's turn _______/  \______ consumer's turn ______/
//! ```
//!
//! A ring has n slots, a state word for each, and an end mark, all in memory that both processes map
//! (`ring/memory.rs` documents the bytes). Producer and consumer each keep a private counter: the number of the next
//! batch. Nothing else is shared; there is no lock that a dying process could leave locked.
//!
//! # No half-written slot is read
//!
//! *Invariant: at any time exactly one end may change a slot's state. Only the producer accesses the slot's bytes
//! while it is filling, and only the consumer while it is leased.*
//!
//! Each state determines whose turn it is: only the producer moves a slot out of free and filling, only the
//! consumer out of ready and leased. The word is passed like a baton, so a load and a store suffice: there is no
//! race. `publish` is a release that pairs with the consumer's acquire in `next`: the consumer sees all
//! writes to the slot. The drop of a lease is a release that pairs with `claim`: an earlier read does not see
//! a later write. A producer that dies in the middle leaves its slot filling, and only that producer could
//! have made it ready.
//!
//! *Order:* the word of a ready slot has the number of its batch. The producer fills any free slot and publishes it
//! under the next number; the consumer leases the slot with the number that it expects. So batches arrive in order,
//! and leases can be dropped in any order: a lease that is held for long costs one slot and delays no other.
//! Back-pressure follows: the ring has at most n batches that are ready or leased. (Numbers are modulo 2^30. The
//! ready ones lie among the n that the consumer expects next, so they are different; another one is corrupt.)
//!
//! The producer looks for a free slot after the last one that it published, and the consumer after the last one that
//! it leased. Without leases that are held for long, each looks at one word.
//!
//! # No lost wake-up
//!
//! Each end has an eventfd, which the other end signals after every change it makes (one write; a batch takes
//! far longer). Waiting is
//!
//! ```text
//! loop {
//!     if attempt() succeeds { return it }                  // read the words
//!     if the peer was gone before this attempt { fail }
//!     poll(event, liveness, interrupt)                     // sleep
//!     if the event is readable { read it: reset to zero }
//! }
//! ```
//!
//! *Claim: the attempt sees a change made by the peer, or the poll that follows it returns.*
//! The peer changes a word (C), then signals (S). The waiter resets its event (R), attempts (A), polls (P),
//! in this order; before its first attempt it resets nothing. Reads and writes of an eventfd take a
//! lock in the kernel, so R and S are ordered. If S precedes R, then C happens before R and hence before A,
//! and A sees it. If S follows R, the counter is nonzero and stays so until the next R, which follows P: so
//! P returns. ∎ A signal for a change already seen costs one more iteration, never a wake-up. If a slot is
//! available immediately, neither end makes a system call to find it.
//!
//! *Death.* Each end holds one end of a socket pair, over which nothing is ever sent. The kernel closes the
//! descriptors of a dead process, whatever killed it; that hangs up the socket and ends the poll. No timeouts,
//! no heartbeats, no process ids. The peer's writes all happened before its end was closed, so one more
//! attempt after the hang-up sees them: a consumer gets every published batch. (A process that inherits the
//! descriptors by `fork` without `exec` keeps its parent alive in this sense; all of them are close-on-exec.)
//!
//! *End.* `finish` sets the end mark, a release, and signals. The consumer reads the mark before it reads the
//! slot: a slot that is not ready after the mark was seen never becomes ready.
//!
//! *Several rings.* A producer that deals each batch to several consumers claims a slot of every ring before it fills
//! any ([`Producer::claim_all`]) and publishes all parts one right after another. While it waits for one ring it also
//! polls the liveness sockets of the others.
//!
//! *Interruption* is a separate eventfd per end that is never reset, so every poll returns.
//!
//! # Shared words are not trusted
//!
//! The consumer checks seals, size, magic number, version, slot count and the schema's fingerprint before
//! it uses a ring. Afterwards neither end takes an offset, a length or an index from shared memory. A state that
//! a correct peer cannot have written is [`RingError::Corrupt`]. The contents of a batch are always valid (any
//! bits are a number), and its reader bounds every length in it. The remaining trust is that the peer does
//! not write to a slot out of turn, which no check can detect: that can corrupt the batch, but never memory
//! outside the ring.

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
    consumer::{Consumer, Lease, RingMapping},
    handoff::HandOff,
    memory::MAX_SLOTS,
    producer::{ClaimedSlot, Producer},
    signal::Interrupter,
};

#[cfg(any(not(loom), test))]
pub use self::state::Corrupt;

/// An error that makes a ring unusable.
#[cfg(not(loom))]
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The process at the other end has exited.
    #[error("the process at the other end of the ring has exited")]
    PeerGone,
    /// [`Interrupter::interrupt`] was called.
    #[error("waiting for the ring was interrupted")]
    Interrupted,
    /// The hand-off is not a ring of the expected layout.
    #[error("ring hand-off rejected: {0}")]
    Mismatch(String),
    /// The other end has written invalid values to the ring's shared words.
    #[error("the ring is corrupt: {0}")]
    Corrupt(#[from] Corrupt),
    /// An unsupported number of slots.
    #[error("ring slots: {0} is out of range (1 to {MAX_SLOTS})")]
    Slots(u32),
    /// A schema that cannot be laid out in a slot.
    #[error(transparent)]
    Layout(#[from] crate::layout::LayoutError),
    /// A system call failed.
    #[error("creating or mapping the ring failed: {0}")]
    Os(#[from] std::io::Error),
}
