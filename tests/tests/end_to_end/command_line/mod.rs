//! The command line as scripts use it: JSON documents, help, pipes, and control of a daemon.

#![allow(clippy::unwrap_used)]

mod documents;
mod help;
mod init;
mod jobs;
mod pipes;
mod scoring;
