//! What hosts that train together exchange about their lanes.
//!
//! Every host computes the same order with the same [`Merge`](crate::order), which needs the extents of all lanes'
//! windows. It reads only its own lanes ([`Share`]). So the owner of a lane sends each piece's description to all other
//! hosts as soon as the piece is read: a window's [`WindowExtent`], the end of the lane in this pass, or an error. That
//! is some forty bytes for thousands of rows.
//!
//! [`Peers`] is the interface to the transport. It guarantees:
//!
//! * **Order:** updates of one lane are received in the order in which they were sent. All hosts of a generation start
//!   from one [`Position`](crate::order::Position), so both sides number a lane's pieces alike; a [`PieceKey`] only
//!   checks it.
//! * **Bound:** sending waits while a host has not received [`MAX_UNRECEIVED`] earlier pieces of the lane.
//! * **No deadlock:** consider the host that is furthest behind in the order. If it needs a piece of its own lane,
//!   nothing keeps it from reading that. If it needs another host's, the owner is no further behind, so the previous
//!   piece was taken there and this one is being read; sending it does not wait, because every host has received the
//!   previous piece.
//! * **Errors:** a lane's error is sent in place of its window and ends all hosts at the same row. A host that is gone
//!   ends the others at the first piece that it owes.
//!
//! [`Hub`] connects hosts that are simulated in one process.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::lane::Piece;
use crate::error::Error;
use crate::order::{Pass, Share, WindowExtent};

/// The maximum number of pieces of a lane that some host has not received.
pub const MAX_UNRECEIVED: usize = 2;

/// The other hosts, as one host sees them.
pub trait Peers: Send + Sync {
    /// This host's share of the lanes.
    fn share(&self) -> Share;

    /// Sends an update about a piece of one of this host's lanes to every other host. Waits while one of them has not
    /// received [`MAX_UNRECEIVED`] earlier ones; does not wait for a host that is gone.
    ///
    /// # Errors
    /// [`Error::Cancelled`] once closed.
    fn send(&self, key: PieceKey, update: PieceUpdate) -> Result<(), Error>;

    /// Waits for the update of a lane's next piece from its owner.
    ///
    /// # Errors
    /// [`Error::Peer`] when the owner is gone without sending it, or sent another piece's;
    /// [`Error::Cancelled`] once closed.
    fn recv(&self, key: PieceKey) -> Result<PieceUpdate, Error>;

    /// Leaves: ends all waits of this host, present and future. Updates sent before still reach the others.
    fn close(&self);
}

/// Identifies a piece of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceKey {
    /// The pass.
    pub pass: Pass,
    /// The lane.
    pub lane: u32,
    /// Its number in the lane, counted on from the cursor's window.
    pub number: u64,
}

/// What other hosts need to know of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceUpdate {
    /// A window, and the error of its last skipped record, if any.
    Window(WindowExtent, Option<String>),
    /// The end of the lane: the number of records skipped since its last window, and the error of the last one.
    End(u64, Option<String>),
    /// The lane failed with this error.
    Failed(String),
}

impl PieceUpdate {
    pub(super) fn of(piece: &Piece) -> Self {
        let message = |error: &Option<Error>| error.as_ref().map(ToString::to_string);
        match piece {
            Piece::Window(window) => Self::Window(window.extent, message(&window.last_left_out)),
            Piece::End(left_out) => Self::End(left_out.records, message(&left_out.last)),
        }
    }
}

/// Carries messages between hosts in one process.
pub struct Hub {
    hosts: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Updates sent and not received, by receiving host and lane.
    queues: HashMap<(u32, u32), VecDeque<(PieceKey, PieceUpdate)>>,
    gone: Vec<bool>,
}

/// One host of a [`Hub`].
struct Member {
    hub: Arc<Hub>,
    share: Share,
}

impl Hub {
    /// Connects `hosts` hosts; returns one end for each.
    pub fn connect(hosts: u32) -> Vec<Arc<dyn Peers>> {
        let gone = vec![false; hosts as usize];
        let state = Mutex::new(State { gone, ..State::default() });
        let hub = Arc::new(Self { hosts, state, changed: Condvar::new() });
        let shares = (0..hosts).filter_map(|host| Share::new(host, hosts));
        shares.map(|share| Arc::new(Member { hub: Arc::clone(&hub), share }) as Arc<dyn Peers>).collect()
    }

    /// No panic under the lock can leave the state inconsistent, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers for Member {
    fn share(&self) -> Share {
        self.share
    }

    fn send(&self, key: PieceKey, update: PieceUpdate) -> Result<(), Error> {
        let me = self.share.host();
        for other in (0..self.hub.hosts).filter(|&host| host != me) {
            let mut state = self.hub.lock();
            loop {
                if state.gone[me as usize] {
                    return Err(Error::Cancelled);
                }
                if state.gone[other as usize] {
                    break;
                }
                let queue = state.queues.entry((other, key.lane)).or_default();
                if queue.len() < MAX_UNRECEIVED {
                    queue.push_back((key, update.clone()));
                    self.hub.changed.notify_all();
                    break;
                }
                state = self.hub.wait(state);
            }
        }
        Ok(())
    }

    fn recv(&self, key: PieceKey) -> Result<PieceUpdate, Error> {
        let (me, owner) = (self.share.host(), self.share.owner(key.lane));
        let mut state = self.hub.lock();
        loop {
            if state.gone[me as usize] {
                return Err(Error::Cancelled);
            }
            let next = state.queues.get_mut(&(me, key.lane)).and_then(VecDeque::pop_front);
            if let Some((received, update)) = next {
                self.hub.changed.notify_all();
                let other = || format!("sent {received:?}, but {key:?} is next");
                return if received == key {
                    Ok(update)
                } else {
                    Err(Error::Peer { host: owner, message: other() })
                };
            }
            if state.gone[owner as usize] {
                return Err(Error::Peer { host: owner, message: "is gone".to_owned() });
            }
            state = self.hub.wait(state);
        }
    }

    fn close(&self) {
        self.hub.lock().gone[self.share.host() as usize] = true;
        self.hub.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;
    use std::time::Duration;

    use millstream_batch::Stream;

    use super::*;

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
                        assert_eq!(host.recv(key(1, number)).unwrap(), PieceUpdate::End(number, None));
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
        assert_eq!(hosts[0].recv(key(1, 0)).unwrap(), PieceUpdate::End(7, None));
        assert!(matches!(hosts[0].recv(key(1, 1)), Err(Error::Peer { host: 1, .. })));
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
        assert!(matches!(hosts[0].recv(key(1, 3)), Err(Error::Peer { host: 1, .. })));
    }

    #[test]
    fn closing_ends_both_waits() {
        let hosts = Hub::connect(2);
        thread::scope(|scope| {
            let receiving = scope.spawn(|| hosts[0].recv(key(1, 0)));
            let sending = scope.spawn(|| {
                (0..10).try_for_each(|number| hosts[0].send(key(0, number), PieceUpdate::End(0, None)))
            });
            thread::sleep(Duration::from_millis(5));
            hosts[0].close();
            assert!(matches!(receiving.join().unwrap(), Err(Error::Cancelled)));
            assert!(matches!(sending.join().unwrap(), Err(Error::Cancelled)));
        });
    }
}
