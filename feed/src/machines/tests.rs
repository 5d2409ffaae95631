//! Hosts that connect over loopback, and others that try to.
#![allow(clippy::unwrap_used)]

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use millstream_pipeline::ingest::ExchangeError;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// Hosts of a rank each that have met.
fn meet(hosts: &[Waiting], lanes: u32) -> Vec<Result<Met, Error>> {
    let machines = machines(hosts);
    thread::scope(|scope| {
        let meet = |host| {
            let machines = machines.clone();
            scope.spawn(move || meet_one(host, machines, lanes, LIMIT))
        };
        let meeting: Vec<_> = hosts.iter().map(meet).collect();
        meeting.into_iter().map(|host| host.join().unwrap()).collect()
    })
}

/// Meets as the host that has the rank of `host` in the list.
fn meet_one(host: &Waiting, machines: Vec<Machine>, lanes: u32, limit: Duration) -> Result<Met, Error> {
    let here = machines.iter().find(|machine| machine.meeting.token == host.meeting.token).unwrap();
    let runs = Runs::new(machines.len() as u32, &here.ranks).unwrap();
    host.meet(machines, (&runs, lanes), |_| Ok(()), limit, &AtomicBool::new(false))
}

fn open(count: usize) -> Vec<Waiting> {
    let request = ShardRequest { toward: Some("localhost".to_owned()), ..ShardRequest::default() };
    (0..count).map(|_| Waiting::open(&request).unwrap()).collect()
}

fn machines(hosts: &[Waiting]) -> Vec<Machine> {
    (0..)
        .zip(hosts)
        .map(|(rank, host)| Machine { ranks: vec![rank], meeting: host.meeting().clone() })
        .collect()
}

#[test]
fn hosts_exchange_updates_in_order() {
    const LANES: u32 = 7;
    for count in 1..=4_u32 {
        let hosts = open(count as usize);
        let met: Vec<_> = meet(&hosts, LANES).into_iter().map(Result::unwrap).collect();
        let update = |lane: u32, number: u32| [lane.to_le_bytes(), number.to_le_bytes()].concat();
        thread::scope(|scope| {
            for Met { others: OtherHosts { exchange }, shards, .. } in &met {
                let (host, owner) = (shards.deal().host(), |lane| shards.deal().owner(lane));
                for lane in (0..LANES).filter(|&lane| owner(lane) == host) {
                    scope.spawn(move || {
                        (0..300).for_each(|number| exchange.send_bytes(lane, &update(lane, number)).unwrap());
                    });
                }
                scope.spawn(move || {
                    for number in 0..300 {
                        for lane in (0..LANES).filter(|&lane| shards.deal().owner(lane) != host) {
                            let from = shards.deal().owner(lane) as usize;
                            assert_eq!(exchange.recv_bytes(lane, from).unwrap(), update(lane, number));
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_host_that_leaves_is_heard_to_its_end() {
    let hosts = open(2);
    let mut met: Vec<_> = meet(&hosts, 2).into_iter().map(|met| met.unwrap().others).collect();
    let second = met.pop().unwrap();
    let first = met.pop().unwrap();
    // Unread updates in both directions.
    second.exchange.send_bytes(1, &[9]).unwrap();
    first.exchange.send_bytes(0, &[1]).unwrap();
    first.exchange.send_bytes(0, &[2]).unwrap();
    drop(first);
    thread::sleep(Duration::from_millis(100));
    assert_eq!([1, 2].map(|_| second.exchange.recv_bytes(0, 0).unwrap()), [[1], [2]]);
    let end = second.exchange.recv_bytes(0, 0).unwrap_err();
    assert_eq!(end, ExchangeError::Gone { host: 0, reason: "it has left".to_owned() });
    (0..10).for_each(|_| second.exchange.send_bytes(1, &[]).unwrap());
}

#[test]
fn those_who_do_not_know_the_secret_are_refused_and_do_not_disturb() {
    let hosts = open(2);
    let port = hosts[0].meeting().port;
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    // Before the others: one that says nothing, one that says little, one that says something else, and one with another secret.
    let silent = connect();
    let mut slow = connect();
    let ended = Arc::new(AtomicBool::new(false));
    let is_slow = thread::spawn({
        let ended = Arc::clone(&ended);
        move || {
            while !ended.load(Ordering::Relaxed) && slow.write_all(b"m").is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let mut strange = connect();
    strange.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    strange.shutdown(Shutdown::Write).unwrap();
    let impostor = thread::spawn({
        let socket = connect();
        move || Greeting { from: 1, to: 0 }.call(socket, &Secret([7; 64])).err().map(|error| error.kind())
    });
    let began = Instant::now();
    let met: Vec<_> = meet(&hosts, 2).into_iter().map(|met| met.unwrap().others).collect();
    assert!(began.elapsed() < Duration::from_secs(4), "nobody waits for strangers");
    met[1].exchange.send_bytes(1, &[5]).unwrap();
    assert_eq!(met[0].exchange.recv_bytes(1, 1).unwrap(), [5]);
    assert!(matches!(impostor.join().unwrap(), Some(io::ErrorKind::PermissionDenied)));
    ended.store(true, Ordering::Relaxed);
    is_slow.join().unwrap();
    drop(silent);
}

#[test]
fn an_answerer_that_does_not_know_the_secret_is_passed_over() {
    let mut hosts = open(2);
    // The first address of the first host is that of somebody else, who answers with what was said.
    let other = TcpListener::bind("127.0.0.2:0").unwrap();
    let port = other.local_addr().unwrap().port();
    hosts[0].listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    hosts[0].meeting.port = port;
    hosts[0].meeting.addresses = vec!["127.0.0.2".parse().unwrap(), "127.0.0.1".parse().unwrap()];
    thread::spawn(move || {
        let (mut socket, _) = other.accept().unwrap();
        let mut said = [0; 64];
        let read = socket.read(&mut said).unwrap();
        let _ = socket.write_all(&said[..read]);
        let _ = socket.write_all(&[0; 64]);
    });
    assert!(meet(&hosts, 2).into_iter().all(|met| met.is_ok()));
}

#[test]
fn a_host_that_falls_silent_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let link = Link::new(listener.accept().unwrap().0);
    let exchange = Arc::new(Exchange::new((0, 2), vec![None, Some(link.updates())]));
    exchange.begin(1, link.credits()).unwrap();
    let [heartbeat, silence, first] = [20, 500, 700].map(Duration::from_millis);
    let timing = Timing { heartbeat, silence, first };
    link.start(&exchange, 1, timing).unwrap();
    let began = Instant::now();
    silent.write_all(&[2]).unwrap();
    let end = exchange.recv_bytes(1, 1).unwrap_err().to_string();
    assert!(end.contains("nothing has come from it for 0.5 s"), "{end}");
    assert!(began.elapsed() >= silence);
    // Meanwhile this end has said that it is there.
    let mut said = [0; 4];
    silent.read_exact(&mut said).unwrap();
    assert_eq!(said, [2; 4]);
}

#[test]
fn a_host_that_cannot_read_its_shard_connects_to_nobody() {
    let hosts = open(2);
    let refuse = |host: usize, ranks: &[u32]| {
        let runs = Runs::new(2, ranks).unwrap();
        let check = |_: &Shards| Err(Error::Failed("too little data".to_owned()));
        let met = hosts[host].meet(machines(&hosts), (&runs, 2), check, LIMIT, &AtomicBool::new(false));
        met.unwrap_err().to_string()
    };
    assert_eq!([refuse(0, &[0]), refuse(1, &[1])], ["too little data"; 2]);
    assert!(refuse(1, &[0]).contains("does not have the ranks that have attached"));
    hosts[0].listener.set_nonblocking(true).unwrap();
    assert_eq!(hosts[0].listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_host_that_breaks_the_rules_is_gone() {
    let cases: [(&[u8], &str); 4] = [
        (&[7], "a message of kind 7"),
        (&[0, 1, 0, 0, 0, 255, 255], "an update of 65535 bytes"),
        (&[0, 2, 0, 0, 0, 0, 0], "lane 2 of 2"),
        (&[0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0], "more than 2 updates of lane 1"),
    ];
    for (said, expected) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let link = Link::new(listener.accept().unwrap().0);
        let exchange = Arc::new(Exchange::new((0, 2), vec![None, Some(link.updates())]));
        exchange.begin(1, link.credits()).unwrap();
        link.start(&exchange, 1, Timing::default()).unwrap();
        other.write_all(said).unwrap();
        let end = loop {
            match exchange.recv_bytes(0, 1) {
                Ok(_) => {}
                Err(end) => break end.to_string(),
            }
        };
        assert!(end.contains(expected), "{end}");
    }
}

#[test]
fn a_host_without_the_others_ends_with_their_addresses_or_when_it_is_cancelled() {
    let hosts = open(2);
    let [first, second] = [0, 1].map(|host| {
        let (machines, limit) = (machines(&hosts), Duration::from_millis(300));
        let gone = machines[1 - host].meeting.port;
        let machines = machines.into_iter().map(|mut machine| {
            // A port at which nobody listens.
            machine.meeting.port = if machine.meeting.port == gone { 1 } else { machine.meeting.port };
            machine
        });
        meet_one(&hosts[host], machines.collect(), 2, limit).unwrap_err().to_string()
    });
    assert!(first.contains("the machine of rank 1 has not connected to this one"), "{first}");
    assert!(
        second.contains("the machine of rank 0 cannot be reached at") && second.contains(":1: "),
        "{second}"
    );
    for host in &hosts {
        let rank = u32::from(host.meeting.token != hosts[0].meeting.token);
        let runs = Runs::new(2, &[rank]).unwrap();
        let meet = |is_cancelled: &AtomicBool| {
            host.meet(machines(&hosts), (&runs, 2), |_| Ok(()), LIMIT, is_cancelled).unwrap_err().to_string()
        };
        let is_cancelled = AtomicBool::new(false);
        let error = thread::scope(|scope| {
            let meeting = scope.spawn(|| meet(&is_cancelled));
            thread::sleep(Duration::from_millis(200));
            is_cancelled.store(true, Ordering::Relaxed);
            meeting.join().unwrap()
        });
        assert!(error.contains("cancelled"), "{error}");
    }
}
