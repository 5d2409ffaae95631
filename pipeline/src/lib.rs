//! From stored data to filled slots.
//!
//! ```text
//! millstream-io -> millstream-format -> transform -> order (lanes, shuffle pool) -> pack -> ring
//! (fetch)          (decode)
//! ```

#![forbid(unsafe_code)]

pub mod analysis;
pub mod bad_records;
pub mod cache;
pub mod chunk;
pub mod dataset;
pub mod error;
pub mod fingerprint;
pub mod images;
pub mod ingest;
pub mod order;
pub mod pack;
pub mod parallel;
pub mod parquet;
mod parts;
pub mod records;
pub mod sequences;
pub mod spec;
pub mod splitmix;
mod terms;
pub mod tokenizer;
pub mod transform;

pub use error::Error;
