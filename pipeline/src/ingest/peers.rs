//! What hosts that train together tell each other about their lanes.
//!
//! Every host decides the same order by the same [`Merge`](crate::order), for which it must know the extents
//! of all lanes' windows, and reads only the lanes that are its own ([`Share`]). So the owner of a lane tells
//! all others of each piece of it, as soon as it is read: a window's [`WindowExtent`], the end of the lane in this
//! pass, or what went wrong. That is some forty bytes for thousands of rows.
//!
//! [`Peers`] is the seam to whatever carries these messages. **Order:** what is told of one lane is heard in
//! the order in which it was told; all hosts of a generation start from one [`Position`](crate::order::Position),
//! so both sides number a lane's pieces alike and a [`PieceKey`] only checks it. **Bound:** telling waits
//! while a host has not yet heard [`MOST_UNHEARD`] earlier pieces of the lane. **No deadlock:** of all hosts
//! take the one that is furthest behind in the order. If it needs a piece of its own lane, nobody keeps it
//! from reading that. If it needs another's, the owner is no further behind, so the piece before was taken
//! there and this one is being read; and telling it waits for nobody, as every host has heard the piece
//! before. **Errors:** a lane's error is told in the place of its window, and ends the others' feeds at the
//! same row as the owner's. A host that is gone ends them at the first piece that it owes.
//!
//! [`Hub`] carries messages between hosts that are simulated in one process.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::lane::Piece;
use crate::error::Error;
use crate::order::{Pass, Share, WindowExtent};

/// Pieces of a lane that may have been told and not yet heard by some host.
pub const MOST_UNHEARD: usize = 2;

/// The other hosts, as one host sees them.
pub trait Peers: Send + Sync {
    /// This host's share of the lanes.
    fn share(&self) -> Share;

    /// Tells every other host about a piece of one of this host's lanes. Waits while one of them has not
    /// heard the [`MOST_UNHEARD`] before; a host that is gone is not waited for.
    ///
    /// # Errors
    /// [`Error::Cancelled`] once closed.
    fn tell(&self, key: PieceKey, told: Told) -> Result<(), Error>;

    /// Waits for what the owner of a lane tells about its next piece.
    ///
    /// # Errors
    /// [`Error::Peer`] when the owner is gone and had not told it, or tells of another piece;
    /// [`Error::Cancelled`] once closed.
    fn hear(&self, key: PieceKey) -> Result<Told, Error>;

    /// Leaves: ends all waits here, present and future. What was told before still reaches the others.
    fn close(&self);
}

/// Which piece of which lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceKey {
    /// The pass.
    pub pass: Pass,
    /// The lane.
    pub lane: u32,
    /// Its number in the lane, counted on from the cursor's window.
    pub number: u64,
}

/// What others need to know of a piece of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A window, and what was wrong with the last record left out of it, if one was.
    Window(WindowExtent, Option<String>),
    /// The lane ends; so many records were left out since its last window, and what was wrong with the last.
    End(u64, Option<String>),
    /// The lane could not go on, for this reason.
    Failed(String),
}

impl Told {
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
    /// Told and not yet heard, by hearing host and lane.
    queues: HashMap<(u32, u32), VecDeque<(PieceKey, Told)>>,
    gone: Vec<bool>,
}

/// One host of a [`Hub`].
struct Member {
    hub: Arc<Hub>,
    share: Share,
}

impl Hub {
    /// Brings `hosts` hosts together: one end for each.
    pub fn connect(hosts: u32) -> Vec<Arc<dyn Peers>> {
        let gone = vec![false; hosts as usize];
        let state = Mutex::new(State { gone, ..State::default() });
        let hub = Arc::new(Self { hosts, state, changed: Condvar::new() });
        let shares = (0..hosts).filter_map(|host| Share::new(host, hosts));
        shares.map(|share| Arc::new(Member { hub: Arc::clone(&hub), share }) as Arc<dyn Peers>).collect()
    }

    /// No code under the lock can leave it half-changed, so a panic elsewhere does not poison it.
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

    fn tell(&self, key: PieceKey, told: Told) -> Result<(), Error> {
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
                if queue.len() < MOST_UNHEARD {
                    queue.push_back((key, told.clone()));
                    self.hub.changed.notify_all();
                    break;
                }
                state = self.hub.wait(state);
            }
        }
        Ok(())
    }

    fn hear(&self, key: PieceKey) -> Result<Told, Error> {
        let (me, owner) = (self.share.host(), self.share.owner(key.lane));
        let mut state = self.hub.lock();
        loop {
            if state.gone[me as usize] {
                return Err(Error::Cancelled);
            }
            let next = state.queues.get_mut(&(me, key.lane)).and_then(VecDeque::pop_front);
            if let Some((heard, told)) = next {
                self.hub.changed.notify_all();
                let other = || format!("told of {heard:?} where {key:?} is next");
                return if heard == key {
                    Ok(told)
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
    fn every_other_host_hears_each_piece_once_and_in_order() {
        let hosts = Hub::connect(3);
        thread::scope(|scope| {
            for hearer in [0, 2] {
                let host = &hosts[hearer];
                scope.spawn(move || {
                    for number in 0..100 {
                        assert_eq!(host.hear(key(1, number)).unwrap(), Told::End(number, None));
                    }
                });
            }
            for number in 0..100 {
                hosts[1].tell(key(1, number), Told::End(number, None)).unwrap();
            }
        });
    }

    #[test]
    fn what_was_told_is_heard_though_the_teller_is_gone_and_then_no_more() {
        let hosts = Hub::connect(2);
        hosts[1].tell(key(1, 0), Told::End(7, None)).unwrap();
        hosts[1].close();
        assert_eq!(hosts[0].hear(key(1, 0)).unwrap(), Told::End(7, None));
        assert!(matches!(hosts[0].hear(key(1, 1)), Err(Error::Peer { host: 1, .. })));
        assert!(matches!(hosts[1].tell(key(1, 1), Told::End(0, None)), Err(Error::Cancelled)));
        // Nobody waits for a host that is gone.
        for number in 0..10 {
            hosts[0].tell(key(0, number), Told::End(0, None)).unwrap();
        }
    }

    #[test]
    fn hosts_that_started_apart_notice() {
        let hosts = Hub::connect(2);
        hosts[1].tell(key(1, 4), Told::End(7, None)).unwrap();
        assert!(matches!(hosts[0].hear(key(1, 3)), Err(Error::Peer { host: 1, .. })));
    }

    #[test]
    fn closing_ends_both_waits() {
        let hosts = Hub::connect(2);
        thread::scope(|scope| {
            let hearing = scope.spawn(|| hosts[0].hear(key(1, 0)));
            let telling = scope
                .spawn(|| (0..10).try_for_each(|number| hosts[0].tell(key(0, number), Told::End(0, None))));
            thread::sleep(Duration::from_millis(5));
            hosts[0].close();
            assert!(matches!(hearing.join().unwrap(), Err(Error::Cancelled)));
            assert!(matches!(telling.join().unwrap(), Err(Error::Cancelled)));
        });
    }
}
