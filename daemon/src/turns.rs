//! The order in which requests wait for the state database.
//!
//! Few requests are answered at a time, each for a few milliseconds. Of those that wait, the connection that has had the
//! fewest answers goes first. So a connection that asks a thousand questions waits, and one that asks its first does not.
//! Operators go before viewers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::roles::Role;

/// Hands out a fixed number of turns.
pub(crate) struct Turns {
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// Numbers requests in the order of their arrival.
    arrived: u64,
    /// The requests that wait: those of operators first, then by the answers that their connection has had and their
    /// arrival.
    waiting: BTreeMap<(Reverse<Role>, u64, u64), oneshot::Sender<Turn>>,
}

/// A turn; dropping it passes it on.
pub(crate) struct Turn {
    /// `None` once it has been passed on.
    turns: Option<Arc<Turns>>,
}

/// The number of answers that a connection has had, and its user's role.
#[derive(Clone)]
pub(crate) struct Answers {
    had: Arc<AtomicU64>,
    role: Role,
}

impl Answers {
    /// None so far.
    pub(crate) fn none(role: Role) -> Self {
        Self { had: Arc::default(), role }
    }
}

impl Turns {
    /// `count` turns at a time.
    pub(crate) fn new(count: usize) -> Arc<Self> {
        let state = State { free: count, arrived: 0, waiting: BTreeMap::new() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Waits for a turn on behalf of a connection.
    pub(crate) async fn next(self: &Arc<Self>, answers: &Answers) -> Turn {
        let had = answers.had.fetch_add(1, Ordering::Relaxed);
        let waiting = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                None
            } else {
                let (sender, receiver) = oneshot::channel();
                let arrived = state.arrived;
                state.arrived += 1;
                state.waiting.insert((Reverse(answers.role), had, arrived), sender);
                Some(receiver)
            }
        };
        let turn = match waiting {
            None => None,
            // The sender is kept until it sends.
            Some(receiver) => receiver.await.ok(),
        };
        turn.unwrap_or_else(|| Turn { turns: Some(Arc::clone(self)) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(turns) = self.turns.take() else { return };
        let mut state = turns.state();
        while let Some((_, sender)) = state.waiting.pop_first() {
            match sender.send(Turn { turns: Some(Arc::clone(&turns)) }) {
                Ok(()) => return,
                // That client has left.
                Err(mut turn) => turn.turns = None,
            }
        }
        state.free += 1;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_first_request_goes_before_the_hundredth() {
        let turns = Turns::new(1);
        let (busy, new) = (Answers::none(Role::Operator), Answers::none(Role::Operator));
        busy.had.store(99, Ordering::Relaxed);
        let turn = poll(pin!(turns.next(&busy))).unwrap();
        let (mut second, mut first) = (pin!(turns.next(&busy)), pin!(turns.next(&new)));
        assert!(poll(second.as_mut()).is_none() && poll(first.as_mut()).is_none());
        drop(turn);
        assert!(poll(second.as_mut()).is_none());
        let turn = poll(first.as_mut()).unwrap();
        drop(turn);
        assert!(poll(second.as_mut()).is_some());
        assert_eq!(turns.state().free, 1);
    }

    #[test]
    fn an_operator_goes_before_every_viewer() {
        let turns = Turns::new(1);
        let (busy, viewer) = (Answers::none(Role::Operator), Answers::none(Role::Viewer));
        busy.had.store(99, Ordering::Relaxed);
        let turn = poll(pin!(turns.next(&viewer))).unwrap();
        let (mut second, mut first) = (pin!(turns.next(&viewer)), pin!(turns.next(&busy)));
        assert!(poll(second.as_mut()).is_none() && poll(first.as_mut()).is_none());
        drop(turn);
        assert!(poll(second.as_mut()).is_none());
        drop(poll(first.as_mut()).unwrap());
        assert!(poll(second.as_mut()).is_some());
    }

    #[test]
    fn clients_that_leave_lose_no_turn() {
        let turns = Turns::new(1);
        let answers = Answers::none(Role::Operator);
        let turn = poll(pin!(turns.next(&answers))).unwrap();
        // One leaves while it waits, one after the turn has been passed to it.
        let mut left = Box::pin(turns.next(&answers));
        let mut late = Box::pin(turns.next(&answers));
        assert!(poll(left.as_mut()).is_none() && poll(late.as_mut()).is_none());
        drop(left);
        drop(turn);
        drop(late);
        assert_eq!(turns.state().free, 1);
        assert!(poll(pin!(turns.next(&answers))).is_some());
    }
}
