//! Connects hosts that are simulated in one process, for the unit tests of ingest and for `tests/feeding.rs`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Error, MAX_UNRECEIVED, Peers, PieceKey, PieceUpdate};

/// Carries messages between hosts in one process.
pub(super) struct Hub {
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
    host: u32,
}

impl Hub {
    /// Connects `hosts` hosts; returns one end for each.
    pub(super) fn connect(hosts: u32) -> Vec<Arc<dyn Peers>> {
        let gone = vec![false; hosts as usize];
        let state = Mutex::new(State { gone, ..State::default() });
        let hub = Arc::new(Self { hosts, state, changed: Condvar::new() });
        let member = |host| Arc::new(Member { hub: Arc::clone(&hub), host }) as Arc<dyn Peers>;
        (0..hosts).map(member).collect()
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
    fn host(&self) -> u32 {
        self.host
    }

    fn hosts(&self) -> u32 {
        self.hub.hosts
    }

    fn send(&self, key: PieceKey, update: PieceUpdate) -> Result<(), Error> {
        let me = self.host;
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

    fn recv(&self, owner: u32, key: PieceKey) -> Result<PieceUpdate, Error> {
        let me = self.host;
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
        self.hub.lock().gone[self.host as usize] = true;
        self.hub.changed.notify_all();
    }
}
