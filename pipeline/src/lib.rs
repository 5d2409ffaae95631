//! From object store to filled slots.
//!
//! ```text
//! storage -> fetch -> format (decode) -> transform -> order (lanes, shuffle pool) -> pack -> ring
//! ```

#![forbid(unsafe_code)]

pub mod analysis;
pub mod cache;
pub mod chunk;
pub mod convert;
pub mod dataset;
pub mod error;
mod fetch;
mod filter;
pub mod fingerprint;
pub mod format;
pub mod generate;
pub mod ingest;
pub mod inspect;
pub mod order;
pub mod output;
pub mod pack;
mod parallel;
mod parts;
pub mod progress;
mod records;
mod row_group;
pub mod spec;
mod splitmix;
pub mod storage;
mod survey;
mod terms;
pub mod transform;

pub use error::Error;
