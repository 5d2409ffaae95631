//! Transfers through io_uring.
//!
//! One ring for each queue, used from whichever thread has the queue: no thread of its own, no locks. The
//! kernel is told of transfers when they are begun and asked for results when there is nothing else to do.
//! A transfer that the ring fails or cuts short is gone on with plainly, and what comes of that counts: so
//! everything that a kernel may say of a ring (an operation it does not know, a signal, no memory just now)
//! is one case, and the errors told are those of `pread` and `pwrite`.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};

use io_uring::{IoUring, opcode, squeue, types};

use crate::buffer::AlignedBuffer;
use crate::file::Direction;
use crate::queue::{Completion, Transfer};

/// An io_uring and what is under way in it.
pub(crate) struct Ring {
    /// Closed before the transfers are dropped, and only once none is under way.
    ring: IoUring,
    /// By the number that the kernel knows each by. What is in here may be in the kernel's hands.
    transfers: Vec<Option<Transfer>>,
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

    /// Begins a transfer. Where the ring cannot take it, it is done at once.
    pub(crate) fn begin(&mut self, mut transfer: Transfer, done: &mut VecDeque<Completion>) {
        let Ok(bytes) = u32::try_from(transfer.buffer.len()) else { return done.push_back(transfer.run(0)) };
        let Some(number) = self.free.pop() else { return done.push_back(transfer.run(0)) };
        let file = types::Fd(transfer.file.as_fd().as_raw_fd());
        let start = transfer.buffer.as_mut_ptr();
        let entry: squeue::Entry = match transfer.direction {
            Direction::Read => opcode::Read::new(file, start, bytes).offset(transfer.offset).build(),
            Direction::Write => opcode::Write::new(file, start, bytes).offset(transfer.offset).build(),
        };
        let entry = entry.user_data(number as u64);
        // SAFETY: the transfer owns the buffer (whose memory does not move with it) and a share of the file.
        // It stays in `transfers` until the kernel has told of its end; neither is touched before, and `drop`
        // waits, or leaks it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            self.free.push(number);
            return done.push_back(transfer.run(0));
        }
        self.transfers[number] = Some(transfer);
        // Left in the queue when it fails: the next call takes it along.
        let _ = self.ring.submit();
    }

    /// Waits for at least one transfer to end, if any is under way.
    pub(crate) fn wait(&mut self, done: &mut VecDeque<Completion>) {
        let before = done.len();
        while self.in_flight() > 0 && done.len() == before {
            self.reap(done);
            if done.len() > before {
                return;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => std::thread::yield_now(),
                Err(error) => self.give_up(&error, done),
            }
        }
    }

    /// Takes the results that are there.
    fn reap(&mut self, done: &mut VecDeque<Completion>) {
        for result in self.ring.completion() {
            // A number that was never given out would be the kernel's mistake.
            let number = result.user_data() as usize;
            let Some(transfer) = self.transfers.get_mut(number).and_then(Option::take) else { continue };
            self.free.push(number);
            let moved = usize::try_from(result.result()).unwrap_or(0);
            done.push_back(if moved == transfer.buffer.len() {
                transfer.end(Ok(moved))
            } else {
                transfer.run(moved)
            });
        }
    }

    /// The ring is of no use any more, and nobody knows what the kernel still does with the buffers: they are
    /// never freed.
    fn give_up(&mut self, error: &io::Error, done: &mut VecDeque<Completion>) {
        for (number, place) in self.transfers.iter_mut().enumerate() {
            let Some(transfer) = place.take() else { continue };
            self.free.push(number);
            let token = transfer.token;
            let _leaked = ManuallyDrop::new(transfer);
            let result = Err(io::Error::new(error.kind(), error.to_string()));
            done.push_back(Completion { token, buffer: AlignedBuffer::zeroed(0), result });
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut ended = VecDeque::new();
        while self.in_flight() > 0 {
            self.wait(&mut ended);
            ended.clear();
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} of {} under way)", self.in_flight(), self.transfers.len())
    }
}

/// Whether the kernel asks to be asked again.
fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [Errno::INTR, Errno::AGAIN, Errno::BUSY];
    error.raw_os_error().is_some_and(|code| passing.iter().any(|errno| errno.raw_os_error() == code))
}
