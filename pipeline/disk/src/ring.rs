//! Transfers through io_uring.
//!
//! Each queue has one ring, used from whichever thread owns the queue: no thread of its own, no locks.
//! Transfers are submitted when requested, and completions are reaped when the caller waits. If the ring fails
//! a transfer or cuts it short, the rest runs synchronously and its result counts. So all failures of a ring
//! (an unsupported operation, a signal, a temporary lack of memory) are one case, and callers see the errors
//! of `pread` and `pwrite` only.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::{fmt, io};

use io_uring::{IoUring, opcode, squeue, types};

use crate::buffer::AlignedBuffer;
use crate::file::Direction;
use crate::queue::{Completion, Transfer};

/// An io_uring and its transfers in flight.
pub(crate) struct Ring {
    /// Dropped before the transfers, and only when none is in flight.
    ring: IoUring,
    /// Indexed by the user data of the submission. The kernel may still access the buffers in here.
    transfers: Vec<Option<Transfer>>,
    /// Unused indices of `transfers`.
    free: Vec<usize>,
}

impl Ring {
    pub(crate) fn new(depth: u32) -> io::Result<Self> {
        let ring = IoUring::new(depth)?;
        let depth = depth as usize;
        Ok(Self { ring, transfers: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.transfers.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Submits a transfer. If the ring cannot accept it, it runs synchronously.
    pub(crate) fn submit(&mut self, mut transfer: Transfer, done: &mut VecDeque<Completion>) {
        let Ok(bytes) = u32::try_from(transfer.buffer.len()) else {
            return done.push_back(transfer.run_blocking(0));
        };
        let Some(index) = self.free.pop() else { return done.push_back(transfer.run_blocking(0)) };
        let file = types::Fd(transfer.file.as_fd().as_raw_fd());
        let start = transfer.buffer.as_mut_ptr();
        let entry: squeue::Entry = match transfer.direction {
            Direction::Read => opcode::Read::new(file, start, bytes).offset(transfer.offset).build(),
            Direction::Write => opcode::Write::new(file, start, bytes).offset(transfer.offset).build(),
        };
        let entry = entry.user_data(index as u64);
        // SAFETY: the entry's buffer and descriptor must stay valid until the kernel completes it. The transfer owns the
        // buffer, whose memory does not move with it, and a reference to the file. It stays untouched in `transfers`
        // until its completion arrives (`reap`), or is leaked (`abandon`); `drop` waits for all.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            self.free.push(index);
            return done.push_back(transfer.run_blocking(0));
        }
        self.transfers[index] = Some(transfer);
        // If this fails the entry stays in the submission queue, and the next call submits it.
        let _ = self.ring.submit();
    }

    /// Waits for at least one completion, if any transfer is in flight.
    pub(crate) fn wait(&mut self, done: &mut VecDeque<Completion>) {
        let before = done.len();
        while self.in_flight() > 0 && done.len() == before {
            self.reap(done);
            if done.len() > before {
                return;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_transient(&error) => std::thread::yield_now(),
                Err(error) => self.abandon(&error, done),
            }
        }
    }

    /// Collects available completions.
    fn reap(&mut self, done: &mut VecDeque<Completion>) {
        for result in self.ring.completion() {
            // The kernel never returns an unknown index; ignore one rather than panic.
            let index = result.user_data() as usize;
            let Some(transfer) = self.transfers.get_mut(index).and_then(Option::take) else { continue };
            self.free.push(index);
            let moved = usize::try_from(result.result()).unwrap_or(0);
            done.push_back(if moved == transfer.buffer.len() {
                transfer.into_completion(Ok(moved))
            } else {
                transfer.run_blocking(moved)
            });
        }
    }

    /// Fails all transfers in flight after the ring itself has failed. The kernel may still access their buffers, so
    /// they are leaked.
    fn abandon(&mut self, error: &io::Error, done: &mut VecDeque<Completion>) {
        for (index, entry) in self.transfers.iter_mut().enumerate() {
            let Some(transfer) = entry.take() else { continue };
            self.free.push(index);
            let token = transfer.token;
            let _leaked = ManuallyDrop::new(transfer);
            let result = Err(io::Error::new(error.kind(), error.to_string()));
            done.push_back(Completion { token, buffer: AlignedBuffer::zeroed(0), result });
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut done = VecDeque::new();
        while self.in_flight() > 0 {
            self.wait(&mut done);
            done.clear();
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} of {} in flight)", self.in_flight(), self.transfers.len())
    }
}

/// Whether the system call should be retried.
fn is_transient(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let transient = [Errno::INTR, Errno::AGAIN, Errno::BUSY];
    error.raw_os_error().is_some_and(|code| transient.iter().any(|errno| errno.raw_os_error() == code))
}
