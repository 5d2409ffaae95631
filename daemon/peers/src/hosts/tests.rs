//! Hosts that find each other, with real connections on loopback.
#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;

use millstream_io::storage::{Directory, Stores};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::discovery::Board;
use crate::server::tests::Site;
use crate::server::{Refusals, serve};

/// A host with its server.
struct Running {
    hosts: Arc<Hosts>,
    address: String,
    /// Sending or dropping it ends the server.
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    /// The names of the hosts that are up, and the addresses of those that are down.
    fn seen(&self) -> (Vec<String>, Vec<String>) {
        let all = self.hosts.snapshot();
        let (up, down): (Vec<_>, Vec<_>) = all.into_iter().partition(|peer| peer.state == PeerState::Up);
        let name = |peer: PeerSnapshot| peer.about.unwrap().host.to_string();
        (up.into_iter().map(name).collect(), down.into_iter().map(|peer| peer.address).collect())
    }

    /// Asks all sources, and visits all hosts.
    async fn round(&self) {
        for name in &self.hosts.names {
            self.hosts.resolve(name).await;
        }
        for registry in &self.hosts.registries {
            self.hosts.list(registry).await;
        }
        self.hosts.find_fixed();
        self.hosts.state().entries.values_mut().for_each(Entry::retry_now);
        self.hosts.visit(Visited::Connected, None).await;
        self.hosts.visit(Visited::Others, None).await;
    }
}

/// Serves other daemons on `listener` until the sender is dropped.
fn serve_hosts(listener: TcpListener, hosts: &Arc<Hosts>) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let (this, heard) = (Arc::clone(hosts.this()), Arc::clone(hosts));
    let refusals = Arc::new(Refusals::default());
    let serving = serve(listener, this, refusals, move |about| heard.hear(about), async {
        drop(stopped.await);
    });
    (stop, tokio::spawn(serving))
}

/// Starts a host that knows `sources`, and the registry in a directory.
async fn start(site: &Site, name: &str, sources: &[&str], registry: Option<&str>) -> Running {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let instance = u64::from(listener.local_addr().unwrap().port());
    let this = site.host_at((name, name), instance, &address);
    let sources = sources.iter().map(|text| Source::parse(text).unwrap()).collect();
    let registries = registry
        .map(|path| Registry::new(Board::Directory(Directory::local(path), Stores::default())))
        .into_iter()
        .collect();
    let hosts = Hosts::new(Arc::clone(&this), sources, registries);
    let (stop, task) = serve_hosts(listener, &hosts);
    Running { hosts, address, stop, task }
}

#[tokio::test]
async fn a_new_host_needs_to_know_one_of_the_others() {
    let site = Site::new();
    let first = start(&site, "a", &[], None).await;
    let second = start(&site, "b", &[&format!("static:{}", first.address)], None).await;
    assert_eq!(first.hosts.snapshot(), []);
    second.round().await;
    assert_eq!(second.seen(), (vec!["a".to_owned()], vec![]));
    // It has been greeted.
    first.round().await;
    assert_eq!(first.seen(), (vec!["b".to_owned()], vec![]));
    let seen = &first.hosts.snapshot()[0];
    assert_eq!(seen.status.as_ref().unwrap().cpus, 12);
    let clock = seen.clock.unwrap();
    assert!(clock.seconds.abs() <= clock.error_seconds + 1e-3, "one clock: {clock:?}");
}

#[tokio::test]
async fn hosts_learn_of_each_other_from_a_third_one() {
    let site = Site::new();
    let first = start(&site, "a", &[], None).await;
    let known = format!("static:{}", first.address);
    let (second, third) =
        (start(&site, "b", &[&known], None).await, start(&site, "c", &[&known], None).await);
    second.round().await;
    // It has been greeted, and knows that the second one is up.
    first.round().await;
    // The answer to its greeting names the second one.
    third.round().await;
    third.round().await;
    assert_eq!(third.seen().0, ["a", "b"]);
    second.round().await;
    assert_eq!(second.seen().0, ["a", "c"]);
}

#[tokio::test]
async fn a_lost_host_is_down_until_it_answers_again() {
    let site = Site::new();
    let lost = start(&site, "a", &[], None).await;
    let sources = format!("static:{},127.0.0.1:1", lost.address);
    let host = start(&site, "b", &[&sources], None).await;
    host.round().await;
    assert_eq!(host.seen(), (vec!["a".to_owned()], vec!["127.0.0.1:1".to_owned()]));
    drop(lost.stop);
    lost.task.await.unwrap();
    host.round().await;
    assert_eq!(host.seen().0, Vec::<String>::new());
    let down = host.hosts.snapshot();
    let down = down.iter().find(|peer| peer.address == lost.address).unwrap();
    assert_eq!(down.about.as_ref().unwrap().host.as_str(), "a", "it is still known");
    assert!(matches!(&down.state, PeerState::Down(reason) if !reason.is_empty()), "{down:?}");

    let listener = TcpListener::bind(&lost.address).await.unwrap();
    let _serving = serve_hosts(listener, &lost.hosts);
    host.round().await;
    assert_eq!(host.seen().0, ["a"]);
}

#[tokio::test]
async fn own_and_second_addresses_are_not_shown() {
    let site = Site::new();
    let other = start(&site, "a", &[], None).await;
    let port = other.address.rsplit(':').next().unwrap().to_owned();
    let host = start(&site, "b", &[&format!("static:{},localhost:{port}", other.address)], None).await;
    host.hosts.state().found(&host.address);
    for _ in 0..3 {
        host.round().await;
        let shown = host.hosts.snapshot();
        assert_eq!(shown.len(), 1, "{shown:?}");
    }
    assert_eq!(host.seen().0, ["a"]);
}

#[tokio::test]
async fn hosts_find_each_other_in_a_directory() {
    let (site, dir) = (Site::new(), tempfile::tempdir().unwrap());
    let path = dir.path().to_str().unwrap();
    let mut running = Vec::new();
    for name in ["a", "b", "c"] {
        running.push(start(&site, name, &[], Some(path)).await);
    }
    for host in &running {
        host.round().await;
    }
    // The last one has found all, and greeted them.
    for host in &running {
        host.round().await;
        assert_eq!(host.seen().0.len(), 2);
    }
    running[0].hosts.leave().await;
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 2);
}

#[tokio::test]
async fn hosts_that_do_not_answer_are_visited_less_often() {
    let site = Site::new();
    let host = start(&site, "a", &["static:127.0.0.1:1"], None).await;
    let visits = |host: &Running| {
        let due = host.hosts.state().begin_visits(Visited::Others, None, host.hosts.this());
        due.len()
    };
    host.round().await;
    assert_eq!(visits(&host), 0, "a pause after a failure");
    // A greeting ends it.
    let about = About { address: "127.0.0.1:1".to_owned(), ..site.host_at(("b", "b"), 9, "").about.clone() };
    host.hosts.hear(&about);
    assert_eq!(visits(&host), 1);
    assert_eq!(visits(&host), 0, "it is being visited");
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_no_visit_unfinished() {
    let site = Site::new();
    let other = start(&site, "a", &[], None).await;
    let host = start(&site, "b", &[&format!("static:{}", other.address)], None).await;
    let is_up = || host.seen().0 == ["a"];
    // Long enough to begin, and too short to end.
    drop(tokio::time::timeout(Duration::from_micros(10), host.hosts.refresh()).await);
    let later = async {
        while !is_up() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            host.hosts.refresh().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), later).await.expect("it is visited");
    host.hosts.visits_in_flight().await;
}

#[tokio::test]
async fn a_host_cannot_pretend_to_be_another_one() {
    let site = Site::new();
    let other = start(&site, "a", &[], None).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // With the instance of the other one, which every daemon learns.
    let pretender = site.host_at(("b", "b"), other.hosts.this().about.instance, &address);
    let pretender = Hosts::new(pretender, Vec::new(), Vec::new());
    let _serving = serve_hosts(listener, &pretender);
    let sources = format!("static:{address},{}", other.address);
    let host = start(&site, "c", &[&sources], None).await;
    for _ in 0..2 {
        host.round().await;
        assert_eq!(host.seen().0, ["a", "b"]);
    }
}

#[test]
fn hosts_are_forgotten_once_no_source_names_them() {
    let mut state = State::default();
    state.found("a:1");
    state.hear(&HostName::named("b"), "b:1");
    state.forget();
    assert_eq!(state.entries.len(), 2);
    let long_ago = Instant::now().checked_sub(FORGET_AFTER + Duration::from_secs(1)).unwrap();
    state.entries.values_mut().for_each(|entry| entry.found = long_ago);
    state.found("a:1");
    state.forget();
    assert_eq!(state.entries.keys().collect::<Vec<_>>(), ["a:1"]);
    assert!(state.heard.is_empty());
}
