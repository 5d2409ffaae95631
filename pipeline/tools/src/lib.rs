//! Operations on files outside of jobs: inspection, conversion, generation.
//!
//! | content | module |
//! |---|---|
//! | the contents of files | [`inspect`], [`survey`] |
//! | conversion between formats | [`convert`] |
//! | synthetic clicks with a known best loss | [`generate`] |
//! | the output of all of these, written atomically | [`output`] |
//! | parallel processing within a memory bound | [`parallel`] |
//! | progress and cancellation | [`progress`] |

#![forbid(unsafe_code)]

pub mod convert;
pub mod generate;
pub mod inspect;
pub mod output;
mod parallel;
pub mod progress;
mod survey;
