//! Notices when the process at the other end of a socket ends.
//!
//! The kernel closes the sockets of a dead process. But a child that it forked may still hold them, as workers of data
//! loaders do. A pidfd shows the death of the process itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

/// The process that connected a socket.
#[derive(Debug)]
pub(crate) struct Process {
    /// Absent if the process is not visible from here, as from another container: then only its socket shows it.
    pidfd: Option<OwnedFd>,
}

impl Process {
    /// The process at the other end of `socket`.
    pub(crate) fn of(socket: &UnixStream) -> io::Result<Self> {
        let pid = millstream_credentials::peer(socket)?.pid.and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Self { pidfd })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return false };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

/// Waits at most `limit` until one of the sockets can be read or hangs up, or one of the processes ends.
pub(crate) fn wait<'a>(
    peers: impl Iterator<Item = (&'a UnixStream, &'a Process)>,
    limit: Duration,
) -> io::Result<()> {
    let fds = peers.flat_map(|(socket, process)| {
        let process = process.pidfd.as_ref().map(|pidfd| pidfd.as_fd());
        std::iter::once(socket.as_fd()).chain(process)
    });
    let fds: Vec<_> = fds.collect();
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    poll(&mut fds, limit).map(drop)
}

/// Waits at most `limit` until `socket` can be read or hangs up; returns whether it can.
pub(crate) fn wait_for(socket: &impl AsFd, limit: Duration) -> io::Result<bool> {
    poll(&mut [PollFd::new(socket, PollFlags::IN)], limit)
}

fn poll(fds: &mut [PollFd<'_>], limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    match rustix::event::poll(fds, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        // The caller looks at its own conditions again.
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
