//! The deal: which rows of a global batch each worker gets. There are three rules; a plan chooses one.
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
//! **By shards** ([`Shards`]), for a feed whose ranks are on several hosts, each of which reads a share of the data. Lanes are
//! dealt to hosts as above, in proportion to their ranks. The rows of a host's lanes are cut into runs, one for each of its
//! ranks. All ranks must have room for equally many rows, so a host has room for that many times its ranks. While a host has
//! no room, its lanes are passed over. A batch ends when all hosts that have rows left are full:
//!
//! ```text
//! lane    0 1 2 3 4 0 1 2 3 4 0 1 3 1     5 lanes; two hosts with room for 7 rows each
//! host    0 1 0 1 0 0 1 0 1 0 0 1 1 1     after 7 rows of host 0, its lanes 2, 4 and 0 are passed over
//! ```
//!
//! So every rank is full in every batch until its host has no more rows in the epoch, also if the number of hosts does not
//! divide that of the lanes. Batches are shorter then, and the epoch has as many as the host with the most rows needs. A pass must
//! be shuffled: passing over lanes would break the order of an ordered one.
//!
//! Invariants, each with a property test (`ingest/exactly_once.rs`, `ingest/deal_tests.rs`, `ingest/shard_tests.rs`):
//!
//! * Each row of a global batch is in exactly one part, of exactly one host. A part has its rows in drawing order.
//! * By runs and by lanes, global batches and positions do not depend on the rule, P or the number of hosts, whether or not
//!   these divide the number of lanes. So a job may stop on three hosts and resume on five from the position of any one. By
//!   shards, hosts may change as well: a position says which rows of each lane were delivered, and the others follow.
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

use crate::error::Error;

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

/// The lanes and the ranks of all hosts, as one host sees them, if rows are dealt by shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Its parts are the lanes.
    deal: Deal,
    runs: Runs,
    /// The number of ranks, by host.
    ranks: Arc<[u32]>,
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

impl Shards {
    /// The shards of hosts that have these ranks, each in ascending order, as host `host` sees them.
    ///
    /// # Errors
    /// A host has no rank, a rank has no host or several, or there are too few lanes.
    pub fn new(host: u32, ranks: &[Vec<u32>], lanes: u32) -> Result<Self, Error> {
        let mut all: Vec<u32> = ranks.concat();
        all.sort_unstable();
        let world = all.len() as u32;
        let runs = ranks.get(host as usize).and_then(|here| Runs::new(world, here));
        let runs = runs.filter(|_| all.iter().copied().eq(0..world) && !ranks.iter().any(Vec::is_empty));
        let runs = runs.ok_or_else(|| {
            let hosts = ranks.len();
            Error::Invalid(format!(
                "{world} ranks on {hosts} hosts do not fit together; expected each rank once"
            ))
        })?;
        let hosts = ranks.len() as u32;
        let ranks: Arc<[u32]> = ranks.iter().map(|ranks| ranks.len() as u32).collect();
        let deal = Deal::new(host, &in_proportion(&ranks, lanes)).filter(|deal| deal.hosts() == hosts);
        let too_few =
            || Error::Invalid(format!("data.lanes: {lanes}; {hosts} hosts with a shard each need as many"));
        Ok(Self { deal: deal.ok_or_else(too_few)?, runs, ranks })
    }

    /// The deal of lanes to hosts.
    pub fn deal(&self) -> &Deal {
        &self.deal
    }

    /// The runs of this host's ranks.
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// The number of ranks, by host.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }
}

/// Deals a lane to each host, and then lanes one after another, each to the host that has the fewest for its ranks. Returns
/// the hosts of the lanes.
fn in_proportion(ranks: &[u32], lanes: u32) -> Vec<u32> {
    let mut counts = vec![0_u64; ranks.len()];
    let deal = |lane: u32| {
        if let Some(count) = counts.get_mut(lane as usize) {
            *count = 1;
            return lane;
        }
        // (count + 1) / ranks, compared without division.
        let fewest = (1..ranks.len()).fold(0, |fewest, host| {
            let [of_host, of_fewest] = [host, fewest].map(|host| counts[host] + 1);
            let is_less = of_host * u64::from(ranks[fewest]) < of_fewest * u64::from(ranks[host]);
            if is_less { host } else { fewest }
        });
        counts[fewest] += 1;
        fewest as u32
    };
    (0..lanes).map(deal).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn hosts_have_lanes_in_proportion_to_their_ranks() {
        assert_eq!(in_proportion(&[2, 2], 5), [0, 1, 0, 1, 0]);
        assert_eq!(in_proportion(&[1, 3], 8), [0, 1, 1, 1, 1, 1, 0, 1]);
        assert_eq!(in_proportion(&[8, 8, 1], 6), [0, 1, 2, 0, 1, 0]);
        let shards = |host| Shards::new(host, &[vec![1, 2], vec![0], vec![3]], 8).unwrap();
        let lanes = |host| shards(host).deal().parts_here().collect::<Vec<_>>();
        assert_eq!([lanes(0), lanes(1), lanes(2)], [vec![0, 3, 4, 5], vec![1, 6], vec![2, 7]]);
        assert_eq!((shards(0).runs().here(), shards(0).ranks()), (&[1, 2][..], &[2, 1, 1][..]));
        let refused =
            |host, ranks: &[Vec<u32>], lanes| Shards::new(host, ranks, lanes).unwrap_err().to_string();
        let of = |numbers: &[&[u32]]| numbers.iter().map(|ranks| ranks.to_vec()).collect::<Vec<_>>();
        let two: &[&[u32]] = &[&[0], &[1]];
        let cases: [(u32, &[&[u32]]); 6] = [
            (0, &[&[0], &[0]]),
            (0, &[&[0], &[2]]),
            (0, &[&[0, 1], &[]]),
            (2, two),
            (0, &[]),
            (0, &[&[1, 0]]),
        ];
        for (host, ranks) in cases {
            assert!(refused(host, &of(ranks), 4).contains("expected each rank once"), "{ranks:?}");
        }
        assert!(refused(0, &of(two), 1).contains("data.lanes: 1; 2 hosts"));
    }

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
