//! Bad input: the error names the location and a remedy, the exit code is the documented one, and no file is left
//! behind.

#![allow(clippy::unwrap_used)]

mod checkpoints;
mod data;
mod files;
mod fixture;
mod jobs;
mod skipping;
