//! Shares the bytes fetched by one reader with the others.
//!
//! Objects are cut into blocks at fixed offsets, so that readers request the same pieces. Readers of a piece in
//! flight wait for the same request. A fetched piece is kept, in a least-recently-used cache of `capacity` bytes.
//!
//! **Guarantee.** Of two readers of an object, no piece is fetched twice if the second needs it before the host has
//! fetched `capacity` more bytes. So readers that start together and run at about the same speed cost one pass over
//! the network. Beyond that window bytes are fetched again, unless the local cache has them. (Hedges and retries of
//! [`super::fetch`] come on top.)
//!
//! A request is driven by the readers that wait for it, and aborted when the last of them is dropped.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, WeakShared};
use parking_lot::Mutex;

use super::failure::Failure;

/// The identity of an object's bytes. A bucket reached with other credentials or at another endpoint is another store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) store: u64,
    pub(crate) location: Arc<str>,
    pub(crate) version: Arc<str>,
}

/// A byte range of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    pub(crate) object: Identity,
    pub(crate) range: Range<u64>,
}

type Flight = BoxFuture<'static, Result<Bytes, Failure>>;

/// Pieces in flight and pieces kept.
#[derive(Debug)]
pub(crate) struct Shared {
    capacity: u64,
    state: Mutex<State>,
    hit_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    flying: HashMap<Piece, (u64, WeakShared<Flight>)>,
    kept: HashMap<Piece, (u64, Bytes)>,
    /// Kept pieces by their last use.
    by_use: BTreeMap<u64, Piece>,
    bytes: u64,
    clock: u64,
}

impl Shared {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, state: Mutex::default(), hit_bytes: AtomicU64::new(0) }
    }

    /// Bytes that another reader had fetched.
    pub(crate) fn hit_bytes(&self) -> u64 {
        self.hit_bytes.load(Ordering::Relaxed)
    }

    /// Drops the kept pieces of `object`, which may have been damaged in transit.
    pub(crate) fn forget(&self, object: &Identity) {
        self.state.lock().forget(object);
    }

    /// The bytes of `piece`: kept, in flight, or else fetched by `fetch`.
    pub(crate) async fn get(&self, piece: Piece, fetch: impl FnOnce() -> Flight) -> Result<Bytes, Failure> {
        let (id, flight) = {
            let mut state = self.state.lock();
            if let Some(bytes) = state.touch(&piece) {
                self.hit_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                return Ok(bytes);
            }
            let flying = state.flying.get(&piece);
            match flying.and_then(|(id, flight)| Some((*id, flight.upgrade()?))) {
                Some(flying) => {
                    self.hit_bytes.fetch_add(piece.range.end - piece.range.start, Ordering::Relaxed);
                    flying
                }
                None => {
                    let flight = fetch().shared();
                    let id = state.tick();
                    if let Some(weak) = flight.downgrade() {
                        state.flying.retain(|_, (_, flight)| flight.upgrade().is_some());
                        state.flying.insert(piece.clone(), (id, weak));
                    }
                    (id, flight)
                }
            }
        };
        let landed = flight.await;
        let mut state = self.state.lock();
        if state.flying.get(&piece).is_some_and(|(flying, _)| *flying == id) {
            state.flying.remove(&piece);
            if let Ok(bytes) = &landed {
                state.keep(piece, bytes.clone(), self.capacity);
            }
        }
        landed
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn forget(&mut self, object: &Identity) {
        let Self { kept, by_use, bytes, .. } = self;
        kept.retain(|piece, (used, kept)| {
            let stays = piece.object != *object;
            if !stays {
                by_use.remove(used);
                *bytes -= kept.len() as u64;
            }
            stays
        });
    }

    fn touch(&mut self, piece: &Piece) -> Option<Bytes> {
        let now = self.tick();
        let (used, bytes) = self.kept.get_mut(piece)?;
        let bytes = bytes.clone();
        let piece = self.by_use.remove(used)?;
        *used = now;
        self.by_use.insert(now, piece);
        Some(bytes)
    }

    fn keep(&mut self, piece: Piece, bytes: Bytes, capacity: u64) {
        let length = bytes.len() as u64;
        if length > capacity {
            return;
        }
        let now = self.tick();
        self.bytes += length;
        self.by_use.insert(now, piece.clone());
        self.kept.insert(piece, (now, bytes));
        while self.bytes > capacity {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            if let Some((_, bytes)) = self.kept.remove(&oldest) {
                self.bytes -= bytes.len() as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::*;

    fn piece(start: u64) -> Piece {
        let object = Identity { store: 0, location: "a".into(), version: "1".into() };
        Piece { object, range: start..start + 10 }
    }

    fn landed() -> Flight {
        async { Ok(Bytes::from_static(&[1; 10])) }.boxed()
    }

    #[tokio::test]
    async fn one_request_serves_all_waiting_readers() {
        let shared = Arc::new(Shared::new(0));
        let (sender, receiver) = oneshot::channel::<()>();
        let first = shared.get(piece(0), || {
            async {
                receiver.await.unwrap();
                landed().await
            }
            .boxed()
        });
        let second = shared.get(piece(0), || panic!("it is in flight"));
        let land = async { sender.send(()).unwrap() };
        let (first, second, ()) = futures::join!(first, second, land);
        assert_eq!((first.unwrap(), shared.hit_bytes()), (second.unwrap(), 10));
    }

    #[tokio::test]
    async fn the_least_recently_used_piece_is_evicted_first() {
        let shared = Shared::new(20);
        shared.get(piece(0), landed).await.unwrap();
        shared.get(piece(10), landed).await.unwrap();
        shared.get(piece(0), || panic!("kept")).await.unwrap();
        shared.get(piece(20), landed).await.unwrap();
        shared.get(piece(0), || panic!("kept")).await.unwrap();
        assert_eq!(shared.state.lock().bytes, 20);
        let mut fetched = false;
        let again = || {
            fetched = true;
            landed()
        };
        shared.get(piece(10), again).await.unwrap();
        assert!(fetched);
    }

    #[tokio::test]
    async fn a_failed_or_abandoned_request_is_sent_again() {
        let shared = Shared::new(100);
        let failed = shared.get(piece(0), || async { Err(Failure::Changed) }.boxed()).await;
        assert!(failed.is_err());
        shared.get(piece(0), landed).await.unwrap();
        {
            let left = shared.get(piece(10), || futures::future::pending().boxed());
            assert!(left.now_or_never().is_none());
        }
        shared.get(piece(10), landed).await.unwrap();
        assert_eq!(shared.state.lock().flying.len(), 0);
    }
}
