//! Operations on files outside of jobs: inspection, conversion, generation, text to score.
//!
//! | content | module |
//! |---|---|
//! | the contents of files | [`inspect`], [`survey`] |
//! | statistics of columns over a sample | [`sample`] |
//! | formats and separators, detected | [`detect`] |
//! | CSV and JSON lines: rows, types, columns | [`text`], [`json_lines`], [`typed`] |
//! | CSV and JSON lines as rows to score | [`text_source`] |
//! | statistics of columns | [`stats`] |
//! | rows in each split of a dataset | [`divide`] |
//! | conversion between formats | [`convert`] |
//! | folders of images by class | [`images`] |
//! | synthetic clicks with a known best loss | [`generate`] |
//! | the output of all of these, written atomically | [`output`] |
//! | values of any type as JSON, as text, and in another type | [`values`], [`written`], [`conform`] |
//! | progress and cancellation | [`progress`] |

#![forbid(unsafe_code)]

mod conform;
pub mod convert;
mod detect;
pub mod divide;
pub mod generate;
mod images;
pub mod inspect;
mod json_lines;
pub mod output;
pub mod progress;
pub mod sample;
pub mod stats;
mod survey;
pub mod text;
pub mod text_source;
pub mod typed;
mod values;
mod written;

/// The memory that decoding one row group may use beyond what it usually needs: tools have no budget, but a damaged file
/// must not take all memory of the host.
const EXTRA_DECODE_BYTES: u64 = 1 << 30;
