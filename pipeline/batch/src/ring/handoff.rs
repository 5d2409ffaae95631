//! Handing the consuming end to another process.
//!
//! One message on a Unix stream socket: the eight bytes [`GREETING`] and, as SCM_RIGHTS, four
//! descriptors in this order:
//!
//! 1. the memory, see [`super::memory`];
//! 2. an eventfd that the producer rings when it has published or finished;
//! 3. an eventfd that the consumer rings when it has freed a slot;
//! 4. the consumer's end of the liveness socket pair.
//!
//! Descriptors come with the bytes they were sent with. So whatever precedes the hand-off on the same
//! socket must be read to its exact end: a buffered reader would swallow the greeting and lose them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::signal::Bell;
use super::{Consumer, RingError};
use crate::schema::BatchSchema;

const GREETING: [u8; 8] = *b"millring";

/// Descriptors of a hand-off.
const DESCRIPTORS: usize = 4;

/// The consuming end, on its way to its process.
///
/// Dropped, it lets the producer find its consumer gone.
pub struct HandOff {
    pub(super) memory: OwnedFd,
    pub(super) ready: Bell,
    pub(super) freed: Bell,
    pub(super) liveness: UnixStream,
}

impl HandOff {
    /// Sends it over a socket in blocking mode; [`Consumer::receive`] takes it at the other end.
    ///
    /// # Errors
    /// `PeerGone` when nobody holds the other end of the socket.
    pub fn send(self, socket: &UnixStream) -> Result<(), RingError> {
        let fds: [_; DESCRIPTORS] =
            [self.memory.as_fd(), self.ready.as_fd(), self.freed.as_fd(), self.liveness.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "there is space for them");
        let bytes = [IoSlice::new(&GREETING)];
        match retry_on_intr(|| rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL)) {
            Ok(sent) if sent == GREETING.len() => Ok(()),
            Ok(_) => Err(RingError::Os(io::ErrorKind::WriteZero.into())),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(RingError::PeerGone),
            Err(error) => Err(RingError::Os(error.into())),
        }
        // What was sent is the consumer's now. Dropping our copy of its liveness end leaves it the only
        // holder, so that the producer notices its death.
    }

    /// Opens the consuming end in this process.
    ///
    /// # Errors
    /// As [`Consumer::receive`].
    pub fn open(self, schema: &BatchSchema) -> Result<Consumer, RingError> {
        Consumer::new(self, schema)
    }

    /// Receives what [`HandOff::send`] sent.
    pub(super) fn receive(socket: &UnixStream) -> Result<Self, RingError> {
        let mut greeting = [0; GREETING.len()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut bytes = [IoSliceMut::new(&mut greeting)];
            rustix::net::recvmsg(socket, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let received = match received {
            Ok(message) if message.bytes == 0 => return Err(RingError::PeerGone),
            Ok(message) => message,
            Err(Errno::CONNRESET) => return Err(RingError::PeerGone),
            Err(error) => return Err(RingError::Os(error.into())),
        };
        let mut fds = Vec::with_capacity(DESCRIPTORS);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes != GREETING.len() || greeting != GREETING {
            return Err(RingError::Mismatch("the message is not a ring's hand-off".into()));
        }
        let count = fds.len();
        let truncated = received.flags.contains(ReturnFlags::CTRUNC);
        match <[OwnedFd; DESCRIPTORS]>::try_from(fds) {
            Ok([memory, ready, freed, liveness]) if !truncated => {
                Ok(Self { memory, ready: ready.into(), freed: freed.into(), liveness: liveness.into() })
            }
            _ => Err(RingError::Mismatch(format!("{count} descriptors came with it, not {DESCRIPTORS}"))),
        }
    }
}
