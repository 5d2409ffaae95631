//! One generation's exchange of updates, as one host sees it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use crate::proto::LaneUpdate;

/// The most updates of a lane that a host has not taken.
pub const MAX_UNRECEIVED: usize = 2;

/// An exchange of updates. Its calls block; they belong to the threads of ingest.
#[derive(Debug)]
pub struct Session {
    host: usize,
    hosts: usize,
    lanes: u32,
    state: Mutex<State>,
    changed: Condvar,
}

/// Why an exchange ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
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

#[derive(Debug)]
struct State {
    is_closed: bool,
    /// By host.
    others: Vec<Other>,
    /// Updates that have not been taken, by their sender and lane.
    arrived: HashMap<(usize, u32), VecDeque<Vec<u8>>>,
}

/// Another host.
#[derive(Debug, Default)]
struct Other {
    /// Why it is gone.
    gone: Option<String>,
    /// Whether it sends updates over a call. It can do so once.
    has_called: bool,
    /// Carries updates to it.
    updates: Option<Sender<LaneUpdate>>,
    /// The number of updates that it has not taken, by lane.
    unreceived: HashMap<u32, usize>,
    /// Carries credits to it.
    credits: Option<Sender<u32>>,
}

impl Session {
    /// The exchange of host `host` of `hosts` about `lanes` lanes. `updates` carries those to each other host, by number.
    pub(super) fn new((host, lanes): (usize, u32), updates: Vec<Option<Sender<LaneUpdate>>>) -> Self {
        let hosts = updates.len();
        let others = updates.into_iter().map(|updates| Other { updates, ..Other::default() }).collect();
        let state = State { is_closed: false, others, arrived: HashMap::new() };
        Self { host, hosts, lanes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The number of this host.
    pub fn host(&self) -> usize {
        self.host
    }

    /// The number of lanes.
    pub(super) fn lanes(&self) -> u32 {
        self.lanes
    }

    /// The number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Sends an update about a lane of this host to all others. Waits while one of them has not taken [`MAX_UNRECEIVED`]
    /// earlier ones.
    ///
    /// # Errors
    /// [`LaneError::Closed`] once this host has left.
    pub fn send(&self, lane: u32, update: Vec<u8>) -> Result<(), LaneError> {
        let mut state = self.state();
        while !state.is_closed && state.others.iter().any(|other| other.is_behind(lane)) {
            state = self.wait(state);
        }
        if state.is_closed {
            return Err(LaneError::Closed);
        }
        for other in state.others.iter_mut().filter(|other| other.gone.is_none()) {
            let Some(updates) = &other.updates else { continue };
            match updates.try_send(LaneUpdate { lane, update: update.clone() }) {
                Ok(()) => *other.unreceived.entry(lane).or_default() += 1,
                // Its call has ended, which decides about it.
                Err(TrySendError::Closed(_)) => {}
                Err(TrySendError::Full(_)) => {
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
    /// [`LaneError::Gone`] if that host is gone and nothing of it is left; [`LaneError::Closed`] once this host has left.
    pub fn recv(&self, lane: u32, from: usize) -> Result<Vec<u8>, LaneError> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return Err(LaneError::Closed);
            }
            if let Some(update) = state.arrived.get_mut(&(from, lane)).and_then(VecDeque::pop_front) {
                if let Some(credits) = &state.others[from].credits {
                    // Nobody needs it once the call has ended. A host that reads none of them sends no more updates.
                    let _ = credits.try_send(lane);
                }
                return Ok(update);
            }
            if let Some(reason) = &state.others[from].gone {
                return Err(LaneError::Gone { host: from, reason: reason.clone() });
            }
            state = self.wait(state);
        }
    }

    /// Leaves the exchange: ends all waits of this host, present and future. The others still get what was sent before.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for other in &mut state.others {
            (other.updates, other.credits) = (None, None);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Host `from` begins to send its updates; `credits` carries one to it for each that is taken.
    ///
    /// # Errors
    /// If it cannot: it is this host, unknown, gone, or has begun before.
    pub(super) fn begin(&self, from: usize, credits: Sender<u32>) -> Result<(), String> {
        let mut state = self.state();
        if from == self.host || from >= self.hosts {
            return Err(format!("the session has no other host {from}"));
        }
        if state.is_closed {
            return Err("this host has left the session".to_owned());
        }
        let other = &mut state.others[from];
        if let Some(reason) = &other.gone {
            return Err(format!("host {from} is gone: {reason}"));
        }
        if other.has_called {
            return Err(format!("host {from} sends its updates again"));
        }
        (other.has_called, other.credits) = (true, Some(credits));
        Ok(())
    }

    /// An update of host `from` has arrived.
    ///
    /// # Errors
    /// If the host does not keep to the bound, or there is no such lane.
    pub(super) fn arrive(&self, from: usize, lane: u32, update: Vec<u8>) -> Result<(), String> {
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
    pub(super) fn taken(&self, to: usize, lane: u32) {
        let mut state = self.state();
        if let Some(unreceived) = state.others[to].unreceived.get_mut(&lane) {
            *unreceived = unreceived.saturating_sub(1);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Host `to` does not take updates any more. What it has sent may still arrive.
    pub(super) fn stop_sending(&self, to: usize) {
        self.state().others[to].updates = None;
        self.changed.notify_all();
    }

    /// Host `host` has left, unless its own call still brings what it has sent: then the end of that decides.
    pub(super) fn lose_unless_called(&self, host: usize, reason: &str) {
        let mut state = self.state();
        if !state.others[host].has_called {
            state.others[host].lose(reason);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Host `host` is gone: nothing of it arrives any more. The first reason stays.
    pub(super) fn lose(&self, host: usize, reason: &str) {
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
