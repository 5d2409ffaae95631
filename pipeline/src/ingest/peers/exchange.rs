//! An exchange of updates as one host sees it, without the connections that carry them.
//!
//! A transport supplies the functions that send to each other host ([`SendUpdate`], [`SendCredit`]), and passes on the updates
//! and credits that arrive. A host gives credit for each update that it takes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{MAX_ENCODED_BYTES, MAX_UNRECEIVED, Peers, PieceKey, PieceUpdate};
use crate::error::Error;

/// Passes an update of a lane, encoded, on to another host, without waiting.
pub type SendUpdate = Box<dyn FnMut(u32, &[u8]) -> Result<(), Unsent> + Send>;

/// Passes credit for one update of a lane on to the host that has sent it, without waiting.
pub type SendCredit = Box<dyn FnMut(u32) + Send>;

/// Why an update was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// The connection has ended. The transport then reports what has become of the other host.
    Ended,
    /// The other host has given credit for more updates than the connection has carried.
    Full,
}

/// An exchange of updates with other hosts. Sending and receiving block; they belong to the threads of ingest.
pub struct Exchange {
    host: usize,
    hosts: usize,
    lanes: u32,
    state: Mutex<State>,
    changed: Condvar,
}

/// Why an exchange ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// This host has left it.
    #[error("this host has left the exchange of lanes")]
    Closed,
    /// Another host is gone.
    #[error("host {host} is gone: {reason}")]
    Gone {
        /// Its number.
        host: usize,
        /// Why.
        reason: String,
    },
}

struct State {
    is_closed: bool,
    /// By host.
    others: Vec<Other>,
    /// Updates that have not been taken, by their sender and lane.
    arrived: HashMap<(usize, u32), VecDeque<Vec<u8>>>,
}

/// Another host.
#[derive(Default)]
struct Other {
    /// Why it is gone.
    gone: Option<String>,
    /// Whether its updates can arrive. Their connection can begin once.
    has_begun: bool,
    /// Carries updates to it.
    updates: Option<SendUpdate>,
    /// The number of updates that it has not taken, by lane.
    unreceived: HashMap<u32, usize>,
    /// Carries credits to it.
    credits: Option<SendCredit>,
}

impl Exchange {
    /// The exchange of host `host` about `lanes` lanes. `updates` sends to each host, by number; that of this host is `None`.
    pub fn new((host, lanes): (usize, u32), updates: Vec<Option<SendUpdate>>) -> Self {
        let hosts = updates.len();
        let others = updates.into_iter().map(|updates| Other { updates, ..Other::default() }).collect();
        let state = State { is_closed: false, others, arrived: HashMap::new() };
        Self { host, hosts, lanes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The number of lanes.
    pub fn lanes(&self) -> u32 {
        self.lanes
    }

    /// Sends an update about a lane of this host to all others. Waits while one of them has not taken [`MAX_UNRECEIVED`]
    /// earlier ones.
    ///
    /// # Errors
    /// [`ExchangeError::Closed`] once this host has left.
    pub fn send_bytes(&self, lane: u32, update: &[u8]) -> Result<(), ExchangeError> {
        let mut state = self.state();
        while !state.is_closed && state.others.iter().any(|other| other.is_behind(lane)) {
            state = self.wait(state);
        }
        if state.is_closed {
            return Err(ExchangeError::Closed);
        }
        for other in state.others.iter_mut().filter(|other| other.gone.is_none()) {
            let Some(updates) = &mut other.updates else { continue };
            match updates(lane, update) {
                Ok(()) => *other.unreceived.entry(lane).or_default() += 1,
                Err(Unsent::Ended) => {}
                Err(Unsent::Full) => {
                    other.gone = Some("it gives credit for updates that it has not read".to_owned());
                    other.updates = None;
                    self.changed.notify_all();
                }
            }
        }
        Ok(())
    }

    /// Waits for the next update about `lane` from its owner, host `from`.
    ///
    /// # Errors
    /// [`ExchangeError::Gone`] if that host is gone and nothing of it is left; [`ExchangeError::Closed`] once this host has
    /// left.
    pub fn recv_bytes(&self, lane: u32, from: usize) -> Result<Vec<u8>, ExchangeError> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return Err(ExchangeError::Closed);
            }
            if let Some(update) = state.arrived.get_mut(&(from, lane)).and_then(VecDeque::pop_front) {
                if let Some(credits) = &mut state.others[from].credits {
                    credits(lane);
                }
                return Ok(update);
            }
            if let Some(reason) = &state.others[from].gone {
                return Err(ExchangeError::Gone { host: from, reason: reason.clone() });
            }
            state = self.wait(state);
        }
    }

    /// Host `from` begins to send its updates; `credits` carries one to it for each that is taken.
    ///
    /// # Errors
    /// If it cannot: it is this host, unknown, gone, or has begun before.
    pub fn begin(&self, from: usize, credits: SendCredit) -> Result<(), String> {
        let mut state = self.state();
        if from == self.host || from >= self.hosts {
            return Err(format!("there is no other host {from}"));
        }
        if state.is_closed {
            return Err("this host has left".to_owned());
        }
        let other = &mut state.others[from];
        if let Some(reason) = &other.gone {
            return Err(format!("host {from} is gone: {reason}"));
        }
        if other.has_begun {
            return Err(format!("host {from} sends its updates again"));
        }
        (other.has_begun, other.credits) = (true, Some(credits));
        Ok(())
    }

    /// An update of host `from` has arrived.
    ///
    /// # Errors
    /// If the host does not keep to the bound, or there is no such lane.
    pub fn arrive(&self, from: usize, lane: u32, update: Vec<u8>) -> Result<(), String> {
        if lane >= self.lanes {
            return Err(format!("lane {lane} of {}", self.lanes));
        }
        let mut state = self.state();
        let arrived = state.arrived.entry((from, lane)).or_default();
        if arrived.len() >= MAX_UNRECEIVED {
            return Err(format!("more than {MAX_UNRECEIVED} updates of lane {lane}"));
        }
        arrived.push_back(update);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Host `to` has taken an update of `lane`.
    pub fn taken(&self, to: usize, lane: u32) {
        let mut state = self.state();
        if let Some(unreceived) = state.others[to].unreceived.get_mut(&lane) {
            *unreceived = unreceived.saturating_sub(1);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Host `to` does not take updates any more. What it has sent may still arrive.
    pub fn stop_sending(&self, to: usize) {
        self.state().others[to].updates = None;
        self.changed.notify_all();
    }

    /// Host `host` has left, unless the connection of its updates has begun: then the end of that decides.
    pub fn lose_unless_begun(&self, host: usize, reason: &str) {
        let mut state = self.state();
        if !state.others[host].has_begun {
            state.others[host].lose(reason);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Host `host` is gone: nothing of it arrives any more. The first reason stays.
    pub fn lose(&self, host: usize, reason: &str) {
        self.state().others[host].lose(reason);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers for Exchange {
    fn host(&self) -> u32 {
        self.host as u32
    }

    fn hosts(&self) -> u32 {
        self.hosts as u32
    }

    fn send(&self, key: PieceKey, update: PieceUpdate) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(MAX_ENCODED_BYTES.min(64));
        update.encode(key, &mut bytes);
        self.send_bytes(key.lane, &bytes).map_err(|error| lost(error, self.host as u32))
    }

    fn recv(&self, owner: u32, key: PieceKey) -> Result<PieceUpdate, Error> {
        let bytes = self.recv_bytes(key.lane, owner as usize).map_err(|error| lost(error, owner))?;
        let broken = |message: String| Error::Peer { host: owner, message };
        let (found, update) = PieceUpdate::decode(&bytes).map_err(|error| broken(error.to_string()))?;
        if found != key {
            return Err(broken(format!("it has sent {found:?} instead of {key:?}")));
        }
        Ok(update)
    }

    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for other in &mut state.others {
            (other.updates, other.credits) = (None, None);
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// The error of an exchange with host `host`.
fn lost(error: ExchangeError, host: u32) -> Error {
    match error {
        ExchangeError::Closed => Error::Cancelled,
        ExchangeError::Gone { reason, .. } => Error::Peer { host, message: reason },
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, hosts, lanes, .. } = self;
        write!(f, "Exchange of host {host} of {hosts} about {lanes} lanes")
    }
}

impl Other {
    /// It is gone, for this reason unless there is one.
    fn lose(&mut self, reason: &str) {
        self.gone.get_or_insert_with(|| reason.to_owned());
        (self.updates, self.credits) = (None, None);
    }

    /// Whether it has not taken the last updates of `lane`, and may still.
    fn is_behind(&self, lane: u32) -> bool {
        self.gone.is_none()
            && self.updates.is_some()
            && self.unreceived.get(&lane).is_some_and(|&unreceived| unreceived >= MAX_UNRECEIVED)
    }
}
