//! From object store to filled slots.
//!
//! ```text
//! io (storage -> fetch) -> format (decode) -> transform -> order (lanes, shuffle pool) -> pack -> ring
//! ```

#![forbid(unsafe_code)]

pub mod analysis;
pub mod cache;
pub mod chunk;
mod clock;
pub mod convert;
pub mod dataset;
pub mod error;
mod filter;
pub mod fingerprint;
pub mod format;
pub mod generate;
pub mod ingest;
pub mod inspect;
pub mod io;
pub mod order;
pub mod output;
pub mod pack;
mod parallel;
mod parts;
pub mod progress;
mod ranges;
mod records;
mod row_group;
pub mod spec;
mod splitmix;
mod survey;
mod terms;
pub mod transform;

pub use error::Error;
pub use io::storage;
