//! Cancels reads.
//!
//! Each read waits on the runtime for either its result or this signal. So a read that hangs, in the network or in a
//! dead mount, is abandoned immediately.

use std::future::Future;
use std::sync::Arc;

use futures::future::select_all;
use tokio::sync::watch;

use crate::Error;

/// A signal that can be sent once, to all clones and their children.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancel(Arc<Link>);

#[derive(Debug, Default)]
struct Link {
    given: watch::Sender<bool>,
    parent: Option<Cancel>,
}

impl Cancel {
    /// A child signal: sent together with this one, or separately before.
    pub(crate) fn child(&self) -> Self {
        Self(Arc::new(Link { given: watch::Sender::new(false), parent: Some(self.clone()) }))
    }

    pub(crate) fn cancel(&self) {
        self.0.given.send_replace(true);
    }

    /// Returns the result of `work`, unless the signal is sent first.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            biased;
            () = self.given() => Err(Error::Cancelled),
            done = work => Ok(done),
        }
    }

    /// Waits for the signal.
    pub(crate) async fn given(&self) {
        let links = std::iter::successors(Some(self), |cancel| cancel.0.parent.as_ref());
        let waits = links.map(|cancel| {
            let mut given = cancel.0.given.subscribe();
            // The sender lives as long as `self`.
            Box::pin(async move { drop(given.wait_for(|given| *given).await) })
        });
        select_all(waits).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn a_child_is_cancelled_with_its_parent_but_not_vice_versa() {
        let parent = Cancel::default();
        let (child, other) = (parent.child(), parent.child());
        child.cancel();
        assert!(matches!(child.or(std::future::pending::<()>()).await, Err(Error::Cancelled)));
        assert_eq!(other.or(async { 7 }).await.unwrap(), 7);
        parent.cancel();
        assert!(matches!(other.or(async { 7 }).await, Err(Error::Cancelled)));
    }
}
