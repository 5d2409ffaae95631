//! Lanes are dealt to hosts.
//!
//! Hosts that train together run the same [`Merge`](super::Merge) over all V lanes, so they agree on every
//! global batch and on the position after it without a word about either. What they divide is the reading:
//! lane `v` belongs to host `v mod hosts`, which alone reads its data. For the other lanes a host needs only
//! the [`Extent`](super::Extent)s of their windows, a few bytes each, which the owners tell
//! (`ingest/peers.rs`). Of a global batch each host packs the rows of its own lanes: its local batch.
//!
//! Invariants, with a property test over thousands of schedules (`ingest/exactly_once.rs`):
//!
//! * Each row of a global batch is in the local batch of exactly one host.
//! * Global batches are those of one host alone, whatever the number of hosts, and whether or not it divides
//!   the lanes. A host beyond the lanes' number gets batches without rows.
//! * The position after a batch is the same bytes on every host. So a job may stop on three hosts and go on
//!   with five, from any one's position.
//!
//! Dealing in turn keeps hosts even: the lanes that have splits at all are the first ones, and in a batch the
//! rows of a lane differ from another's by one at most until lanes end.

/// One host's share of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    host: u32,
    hosts: u32,
}

impl Share {
    /// All lanes.
    pub const ALL: Self = Self { host: 0, hosts: 1 };

    /// The share of host `host` of `hosts`; `None` when there is no such host.
    pub fn new(host: u32, hosts: u32) -> Option<Self> {
        (host < hosts).then_some(Self { host, hosts })
    }

    /// The host, from 0.
    pub fn host(self) -> u32 {
        self.host
    }

    /// Hosts that train together.
    pub fn hosts(self) -> u32 {
        self.hosts
    }

    /// The host that reads `lane`.
    pub fn owner(self, lane: u32) -> u32 {
        lane % self.hosts
    }

    /// Whether this host reads `lane`. Asked once a row, so a host alone does not divide.
    #[inline]
    pub fn owns(self, lane: u32) -> bool {
        self.hosts == 1 || self.owner(lane) == self.host
    }
}
