//! The other hosts, as this one sees them.
//!
//! Each address of the sources is visited periodically: a visit opens a connection if there is none, and probes the host. The time
//! between two visits grows with the number of hosts, so that a daemon sends at most about [`MAX_PROBES_PER_SECOND`]. Hosts that do not answer are
//! visited apart from those that do, and less and less often, so that they delay nothing; each source is asked apart from the
//! others for the same reason. Addresses that turn out to be this host's own, or another one of a host that is up, are rarely
//! visited. A daemon that greets this one is added as if a source had named it, and learns the addresses of the hosts that are
//! up. So a new host needs to find only one of the others.

mod entry;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures::future::join_all;
use futures::{StreamExt, stream};

use self::entry::{Entry, Instance, Known};
use crate::clock::ClockOffset;
use crate::discovery::{MAX_ADDRESSES, Registry, Source, Target, resolve};
use crate::link::Link;
use crate::server::ThisHost;
use crate::{About, HostName, HostStatus, LinkError};

/// The least time between two visits of a host.
const VISIT_INTERVAL: Duration = Duration::from_secs(5);

/// The time before a visit of a host that has greeted this one, and is not known to be up: others may have just greeted, too.
const HEARD_PAUSE: Duration = Duration::from_millis(200);

/// The most probes that a daemon sends.
const MAX_PROBES_PER_SECOND: u32 = 50;

/// The visits at a time.
const CONCURRENT_VISITS: usize = 64;

/// The time between two resolutions of a name.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(5);

/// The time between two listings of announcements.
const LIST_INTERVAL: Duration = Duration::from_secs(30);

/// After this time without an answer, the announcement of a host is deleted. A host that is down and that no source has named
/// for this time is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// A host that was visited within this time is not visited again for a caller who asks for the present state.
const FRESH: Duration = Duration::from_secs(1);

/// How long a caller waits for the present state: longer than a host that does not answer.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(12);

/// The most hosts that are known only because they have greeted.
const MAX_HEARD: usize = 1024;

/// The other hosts.
pub struct Hosts {
    this: Arc<ThisHost>,
    fixed: Vec<Target>,
    names: Vec<Target>,
    registries: Vec<tokio::sync::Mutex<Registry>>,
    state: Mutex<State>,
    /// Notified when a visit has ended.
    visit_ended: tokio::sync::Notify,
    /// Notified when a host has greeted this one that is not known to be up.
    heard: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    /// By address.
    entries: BTreeMap<String, Entry>,
    /// The address of each host that has greeted.
    heard: BTreeMap<HostName, String>,
    /// Names that several hosts have, once reported.
    doubles: BTreeSet<HostName>,
    /// The last error of each source, to report it once.
    errors: HashMap<String, String>,
}

/// Which hosts to visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visited {
    /// Those with a connection.
    Connected,
    /// All others.
    Others,
}

/// Another host.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerSnapshot {
    /// Its address: `HOST:PORT`.
    pub address: String,
    /// What its daemon says about itself; `None` before the first connection.
    pub about: Option<About>,
    /// Whether it is up.
    pub state: PeerState,
    /// The time since that state began.
    pub since: Duration,
    /// Its last known state.
    pub status: Option<HostStatus>,
    /// The offset of its clock, once known.
    pub clock: Option<ClockOffset>,
    /// The shortest of the last round trips.
    pub round_trip: Option<Duration>,
}

/// Whether another host is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// It answers.
    Up,
    /// It does not, for this reason.
    Down(String),
}

/// The time by this host's clock, in nanoseconds since 1970.
pub(crate) fn clock_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Hosts {
    /// No hosts yet; `registries` are those of the sources in which daemons announce themselves, in any order.
    pub fn new(this: Arc<ThisHost>, sources: Vec<Source>, registries: Vec<Registry>) -> Arc<Self> {
        let (mut fixed, mut names) = (Vec::new(), Vec::new());
        for source in sources {
            match source {
                Source::Static(targets) => fixed.extend(targets),
                Source::Dns(target) => names.push(target),
                Source::Bucket(_) | Source::Etcd => {}
            }
        }
        let registries = registries.into_iter().map(tokio::sync::Mutex::new).collect();
        Arc::new(Self {
            this,
            fixed,
            names,
            registries,
            state: Mutex::default(),
            visit_ended: tokio::sync::Notify::new(),
            heard: tokio::sync::Notify::new(),
        })
    }

    /// This host.
    pub fn this(&self) -> &Arc<ThisHost> {
        &self.this
    }

    /// Asks all sources and visits all hosts again and again. Never returns.
    pub async fn run(self: Arc<Self>) {
        let resolving =
            join_all(self.names.iter().map(|name| repeat(RESOLVE_INTERVAL, || self.resolve(name))));
        let listing =
            join_all(self.registries.iter().map(|registry| repeat(LIST_INTERVAL, || self.list(registry))));
        let visiting = [Visited::Connected, Visited::Others].map(|which| self.keep_visiting(which));
        futures::join!(resolving, listing, join_all(visiting));
    }

    async fn keep_visiting(&self, which: Visited) {
        loop {
            self.find_fixed();
            self.visit(which, None).await;
            self.state().forget();
            let pause = tokio::time::sleep(self.interval());
            match which {
                Visited::Connected => pause.await,
                Visited::Others => {
                    tokio::select! {
                        () = pause => {}
                        () = self.heard.notified() => tokio::time::sleep(HEARD_PAUSE).await,
                    }
                }
            }
        }
    }

    /// Visits all hosts now that were not visited just before.
    pub async fn refresh(self: &Arc<Self>) {
        let hosts = Arc::clone(self);
        // A caller that gives up must not leave visits unfinished.
        let visits = tokio::spawn(async move {
            hosts.find_fixed();
            let fresh = Some(FRESH);
            futures::join!(hosts.visit(Visited::Connected, fresh), hosts.visit(Visited::Others, fresh));
            hosts.visits_in_flight().await;
        });
        // Many hosts that do not answer take longer, and a panic is in the log.
        drop(tokio::time::timeout(REFRESH_TIMEOUT, visits).await);
    }

    /// Waits until no host is being visited.
    async fn visits_in_flight(&self) {
        loop {
            let ended = self.visit_ended.notified();
            if self.state().entries.values().all(|entry| !entry.is_visited) {
                return;
            }
            ended.await;
        }
    }

    /// The other hosts that have been found, by name and address.
    pub fn snapshot(&self) -> Vec<PeerSnapshot> {
        let state = self.state();
        let mut hosts: Vec<_> =
            state.entries.iter().filter_map(|(address, entry)| entry.snapshot(address)).collect();
        let key =
            |peer: &PeerSnapshot| (peer.about.as_ref().map(|about| about.host.clone()), peer.address.clone());
        hosts.sort_by_key(key);
        hosts
    }

    /// Another daemon has greeted this one. Returns the addresses of the others that are up.
    pub fn hear(&self, about: &About) -> Vec<String> {
        let mut state = self.state();
        if let Ok(target) = Target::parse(&about.address)
            && about.host != self.this.about.host
        {
            let address = target.to_string();
            state.hear(&about.host, &address);
            if state.entries.get(&address).is_some_and(|entry| entry.about_if_up().is_none()) {
                self.heard.notify_one();
            }
        }
        let up = state.entries.iter().filter(|(_, entry)| entry.about_if_up().is_some());
        up.map(|(address, _)| address.clone()).take(MAX_HEARD).collect()
    }

    /// Removes the announcements of this host. [`Hosts::run`] must have ended, or it announces it again.
    pub async fn leave(&self) {
        for registry in &self.registries {
            registry.lock().await.leave(&self.this.about).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time between two visits.
    fn interval(&self) -> Duration {
        let hosts = u32::try_from(self.state().entries.len()).unwrap_or(u32::MAX);
        VISIT_INTERVAL.max(Duration::from_secs(1) * (hosts / MAX_PROBES_PER_SECOND))
    }

    /// Visits the hosts that are due: their pause is over, or they were not visited within `fresh`, if that is given.
    async fn visit(&self, which: Visited, fresh: Option<Duration>) {
        let due = self.state().begin_visits(which, fresh, &self.this);
        let visits = due.into_iter().map(|(address, link)| async move {
            let visited = visit(&address, link, &self.this).await;
            self.state().visited(&address, visited, &self.this.about);
            self.visit_ended.notify_waiters();
        });
        stream::iter(visits).buffer_unordered(CONCURRENT_VISITS).collect::<()>().await;
    }

    fn find_fixed(&self) {
        let mut state = self.state();
        let fixed = self.fixed.iter().map(ToString::to_string);
        // This host may be unable to reach its own address.
        let others = fixed.filter(|address| *address != self.this.about.address);
        others.for_each(|address| state.found(&address));
    }

    async fn resolve(&self, name: &Target) {
        let resolved = resolve(name).await;
        let mut state = self.state();
        state.report(&name.to_string(), resolved.as_ref().err());
        resolved.iter().flatten().for_each(|address| state.found(address));
    }

    async fn list(&self, registry: &tokio::sync::Mutex<Registry>) {
        let mut registry = registry.lock().await;
        let mut listed = registry.find(&self.this.about).await;
        if let Ok(addresses) = &mut listed {
            // This host may be unable to reach its own address.
            addresses.retain(|address| *address != self.this.about.address);
        }
        let unreachable = {
            let mut state = self.state();
            state.report(&registry.board().to_string(), listed.as_ref().err());
            listed.iter().flatten().for_each(|address| state.found(address));
            state.unreachable(listed.unwrap_or_default())
        };
        for address in unreachable {
            registry.forget(&address).await;
        }
    }
}

/// Does something again and again.
async fn repeat<F: Future<Output = ()>>(interval: Duration, act: impl Fn() -> F) {
    loop {
        act().await;
        tokio::time::sleep(interval).await;
    }
}

/// Connects to a host, unless `link` is a connection, and probes it. A connection that has broken is made again at once: the
/// other daemon may have restarted, or checked certificates that have changed.
async fn visit(address: &str, link: Option<Link>, this: &ThisHost) -> Result<entry::Visit, String> {
    if let Some(link) = link {
        match probe(link).await {
            Err(LinkError::Broken(_)) => {}
            probed => return probed.map_err(|error| error.to_string()),
        }
    }
    let connected = async { probe(Link::connect(address, this).await?).await };
    connected.await.map_err(|error| error.to_string())
}

async fn probe(mut link: Link) -> Result<entry::Visit, LinkError> {
    let (status, times) = link.probe().await?;
    Ok(entry::Visit { link, status, times })
}

impl State {
    /// A source names this address.
    fn found(&mut self, address: &str) {
        if let Some(entry) = self.entries.get_mut(address) {
            entry.found = Instant::now();
        } else if self.entries.len() < MAX_ADDRESSES + MAX_HEARD {
            self.entries.insert(address.to_owned(), Entry::new());
        }
    }

    /// The host with this name has greeted, and gives this address.
    fn hear(&mut self, host: &HostName, address: &str) {
        if self.heard.get(host).is_none_or(|known| known != address) {
            let is_full = self.heard.len() >= MAX_HEARD && !self.heard.contains_key(host);
            if is_full && !self.entries.contains_key(address) {
                return;
            }
            if !is_full {
                self.heard.insert(host.clone(), address.to_owned());
            }
        }
        self.found(address);
        if let Some(entry) = self.entries.get_mut(address) {
            entry.retry_now();
        }
    }

    /// Logs the error of a source once, and its end.
    fn report(&mut self, source: &str, error: Option<&String>) {
        match error {
            Some(error) if self.errors.get(source) != Some(error) => {
                tracing::warn!("cannot find peers by {source}: {error}");
                self.errors.insert(source.to_owned(), error.clone());
            }
            Some(_) => {}
            None => {
                if self.errors.remove(source).is_some() {
                    tracing::info!("discovery by {source} works again");
                }
            }
        }
    }

    /// The addresses to visit now, each with the connection to it.
    fn begin_visits(
        &mut self,
        which: Visited,
        fresh: Option<Duration>,
        this: &ThisHost,
    ) -> Vec<(String, Option<Link>)> {
        let up: BTreeSet<Instance> = self.entries.values().filter_map(Entry::instance_if_up).collect();
        let mut due = Vec::new();
        for (address, entry) in &mut self.entries {
            if let Known::Alias(instance) = &entry.known
                && !up.contains(instance)
            {
                // It may be the only address now.
                entry.retry_now();
            }
            let is_wanted = entry.link.is_some() == (which == Visited::Connected);
            if is_wanted && entry.is_due(fresh) {
                entry.is_visited = true;
                let link = entry.link.clone().filter(|link| link.is_admitted(this));
                due.push((address.clone(), link));
            }
        }
        due
    }

    /// The visit of an address has ended.
    fn visited(&mut self, address: &str, visited: Result<entry::Visit, String>, this: &About) {
        let is_up = |instance: &Instance| {
            let mut others = self.entries.iter().filter(|(other, _)| *other != address);
            others.any(|(_, entry)| entry.instance_if_up().as_ref() == Some(instance))
        };
        let instance = visited.as_ref().ok().map(|visit| entry::instance(&visit.link.about));
        let known = match instance {
            Some(instance) if instance == entry::instance(this) => Some(Known::Own),
            Some(instance) if is_up(&instance) => Some(Known::Alias(instance)),
            _ => None,
        };
        let Some(entry) = self.entries.get_mut(address) else { return };
        if let Some(known) = known {
            entry.is_no_host(known);
            return;
        }
        match visited {
            Ok(visit) => {
                let (about, known) = (visit.link.about.clone(), Arc::clone(&visit.link.known));
                if entry.answered(address, visit) {
                    self.check_name(&about, this);
                    let known =
                        known.iter().take(MAX_HEARD).filter_map(|address| Target::parse(address).ok());
                    known.for_each(|target| self.found(&target.to_string()));
                }
            }
            Err(reason) => entry.failed(address, reason),
        }
    }

    /// Reports a name that several hosts have.
    fn check_name(&mut self, about: &About, this: &About) {
        let host = &about.host;
        let others = self.entries.values().filter_map(Entry::about_if_up);
        let is_double =
            others.chain([this]).any(|other| other.host == *host && other.instance != about.instance);
        if is_double && self.doubles.insert(host.clone()) {
            tracing::warn!(
                "several peers call themselves {host}; each host needs its own name, and a certificate for it"
            );
        }
    }

    /// Those of `addresses` that have not answered for long.
    fn unreachable(&self, addresses: Vec<String>) -> Vec<String> {
        let is_unreachable = |address: &String| {
            self.entries.get(address).is_some_and(|entry| entry.is_unreachable_for(FORGET_AFTER))
        };
        addresses.into_iter().filter(is_unreachable).collect()
    }

    /// Removes hosts that no source has named for long, and that do not answer.
    fn forget(&mut self) {
        self.entries
            .retain(|_, entry| entry.instance_if_up().is_some() || entry.found.elapsed() <= FORGET_AFTER);
        let Self { entries, heard, .. } = self;
        heard.retain(|_, address| entries.contains_key(address));
    }
}

#[cfg(test)]
mod tests;
