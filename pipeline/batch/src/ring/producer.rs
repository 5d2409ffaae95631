//! The filling end.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::memory::Memory;
use super::signal::{Bell, Interrupter, Watch};
use super::state::{Corrupt, until};
use super::{HandOff, RingError};
use crate::batch::BatchMut;
use crate::layout::SlotLayout;
use crate::schema::BatchSchema;

/// The filling end of a ring.
///
/// Dropped without [`Producer::finish`] it counts as dead: the consumer gets what was published, and
/// then [`RingError::PeerGone`].
pub struct Producer {
    memory: Memory,
    layout: SlotLayout,
    /// Rung when something was published, or nothing follows.
    ready: Bell,
    /// Watches for freed slots.
    watch: Watch,
    /// The slot to fill next.
    cursor: usize,
    /// What was found wrong when there was nobody to tell.
    fault: Option<Corrupt>,
}

/// A slot that is being filled. Dropped without [`Filling::publish`], it is free again.
pub struct Filling<'a> {
    producer: &'a mut Producer,
    whole: bool,
}

impl Producer {
    /// Creates a ring of `slots` slots and the hand-off for its consumer.
    ///
    /// # Errors
    /// When there is no layout for the schema, `slots` is not in `1..=`[`super::MAX_SLOTS`], or the
    /// system has no memory or descriptors left.
    pub fn create(schema: &BatchSchema, slots: u32) -> Result<(Self, HandOff), RingError> {
        let layout = SlotLayout::of(schema)?;
        let (memory, fd) = Memory::create(&layout, slots)?;
        let (ready, freed) = (Bell::new()?, Bell::new()?);
        let (liveness, consumer_liveness) = UnixStream::pair()?;
        let handoff = HandOff {
            memory: fd,
            ready: ready.try_clone()?,
            freed: freed.try_clone()?,
            liveness: consumer_liveness,
        };
        let watch = Watch::new(freed, liveness)?;
        Ok((Self { memory, layout, ready, watch, cursor: 0, fault: None }, handoff))
    }

    /// Waits for a free slot. With one free already this makes no system call.
    ///
    /// # Errors
    /// `PeerGone` when the consumer has gone, noticed at the latest when no slot is free; `Interrupted`;
    /// `Corrupt` when the consumer has spoilt the ring.
    pub fn fill(&mut self) -> Result<Filling<'_>, RingError> {
        self.watch.check_interrupt()?;
        if let Some(fault) = self.fault {
            return Err(fault.into());
        }
        let (control, slot) = (self.memory.control(), self.cursor);
        let claimed = until(|| Ok(control.claim(slot)?.then_some(())), || self.watch.sleep())?;
        match claimed {
            Some(()) => Ok(Filling { producer: self, whole: false }),
            None => Err(RingError::PeerGone),
        }
    }

    /// Says that nothing follows: once drained, the consumer's `next` returns `None`.
    pub fn finish(self) {
        self.memory.control().finish();
        self.ready.ring();
    }

    /// A handle that ends this end's waits.
    pub fn interrupter(&self) -> Interrupter {
        self.watch.interrupter()
    }

    /// Slots published and not yet released.
    pub fn occupied(&self) -> usize {
        self.memory.control().occupied()
    }

    /// Slots of the ring.
    pub fn slots(&self) -> usize {
        self.memory.slots()
    }

    /// Time spent waiting for a free slot.
    pub fn waited(&self) -> Duration {
        self.watch.slept()
    }
}

impl Filling<'_> {
    /// The slot's memory: what an earlier batch left there.
    pub fn batch(&mut self) -> BatchMut<'_> {
        let Producer { memory, layout, cursor, .. } = &*self.producer;
        // SAFETY: `fill` claimed the slot for this value, which is the only one while it borrows the
        // producer, and which is borrowed in turn for as long as the bytes are.
        let bytes = unsafe { memory.slot_mut(*cursor) };
        BatchMut::new(bytes, layout)
    }

    /// Makes the batch visible to the consumer.
    pub fn publish(mut self) {
        self.whole = true;
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let producer = &mut *self.producer;
        let control = producer.memory.control();
        if self.whole {
            producer.fault = control.publish(producer.cursor).err();
            producer.cursor = (producer.cursor + 1) % producer.memory.slots();
            producer.ready.ring();
        } else {
            producer.fault = control.abandon(producer.cursor).err();
        }
    }
}
