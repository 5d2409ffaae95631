//! Transfers the consumer end to another process.
//!
//! The hand-off is one message on a Unix stream socket ([`descriptors`]): the eight bytes [`GREETING`] and, as SCM_RIGHTS, four
//! descriptors in this order:
//!
//! 1. the memory, see [`super::memory`];
//! 2. an eventfd that the producer signals when it publishes or finishes;
//! 3. an eventfd that the consumer signals when it frees a slot;
//! 4. the consumer's end of the liveness socket pair.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::signal::EventFd;
use super::{Consumer, RingError};
use crate::descriptors::{self, DescriptorError, Greeting};
use crate::schema::BatchSchema;

const GREETING: Greeting = *b"millring";

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
        let Self { memory, ready, freed, liveness } = &self;
        let all = [memory.as_fd(), ready.as_fd(), freed.as_fd(), liveness.as_fd()];
        // When this returns, this copy of the consumer's liveness end is dropped. So the consumer is its only holder, and
        // the producer notices its exit.
        Ok(descriptors::send(socket, GREETING, all)?)
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
        let [memory, ready, freed, liveness] = descriptors::receive(socket, GREETING)?;
        Ok(Self { memory, ready: ready.into(), freed: freed.into(), liveness: liveness.into() })
    }
}

impl From<DescriptorError> for RingError {
    fn from(error: DescriptorError) -> Self {
        match error {
            DescriptorError::Closed => Self::PeerGone,
            DescriptorError::Os(error) => Self::Os(error),
            DescriptorError::OtherKind => Self::Mismatch("the message is not a ring hand-off".into()),
            count @ DescriptorError::Count { .. } => Self::Mismatch(count.to_string()),
        }
    }
}
