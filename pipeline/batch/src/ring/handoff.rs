//! Transfers the consumer end to another process.
//!
//! The hand-off is one message on a Unix stream socket: the eight bytes [`GREETING`] and, as SCM_RIGHTS, four
//! descriptors in this order:
//!
//! 1. the memory, see [`super::memory`];
//! 2. an eventfd that the producer signals when it publishes or finishes;
//! 3. an eventfd that the consumer signals when it frees a slot;
//! 4. the consumer's end of the liveness socket pair.
//!
//! The kernel delivers descriptors with the bytes that they were sent with. So the receiver must read
//! everything before the hand-off exactly to its end: a buffered reader would consume the greeting and lose
//! the descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::signal::EventFd;
use super::{Consumer, RingError};
use crate::schema::BatchSchema;

const GREETING: [u8; 8] = *b"millring";

/// Number of descriptors in a hand-off.
const DESCRIPTORS: usize = 4;

/// The consumer end before it is opened.
///
/// Dropping it makes the producer return [`RingError::PeerGone`].
pub struct HandOff {
    pub(super) memory: OwnedFd,
    pub(super) ready: EventFd,
    pub(super) freed: EventFd,
    pub(super) liveness: UnixStream,
}

impl HandOff {
    /// Sends it over a blocking socket to [`Consumer::receive`].
    ///
    /// # Errors
    /// `PeerGone` when the other end of the socket is closed.
    pub fn send(self, socket: &UnixStream) -> Result<(), RingError> {
        let fds: [_; DESCRIPTORS] =
            [self.memory.as_fd(), self.ready.as_fd(), self.freed.as_fd(), self.liveness.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "the buffer fits the descriptors");
        let bytes = [IoSlice::new(&GREETING)];
        match retry_on_intr(|| rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL)) {
            Ok(sent) if sent == GREETING.len() => Ok(()),
            Ok(_) => Err(RingError::Os(io::ErrorKind::WriteZero.into())),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(RingError::PeerGone),
            Err(error) => Err(RingError::Os(error.into())),
        }
        // Dropping this copy of the consumer's liveness end leaves the consumer as its only holder, so the
        // producer notices its exit.
    }

    /// Opens the consumer end in this process.
    ///
    /// # Errors
    /// As [`Consumer::receive`].
    pub fn open(self, schema: &BatchSchema) -> Result<Consumer, RingError> {
        Consumer::new(self, schema)
    }

    /// Receives a hand-off sent by [`HandOff::send`].
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
            return Err(RingError::Mismatch("the message is not a ring hand-off".into()));
        }
        let count = fds.len();
        let truncated = received.flags.contains(ReturnFlags::CTRUNC);
        match <[OwnedFd; DESCRIPTORS]>::try_from(fds) {
            Ok([memory, ready, freed, liveness]) if !truncated => {
                Ok(Self { memory, ready: ready.into(), freed: freed.into(), liveness: liveness.into() })
            }
            _ => Err(RingError::Mismatch(format!(
                "the message has {count} descriptors instead of {DESCRIPTORS}"
            ))),
        }
    }
}
