//! Transfers under way, through io_uring or one after the other.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::buffer::{ALIGNMENT, AlignedBuffer};
use crate::file::{Direction, DiskFile};
use crate::ring::Ring;

/// Reads and writes, a bounded number of them at once. They may end in any order.
///
/// Without io_uring each is done when it is begun. Dropped, it waits for what is under way.
#[derive(Debug)]
pub struct Queue {
    ring: Option<Ring>,
    /// Done, and not yet told of.
    done: VecDeque<Completion>,
}

/// A transfer that has ended.
#[derive(Debug)]
pub struct Completion {
    /// What [`Queue::read`] or [`Queue::write`] was given.
    pub token: u64,
    /// The buffer, back again.
    pub buffer: AlignedBuffer,
    /// Bytes transferred: all of the buffer's, but for a read that meets the end of the file.
    pub result: io::Result<usize>,
}

/// A transfer to be made.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) direction: Direction,
    pub(crate) file: Arc<DiskFile>,
    pub(crate) offset: u64,
    pub(crate) buffer: AlignedBuffer,
    pub(crate) token: u64,
}

impl Queue {
    /// At most `depth` transfers at once, through io_uring if `ring` says so and the system does not refuse.
    pub fn new(depth: u32, ring: bool) -> Self {
        // Containers forbid it (EPERM), old kernels lack it (ENOSYS), limits may be met (ENOMEM, EMFILE): what
        // is refused is gone without, so why does not matter.
        let ring = if ring { Ring::new(depth.max(1)).ok() } else { None };
        Self { ring, done: VecDeque::new() }
    }

    /// Whether it goes through io_uring.
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Transfers begun whose completions were not taken yet.
    pub fn pending(&self) -> usize {
        self.done.len() + self.ring.as_ref().map_or(0, Ring::in_flight)
    }

    /// Begins to fill `buffer` from `offset` of `file`. Both the offset and the length are multiples of
    /// [`ALIGNMENT`], else the completion is an error. Waits for another transfer when the queue is full.
    pub fn read(&mut self, file: &Arc<DiskFile>, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.begin(Transfer { direction: Direction::Read, file: Arc::clone(file), offset, buffer, token });
    }

    /// Begins to write `buffer` to `offset` of `file`; otherwise as [`Queue::read`].
    pub fn write(&mut self, file: &Arc<DiskFile>, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.begin(Transfer { direction: Direction::Write, file: Arc::clone(file), offset, buffer, token });
    }

    /// Waits for a transfer to end; `None` when none is under way.
    pub fn wait(&mut self) -> Option<Completion> {
        if self.done.is_empty()
            && let Some(ring) = &mut self.ring
        {
            ring.wait(&mut self.done);
        }
        self.done.pop_front()
    }

    fn begin(&mut self, transfer: Transfer) {
        let aligned = transfer.offset.is_multiple_of(ALIGNMENT as u64)
            && transfer.buffer.len().is_multiple_of(ALIGNMENT);
        if !aligned {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "a transfer that is not aligned");
            return self.done.push_back(transfer.end(Err(error)));
        }
        match &mut self.ring {
            Some(ring) => {
                while ring.is_full() {
                    ring.wait(&mut self.done);
                }
                ring.begin(transfer, &mut self.done);
            }
            None => self.done.push_back(transfer.run(0)),
        }
    }
}

impl Transfer {
    /// Does what is left of it, after the first `done` bytes, at once.
    pub(crate) fn run(mut self, done: usize) -> Completion {
        let result = self.file.transfer(self.direction, self.offset, &mut self.buffer, done);
        self.end(result)
    }

    pub(crate) fn end(self, result: io::Result<usize>) -> Completion {
        Completion { token: self.token, buffer: self.buffer, result }
    }
}
