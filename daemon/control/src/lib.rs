//! The control API: messages, server stubs and client, defined in `proto/control.proto`.

#![forbid(unsafe_code)]

mod client;
pub mod json;

use std::fmt;
use std::str::FromStr;

pub use client::{Client, ClientError, Replies};

/// The largest reply that a client accepts.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The largest request that the daemon accepts: a job file of the maximum size, and its overrides.
pub const MAX_REQUEST_BYTES: usize = 4 << 20;

/// The code generated from `proto/control.proto`.
#[allow(missing_docs, clippy::all, unused_qualifications)]
pub mod proto {
    tonic::include_proto!("millstream.control.v1");
}

impl proto::JobState {
    /// The states of a job, in the order of its life.
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Preparing,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::Held,
    ];

    /// The name in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unknown",
            Self::Queued => "queued",
            Self::Preparing => "preparing",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Held => "held",
        }
    }

    /// Whether the job has ended: it runs again only if a user resumes it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::Held)
    }
}

impl fmt::Display for proto::JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no state has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown state `{0}`")]
pub struct UnknownState(String);

impl FromStr for proto::JobState {
    type Err = UnknownState;

    fn from_str(name: &str) -> Result<Self, UnknownState> {
        Self::ALL.into_iter().find(|state| state.name() == name).ok_or_else(|| UnknownState(name.to_owned()))
    }
}
