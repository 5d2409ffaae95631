//! What a transport guarantees, on the transport of the tests.

#![allow(clippy::unwrap_used)]

use std::thread;
use std::time::Duration;

use millstream_batch::Stream;

use super::hub::Hub;
use super::*;
use crate::order::Pass;

fn key(lane: u32, number: u64) -> PieceKey {
    PieceKey { pass: Pass { stream: Stream::Train, epoch: 0 }, lane, number }
}

#[test]
fn every_other_host_receives_each_piece_once_and_in_order() {
    let hosts = Hub::connect(3);
    thread::scope(|scope| {
        for receiver in [0, 2] {
            let host = &hosts[receiver];
            scope.spawn(move || {
                for number in 0..100 {
                    assert_eq!(host.recv(1, key(1, number)).unwrap(), PieceUpdate::End(number, None));
                }
            });
        }
        for number in 0..100 {
            hosts[1].send(key(1, number), PieceUpdate::End(number, None)).unwrap();
        }
    });
}

#[test]
fn updates_sent_before_leaving_are_received() {
    let hosts = Hub::connect(2);
    hosts[1].send(key(1, 0), PieceUpdate::End(7, None)).unwrap();
    hosts[1].close();
    assert_eq!(hosts[0].recv(1, key(1, 0)).unwrap(), PieceUpdate::End(7, None));
    assert!(matches!(hosts[0].recv(1, key(1, 1)), Err(Error::Peer { host: 1, .. })));
    assert!(matches!(hosts[1].send(key(1, 1), PieceUpdate::End(0, None)), Err(Error::Cancelled)));
    // Nobody waits for a host that is gone.
    for number in 0..10 {
        hosts[0].send(key(0, number), PieceUpdate::End(0, None)).unwrap();
    }
}

#[test]
fn hosts_that_started_apart_notice() {
    let hosts = Hub::connect(2);
    hosts[1].send(key(1, 4), PieceUpdate::End(7, None)).unwrap();
    assert!(matches!(hosts[0].recv(1, key(1, 3)), Err(Error::Peer { host: 1, .. })));
}

#[test]
fn closing_ends_both_waits() {
    let hosts = Hub::connect(2);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| hosts[0].recv(1, key(1, 0)));
        let sending = scope.spawn(|| {
            (0..10).try_for_each(|number| hosts[0].send(key(0, number), PieceUpdate::End(0, None)))
        });
        thread::sleep(Duration::from_millis(5));
        hosts[0].close();
        assert!(matches!(receiving.join().unwrap(), Err(Error::Cancelled)));
        assert!(matches!(sending.join().unwrap(), Err(Error::Cancelled)));
    });
}
