//! The deal: which rows of a global batch each worker gets. There are two rules; a job's plan chooses one.
//!
//! **By runs** ([`Runs`]), for a job that never leaves one host, and for feeds. The rows of a batch are cut in drawing order
//! into runs of equal length, one for each rank ([`BatchSchema::part`](millstream_batch::BatchSchema::part)). The ranks may
//! be on several hosts. Each of these then reads all lanes and packs only the runs of its own ranks: hosts exchange
//! nothing, and all ranks have equally many rows, but every host fetches all data.
//!
//! **By lanes** ([`Deal`]), for a job that may span hosts, also while it runs on one:
//!
//! ```text
//! lane    0 1 2 3 4 5 6 7 8 ..     part = lane mod P
//! part    0 1 2 3 0 1 2 3 0 ..     P = 4: one part per worker, or `workers.reproducible` of them
//! host    0 0 1 1                  a table: the host of each part
//! ring    0 1 0 1                  the rings of a host are its parts, in the order of their numbers
//! ```
//!
//! A host reads the lanes of its parts, so each lane is fetched and decoded once, and hosts exchange no rows. All hosts
//! run the same [`Merge`](super::Merge) over all V lanes, so they agree on every global batch, on the number of rows of
//! every part, and on the position after the batch without communication. For the lanes of other hosts a host needs only
//! the [`WindowExtent`](super::WindowExtent)s of their windows, a few bytes each, which the owners send
//! (`ingest/peers.rs`).
//!
//! Invariants, each with a property test (`ingest/exactly_once.rs`, `ingest/deal_tests.rs`):
//!
//! * Each row of a global batch is in exactly one part, of exactly one host. A part has its rows in drawing order.
//! * Global batches and positions do not depend on the rule, P or the number of hosts, whether or not these divide the
//!   number of lanes. So a job may stop on three hosts and resume on five from the position of any one.
//! * The rows of each part depend on P, and not on the host that has it. So with fixed P a batch has the same parts for
//!   any assignment of parts to hosts.
//! * Every ring gets a slot of every batch, also if its part has no rows.
//!
//! **Balance.** The lanes with splits are the first ones, and until lanes end, the numbers of rows of two lanes in a
//! batch differ by at most one. If P divides the number of lanes with splits, parts are then equal up to `lanes / P`
//! rows. Otherwise some parts have a lane more than others, and parts beyond the number of lanes have no rows. At the end
//! of an epoch a part may have all rows of a batch. In an ordered pass it often does, because a batch then has rows of
//! few splits: training without a shuffle pool and evaluation keep one worker busy at a time.

use std::sync::Arc;

/// The runs of all ranks, as one host sees them, if rows are dealt by runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    ranks: u32,
    /// The ranks of this host, ascending.
    here: Arc<[u32]>,
}

/// The parts of all hosts, as one host sees them, if rows are dealt by lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deal {
    host: u32,
    hosts: u32,
    /// By part.
    places: Arc<[Place]>,
}

/// Where a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    host: u32,
    /// The number of earlier parts of that host.
    ring: u32,
}

/// The part of a lane, and the ring of this host that gets its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LanePart {
    pub(crate) part: u32,
    pub(crate) ring: Option<u32>,
}

impl Runs {
    /// The runs of `ranks` ranks, of which this host has a ring for each of `here`. `None` unless `here` is a part of the ranks,
    /// ascending and not empty.
    pub fn new(ranks: u32, here: &[u32]) -> Option<Self> {
        let is_valid =
            here.is_sorted_by(|rank, next| rank < next) && here.last().is_some_and(|&last| last < ranks);
        is_valid.then(|| Self { ranks, here: here.into() })
    }

    /// The runs of `ranks` ranks, all of this host. `None` if there are none.
    pub fn of_one_host(ranks: u32) -> Option<Self> {
        Self::new(ranks, &(0..ranks).collect::<Vec<_>>())
    }

    /// Number of ranks, over all hosts.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The ranks of this host, one for each of its rings, ascending.
    pub fn here(&self) -> &[u32] {
        &self.here
    }

    /// Whether all ranks are on this host.
    pub fn are_all_here(&self) -> bool {
        self.here.len() == self.ranks as usize
    }
}

impl Deal {
    /// The deal of parts to the hosts `host_of_part`, as host `host` sees it. `None` unless every host from 0 to the highest in
    /// `host_of_part` has a part, and `host` is one of them.
    pub fn new(host: u32, host_of_part: &[u32]) -> Option<Self> {
        // Each host has a part, so there are no more hosts than parts.
        let hosts = host_of_part.iter().max()?.checked_add(1)?;
        if host >= hosts || hosts as usize > host_of_part.len() || u32::try_from(host_of_part.len()).is_err()
        {
            return None;
        }
        let mut counts = vec![0; hosts as usize];
        let place = |&host: &u32| {
            let ring = counts[host as usize];
            counts[host as usize] += 1;
            Place { host, ring }
        };
        let places = host_of_part.iter().map(place).collect();
        counts.iter().all(|&count| count > 0).then_some(Self { host, hosts, places })
    }

    /// The deal of `parts` parts to hosts with these numbers of ranks, as host `host` sees it. Ranks are numbered host
    /// by host, and part `p` belongs to rank `p mod world`, as in the exchange of gradients. `None` if a host has no
    /// rank, or the ranks cannot have equally many parts.
    pub fn among_ranks(host: u32, ranks: &[u32], parts: u32) -> Option<Self> {
        let world = ranks.iter().try_fold(0_u32, |world, &ranks| world.checked_add(ranks))?;
        if parts == 0 || world > parts || !parts.is_multiple_of(world) || ranks.contains(&0) {
            return None;
        }
        let of_ranks = (0..).zip(ranks).flat_map(|(host, &ranks)| std::iter::repeat_n(host, ranks as usize));
        let of_ranks: Vec<u32> = of_ranks.collect();
        let of_parts: Vec<u32> = of_ranks.iter().copied().cycle().take(parts as usize).collect();
        Self::new(host, &of_parts)
    }

    /// Index of this host, from 0.
    pub fn host(&self) -> u32 {
        self.host
    }

    /// Number of hosts that train together.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// Number of parts of a batch, over all hosts (`P`).
    pub fn parts(&self) -> u32 {
        self.places.len() as u32
    }

    /// The parts of this host, one for each of its rings, in order.
    pub fn parts_here(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&*self.places).filter(|(_, place)| place.host == self.host).map(|(part, _)| part)
    }

    /// The host that reads `lane`.
    pub fn owner(&self, lane: u32) -> u32 {
        self.place(lane).host
    }

    /// The ring of this host that gets the rows of `lane`; `None` if another host reads it.
    pub fn ring_of(&self, lane: u32) -> Option<u32> {
        let Place { host, ring } = self.place(lane);
        (host == self.host).then_some(ring)
    }

    /// The part and the ring of each of `lanes` lanes: precomputed, because every row looks up both.
    pub(crate) fn of_lanes(&self, lanes: u32) -> Vec<LanePart> {
        (0..lanes).map(|lane| LanePart { part: lane % self.parts(), ring: self.ring_of(lane) }).collect()
    }

    fn place(&self, lane: u32) -> Place {
        self.places[(lane % self.parts()) as usize]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_lane_has_one_host_and_one_ring() {
        let hosts = [2, 0, 0, 1, 2, 0];
        let deals: Vec<Deal> = (0..3).map(|host| Deal::new(host, &hosts).unwrap()).collect();
        let here: Vec<Vec<u32>> = deals.iter().map(|deal| deal.parts_here().collect()).collect();
        assert_eq!(here, [vec![1, 2, 5], vec![3], vec![0, 4]]);
        for lane in 0..20 {
            let part = lane % 6;
            for deal in &deals {
                let owner = hosts[part as usize];
                assert_eq!((deal.owner(lane), deal.parts(), deal.hosts()), (owner, 6, 3));
                let ring = here[deal.host() as usize].iter().position(|&it| it == part);
                assert_eq!(deal.ring_of(lane), ring.map(|ring| ring as u32));
                assert_eq!(deal.of_lanes(20)[lane as usize], LanePart { part, ring: deal.ring_of(lane) });
            }
        }
    }

    #[test]
    fn ranks_are_numbered_host_by_host() {
        let deal = |host, ranks: &[u32], parts| Deal::among_ranks(host, ranks, parts);
        let here = |host| deal(host, &[1, 3], 8).unwrap().parts_here().collect::<Vec<_>>();
        assert_eq!([here(0), here(1)], [vec![0, 4], vec![1, 2, 3, 5, 6, 7]]);
        let invalid: [(&[u32], u32); 6] =
            [(&[1, 2], 4), (&[2, 2], 2), (&[], 1), (&[1, 0], 1), (&[1], 0), (&[u32::MAX, 2], 8)];
        assert!(invalid.into_iter().all(|(ranks, parts)| deal(0, ranks, parts).is_none()));
        assert!(deal(2, &[1, 1], 2).is_none(), "no such host");
    }

    #[test]
    fn ranks_of_a_host_are_some_of_all_and_ascending() {
        let here = |ranks, here: &[u32]| Runs::new(ranks, here).map(|runs| runs.here().to_vec());
        assert_eq!(here(4, &[1, 3]), Some(vec![1, 3]));
        assert_eq!(Runs::of_one_host(3), Runs::new(3, &[0, 1, 2]));
        assert!(Runs::of_one_host(3).unwrap().are_all_here() && !Runs::new(3, &[2]).unwrap().are_all_here());
        for (ranks, invalid) in [(0, &[][..]), (2, &[]), (2, &[2]), (2, &[1, 0]), (3, &[1, 1])] {
            assert_eq!(here(ranks, invalid), None, "{invalid:?} of {ranks}");
        }
        assert_eq!(Runs::of_one_host(0), None);
    }

    #[test]
    fn every_host_has_a_part() {
        for hosts in [&[][..], &[1], &[0, 2], &[0, u32::MAX], &[3, 2, 1]] {
            assert!(Deal::new(0, hosts).is_none(), "{hosts:?}");
        }
        assert!(Deal::new(1, &[0, 0]).is_none());
    }
}
