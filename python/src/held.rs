//! Batches that Python holds.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_batch::{BatchBuffer, BatchRef, Lease};

/// The memory of a batch, which exists as long as any view into it.
pub(crate) struct Held {
    memory: Memory,
}

enum Memory {
    /// A slot of the ring, and the process that leased it.
    Slot { lease: ManuallyDrop<Lease>, leased: Arc<AtomicUsize>, process: u32 },
    /// A copy, because the program holds all slots but one.
    Copy(BatchBuffer),
}

impl Held {
    /// Holds the batch of `lease`, of a ring with `slots` slots of which this process holds `leased`. If the ring would be
    /// left without a slot to fill, a copy is held instead, so that a program that keeps batches never stops its feed.
    pub(crate) fn new(lease: Lease, slots: usize, leased: &Arc<AtomicUsize>) -> Self {
        let memory = if leased.load(Ordering::Relaxed) + 1 < slots {
            leased.fetch_add(1, Ordering::Relaxed);
            let (lease, leased) = (ManuallyDrop::new(lease), Arc::clone(leased));
            Memory::Slot { lease, leased, process: std::process::id() }
        } else {
            Memory::Copy(BatchBuffer::copy_of(lease.batch()))
        };
        Self { memory }
    }

    pub(crate) fn batch(&self) -> BatchRef<'_> {
        match &self.memory {
            Memory::Slot { lease, .. } => lease.batch(),
            Memory::Copy(buffer) => buffer.as_ref(),
        }
    }

    pub(crate) fn is_copy(&self) -> bool {
        matches!(self.memory, Memory::Copy(_))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Memory::Slot { lease, leased, process } = &mut self.memory else { return };
        // A child that the process has forked shares the ring's memory, and must not free a slot of its parent.
        if *process == std::process::id() {
            leased.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: the lease is not used after this, because the value that owns it is being dropped.
            unsafe { ManuallyDrop::drop(lease) };
        }
    }
}
