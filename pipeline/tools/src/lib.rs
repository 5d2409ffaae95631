//! Work on files outside of jobs: inspect, convert and generate them.
//!
//! | content | module |
//! |---|---|
//! | what files hold | [`inspect`], [`survey`] |
//! | files of one format as files of another | [`convert`] |
//! | synthetic clicks with a known best loss | [`generate`] |
//! | what all of these write, atomically | [`output`] |
//! | several files at once, within a memory bound | [`parallel`] |
//! | progress and cancellation | [`progress`] |

#![forbid(unsafe_code)]

pub mod convert;
pub mod generate;
pub mod inspect;
pub mod output;
mod parallel;
pub mod progress;
mod survey;
