//! Sleeping until the other end has done something, has died, or somebody interrupts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::{Errno, retry_on_intr};

use super::RingError;
use super::state::Peer;

/// An eventfd: a counter in the kernel that is readable while it is not zero.
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Adds one, and so ends a sleep on this bell.
    pub(super) fn ring(&self) {
        // The one way a write to an eventfd fails is a counter that is full, and so rung already. (A
        // descriptor that a peer passed off as one wakes nobody, and is that peer's loss.)
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Sets it to zero.
    fn silence(&self) -> io::Result<()> {
        let mut count = [0; 8];
        match retry_on_intr(|| rustix::io::read(&self.0, &mut count)) {
            Ok(8) | Err(Errno::AGAIN) => Ok(()),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a ring's bell is not an eventfd")),
            Err(error) => Err(error.into()),
        }
    }

    /// Another descriptor of the same bell.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Bell {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// Ends an end's waits from another thread, for good.
#[derive(Clone)]
pub struct Interrupter(Arc<Interrupt>);

struct Interrupt {
    interrupted: AtomicBool,
    bell: Bell,
}

impl Interrupter {
    fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Interrupt { interrupted: AtomicBool::new(false), bell: Bell::new()? })))
    }

    /// Ends the present wait, and lets every later call that could wait return
    /// [`RingError::Interrupted`] at once.
    pub fn interrupt(&self) {
        self.0.interrupted.store(true, Ordering::Release);
        // Never silenced, so no sleep outlasts it, be it under way or yet to begin.
        self.0.bell.ring();
    }
}

/// What an end watches while it sleeps.
pub(super) struct Watch {
    bell: Bell,
    /// One end of a socket pair whose other end the peer holds. Nothing is ever sent over it: it hangs
    /// up when the peer's process ends, in whatever way.
    liveness: UnixStream,
    interrupter: Interrupter,
    slept: Duration,
}

impl Watch {
    pub(super) fn new(bell: Bell, liveness: UnixStream) -> io::Result<Self> {
        Ok(Self { bell, liveness, interrupter: Interrupter::new()?, slept: Duration::ZERO })
    }

    pub(super) fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }

    /// Time spent in [`Watch::sleep`].
    pub(super) fn slept(&self) -> Duration {
        self.slept
    }

    /// Fails once interrupted; no system call.
    pub(super) fn check_interrupt(&self) -> Result<(), RingError> {
        if self.interrupter.0.interrupted.load(Ordering::Acquire) {
            return Err(RingError::Interrupted);
        }
        Ok(())
    }

    /// Sleeps until the bell has rung since the last sleep silenced it, the peer is gone, or the end is
    /// interrupted.
    pub(super) fn sleep(&mut self) -> Result<Peer, RingError> {
        let began = Instant::now();
        let mut fds = [
            PollFd::new(&self.bell, PollFlags::IN),
            // No flags: only a hang-up counts, which is always reported.
            PollFd::new(&self.liveness, PollFlags::empty()),
            PollFd::new(&self.interrupter.0.bell, PollFlags::IN),
        ];
        let polled = retry_on_intr(|| rustix::event::poll(&mut fds, None));
        let [rung, hung_up, interrupted] = fds.map(|fd| !fd.revents().is_empty());
        self.slept += began.elapsed();
        polled.map_err(io::Error::from)?;
        if interrupted {
            return Err(RingError::Interrupted);
        }
        if rung {
            self.bell.silence()?;
        }
        Ok(if hung_up { Peer::Gone } else { Peer::Here })
    }
}
