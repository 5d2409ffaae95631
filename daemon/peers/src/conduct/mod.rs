//! Conducting generations: the state machines of [`crate::generations`] with real clocks, over the ports of real daemons.
//!
//! The leader of a job calls each host that discovery finds, its own included (`Follow` in `proto/peers.proto`). A call carries
//! the messages of one leader in one epoch, and the replies are those of the host's member. Its first message names the job by
//! the address of its run.
//!
//! ```text
//! lead()  ── queue ── call ══ TLS ══ Jobs::answer ── inbox ── part ── Workers
//!    │                  │                                       │
//!  Run, hosts      one per host                       one per job of this host
//! ```
//!
//! * **Leader.** [`lead`] owns a [`crate::generations::leader::Leader`]. One task per host opens the call, again with back-off
//!   after it breaks, as long as the host is listed. A listing without a connected host does not end its call.
//! * **Member.** [`Jobs`] has one task per job, which owns a [`crate::generations::member::Member`] and its [`Workers`].
//! * **Bounds.** All queues are bounded. Neither task waits for a host: if the queue to one is full, or one does not read for
//!   [`crate::generations::SILENCE`], its call ends. Messages are bounded (`wire`); a malformed one ends the call.
//! * **Admission.** A leader's host is the one that greeted on the connection. Whether this host takes part in a job, the daemon
//!   decides ([`crate::server::ThisHost::accepting`]).

mod call;
mod leader;
mod member;
mod part;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub use self::leader::{Ended, LeaseLost, NotCommitted, Order, Run, Term, lead};
pub(crate) use self::member::Replies;
pub use self::member::{Accept, Accepted, Jobs, MAX_JOBS};
pub use self::part::{Reports, Workers};
pub use self::wire::{MAX_ADDRESS_BYTES, MAX_NOTE_BYTES, MAX_RANKS};
use crate::HostName;

/// The most messages that wait for a host, and for a task.
const QUEUE: usize = 256;

/// Where hosts listen (`HOST:PORT`), by name.
pub type Addresses = BTreeMap<HostName, String>;

/// The address of a job's run, which names the job.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunAddress(Arc<str>);

/// A text that is not the address of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the address of a run has {0} bytes; expected 1 to {max}", max = RunAddress::MAX_BYTES)]
pub struct InvalidRunAddress(usize);

impl RunAddress {
    /// The most bytes of an address.
    pub const MAX_BYTES: usize = 1024;

    /// Checks the length of an address.
    ///
    /// # Errors
    /// If it is empty or too long.
    pub fn parse(text: &str) -> Result<Self, InvalidRunAddress> {
        if (1..=Self::MAX_BYTES).contains(&text.len()) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidRunAddress(text.len()))
        }
    }

    /// The address as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RunAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Waits for a deadline of a state machine that was created at `began`.
async fn wait_until(began: Instant, deadline: Option<Duration>) {
    match deadline.and_then(|deadline| began.checked_add(deadline)) {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
