//! One address and what is known about the host there.

use std::time::{Duration, Instant};

use super::{PeerSnapshot, PeerState};
use crate::clock::{Clock, ProbeTimes};
use crate::link::Link;
use crate::{About, HostName, HostStatus};

/// The pause after the first visit without an answer.
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// An address.
pub(super) struct Entry {
    pub(super) known: Known,
    /// The connection to it.
    pub(super) link: Option<Link>,
    /// When a source last named it.
    pub(super) found: Instant,
    /// Whether it is being visited.
    pub(super) is_visited: bool,
    /// When its last visit ended.
    last_visit: Option<Instant>,
    /// The time until the next visit after one without an answer; it doubles.
    pause: Duration,
}

/// A daemon: its name, which its certificate proves, and its number.
pub(super) type Instance = (HostName, u64);

/// The instance of a daemon.
pub(super) fn instance(about: &About) -> Instance {
    (about.host.clone(), about.instance)
}

/// Who is at an address.
pub(super) enum Known {
    /// Nobody has answered, or been tried, yet.
    Nothing,
    /// This host.
    Own,
    /// This daemon, which is up at another address.
    Alias(Instance),
    /// Another host, or a reason why it does not answer.
    Host(Box<Host>),
}

/// Another host.
pub(super) struct Host {
    about: Option<About>,
    state: PeerState,
    since: Instant,
    status: Option<HostStatus>,
    clock: Clock,
}

/// A visit that was answered.
pub(super) struct Visit {
    pub(super) link: Link,
    pub(super) status: HostStatus,
    pub(super) times: ProbeTimes,
}

impl Entry {
    pub(super) fn new() -> Self {
        Self {
            known: Known::Nothing,
            link: None,
            found: Instant::now(),
            is_visited: false,
            last_visit: None,
            pause: Duration::ZERO,
        }
    }

    /// Whether to visit it now: its pause is over. With `fresh`, a host is due if it was not visited within that time.
    pub(super) fn is_due(&self, fresh: Option<Duration>) -> bool {
        let is_host = matches!(self.known, Known::Host(_) | Known::Nothing);
        let since = fresh.filter(|_| is_host).unwrap_or(self.pause);
        !self.is_visited && self.last_visit.is_none_or(|last| last.elapsed() >= since)
    }

    /// Ends its pause.
    pub(super) fn retry_now(&mut self) {
        self.pause = Duration::ZERO;
    }

    /// A visit has ended.
    fn visited(&mut self, pause: Duration) {
        (self.is_visited, self.last_visit, self.pause) = (false, Some(Instant::now()), pause);
    }

    /// It is not the address of another host, or a second one of it.
    pub(super) fn is_no_host(&mut self, known: Known) {
        (self.known, self.link) = (known, None);
        self.visited(MAX_PAUSE);
    }

    /// What the host at `address` says about itself, if it is up.
    pub(super) fn about_if_up(&self) -> Option<&About> {
        match &self.known {
            Known::Host(host) if host.state == PeerState::Up => host.about.as_ref(),
            _ => None,
        }
    }

    pub(super) fn instance_if_up(&self) -> Option<Instance> {
        self.about_if_up().map(instance)
    }

    /// Whether it has not answered for longer than `time`.
    pub(super) fn is_unreachable_for(&self, time: Duration) -> bool {
        match &self.known {
            Known::Host(host) => host.state != PeerState::Up && host.since.elapsed() > time,
            _ => false,
        }
    }

    /// The host at `address` has answered. Returns whether it is up only now.
    pub(super) fn answered(&mut self, address: &str, Visit { link, status, times }: Visit) -> bool {
        let about = link.about.clone();
        let same = match std::mem::replace(&mut self.known, Known::Nothing) {
            Known::Host(host) if host.about.as_ref() == Some(&about) => Some(host),
            _ => None,
        };
        let mut host = same.unwrap_or_else(|| Box::new(Host::new(Some(about.clone()))));
        let is_new = host.state != PeerState::Up;
        if is_new {
            tracing::info!("peer {} at {address} is up, version {}", about.host, about.version);
            (host.state, host.since) = (PeerState::Up, Instant::now());
        }
        host.clock.add(times);
        host.status = Some(status);
        (self.known, self.link) = (Known::Host(host), Some(link));
        self.visited(Duration::ZERO);
        is_new
    }

    /// The host at `address` does not answer.
    pub(super) fn failed(&mut self, address: &str, reason: String) {
        self.link = None;
        self.visited((self.pause * 2).clamp(FIRST_PAUSE, MAX_PAUSE));
        if matches!(self.known, Known::Own) {
            // Slow, but no other host.
            return;
        }
        if !matches!(self.known, Known::Host(_)) {
            self.known = Known::Host(Box::new(Host::new(None)));
        }
        let Known::Host(host) = &mut self.known else { return };
        let is_new = host.state != PeerState::Down(reason.clone());
        if host.state == PeerState::Up {
            let name = host.about.as_ref().map(|about| about.host.to_string()).unwrap_or_default();
            tracing::warn!("peer {name} at {address} is lost: {reason}");
            (host.since, host.clock) = (Instant::now(), Clock::default());
        } else if is_new {
            tracing::info!("cannot reach the peer at {address}: {reason}");
        }
        host.state = PeerState::Down(reason);
    }

    /// The host as shown; `None` for an address that is not one of another host.
    pub(super) fn snapshot(&self, address: &str) -> Option<PeerSnapshot> {
        let Known::Host(host) = &self.known else { return None };
        let best = host.clock.best();
        Some(PeerSnapshot {
            address: address.to_owned(),
            about: host.about.clone(),
            state: host.state.clone(),
            since: host.since.elapsed(),
            status: host.status.clone(),
            clock: best.map(|(offset, _)| offset),
            round_trip: best.map(|(_, round_trip)| round_trip),
        })
    }
}

impl Host {
    /// A host that has not answered yet.
    fn new(about: Option<About>) -> Self {
        let state = PeerState::Down(String::new());
        Self { about, state, since: Instant::now(), status: None, clock: Clock::default() }
    }
}
