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

/// `proto/control.proto` with its comments, as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("control_descriptor");

impl proto::JobState {
    /// The states of a job, in the order of its life.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Preparing,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::Held,
        Self::Paused,
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
            Self::Paused => "paused",
        }
    }

    /// Whether the job is neither over nor under way: it waits until a user resumes, cancels or removes it.
    pub fn awaits_user(self) -> bool {
        matches!(self, Self::Held | Self::Paused)
    }

    /// Whether the job has ended or is paused: it runs again only if a user resumes it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::Held | Self::Paused)
    }
}

impl proto::JobProgress {
    /// The time until the last step at the current rate, in seconds, evaluations not included; `None` while unknown.
    pub fn remaining_seconds(&self) -> Option<f64> {
        let left = self.total_steps?.saturating_sub(self.step) as f64;
        let rows_per_step = self.examples as f64 / self.step as f64;
        Some(left * rows_per_step / self.examples_per_second).filter(|seconds| seconds.is_finite())
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

#[cfg(test)]
mod tests {
    use super::proto::JobProgress;

    #[test]
    fn remaining_time_follows_from_the_rate() {
        let progress = JobProgress {
            step: 100,
            total_steps: Some(300),
            examples: 51_200,
            examples_per_second: 1024.0,
            ..JobProgress::default()
        };
        assert_eq!(progress.remaining_seconds(), Some(100.0));
        assert_eq!(JobProgress { total_steps: None, ..progress }.remaining_seconds(), None);
        assert_eq!(JobProgress { examples_per_second: 0.0, ..progress }.remaining_seconds(), None);
        assert_eq!(JobProgress { step: 0, examples: 0, ..progress }.remaining_seconds(), None);
    }
}
