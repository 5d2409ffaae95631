//! Collective operations, by one suite for all transports.
//!
//! [`worlds`] runs a test body on every rank of a world: alone, on threads, and in [`processes`] over UCX, which must be
//! installed (Debian package libucx0; `tests/run` installs it). In some worlds, processes stand for hosts and
//! communicate over TCP. [`conformance`] has the suite: results of all operations over all sizes and formats, and what happens
//! if ranks disagree, are late, or die.

#![allow(clippy::unwrap_used)]

mod conformance;

mod faults;

mod processes;

mod worlds;
