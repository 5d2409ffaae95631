//! Daemons of several hosts that know each other.
//!
//! Each daemon finds the others ([`discovery`]), connects to them over mutual TLS ([`tls`]), and asks each one regularly for its
//! state and its clock ([`hosts`]). The holder of a certificate of the configured authority, which [`authority`] creates for
//! sites that have none, is a member; everybody else is refused before a request is read ([`server`]). Sites that have etcd can
//! use it for discovery and for leases ([`etcd`]).
//!
//! For jobs that train on several hosts, [`generations`] decides which hosts train together, [`conduct`] carries the messages about
//! that, and [`lanes`] what their ingest exchanges.
//!
//! A connection begins with a greeting, which agrees on a version of the protocol ([`protocol`]) and names the host. The name
//! must be one of the certificate's. The two directions of a pair of hosts are independent: each daemon connects to the other.

#![forbid(unsafe_code)]

pub mod authority;
mod clock;
pub mod conduct;
pub mod discovery;
pub mod etcd;
pub mod generations;
pub mod hosts;
pub mod lanes;
mod link;
mod measure;
mod name;
mod protocol;
pub mod server;
pub mod tls;

pub use clock::ClockOffset;
pub use link::LinkError;
pub use measure::{Measurement, measure};
pub use name::{HostName, InvalidName};
pub use protocol::{About, HostStatus};

/// The code generated from `proto/peers.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, unused_qualifications)]
mod proto {
    tonic::include_proto!("millstream.peers.v1");
}

/// The code generated from `proto/etcd.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, unused_qualifications)]
mod etcd_proto {
    tonic::include_proto!("etcdserverpb");
}
