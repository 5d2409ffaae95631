//! The hosts that a leader knows: what each offers and holds, and which of them get the ranks of the next generation.
//!
//! A host that failed is *left out* of generations for a time that doubles with each failure, as long as the others suffice. It
//! is never left out for good: progress of a generation that it belongs to clears its record.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::{Assignment, Offer, Ranks, Reason, Role, SETTLE, SILENCE, Snapshot, size};
use crate::HostName;

/// How long a host is left out after its first failure.
const FIRST_ABSENCE: Duration = Duration::from_secs(20);

/// The longest that it is.
const MAX_ABSENCE: Duration = Duration::from_mins(10);

/// The most hosts of a job. Others are not connected.
pub const MAX_HOSTS: usize = 1024;

/// How many ranks a generation may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The fewest, at least 1.
    pub min: u32,
    /// The most.
    pub max: u32,
    /// The parts of a batch, of which every rank has equally many.
    pub parts: Option<u32>,
    /// Whether hosts may offer reducers, for which the first generation waits.
    pub has_reducers: bool,
}

/// Why no generation runs: too few ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shortage {
    /// The ranks that connected hosts offer.
    pub offered: u32,
    /// The fewest that the job needs.
    pub limits: Limits,
    /// Hosts that failed, and their last failures.
    pub failed: Vec<(HostName, Reason)>,
}

/// The hosts of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hosts {
    limits: Limits,
    connected: BTreeMap<HostName, Connected>,
    failures: BTreeMap<HostName, Failures>,
}

/// A connected host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Connected {
    /// Nothing until it has said what.
    offer: Offer,
    holds: Option<Snapshot>,
    /// When its last message came.
    heard: Duration,
    /// When it may end a running generation to join; `None` from then on.
    settles: Option<Duration>,
}

/// A host that failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Failures {
    count: u32,
    /// When it may take part again; `None` if it may.
    until: Option<Duration>,
    reason: Reason,
}

/// A deadline of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum HostTimer {
    /// It has been silent for too long.
    Silence(HostName),
    /// It has been connected for long enough to join.
    Settled(HostName),
    /// It may take part again.
    Return(HostName),
}

impl Hosts {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, connected: BTreeMap::new(), failures: BTreeMap::new() }
    }

    pub(super) fn is_connected(&self, host: &HostName) -> bool {
        self.connected.contains_key(host)
    }

    pub(super) fn connected(&self) -> impl Iterator<Item = &HostName> {
        self.connected.keys()
    }

    /// A stream to a host is open. Returns whether the job has room for it.
    pub(super) fn open(&mut self, now: Duration, host: HostName) -> bool {
        let has_room = self.connected.len() < MAX_HOSTS;
        if has_room {
            let settles = Some(now + SETTLE);
            self.connected
                .insert(host, Connected { offer: Offer::default(), holds: None, heard: now, settles });
        }
        has_room
    }

    /// Returns whether it was connected.
    pub(super) fn close(&mut self, host: &HostName) -> bool {
        self.connected.remove(host).is_some()
    }

    /// A message of a host. Returns whether it is connected.
    pub(super) fn hear(&mut self, now: Duration, host: &HostName) -> bool {
        let Some(connected) = self.connected.get_mut(host) else { return false };
        connected.heard = now;
        true
    }

    pub(super) fn set_offer(&mut self, host: &HostName, offer: Offer) {
        if let Some(connected) = self.connected.get_mut(host) {
            connected.offer = offer;
        }
    }

    pub(super) fn set_holds(&mut self, host: &HostName, holds: Option<Snapshot>) {
        if let Some(connected) = self.connected.get_mut(host) {
            connected.holds = holds;
        }
    }

    /// Whether `host` still offers `ranks`.
    pub(super) fn offers(&self, host: &HostName, ranks: Ranks) -> bool {
        let Ranks { role, count, .. } = ranks;
        self.connected.get(host).is_some_and(|host| host.offer.role == role && host.offer.count >= count)
    }

    /// Leaves a host out for a time. Returns whether this is its first failure since its last progress and the others
    /// suffice.
    pub(super) fn leave_out(&mut self, now: Duration, host: &HostName, reason: Reason) -> bool {
        let count = self.failures.get(host).map_or(0, |failures| failures.count);
        let absence = FIRST_ABSENCE.saturating_mul(1 << count.min(10)).min(MAX_ABSENCE);
        let failures = Failures { count: count.saturating_add(1), until: Some(now + absence), reason };
        self.failures.insert(host.clone(), failures);
        count == 0 && self.allot(self.healthy()).is_some()
    }

    /// These hosts made progress.
    pub(super) fn on_progress<'a>(&mut self, hosts: impl Iterator<Item = &'a HostName>) {
        hosts.for_each(|host| drop(self.failures.remove(host)));
        let connected = &self.connected;
        self.failures.retain(|host, failures| failures.until.is_some() || connected.contains_key(host));
    }

    /// The ranks of the next generation: of healthy hosts, else also of those that are left out.
    ///
    /// Hosts that hold newer images are preferred.
    pub(super) fn plan(&self, checkpoint: Option<Snapshot>) -> Option<Assignment> {
        let sorted = |mut hosts: Vec<(HostName, Offer)>| {
            hosts.sort_by_cached_key(|(host, _)| Reverse(self.usable_step(host, checkpoint)));
            hosts
        };
        self.allot(sorted(self.healthy())).or_else(|| self.allot(sorted(self.offering())))
    }

    /// Whether hosts that have settled would give a generation more ranks than `current`, or as many and more reducers.
    pub(super) fn could_grow(&self, current: &Assignment) -> bool {
        let mut hosts = self.healthy();
        hosts.retain(|(host, _)| self.connected.get(host).is_some_and(|host| host.settles.is_none()));
        self.allot(hosts).is_some_and(|assignment| size(&assignment) > size(current))
    }

    /// Whether all ranks that the job can use are offered, and nothing else can be.
    pub(super) fn is_full(&self) -> bool {
        let Limits { max, has_reducers, .. } = self.limits;
        !has_reducers && self.allot(self.healthy()).is_some_and(|assignment| size(&assignment).0 == max)
    }

    pub(super) fn shortage(&self) -> Shortage {
        let trains = self.connected.values().filter(|host| host.offer.role == Role::Train);
        let offered = trains.map(|host| host.offer.count).fold(0, u32::saturating_add);
        let failed = self.failures.iter().map(|(host, failures)| (host.clone(), failures.reason.clone()));
        Shortage { offered, limits: self.limits, failed: failed.collect() }
    }

    /// All deadlines, and when they are due.
    pub(super) fn timers(&self) -> impl Iterator<Item = (Duration, HostTimer)> {
        let connected = self.connected.iter().flat_map(|(name, host)| {
            let silence = (host.heard + SILENCE, HostTimer::Silence(name.clone()));
            let settled = host.settles.map(|settles| (settles, HostTimer::Settled(name.clone())));
            [Some(silence), settled].into_iter().flatten()
        });
        let back = self.failures.iter().filter_map(|(name, failures)| {
            failures.until.map(|until| (until, HostTimer::Return(name.clone())))
        });
        connected.chain(back)
    }

    pub(super) fn settle(&mut self, host: &HostName) {
        if let Some(connected) = self.connected.get_mut(host) {
            connected.settles = None;
        }
    }

    pub(super) fn bring_back(&mut self, host: &HostName) {
        if let Some(failures) = self.failures.get_mut(host) {
            failures.until = None;
        }
    }

    fn usable_step(&self, host: &HostName, checkpoint: Option<Snapshot>) -> Option<u64> {
        let holds = self.connected.get(host)?.holds?;
        holds.contains(checkpoint).then_some(holds.step)
    }

    /// Hosts that offer ranks or reducers, by name.
    fn offering(&self) -> Vec<(HostName, Offer)> {
        let offering = self.connected.iter().filter(|(_, host)| host.offer.count > 0);
        offering.map(|(name, host)| (name.clone(), host.offer)).collect()
    }

    /// Those of them that are not left out.
    fn healthy(&self) -> Vec<(HostName, Offer)> {
        let mut hosts = self.offering();
        hosts.retain(|(name, _)| self.failures.get(name).is_none_or(|failures| failures.until.is_none()));
        hosts
    }

    /// Gives the hosts ranks in their order, as many as the limits allow, and all reducers, which a rank alone does not need;
    /// numbers both in the order of names.
    fn allot(&self, hosts: Vec<(HostName, Offer)>) -> Option<Assignment> {
        let (hosts, reducers): (Vec<_>, Vec<_>) =
            hosts.into_iter().partition(|(_, offer)| offer.role == Role::Train);
        let offered = hosts.iter().map(|(_, offer)| offer.count).fold(0, u32::saturating_add);
        let Limits { min, max, parts, .. } = self.limits;
        let divides = |count: &u32| parts.is_none_or(|parts| parts.is_multiple_of(*count));
        let world = (min..=offered.min(max)).rev().find(divides)?;
        let mut left = world;
        let mut counts = BTreeMap::new();
        for (host, offer) in hosts {
            let count = offer.count.min(left);
            left -= count;
            if count > 0 {
                counts.insert(host, count);
            }
        }
        let reducers: BTreeMap<_, _> =
            reducers.into_iter().filter(|_| world > 1).map(|(host, offer)| (host, offer.count)).collect();
        let with_role = |role| move |(host, count)| (host, role, count);
        let trains = counts.into_iter().map(with_role(Role::Train));
        let mut first = 0;
        let numbered =
            trains.chain(reducers.into_iter().map(with_role(Role::Reduce))).map(|(host, role, count)| {
                let ranks = Ranks { role, first, count };
                first += count;
                (host, ranks)
            });
        Some(numbered.collect())
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limits { min, parts, .. } = self.limits;
        write!(f, "waiting for ranks: hosts offer {}, the job needs at least {min}", self.offered)?;
        if let Some(parts) = parts {
            write!(f, ", a divisor of {parts}")?;
        }
        self.failed.iter().try_for_each(|(host, reason)| write!(f, "; {host} failed: {reason}"))
    }
}
