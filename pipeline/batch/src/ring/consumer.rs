//! The emptying end.

use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::memory::Memory;
use super::signal::{Bell, Interrupter, Watch};
use super::state::{Corrupt, Next, until};
use super::{HandOff, RingError};
use crate::batch::BatchRef;
use crate::layout::SlotLayout;
use crate::schema::BatchSchema;

/// The emptying end of a ring.
///
/// Dropped, it lets the producer find its consumer gone; leases taken before stay valid.
pub struct Consumer {
    shared: Arc<Shared>,
    /// Watches for published slots.
    watch: Watch,
    /// The slot to lease next.
    cursor: usize,
}

/// A published batch, the consumer's until dropped.
///
/// It owns its part of the ring: it can be kept while later batches are taken, and sent to another
/// thread. Leases may be dropped in any order, but the producer goes round in order: one that is kept for
/// long holds up all that follows.
pub struct Leased {
    shared: Arc<Shared>,
    slot: usize,
}

/// All of a ring's memory, as a device asks for it that is to copy from there by itself. It stays mapped as long as this
/// value is there.
#[derive(Clone)]
pub struct Pages(Arc<Shared>);

/// What leases need of their ring.
struct Shared {
    memory: Memory,
    layout: SlotLayout,
    /// Rung when a slot was freed.
    freed: Bell,
    /// What was found wrong when there was nobody to tell.
    fault: OnceLock<Corrupt>,
}

impl Consumer {
    /// Receives a ring from its producer, over a socket in blocking mode, and checks it against the
    /// layout of `schema`.
    ///
    /// Everything sent over the socket before the hand-off must have been read, and nothing after it.
    ///
    /// # Errors
    /// `Mismatch` when what arrives is not a ring of this schema, `PeerGone` when nothing does.
    pub fn receive(socket: &UnixStream, schema: &BatchSchema) -> Result<Self, RingError> {
        Self::new(HandOff::receive(socket)?, schema)
    }

    pub(super) fn new(handoff: HandOff, schema: &BatchSchema) -> Result<Self, RingError> {
        let HandOff { memory, ready, freed, liveness } = handoff;
        let layout = SlotLayout::of(schema)?;
        let memory = Memory::open(&memory, &layout)?;
        let shared = Arc::new(Shared { memory, layout, freed, fault: OnceLock::new() });
        Ok(Self { shared, watch: Watch::new(ready, liveness)?, cursor: 0 })
    }

    /// Waits for the next batch; `None` after [`Producer::finish`](super::Producer::finish). With a
    /// batch there already this makes no system call.
    ///
    /// Leases taken before need not have been dropped. But a slot comes round again: while the lease taken
    /// [`Consumer::slots`] batches ago is alive, this waits until another thread drops it and the producer
    /// has filled its slot anew.
    ///
    /// # Errors
    /// `PeerGone` when the producer has gone without finishing, after what it had published was
    /// delivered; `Interrupted`; `Corrupt` when the producer has spoilt the ring.
    #[expect(clippy::should_implement_trait, reason = "it waits, fails, and a lease is no plain item")]
    pub fn next(&mut self) -> Result<Option<Leased>, RingError> {
        self.watch.check_interrupt()?;
        if let Some(&fault) = self.shared.fault.get() {
            return Err(fault.into());
        }
        let (control, slot) = (self.shared.memory.control(), self.cursor);
        let next = until(|| Ok(control.next(slot)?), || self.watch.sleep())?;
        match next {
            Some(Next::Leased) => {
                self.cursor = (slot + 1) % self.shared.memory.slots();
                Ok(Some(Leased { shared: Arc::clone(&self.shared), slot }))
            }
            Some(Next::End) => Ok(None),
            None => Err(RingError::PeerGone),
        }
    }

    /// Whether the next batch is there already.
    pub fn has_next(&self) -> bool {
        self.shared.memory.control().is_ready(self.cursor)
    }

    /// A handle that ends this end's waits.
    pub fn interrupter(&self) -> Interrupter {
        self.watch.interrupter()
    }

    /// Its memory.
    pub fn pages(&self) -> Pages {
        Pages(Arc::clone(&self.shared))
    }

    /// Slots of the ring.
    pub fn slots(&self) -> usize {
        self.shared.memory.slots()
    }

    /// Time spent waiting for a batch.
    pub fn waited(&self) -> Duration {
        self.watch.slept()
    }
}

impl Pages {
    /// Where they begin and end. What lies between is read only by who leases a slot.
    pub fn addresses(&self) -> Range<*const u8> {
        self.0.memory.addresses()
    }
}

impl Leased {
    /// The batch.
    pub fn batch(&self) -> BatchRef<'_> {
        let Shared { memory, layout, .. } = &*self.shared;
        // SAFETY: `next` leased the slot for this value, which frees it when dropped and is borrowed for
        // as long as the bytes are.
        let bytes = unsafe { memory.slot(self.slot) };
        BatchRef::new(bytes, layout)
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        match self.shared.memory.control().release(self.slot) {
            Ok(()) => self.shared.freed.ring(),
            // Only the first counts.
            Err(fault) => drop(self.shared.fault.set(fault)),
        }
    }
}
