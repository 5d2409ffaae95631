//! The control API: messages, server stubs and client, defined in `proto/control.proto`.

#![forbid(unsafe_code)]

mod client;
pub mod json;

use std::fmt;
use std::str::FromStr;

pub use client::{Client, ClientError, Replies};

/// The largest message that either side accepts. It leaves ample room for a job file with an inline vocabulary.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The code generated from `proto/control.proto`.
#[allow(missing_docs, clippy::all, unused_qualifications)]
pub mod proto {
    tonic::include_proto!("millstream.control.v1");
}

impl proto::JobState {
    /// The states of a job, in the order of its life.
    pub const ALL: [Self; 6] =
        [Self::Queued, Self::Preparing, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

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
        }
    }

    /// Whether the state is final.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
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
