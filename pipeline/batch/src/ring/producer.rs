//! The producer end of a ring.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::memory::Memory;
use super::signal::{EventFd, Interrupter, Waiter};
use super::state::{BatchNumber, Corrupt, retry_until};
use super::{HandOff, RingError};
use crate::batch::BatchMut;
use crate::layout::SlotLayout;
use crate::schema::BatchSchema;

/// The producer end of a ring.
///
/// If it is dropped without [`Producer::finish`], the consumer receives the published batches and then
/// [`RingError::PeerGone`].
pub struct Producer {
    memory: Memory,
    layout: SlotLayout,
    /// Signalled when a batch is published and when the stream ends.
    ready: EventFd,
    /// Waits for freed slots.
    waiter: Waiter,
    /// Where to look for a free slot first: after the slot published last.
    cursor: usize,
    /// The number of the batch to publish next.
    batch: BatchNumber,
    /// A fault found while dropping a claimed slot; the next call of `claim` returns it.
    fault: Option<Corrupt>,
}

/// A slot being filled. Dropping it without [`ClaimedSlot::publish`] frees it.
pub struct ClaimedSlot<'a> {
    producer: &'a mut Producer,
    slot: usize,
    published: bool,
}

impl Producer {
    /// Creates a ring of `slots` slots and the hand-off for its consumer.
    ///
    /// # Errors
    /// When the schema has no layout, `slots` is not in `1..=`[`super::MAX_SLOTS`], or the system is out of
    /// memory or descriptors.
    pub fn create(schema: &BatchSchema, slots: u32) -> Result<(Self, HandOff), RingError> {
        let layout = SlotLayout::of(schema)?;
        let (memory, fd) = Memory::create(&layout, slots)?;
        let (ready, freed) = (EventFd::new()?, EventFd::new()?);
        let (liveness, consumer_liveness) = UnixStream::pair()?;
        let handoff = HandOff {
            memory: fd,
            ready: ready.try_clone()?,
            freed: freed.try_clone()?,
            liveness: consumer_liveness,
        };
        let waiter = Waiter::new(freed, liveness)?;
        let (cursor, batch) = (0, BatchNumber::default());
        Ok((Self { memory, layout, ready, waiter, cursor, batch, fault: None }, handoff))
    }

    /// Waits for a free slot and claims it. If a slot is free this makes no system call.
    ///
    /// # Errors
    /// `PeerGone` when no slot is free and the consumer has exited; `Interrupted`; `Corrupt` when the consumer
    /// has corrupted the ring.
    pub fn claim(&mut self) -> Result<ClaimedSlot<'_>, RingError> {
        self.claim_beside(&[])
    }

    /// Waits for a free slot of each ring and claims them all, in the order of the rings.
    ///
    /// If an error ends the wait, the slots already claimed are freed.
    ///
    /// # Errors
    /// As for [`Producer::claim`]. `PeerGone` also when this waits for one ring and the consumer of another has exited:
    /// consumers that work together wait for each other, so the ring may never get a free slot.
    pub fn claim_all(rings: &mut [Self]) -> Result<Vec<ClaimedSlot<'_>>, RingError> {
        let mut claimed: Vec<ClaimedSlot<'_>> = Vec::with_capacity(rings.len());
        let mut rest = rings;
        while let Some((ring, later)) = rest.split_first_mut() {
            let earlier = claimed.iter().map(|slot| &*slot.producer);
            let others: Vec<&Waiter> = earlier.chain(&*later).map(|other| &other.waiter).collect();
            claimed.push(ring.claim_beside(&others)?);
            rest = later;
        }
        Ok(claimed)
    }

    /// Claims a slot; `PeerGone` also if this waits and the peer of one of `others` is gone.
    fn claim_beside(&mut self, others: &[&Waiter]) -> Result<ClaimedSlot<'_>, RingError> {
        self.waiter.check_interrupt()?;
        if let Some(fault) = self.fault {
            return Err(fault.into());
        }
        let (control, first) = (self.memory.control(), self.cursor);
        match retry_until(|| Ok(control.claim(first)?), || self.waiter.wait_beside(others))? {
            Some(slot) => Ok(ClaimedSlot { producer: self, slot, published: false }),
            None => Err(RingError::PeerGone),
        }
    }

    /// Ends the stream: after the last batch, the consumer's `next` returns `None`.
    pub fn finish(self) {
        self.memory.control().finish();
        self.ready.signal();
    }

    /// A handle that interrupts this end's waits.
    pub fn interrupter(&self) -> Interrupter {
        self.waiter.interrupter()
    }

    /// Number of slots published and not yet released.
    pub fn occupied_slots(&self) -> usize {
        self.memory.control().occupied_slots()
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.memory.slots()
    }

    /// Total time spent waiting for a free slot.
    pub fn waited(&self) -> Duration {
        self.waiter.waited()
    }
}

impl ClaimedSlot<'_> {
    /// The slot's memory, which holds the contents of an earlier batch or zeros.
    pub fn batch(&mut self) -> BatchMut<'_> {
        let Producer { memory, layout, .. } = &*self.producer;
        // SAFETY: `claim` moved the slot to `FILLING` for this value, which borrows the producer exclusively, so it is
        // the only claim. The bytes borrow this value exclusively, so the claim outlives them and they are unique.
        let bytes = unsafe { memory.slot_mut(self.slot) };
        BatchMut::new(bytes, layout)
    }

    /// Makes the batch visible to the consumer.
    pub fn publish(mut self) {
        self.published = true;
    }
}

impl Drop for ClaimedSlot<'_> {
    fn drop(&mut self) {
        let producer = &mut *self.producer;
        let control = producer.memory.control();
        if self.published {
            producer.fault = control.publish(self.slot, producer.batch).err();
            producer.batch = producer.batch.next();
            producer.cursor = (self.slot + 1) % producer.memory.slots();
            producer.ready.signal();
        } else {
            producer.fault = control.abandon(self.slot).err();
        }
    }
}
