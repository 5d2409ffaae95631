//! What must hold for any bytes that come from outside.
//!
//! Each module has a `check` that takes bytes nobody vouches for and panics where a promise is broken:
//! not only that nothing crashes, but that a fast path agrees with a plain one, that what is written reads
//! back, and that a cut is never taken for an end. `fuzz/` lets libFuzzer search for such bytes; the tests
//! here run the same checks over the seeds, some thousand mutations of them, and every input that was ever
//! found to break one (`fuzz/regressions/`).
//!
//! Seeds are made by code rather than committed, so that they stay valid when a format changes.

#![forbid(unsafe_code)]
// A check fails by panicking; what it sets up for itself is not under test.
#![allow(clippy::unwrap_used)]

pub mod cache;
pub mod example;
pub mod framing;
mod input;
pub mod job;
pub mod parquet;
pub mod position;
pub mod ring_consumer;
pub mod ring_producer;

mod hostile;

/// A check, with what helps to search for inputs that break it.
pub struct Property {
    /// Its name, which is that of the target in `fuzz/` and of the directory of its regressions.
    pub name: &'static str,
    /// Panics when the bytes break it.
    pub check: fn(&[u8]),
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that inputs are made of.
    pub dictionary: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const PROPERTIES: [Property; 8] = [
    Property { name: "cache", check: cache::check, seeds: cache::seeds, dictionary: Vec::new },
    Property {
        name: "example",
        check: example::check,
        seeds: example::seeds,
        dictionary: example::dictionary,
    },
    Property {
        name: "framing",
        check: framing::check,
        seeds: framing::seeds,
        dictionary: framing::dictionary,
    },
    Property { name: "job", check: job::check, seeds: job::seeds, dictionary: job::dictionary },
    Property {
        name: "parquet",
        check: parquet::check,
        seeds: parquet::seeds,
        dictionary: parquet::dictionary,
    },
    Property { name: "position", check: position::check, seeds: position::seeds, dictionary: Vec::new },
    Property {
        name: "ring_consumer",
        check: ring_consumer::check,
        seeds: hostile::seeds,
        dictionary: hostile::dictionary,
    },
    Property {
        name: "ring_producer",
        check: ring_producer::check,
        seeds: hostile::seeds,
        dictionary: hostile::dictionary,
    },
];
