//! The consumer end of a ring.

use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::memory::Memory;
use super::signal::{EventFd, Interrupter, Waiter};
use super::state::{BatchNumber, Corrupt, Next, retry_until};
use super::{HandOff, RingError};
use crate::batch::BatchRef;
use crate::layout::SlotLayout;
use crate::schema::BatchSchema;

/// The consumer end of a ring.
///
/// Dropping it makes the producer return [`RingError::PeerGone`]; existing leases stay valid.
pub struct Consumer {
    shared: Arc<Shared>,
    /// Waits for published slots.
    waiter: Waiter,
    /// Where to look for the next batch first: after the slot leased last.
    cursor: usize,
    /// The number of the next batch.
    batch: BatchNumber,
}

/// A published batch that the consumer owns until it drops the lease.
///
/// A lease keeps the ring mapped, can be held while later batches are taken, and can be sent to another
/// thread. Leases may be dropped in any order: the producer goes on with the slots that are free.
pub struct Lease {
    shared: Arc<Shared>,
    slot: usize,
}

/// A ring's whole mapping, for registering it with a device that copies from it directly. The memory stays mapped
/// while this value exists.
#[derive(Clone)]
pub struct RingMapping(Arc<Shared>);

/// The parts of a ring that its leases share.
struct Shared {
    memory: Memory,
    layout: SlotLayout,
    /// Signalled when a slot is freed.
    freed: EventFd,
    /// The first fault found while dropping a lease; the next call of `next` returns it.
    fault: OnceLock<Corrupt>,
}

impl Consumer {
    /// Receives a ring from its producer over a blocking socket and checks it against the layout of `schema`.
    ///
    /// The caller must have read everything sent before the hand-off, and nothing after it.
    ///
    /// # Errors
    /// `Mismatch` when the message is not a ring of this schema, `PeerGone` when the socket is closed.
    pub fn receive(socket: &UnixStream, schema: &BatchSchema) -> Result<Self, RingError> {
        Self::new(HandOff::receive(socket)?, schema)
    }

    pub(super) fn new(handoff: HandOff, schema: &BatchSchema) -> Result<Self, RingError> {
        let HandOff { memory, ready, freed, liveness } = handoff;
        let layout = SlotLayout::of(schema)?;
        let memory = Memory::open(&memory, &layout)?;
        let shared = Arc::new(Shared { memory, layout, freed, fault: OnceLock::new() });
        let waiter = Waiter::new(ready, liveness)?;
        Ok(Self { shared, waiter, cursor: 0, batch: BatchNumber::default() })
    }

    /// Waits for the next batch; `None` after [`Producer::finish`](super::Producer::finish). If a batch is
    /// ready this makes no system call.
    ///
    /// Earlier leases may still be held. While [`Consumer::slots`] are, this waits until another thread drops one and the
    /// producer has filled its slot again.
    ///
    /// # Errors
    /// `PeerGone` when the producer exited without finishing, after all batches that it published were
    /// delivered; `Interrupted`; `Corrupt` when the producer has corrupted the ring.
    #[expect(clippy::should_implement_trait, reason = "it blocks and returns errors")]
    pub fn next(&mut self) -> Result<Option<Lease>, RingError> {
        self.waiter.check_interrupt()?;
        if let Some(&fault) = self.shared.fault.get() {
            return Err(fault.into());
        }
        let (control, first, batch) = (self.shared.memory.control(), self.cursor, self.batch);
        let next = retry_until(|| Ok(control.next(first, batch)?), || self.waiter.wait())?;
        match next {
            Some(Next::Leased(slot)) => {
                self.batch = batch.next();
                self.cursor = (slot + 1) % self.shared.memory.slots();
                Ok(Some(Lease { shared: Arc::clone(&self.shared), slot }))
            }
            Some(Next::End) => Ok(None),
            None => Err(RingError::PeerGone),
        }
    }

    /// Whether the next batch is ready.
    pub fn has_next(&self) -> bool {
        self.shared.memory.control().is_ready(self.batch)
    }

    /// Waits at most `limit` until [`Consumer::next`] need not wait; returns whether it need not.
    ///
    /// # Errors
    /// `Interrupted`.
    pub fn wait(&mut self, limit: Duration) -> Result<bool, RingError> {
        self.waiter.check_interrupt()?;
        if self.shared.fault.get().is_some() {
            return Ok(true);
        }
        // A deadline that time cannot reach is none.
        let deadline = Instant::now().checked_add(limit);
        let (control, batch) = (self.shared.memory.control(), self.batch);
        let is_over = || deadline.is_some_and(|deadline| deadline <= Instant::now());
        let ended = || if control.must_wait(batch) { is_over().then_some(false) } else { Some(true) };
        let is_there = retry_until(|| Ok(ended()), || self.waiter.wait_until(deadline))?;
        // A producer that is gone changes nothing any more.
        Ok(is_there.unwrap_or(true))
    }

    /// A handle that interrupts this end's waits.
    pub fn interrupter(&self) -> Interrupter {
        self.waiter.interrupter()
    }

    /// The ring's memory.
    pub fn mapping(&self) -> RingMapping {
        RingMapping(Arc::clone(&self.shared))
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.shared.memory.slots()
    }

    /// Total time spent waiting for a batch.
    pub fn waited(&self) -> Duration {
        self.waiter.waited()
    }
}

impl RingMapping {
    /// The address range of the mapping. Only the holder of a lease may read a slot's bytes.
    pub fn addresses(&self) -> Range<*const u8> {
        self.0.memory.addresses()
    }
}

impl Lease {
    /// The batch.
    pub fn batch(&self) -> BatchRef<'_> {
        let Shared { memory, layout, .. } = &*self.shared;
        // SAFETY: `next` moved the slot to `LEASED` for this value alone, and only this value's `drop` releases it. The
        // bytes borrow this value, so the lease outlives them.
        let bytes = unsafe { memory.slot(self.slot) };
        BatchRef::new(bytes, layout)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match self.shared.memory.control().release(self.slot) {
            Ok(()) => self.shared.freed.signal(),
            // Keep the first fault.
            Err(fault) => drop(self.shared.fault.set(fault)),
        }
    }
}
