//! Processes many items in parallel and returns the results in order.
//!
//! ```text
//!
//! ```text
//!   next()  one at a time, in order      work()  in parallel         sink()  one at a time, in order
//!   ------------------------------> threads ---------------------> results, held until their turn
//! ```
//! ```
//!
//! The output therefore does not depend on the threads. A source that must be read in order (a compressed file)
//! occupies one thread, while the others process the items that it has returned. Items in flight, from `next` until
//! `sink`, are bounded in number and in bytes: a thread that would exceed a bound waits for the sink. One item is
//! always allowed, regardless of its size.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use millstream_pipeline::Error;

/// Items in flight per thread: one being processed, one waiting for its turn.
const ITEMS_PER_THREAD: usize = 2;

/// An item, and the maximum bytes that the item and its result use at a time.
pub(crate) struct Weighed<I> {
    pub(crate) item: I,
    pub(crate) bytes: usize,
}

/// The bounds of items in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) threads: usize,
    pub(crate) bytes: usize,
}

struct Shared<T> {
    /// Results waiting for their turn, with their bytes.
    results: BTreeMap<u64, (T, usize)>,
    /// The number of the next item to take.
    taken: u64,
    /// The number of items passed to the sink.
    sunk: u64,
    /// The total bytes of items in flight.
    bytes: usize,
    /// Whether no more items are taken: the source is exhausted, or an error occurred.
    ended: bool,
    error: Option<Error>,
}

struct Line<T> {
    shared: Mutex<Shared<T>>,
    /// Signalled when an item was passed to the sink, or at the end.
    room: Condvar,
    /// Signalled when a result is ready, or at the end.
    ready: Condvar,
}

/// Takes items from `next` until it returns `None`, applies `work` to each, and passes the results to `sink` in the
/// order of the items. The first error ends processing.
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

    /// One thread: takes and processes items.
    fn run<I>(
        &self,
        bounds: Bounds,
        next: &Mutex<impl FnMut() -> Result<Option<Weighed<I>>, Error>>,
        work: &impl Fn(I) -> Result<T, Error>,
    ) {
        // If this thread panics, the others must not wait for its result.
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

    /// Takes the next item; waits until the bounds allow it.
    fn take<I>(
        &self,
        bounds: Bounds,
        next: &Mutex<impl FnMut() -> Result<Option<Weighed<I>>, Error>>,
    ) -> Option<(u64, Weighed<I>)> {
        // The holder of this lock is the thread whose turn it is.
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        let most = (bounds.threads.max(1) * ITEMS_PER_THREAD) as u64;
        let full = |shared: &mut Shared<T>| {
            let in_flight = shared.taken - shared.sunk;
            !shared.ended && in_flight > 0 && (in_flight >= most || shared.bytes >= bounds.bytes)
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

    /// Passes results to the sink until all items are done.
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
        // The first error is the cause of all later ones.
        shared.error.get_or_insert(error);
        self.room.notify_all();
        self.ready.notify_all();
    }
}

/// Ends processing when dropped by a panic.
struct EndsAll<'a, T>(&'a Line<T>);

impl<T> Drop for EndsAll<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Error::Panicked("a worker thread panicked".to_owned()));
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
                // The bytes in flight when the last item was taken, plus that item.
                assert!(before < bytes + 100, "{before} bytes in flight");
                out.push(item * item);
                Ok(())
            },
        );
        (out, result.is_ok())
    }

    proptest! {
        #[test]
        fn results_are_in_order_and_items_in_flight_are_bounded(
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
    fn errors_of_source_and_sink_end_processing() {
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
    fn a_panic_ends_processing() {
        let bounds = Bounds { threads: 2, bytes: 10 };
        let work = |number: u32| {
            assert!(number < 4, "deliberate panic");
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
        assert!(ended.is_err(), "the scope propagates the panic");
    }
}
