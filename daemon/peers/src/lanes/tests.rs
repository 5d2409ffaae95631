//! Sessions over real connections on loopback.
#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_pipeline::ingest::{Exchange, ExchangeError, MAX_UNRECEIVED, Peers};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::*;
use crate::server::tests::Site;
use crate::server::{Refusals, ThisHost, serve};

const LANES: u32 = 6;

/// Hosts that serve each other.
struct Hosts {
    runtime: Runtime,
    _site: Site,
    hosts: Vec<Host>,
}

struct Host {
    this: Arc<ThisHost>,
    address: String,
    stop: Option<oneshot::Sender<()>>,
}

impl Hosts {
    fn start(count: usize) -> Self {
        let (runtime, site) = (Runtime::new().unwrap(), Site::new());
        let hosts = (0..count).map(|number| {
            let name = format!("host-{number}");
            let this = site.host_at((&name, &name), number as u64 + 1, "");
            let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let (stop, stopped) = oneshot::channel();
            let refusals = Arc::new(Refusals::default());
            runtime.spawn(serve(listener, Arc::clone(&this), refusals, |_| Vec::new(), async {
                drop(stopped.await);
            }));
            Host { this, address, stop: Some(stop) }
        });
        let hosts = hosts.collect();
        Self { runtime, _site: site, hosts }
    }

    fn members(&self) -> Vec<SessionHost> {
        let member =
            |host: &Host| SessionHost { name: host.this.about.host.clone(), address: host.address.clone() };
        self.hosts.iter().map(member).collect()
    }

    fn open(&self, id: u128, host: usize) -> OpenSession {
        let _entered = self.runtime.enter();
        Sessions::open(&self.hosts[host].this, SessionId(id), (host, self.members()), LANES).unwrap()
    }

    fn open_all(&self, id: u128) -> Vec<OpenSession> {
        (0..self.hosts.len()).map(|host| self.open(id, host)).collect()
    }
}

/// The update number `number` of a lane.
fn update(lane: u32, number: u32) -> Vec<u8> {
    [lane.to_le_bytes(), number.to_le_bytes()].concat()
}

/// Sends and receives `count` updates of each lane, which belong to the hosts in turn, in lockstep of the merge.
fn exchange(session: &Exchange, host: usize, count: u32) {
    let hosts = session.hosts();
    std::thread::scope(|scope| {
        for lane in (0..LANES).filter(|lane| lane % hosts == host as u32) {
            scope.spawn(move || {
                for number in 0..count {
                    session.send_bytes(lane, &update(lane, number)).unwrap();
                }
            });
        }
        for number in 0..count {
            for lane in (0..LANES).filter(|lane| lane % hosts != host as u32) {
                assert_eq!(session.recv_bytes(lane, (lane % hosts) as usize).unwrap(), update(lane, number));
            }
        }
    });
}

#[test]
fn every_host_gets_all_updates_in_order() {
    for count in 1..=4 {
        let hosts = Hosts::start(count);
        let sessions = hosts.open_all(7);
        std::thread::scope(|scope| {
            for (host, open) in sessions.iter().enumerate() {
                scope.spawn(move || exchange(open.session(), host, 500));
            }
        });
    }
}

#[test]
fn a_sender_waits_for_the_slowest_host() {
    let hosts = Hosts::start(3);
    let sessions = hosts.open_all(1);
    let [first, second, third] = [0, 1, 2].map(|host| Arc::clone(sessions[host].session()));
    for number in 0..MAX_UNRECEIVED as u32 {
        first.send_bytes(0, &update(0, number)).unwrap();
    }
    // Another lane has its own bound.
    first.send_bytes(3, &update(3, 0)).unwrap();
    let sender = std::thread::spawn(move || first.send_bytes(0, &update(0, 9)).unwrap());
    second.recv_bytes(0, 0).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(!sender.is_finished(), "the third host has taken none");
    third.recv_bytes(0, 0).unwrap();
    sender.join().unwrap();
}

#[test]
fn a_host_that_leaves_is_heard_to_its_end() {
    let hosts = Hosts::start(2);
    let mut sessions = hosts.open_all(1);
    let second = Arc::clone(sessions[1].session());
    let first = sessions.remove(0);
    first.session().send_bytes(0, &update(0, 0)).unwrap();
    first.session().send_bytes(0, &update(0, 1)).unwrap();
    let again = Arc::clone(first.session());
    drop(first);
    assert_eq!(again.send_bytes(0, &[]), Err(ExchangeError::Closed));
    assert_eq!(again.recv_bytes(1, 1), Err(ExchangeError::Closed));
    assert_eq!(second.recv_bytes(0, 0).unwrap(), update(0, 0));
    assert_eq!(second.recv_bytes(0, 0).unwrap(), update(0, 1));
    assert!(matches!(second.recv_bytes(0, 0), Err(ExchangeError::Gone { host: 0, .. })));
    // And nobody waits for it.
    (0..10).for_each(|number| second.send_bytes(1, &update(1, number)).unwrap());
}

#[test]
fn a_host_that_cannot_be_reached_is_gone_at_once() {
    let mut hosts = Hosts::start(2);
    drop(hosts.hosts[0].stop.take());
    std::thread::sleep(Duration::from_millis(100));
    let second = hosts.open(1, 1);
    let began = Instant::now();
    assert!(matches!(second.session().recv_bytes(0, 0), Err(ExchangeError::Gone { host: 0, .. })));
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn sessions_do_not_mix() {
    let hosts = Hosts::start(2);
    let (old, new) = (hosts.open_all(1), hosts.open_all(2));
    old[0].session().send_bytes(0, &[1]).unwrap();
    new[0].session().send_bytes(0, &[2]).unwrap();
    assert_eq!(new[1].session().recv_bytes(0, 0).unwrap(), [2]);
    assert_eq!(old[1].session().recv_bytes(0, 0).unwrap(), [1]);
    let _entered = hosts.runtime.enter();
    let again = Sessions::open(&hosts.hosts[0].this, SessionId(1), (0, hosts.members()), LANES);
    assert_eq!(again.err(), Some(OpenError::Again));
}

#[test]
fn only_the_hosts_of_a_session_may_send() {
    let hosts = Hosts::start(3);
    // Host 2 is no member, but takes the place of host 0.
    let members = hosts.members();
    let _entered = hosts.runtime.enter();
    let pair = members[..2].to_vec();
    let second = Sessions::open(&hosts.hosts[1].this, SessionId(9), (1, pair.clone()), LANES).unwrap();
    let impostor = Sessions::open(&hosts.hosts[2].this, SessionId(9), (0, pair), LANES).unwrap();
    impostor.session().send_bytes(0, &[7]).unwrap();
    // Its call is refused, so that the member it calls is gone for it.
    let gone = impostor.session().recv_bytes(1, 1).unwrap_err().to_string();
    assert!(gone.contains("host-2 is not host 0 of the session"), "{gone}");
    // The member still gets the updates of the true host, which comes later, and no others.
    let first =
        Sessions::open(&hosts.hosts[0].this, SessionId(9), (0, members[..2].to_vec()), LANES).unwrap();
    first.session().send_bytes(0, &[1]).unwrap();
    assert_eq!(second.session().recv_bytes(0, 0).unwrap(), [1]);
}

#[test]
fn a_host_that_can_only_be_reached_in_one_direction_is_gone() {
    let hosts = Hosts::start(2);
    let mut members = hosts.members();
    // The first host looks for the second one at a wrong address.
    let open = |host: usize, members: Vec<SessionHost>| {
        let _entered = hosts.runtime.enter();
        Sessions::open(&hosts.hosts[host].this, SessionId(4), (host, members), LANES).unwrap()
    };
    let second = open(1, members.clone());
    members[1].address = "127.0.0.1:1".to_owned();
    let first = open(0, members);
    assert!(matches!(first.session().recv_bytes(1, 1), Err(ExchangeError::Gone { host: 1, .. })));
    drop(first);
    assert!(matches!(second.session().recv_bytes(0, 0), Err(ExchangeError::Gone { host: 0, .. })));
}

#[test]
fn a_host_that_ignores_the_bound_is_cut_off() {
    let session = Exchange::new((0, 2), vec![None, None]);
    for _ in 0..MAX_UNRECEIVED {
        session.arrive(1, 1, Vec::new()).unwrap();
    }
    assert!(session.arrive(1, 1, Vec::new()).unwrap_err().contains("more than 2 updates of lane 1"));
    assert!(session.arrive(1, 2, Vec::new()).unwrap_err().contains("lane 2 of 2"));
}
