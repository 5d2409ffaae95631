//! Tracing: time spans of work, recorded on demand.
//!
//! * [`recorder`]: records spans into a bounded buffer.
//! * [`span`]: the data of one span.
//!
//! Ingest and training use the same span types and the host's monotonic clock, so the spans of both processes share
//! one timeline. Neither depends on the other.

#![forbid(unsafe_code)]

pub mod recorder;
pub mod span;

pub use recorder::{Recorder, Recording, SpanStart, Track, now_ns};
pub use span::{Category, OperationInfo, Phase, Span, Work};
