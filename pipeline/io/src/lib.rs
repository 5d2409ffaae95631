//! Storage: objects are listed, read ahead and written, within limits on concurrent requests.
//!
//! ```text
//! fetch        an object's bytes, read ahead of the decoder
//!   storage    objects: addresses, listings, clients, uploads
//!     traffic  the requests to one bucket: their number, hedging, statistics
//!     shared   bytes in flight or just fetched, so that each crosses the network once
//!     buffers, cancel, clock, error, failure, limits, pause, permits, ranges, redact
//! ```
//!
//! Each module uses only those below it.

#![forbid(unsafe_code)]

pub mod buffers;
pub mod cancel;
pub mod clock;
mod error;
mod failure;
pub mod fetch;
pub mod limits;
mod pause;
pub mod permits;
mod ranges;
mod redact;
mod shared;
pub mod storage;
mod traffic;

use tokio::runtime::Handle;

pub use error::{Error, ServiceError};
use permits::Permit;
pub use redact::redact;

/// The context of a read.
#[derive(Clone, Debug)]
pub struct ReadContext {
    /// The runtime of its requests.
    pub runtime: Handle,
    /// The permit of the lane that decodes it, released while the lane waits for bytes.
    pub permit: Permit,
}

/// Reads that belong to no lane.
impl From<&Handle> for ReadContext {
    fn from(runtime: &Handle) -> Self {
        Self { runtime: runtime.clone(), permit: Permit::default() }
    }
}
