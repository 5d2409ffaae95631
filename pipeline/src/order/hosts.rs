//! The assignment of lanes to hosts.
//!
//! Hosts that train together run the same [`Merge`](super::Merge) over all V lanes, so they agree on every
//! global batch and on the position after it without communication. They divide the reading: lane `v` belongs
//! to host `v mod hosts`, and only that host reads its data. For other lanes a host needs only the
//! [`WindowExtent`](super::WindowExtent)s of their windows, a few bytes each, which the owners send
//! (`ingest/peers.rs`). Each host packs the rows of its own lanes of a global batch: its local batch.
//!
//! Invariants, with a property test over thousands of schedules (`ingest/exactly_once.rs`):
//!
//! * Each row of a global batch is in the local batch of exactly one host.
//! * Global batches are the same for any number of hosts, whether or not it divides the number of lanes. Hosts
//!   beyond the number of lanes get batches without rows.
//! * The position after a batch has the same bytes on every host. So a job may stop on three hosts and resume on
//!   five from the position of any one.
//!
//! Round-robin assignment balances hosts: the lanes with splits are the first ones, and until lanes end, the
//! numbers of rows of two lanes in a batch differ by at most one.

/// One host's share of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    host: u32,
    hosts: u32,
}

impl Share {
    /// All lanes.
    pub const ALL: Self = Self { host: 0, hosts: 1 };

    /// The share of host `host` of `hosts`; `None` if `host` is out of range.
    pub fn new(host: u32, hosts: u32) -> Option<Self> {
        (host < hosts).then_some(Self { host, hosts })
    }

    /// Index of the host, from 0.
    pub fn host(self) -> u32 {
        self.host
    }

    /// Number of hosts that train together.
    pub fn hosts(self) -> u32 {
        self.hosts
    }

    /// The host that reads `lane`.
    pub fn owner(self, lane: u32) -> u32 {
        lane % self.hosts
    }

    /// Whether this host reads `lane`. Called per row, so a single host avoids the division.
    #[inline]
    pub fn owns(self, lane: u32) -> bool {
        self.hosts == 1 || self.owner(lane) == self.host
    }
}
