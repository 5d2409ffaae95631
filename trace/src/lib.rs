//! Spans of time: who did what from when to when, recorded while somebody looks.
//!
//! * [`recorder`]: where spans are recorded, within a bound.
//! * [`span`]: what is known of one.
//!
//! Ingest and training record alike and know nothing of each other: what they share is this vocabulary and the
//! host's one monotonic clock, so that the spans of both lie on one line of time.

#![forbid(unsafe_code)]

pub mod recorder;
pub mod span;

pub use recorder::{Recorder, Recording, Start, Track, now_ns};
pub use span::{Category, Operation, Phase, Span, Work};
