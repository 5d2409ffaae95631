//! Waiting until the peer changes the ring, the peer exits, or a thread interrupts the wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};

use super::RingError;
use super::state::Peer;

/// An eventfd: a kernel counter that is readable while it is not zero.
pub(super) struct EventFd(OwnedFd);

impl EventFd {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Increments the counter, which wakes a waiter.
    pub(super) fn signal(&self) {
        // A write to an eventfd fails only if the counter is full, in which case it is already signalled. (If a
        // peer passed another kind of descriptor, only that peer misses its wake-ups.)
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Resets the counter to zero.
    fn reset(&self) -> io::Result<()> {
        let mut count = [0; 8];
        match retry_on_intr(|| rustix::io::read(&self.0, &mut count)) {
            Ok(8) | Err(Errno::AGAIN) => Ok(()),
            Ok(_) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "a descriptor of the ring is not an eventfd"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Another descriptor of the same counter.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for EventFd {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// Permanently interrupts the waits of one end of a ring from any thread.
#[derive(Clone)]
pub struct Interrupter(Arc<Interrupt>);

struct Interrupt {
    interrupted: AtomicBool,
    event: EventFd,
}

impl Interrupter {
    fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Interrupt { interrupted: AtomicBool::new(false), event: EventFd::new()? })))
    }

    /// Interrupts the current wait. Every later call that could wait returns [`RingError::Interrupted`]
    /// immediately.
    pub fn interrupt(&self) {
        self.0.interrupted.store(true, Ordering::Release);
        // Never reset, so it ends current and later waits alike.
        self.0.event.signal();
    }
}

/// The descriptors that one end of a ring polls while it waits.
pub(super) struct Waiter {
    event: EventFd,
    /// One end of a socket pair; the peer holds the other. Nothing is ever sent over it: it hangs up when
    /// the peer's process exits, for whatever reason.
    liveness: UnixStream,
    interrupter: Interrupter,
    waited: Duration,
}

impl Waiter {
    pub(super) fn new(event: EventFd, liveness: UnixStream) -> io::Result<Self> {
        Ok(Self { event, liveness, interrupter: Interrupter::new()?, waited: Duration::ZERO })
    }

    pub(super) fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }

    /// Total time spent waiting.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns an error if interrupted. Makes no system call.
    pub(super) fn check_interrupt(&self) -> Result<(), RingError> {
        if self.interrupter.0.interrupted.load(Ordering::Acquire) {
            return Err(RingError::Interrupted);
        }
        Ok(())
    }

    /// Waits until the event has been signalled since the last wait reset it, the peer exits, or the end is
    /// interrupted.
    pub(super) fn wait(&mut self) -> Result<Peer, RingError> {
        self.poll(&[], None)
    }

    /// As [`Waiter::wait`]; also returns `Gone` if the peer of one of `others` exits.
    pub(super) fn wait_beside(&mut self, others: &[&Self]) -> Result<Peer, RingError> {
        self.poll(others, None)
    }

    /// As [`Waiter::wait`], at most until `deadline`, if there is one.
    pub(super) fn wait_until(&mut self, deadline: Option<Instant>) -> Result<Peer, RingError> {
        self.poll(&[], deadline)
    }

    fn poll(&mut self, others: &[&Self], deadline: Option<Instant>) -> Result<Peer, RingError> {
        let started = Instant::now();
        let own =
            [PollFd::new(&self.event, PollFlags::IN), PollFd::new(&self.interrupter.0.event, PollFlags::IN)];
        let waiters = std::iter::once(&*self).chain(others.iter().copied());
        // No flags: poll always reports a hang-up, and nothing else matters.
        let liveness = waiters.map(|waiter| PollFd::new(&waiter.liveness, PollFlags::empty()));
        let mut fds: Vec<PollFd<'_>> = own.into_iter().chain(liveness).collect();
        let polled = retry_on_intr(|| {
            let limit = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
            rustix::event::poll(&mut fds, limit.as_ref())
        });
        let is_reported = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let (signalled, interrupted) = (is_reported(&fds[0]), is_reported(&fds[1]));
        let hung_up = fds[2..].iter().any(is_reported);
        drop(fds);
        self.waited += started.elapsed();
        polled.map_err(io::Error::from)?;
        if interrupted {
            return Err(RingError::Interrupted);
        }
        if signalled {
            self.event.reset()?;
        }
        Ok(if hung_up { Peer::Gone } else { Peer::Alive })
    }
}
