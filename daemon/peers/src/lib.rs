//! Agreement between the daemons of a job that trains on several hosts.
//!
//! [`generations`] decides which workers train together, and from which step.

#![forbid(unsafe_code)]

pub mod generations;
