//! The control API: messages, server stubs and client, defined in `proto/control.proto`.

#![forbid(unsafe_code)]

mod client;

pub use client::{Client, ClientError, Replies};

/// The largest message that either side accepts. It leaves ample room for a job file with an inline vocabulary.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The code generated from `proto/control.proto`.
#[allow(missing_docs, clippy::all, unused_qualifications)]
pub mod proto {
    tonic::include_proto!("millstream.control.v1");
}
