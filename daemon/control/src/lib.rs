//! The control API: messages, server stubs and client, defined in `proto/control.proto`.

#![forbid(unsafe_code)]

mod client;
pub mod json;

pub use client::{Client, ClientError, Replies};

/// The largest message that either side accepts. It leaves ample room for a job file with an inline vocabulary.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The code generated from `proto/control.proto`.
#[allow(missing_docs, clippy::all, unused_qualifications)]
pub mod proto {
    tonic::include_proto!("millstream.control.v1");
}

impl proto::JobState {
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
