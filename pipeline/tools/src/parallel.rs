//! Work on many items by several threads, whose results come out in the items' order.
//!
//! ```text
//!   next()  one at a time, in order      work()  side by side        sink()  one at a time, in order
//!   ------------------------------> threads ---------------------> results, held until their turn
//! ```
//!
//! So what comes out does not depend on the threads, and a source that must be read in order (a compressed
//! file) keeps one thread busy while the others work on what it gave. What has been taken and is not yet
//! handed out is bounded in number and in bytes: a thread that would take more waits for the sink, except
//! that one item is always under way, however large.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use millstream_pipeline::Error;

/// Items under way for each thread: one being worked on, one waiting for its turn.
const ITEMS_PER_THREAD: usize = 2;

/// An item, and the most bytes that it and what comes of it hold at a time.
pub(crate) struct Weighed<I> {
    pub(crate) item: I,
    pub(crate) bytes: usize,
}

/// How much may be under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) threads: usize,
    pub(crate) bytes: usize,
}

struct Shared<T> {
    /// Results that wait for their turn, with their bytes.
    results: BTreeMap<u64, (T, usize)>,
    /// The number of the next item to take.
    taken: u64,
    /// Items handed to the sink.
    sunk: u64,
    /// Bytes of the items under way.
    bytes: usize,
    /// There is no next item, or none that anybody wants.
    ended: bool,
    error: Option<Error>,
}

struct Line<T> {
    shared: Mutex<Shared<T>>,
    /// Something was handed to the sink, or all is over.
    room: Condvar,
    /// A result is there, or there will be no more.
    ready: Condvar,
}

/// Takes items from `next` until it gives none, does `work` on each, and hands the results to `sink` in the
/// items' order. The first error ends all of it.
pub(crate) fn in_order<I: Send, T: Send>(
    bounds: Bounds,
    next: impl FnMut() -> Result<Option<Weighed<I>>, Error> + Send,
    work: impl Fn(I) -> Result<T, Error> + Sync,
    mut sink: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = Line {
        shared: Mutex::new(Shared {
            results: BTreeMap::new(),
            taken: 0,
            sunk: 0,
            bytes: 0,
            ended: false,
            error: None,
        }),
        room: Condvar::new(),
        ready: Condvar::new(),
    };
    let next = Mutex::new(next);
    std::thread::scope(|scope| {
        for _ in 0..bounds.threads.max(1) {
            scope.spawn(|| line.run(bounds, &next, &work));
        }
        line.drain(&mut sink);
    });
    let shared = line.shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    shared.error.map_or(Ok(()), Err)
}

impl<T> Line<T> {
    fn lock(&self) -> MutexGuard<'_, Shared<T>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread: takes items and works on them.
    fn run<I>(
        &self,
        bounds: Bounds,
        next: &Mutex<impl FnMut() -> Result<Option<Weighed<I>>, Error>>,
        work: &impl Fn(I) -> Result<T, Error>,
    ) {
        // A thread that comes to an unexpected end must not leave the others waiting for its result.
        let _over = EndsAll(self);
        while let Some((number, Weighed { item, bytes })) = self.take(bounds, next) {
            match work(item) {
                Ok(result) => {
                    let mut shared = self.lock();
                    shared.results.insert(number, (result, bytes));
                    self.ready.notify_all();
                }
                Err(error) => {
                    self.fail(error);
                    break;
                }
            }
        }
    }

    /// The next item, once there is room for it.
    fn take<I>(
        &self,
        bounds: Bounds,
        next: &Mutex<impl FnMut() -> Result<Option<Weighed<I>>, Error>>,
    ) -> Option<(u64, Weighed<I>)> {
        // Whoever holds this is the one whose turn it is.
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        let most = (bounds.threads.max(1) * ITEMS_PER_THREAD) as u64;
        let full = |shared: &mut Shared<T>| {
            let under_way = shared.taken - shared.sunk;
            !shared.ended && under_way > 0 && (under_way >= most || shared.bytes >= bounds.bytes)
        };
        let shared = self.room.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        if shared.ended {
            return None;
        }
        drop(shared);
        let item = match next() {
            Ok(Some(item)) => item,
            Ok(None) => {
                self.lock().ended = true;
                self.room.notify_all();
                self.ready.notify_all();
                return None;
            }
            Err(error) => {
                self.fail(error);
                return None;
            }
        };
        let mut shared = self.lock();
        let number = shared.taken;
        shared.taken += 1;
        shared.bytes += item.bytes;
        Some((number, item))
    }

    /// Hands results to the sink until all have been.
    fn drain(&self, sink: &mut impl FnMut(T) -> Result<(), Error>) {
        let _over = EndsAll(self);
        loop {
            let waiting = |shared: &mut Shared<T>| {
                let all = shared.ended && shared.sunk == shared.taken;
                !all && shared.error.is_none() && !shared.results.contains_key(&shared.sunk)
            };
            let mut shared =
                self.ready.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
            let number = shared.sunk;
            let Some((result, bytes)) = shared.results.remove(&number).filter(|_| shared.error.is_none())
            else {
                break;
            };
            drop(shared);
            if let Err(error) = sink(result) {
                self.fail(error);
                break;
            }
            let mut shared = self.lock();
            shared.sunk += 1;
            shared.bytes -= bytes;
            self.room.notify_all();
        }
    }

    fn fail(&self, error: Error) {
        let mut shared = self.lock();
        shared.ended = true;
        // The first one is the reason of all that follow.
        shared.error.get_or_insert(error);
        self.room.notify_all();
        self.ready.notify_all();
    }
}

/// Ends the work of all when a panic drops it.
struct EndsAll<'a, T>(&'a Line<T>);

impl<T> Drop for EndsAll<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Error::Panicked("a thread at work on files panicked".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    fn squares(threads: usize, bytes: usize, items: &[usize], fail_at: Option<usize>) -> (Vec<usize>, bool) {
        let mut rest = items.iter().copied().enumerate();
        let held = AtomicUsize::new(0);
        let mut out = Vec::new();
        let result = in_order(
            Bounds { threads, bytes },
            || {
                Ok(rest.next().map(|(number, item)| {
                    held.fetch_add(item, Ordering::Relaxed);
                    Weighed { item: (number, item), bytes: item }
                }))
            },
            |(number, item)| {
                if item % 3 == 0 {
                    std::thread::yield_now();
                }
                if fail_at == Some(number) { Err(Error::Cancelled) } else { Ok(item) }
            },
            |item| {
                let before = held.fetch_sub(item, Ordering::Relaxed);
                // What was there when the last one was taken, and that one.
                assert!(before < bytes + 100, "{before} bytes under way");
                out.push(item * item);
                Ok(())
            },
        );
        (out, result.is_ok())
    }

    proptest! {
        #[test]
        fn results_come_in_order_and_what_is_under_way_is_bounded(
            items in proptest::collection::vec(1_usize..100, 0..60),
            threads in 0_usize..6,
            bytes in 0_usize..300,
        ) {
            let expected: Vec<usize> = items.iter().map(|item| item * item).collect();
            prop_assert_eq!(squares(threads, bytes, &items, None), (expected.clone(), true));
            if !items.is_empty() {
                let at = bytes % items.len();
                let (out, whole) = squares(threads, bytes, &items, Some(at));
                prop_assert!(!whole && expected[..at].starts_with(&out));
            }
        }
    }

    #[test]
    fn errors_of_source_and_sink_end_it() {
        let bounds = Bounds { threads: 3, bytes: 10 };
        let endless = || Ok(Some(Weighed { item: 1, bytes: 1 }));
        let mut sunk = 0;
        let failed = in_order(bounds, endless, Ok, |_| {
            sunk += 1;
            if sunk == 5 { Err(Error::Cancelled) } else { Ok(()) }
        });
        assert!(matches!(failed, Err(Error::Cancelled)));
        let mut given = 0;
        let source = || {
            given += 1;
            if given == 4 { Err(Error::Cancelled) } else { endless() }
        };
        assert!(matches!(in_order(bounds, source, Ok, |_| Ok(())), Err(Error::Cancelled)));
    }

    #[test]
    fn a_panic_ends_it_too() {
        let bounds = Bounds { threads: 2, bytes: 10 };
        let work = |number: u32| {
            assert!(number < 4, "told in the test's output");
            Ok(number)
        };
        let ended = std::panic::catch_unwind(|| {
            let mut number = 0;
            let source = || {
                number += 1;
                Ok(Some(Weighed { item: number, bytes: 1 }))
            };
            in_order(bounds, source, work, |_| Ok(()))
        });
        assert!(ended.is_err(), "the scope hands the panic on");
    }
}
