//! The daemons of other hosts: the port for them, and what this daemon says to them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{FutureExt, Stream, StreamExt, stream};
use millstream_peers::conduct::Addresses;
use millstream_peers::discovery::{Board, Registry, Source, Target};
use millstream_peers::hosts::{Hosts, PeerSnapshot, PeerState};
use millstream_peers::server::{Refusals, ThisHost, serve};
use millstream_peers::tls::Identity;
use millstream_peers::{About, HostName, HostStatus, LinkError, Measurement, measure};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::PeersConfig;
use crate::daemon::Daemon;
use crate::http;
use crate::runs::Storage;
use crate::snapshot::{PeersUse, system};
use crate::supervisor::{Seats, Site};

/// Connections that wait to be accepted: all hosts of a site may start together.
const BACKLOG: u32 = 1024;

/// Interval between looks at which hosts are up, for jobs on several hosts.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// Time limit to remove the announcements of this host.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A listening port for other daemons, which is not served yet.
pub(crate) struct PeerPort {
    listener: TcpListener,
    identity: Arc<Identity>,
    about: About,
    sources: Vec<Source>,
    network: Option<String>,
}

/// The daemons of other hosts.
pub(crate) struct Peers {
    hosts: Arc<Hosts>,
    /// Where hosts listen, this one included.
    addresses: watch::Receiver<Addresses>,
    /// The jobs that may train on several hosts.
    seats: Arc<Seats>,
    /// The interface of the network for gradients.
    network: Option<String>,
    refusals: Arc<Refusals>,
    /// Set when the port is to close.
    is_stopping: watch::Sender<bool>,
    /// Looks for other daemons until then.
    looking: Mutex<Option<JoinHandle<()>>>,
}

/// The measured link to a host.
pub(crate) struct Measured {
    /// Empty before it has answered.
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) result: Result<Measurement, LinkError>,
}

impl PeerPort {
    /// Reads the certificates and listens. Must be called in the context of a runtime.
    ///
    /// # Errors
    /// When a file is not valid, or the address is taken.
    pub(crate) fn bind(config: &PeersConfig) -> Result<Self> {
        let PeersConfig { listen, address, files, sources, data } = config;
        let identity = Identity::load(files.clone()).context("[peers] of the configuration")?;
        let host = identity.host(&system::host_name()).context("[peers] of the configuration")?;
        let listening = http::listen(*listen, BACKLOG).with_context(|| {
            format!(
                "`peers.listen`: cannot listen on {listen}; choose a free port of an address of this host"
            )
        })?;
        let port = listening.local_addr().map_or(listen.port(), |address| address.port());
        let address = address.clone().unwrap_or_else(|| {
            let ip = listen.ip();
            Target { host: if ip.is_unspecified() { host.to_string() } else { ip.to_string() }, port }
        });
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let about = About { host, version, instance: rand::random(), address: address.to_string() };
        let network = data.as_ref().map(|data| data.interface.clone());
        Ok(Self { listener: listening, identity, about, sources: sources.clone(), network })
    }

    /// The name of this host, which its certificate has.
    pub(crate) fn host_name(&self) -> &HostName {
        &self.about.host
    }

    /// Serves other daemons and looks for them, on `runtime`, until [`Peers::stop`]. Not on the threads that answer requests:
    /// encryption must not delay these.
    pub(crate) fn serve(self, daemon: &Daemon, runtime: &Handle) -> Arc<Peers> {
        let Self { listener, identity, about, sources, network } = self;
        let (address, host) = (about.address.clone(), about.host.clone());
        let this = ThisHost::new(about, Arc::clone(&identity), daemon.host_statuses(runtime));
        let seats = Arc::new(Seats::default());
        let this = Arc::new(this.accepting(daemon.accept_jobs(&seats, runtime)));
        let Storage { stores, etcd, .. } = daemon.shared_storage();
        let boards = sources.iter().filter_map(|source| match source {
            Source::Bucket(directory) => Some(Board::Directory(directory.clone(), stores.clone())),
            // The configuration has one.
            Source::Etcd => etcd.clone().map(Board::Etcd),
            Source::Static(_) | Source::Dns(_) => None,
        });
        let registries = boards.map(Registry::new).collect();
        let hosts = Hosts::new(Arc::clone(&this), sources, registries);
        let refusals = Arc::new(Refusals::default());
        let (is_stopping, mut stopped) = watch::channel(false);
        let heard = Arc::clone(&hosts);
        let stop = async move { drop(stopped.wait_for(|&is_stopping| is_stopping).await) };
        runtime.spawn(serve(listener, this, Arc::clone(&refusals), move |about| heard.hear(about), stop));
        let mut stopped = is_stopping.subscribe();
        let (addresses, up) = watch::channel(Addresses::new());
        let following = follow(Arc::clone(&hosts), addresses);
        let looking = futures::future::join3(Arc::clone(&hosts).run(), identity.watch(), following);
        let looking = runtime.spawn(async move {
            tokio::select! {
                _ = looking => {}
                _ = stopped.wait_for(|&is_stopping| is_stopping) => {}
            }
        });
        tracing::info!("listening for peers as {host} at {address}");
        let looking = Mutex::new(Some(looking));
        Arc::new(Peers { hosts, addresses: up, seats, network, refusals, is_stopping, looking })
    }
}

impl Peers {
    /// What jobs on several hosts need.
    pub(crate) fn site(&self) -> Site {
        Site {
            this: Arc::clone(self.hosts.this()),
            hosts: self.addresses.clone(),
            seats: Arc::clone(&self.seats),
            network: self.network.clone(),
        }
    }

    /// What this daemon says about itself.
    pub(crate) fn this_host(&self) -> (About, HostStatus) {
        let this = self.hosts.this();
        (this.about.clone(), this.status_now())
    }

    /// The other hosts, which are asked first.
    pub(crate) async fn now(&self) -> Vec<PeerSnapshot> {
        self.hosts.refresh().await;
        self.hosts.snapshot()
    }

    /// The connections that were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refusals.count()
    }

    /// The numbers of hosts, without asking them.
    pub(crate) fn counts(&self) -> PeersUse {
        let hosts = self.hosts.snapshot();
        let up = hosts.iter().filter(|host| host.state == PeerState::Up).count() as u64;
        PeersUse { up, down: hosts.len() as u64 - up, refused: self.refused() }
    }

    /// Reads changed certificates now.
    ///
    /// # Errors
    /// When they are not valid; the former stay in use.
    pub(crate) fn reload(&self) -> Result<()> {
        self.hosts.this().identity.reload().map(drop).context("[peers] of the configuration")
    }

    /// Measures the links to `hosts` (names or addresses), or to all that are up, one after another.
    ///
    /// # Errors
    /// When none of the others has one of these names or addresses.
    pub(crate) async fn measure(
        &self,
        hosts: &[String],
        (connections, duration): (usize, Duration),
    ) -> Result<impl Stream<Item = Measured> + Send + use<>> {
        let known = self.now().await;
        let chosen = choose(&known, hosts)?;
        let this = Arc::clone(self.hosts.this());
        Ok(stream::iter(chosen).then(move |(name, address)| {
            let this = Arc::clone(&this);
            async move {
                let result = measure(&address, &this, connections, duration).await;
                Measured { name, address, result }
            }
            .boxed()
        }))
    }

    /// Closes the port, and removes the announcements of this host.
    pub(crate) async fn stop(&self) {
        self.is_stopping.send_replace(true);
        // Or it could announce this host again.
        let looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(looking) = looking {
            drop(looking.await);
        }
        if tokio::time::timeout(LEAVE_TIMEOUT, self.hosts.leave()).await.is_err() {
            tracing::warn!("the announcement of this host to peers was not removed in time");
        }
    }
}

/// Keeps `addresses` up to date with this host and all others that have answered. One that is down now may be back before it is visited
/// again.
async fn follow(hosts: Arc<Hosts>, addresses: watch::Sender<Addresses>) {
    let about = hosts.this().about.clone();
    loop {
        let mut others = hosts.snapshot();
        // Those that are up replace former addresses.
        others.sort_by_key(|host| host.state == PeerState::Up);
        let mut found: Addresses =
            others.into_iter().filter_map(|host| Some((host.about?.host, host.address))).collect();
        found.insert(about.host.clone(), about.address.clone());
        addresses.send_if_modified(|known| {
            let is_new = *known != found;
            *known = found;
            is_new
        });
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

/// The names and addresses of the hosts to measure.
fn choose(known: &[PeerSnapshot], wanted: &[String]) -> Result<Vec<(String, String)>> {
    let named = |peer: &PeerSnapshot| {
        let name = peer.about.as_ref().map(|about| about.host.to_string()).unwrap_or_default();
        (name, peer.address.clone())
    };
    if wanted.is_empty() {
        let up = known.iter().filter(|peer| peer.state == PeerState::Up);
        return Ok(up.map(named).collect());
    }
    let find = |host: &String| {
        let is_it = |peer: &&PeerSnapshot| {
            let (name, address) = named(peer);
            name == *host || address == *host
        };
        // After a host has moved, its former address may still be known.
        let found = known.iter().filter(is_it).min_by_key(|peer| peer.state != PeerState::Up).map(named);
        found.with_context(|| format!("no peer is called {host}; `millstream peers` lists them"))
    };
    wanted.iter().map(find).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_chosen_by_name_or_address() {
        let peer = |name: &str, address: &str, state| PeerSnapshot {
            address: address.to_owned(),
            about: Some(About {
                host: HostName::parse(name).unwrap(),
                version: String::new(),
                instance: 0,
                address: String::new(),
            }),
            state,
            since: Duration::ZERO,
            status: None,
            clock: None,
            round_trip: None,
        };
        let known =
            [peer("a", "10.0.0.1:1", PeerState::Up), peer("b", "10.0.0.2:1", PeerState::Down("x".into()))];
        let names = |wanted: &[&str]| {
            let wanted: Vec<_> = wanted.iter().map(|&host| host.to_owned()).collect();
            let chosen = choose(&known, &wanted)?;
            Ok::<_, anyhow::Error>(chosen.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap(), ["a"]);
        assert_eq!(names(&["10.0.0.2:1", "a"]).unwrap(), ["b", "a"]);
        let moved = [peer("a", "10.0.0.7:1", PeerState::Down("x".into())), known[0].clone()];
        assert_eq!(choose(&moved, &["a".to_owned()]).unwrap(), [("a".to_owned(), "10.0.0.1:1".to_owned())]);
        let error = names(&["c"]).unwrap_err().to_string();
        assert!(error.contains("no peer is called c"), "{error}");
    }
}
