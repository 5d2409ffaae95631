//! Properties that must hold for arbitrary untrusted bytes.
//!
//! Each module has a `check` that takes untrusted bytes and panics if a property is violated. Besides the absence of
//! crashes, it checks that a fast path matches its reference, that written data reads back, and that truncation is never
//! mistaken for the end. `fuzz/` lets libFuzzer search for such bytes. The tests of this crate run the same checks over
//! the seeds, some thousand mutations of them, and every input that ever violated one (`fuzz/regressions/`).
//!
//! Seeds are generated rather than committed, so that they stay valid when a format changes.

#![forbid(unsafe_code)]
// A check fails by panicking, also in its own set-up.
#![allow(clippy::unwrap_used)]

pub mod cache;
pub mod example;
pub mod feed;
pub mod footer;
pub mod framing;
pub mod image;
mod input;
pub mod job;
pub mod parquet;
pub mod peers;
pub mod position;
pub mod records;
pub mod ring_consumer;
pub mod ring_producer;
pub mod tokens;
pub mod updates;

mod hostile;

/// A check, with data that guides the search for inputs that violate it.
pub struct Property {
    /// The name, which is also that of the target in `fuzz/` and of the directory of its regressions.
    pub name: &'static str,
    /// Panics if the bytes violate the property.
    pub check: fn(&[u8]),
    /// Initial inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Typical parts of inputs.
    pub dictionary: fn() -> Vec<Vec<u8>>,
}

/// All properties.
pub const PROPERTIES: [Property; 15] = [
    Property { name: "cache", check: cache::check, seeds: cache::seeds, dictionary: Vec::new },
    Property {
        name: "example",
        check: example::check,
        seeds: example::seeds,
        dictionary: example::dictionary,
    },
    Property { name: "feed", check: feed::check, seeds: feed::seeds, dictionary: feed::dictionary },
    Property { name: "footer", check: footer::check, seeds: footer::seeds, dictionary: footer::dictionary },
    Property {
        name: "framing",
        check: framing::check,
        seeds: framing::seeds,
        dictionary: framing::dictionary,
    },
    Property { name: "image", check: image::check, seeds: image::seeds, dictionary: image::dictionary },
    Property { name: "job", check: job::check, seeds: job::seeds, dictionary: job::dictionary },
    Property {
        name: "parquet",
        check: parquet::check,
        seeds: parquet::seeds,
        dictionary: parquet::dictionary,
    },
    Property { name: "peers", check: peers::check, seeds: peers::seeds, dictionary: peers::dictionary },
    Property { name: "position", check: position::check, seeds: position::seeds, dictionary: Vec::new },
    Property {
        name: "records",
        check: records::check,
        seeds: records::seeds,
        dictionary: records::dictionary,
    },
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
    Property { name: "tokens", check: tokens::check, seeds: tokens::seeds, dictionary: tokens::dictionary },
    Property { name: "updates", check: updates::check, seeds: updates::seeds, dictionary: Vec::new },
];
