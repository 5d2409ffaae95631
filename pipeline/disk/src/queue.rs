//! A queue of transfers, through io_uring or sequential.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::buffer::{ALIGNMENT, AlignedBuffer};
use crate::file::{Direction, DiskFile};
use crate::ring::Ring;

/// A bounded number of reads and writes in flight. They may complete in any order.
///
/// Without io_uring each transfer completes when it is submitted. Dropping the queue waits for transfers in flight.
#[derive(Debug)]
pub struct Queue {
    ring: Option<Ring>,
    /// Completions not yet returned by [`Queue::wait`].
    done: VecDeque<Completion>,
}

/// A completed transfer.
#[derive(Debug)]
pub struct Completion {
    /// The token passed to [`Queue::read`] or [`Queue::write`].
    pub token: u64,
    /// The transfer's buffer.
    pub buffer: AlignedBuffer,
    /// Bytes transferred: the whole buffer, or fewer if a read reaches the end of the file.
    pub result: io::Result<usize>,
}

/// A read or a write.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) direction: Direction,
    pub(crate) file: Arc<DiskFile>,
    pub(crate) offset: u64,
    pub(crate) buffer: AlignedBuffer,
    pub(crate) token: u64,
}

impl Queue {
    /// A queue of at most `depth` transfers in flight, through io_uring if `ring` is set and the system allows it.
    pub fn new(depth: u32, ring: bool) -> Self {
        // Containers may forbid it (EPERM), old kernels lack it (ENOSYS), limits may be reached (ENOMEM, EMFILE). The
        // fallback is the same for every error.
        let ring = if ring { Ring::new(depth.max(1)).ok() } else { None };
        Self { ring, done: VecDeque::new() }
    }

    /// Whether transfers go through io_uring.
    pub fn uses_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Number of submitted transfers that [`Queue::wait`] has not returned yet.
    pub fn pending(&self) -> usize {
        self.done.len() + self.ring.as_ref().map_or(0, Ring::in_flight)
    }

    /// Submits a read of `file` at `offset` into the whole of `buffer`. The offset and the length must be multiples of
    /// [`ALIGNMENT`], else the completion is an error. If the queue is full, this waits for another transfer.
    pub fn read(&mut self, file: &Arc<DiskFile>, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.submit(Transfer { direction: Direction::Read, file: Arc::clone(file), offset, buffer, token });
    }

    /// Submits a write of `buffer` to `file` at `offset`; otherwise like [`Queue::read`].
    pub fn write(&mut self, file: &Arc<DiskFile>, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.submit(Transfer { direction: Direction::Write, file: Arc::clone(file), offset, buffer, token });
    }

    /// Waits for the next completion; `None` when no transfer is pending.
    pub fn wait(&mut self) -> Option<Completion> {
        if self.done.is_empty()
            && let Some(ring) = &mut self.ring
        {
            ring.wait(&mut self.done);
        }
        self.done.pop_front()
    }

    fn submit(&mut self, transfer: Transfer) {
        let aligned = transfer.offset.is_multiple_of(ALIGNMENT as u64)
            && transfer.buffer.len().is_multiple_of(ALIGNMENT);
        if !aligned {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "the transfer is not aligned");
            return self.done.push_back(transfer.into_completion(Err(error)));
        }
        match &mut self.ring {
            Some(ring) => {
                while ring.is_full() {
                    ring.wait(&mut self.done);
                }
                ring.submit(transfer, &mut self.done);
            }
            None => self.done.push_back(transfer.run_blocking(0)),
        }
    }
}

impl Transfer {
    /// Transfers the bytes after the first `done` synchronously.
    pub(crate) fn run_blocking(mut self, done: usize) -> Completion {
        let result = self.file.transfer(self.direction, self.offset, &mut self.buffer, done);
        self.into_completion(result)
    }

    pub(crate) fn into_completion(self, result: io::Result<usize>) -> Completion {
        Completion { token: self.token, buffer: self.buffer, result }
    }
}
