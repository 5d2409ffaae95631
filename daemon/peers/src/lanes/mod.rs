//! Updates about lanes between hosts that train together: the transport of [`millstream_pipeline::ingest::Peers`].
//!
//! Each host sends every update about its lanes to all other hosts of its generation, in order. The updates are bytes here. A
//! [`Exchange`](millstream_pipeline::ingest::Exchange) is one generation's exchange as one host sees it:
//!
//! * **Order.** Updates of one lane arrive in the order in which they were sent.
//! * **Bound.** A sender waits while some host has not yet taken some earlier updates of the lane
//!   ([`MAX_UNRECEIVED`](millstream_pipeline::ingest::MAX_UNRECEIVED)). A host that sends more than that is cut off.
//! * **Ends.** A host that leaves, or whose connection breaks in either direction, is gone: nobody waits for it to take anything,
//!   and a caller that waits for its update gets an error once all that have arrived are taken. Nothing is connected again; a
//!   new generation has new sessions.
//! * **Admission.** The number of a session is random and travels between members only, and each host must greet with the name
//!   that it has in the session. So a connection of an earlier generation, or of another member, is refused.
//!
//! Every host calls every other one (`Lanes` in `proto/peers.proto`): the call carries the caller's updates, and the replies
//! are credits, one for each update that was taken.

mod calls;
mod ingest;

pub(crate) use self::calls::Credits;
pub use self::calls::{OpenError, OpenSession, Sessions};
pub use self::ingest::LanePeers;

use crate::HostName;

/// The number of a session: a secret of its members.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub u128);

/// A host of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionHost {
    /// Its name, as it greets.
    pub name: HostName,
    /// Where it listens: `HOST:PORT`.
    pub address: String,
}

impl std::fmt::Debug for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionId(..)")
    }
}

#[cfg(test)]
mod tests;
