//! What viewers may use of the daemon at a time, all together and each user, so that operators are always answered.
//!
//! Every local user may be a viewer, so these bounds are much lower than those of connections alone. Operators have none
//! here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

/// The maximum number of open calls of viewers, replies that are streamed or not read yet included.
const MAX_CALLS: usize = 256;

/// The same of one viewer.
const MAX_CALLS_OF_USER: usize = 32;

/// The number of calls of viewers that are being answered at a time; others wait.
const MAX_ANSWERS: usize = 2;

/// The open calls of viewers.
pub(super) struct ViewerCalls {
    open: Mutex<HashMap<u32, usize>>,
    pub(super) answers: Semaphore,
}

/// An open call, until it is dropped.
pub(super) struct OpenCall {
    uid: u32,
    calls: Arc<ViewerCalls>,
}

impl ViewerCalls {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), answers: Semaphore::new(MAX_ANSWERS) })
    }

    /// Opens a call of the user `uid`; `None` at a limit.
    pub(super) fn open(self: &Arc<Self>, uid: u32) -> Option<OpenCall> {
        let mut open = self.calls();
        let all: usize = open.values().sum();
        let of_user = open.entry(uid).or_default();
        if all >= MAX_CALLS || *of_user >= MAX_CALLS_OF_USER {
            if *of_user == 0 {
                open.remove(&uid);
            }
            return None;
        }
        *of_user += 1;
        Some(OpenCall { uid, calls: Arc::clone(self) })
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut open = self.calls.calls();
        if let Some(of_user) = open.get_mut(&self.uid) {
            *of_user -= 1;
            if *of_user == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_user_and_all_users_have_a_limit_of_open_calls() {
        let calls = ViewerCalls::new();
        let mut first: Vec<_> = (0..MAX_CALLS_OF_USER).map(|_| calls.open(1).unwrap()).collect();
        assert!(calls.open(1).is_none());
        first.pop();
        first.push(calls.open(1).unwrap());
        let others = MAX_CALLS - MAX_CALLS_OF_USER;
        let held: Vec<_> = (0..others).map(|nth| calls.open(2 + nth as u32 / 16).unwrap()).collect();
        assert!(calls.open(4_000).is_none(), "all together");
        drop(first);
        assert!(calls.open(4_000).is_some());
        drop(held);
        assert!(calls.calls().is_empty());
    }
}
