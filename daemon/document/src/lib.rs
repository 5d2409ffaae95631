//! Files that people write: jobs and feeds.
//!
//! 1. The text is parsed into a tree whose values carry their positions ([`tree`]). Overrides from the command line are
//!    applied to the tree.
//! 2. A [`section::Section`] reads each table. It knows the table's keys and reports all others.
//! 3. [`problems`] collects what is wrong, so that a file is read to its end and all problems are reported together.
//!
//! [`data`], [`filter`] and [`storage`] are the sections that all kinds of files have in common.

#![forbid(unsafe_code)]

pub mod data;
pub mod filter;
pub mod problems;
pub mod section;
pub mod storage;
pub mod tree;
