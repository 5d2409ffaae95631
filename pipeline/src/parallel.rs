//! Processes many items in parallel and returns the results in order.
//!
//! ```text
//!   next()  one at a time, in order      work()  in parallel         sink()  one at a time, in order
//!   ------------------------------> threads ---------------------> results, held until their turn
//! ```
//!
//! The output therefore does not depend on the threads, and neither does the error: it is the first in the order of
//! the items. A source that must be read in order (a compressed file) occupies one thread, while the others process
//! the items that it has returned. Items in flight, from `next` until `sink`, are bounded in number and in bytes: a
//! thread that would exceed a bound waits for the sink. One item is always allowed, regardless of its size.

use std::collections::BTreeMap;

use parking_lot::{Condvar, Mutex};

use crate::Error;

/// Items in flight per thread: one being processed, one waiting for its turn.
const ITEMS_PER_THREAD: usize = 2;

/// An item, and the maximum bytes that the item and its result use at a time.
pub struct Weighed<I> {
    /// The item.
    pub item: I,
    /// The bytes.
    pub bytes: usize,
}

/// The bounds of items in flight.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The number of threads; at least one is used.
    pub threads: usize,
    /// The bytes of all items in flight.
    pub bytes: usize,
}

struct Shared<T> {
    /// Results waiting for their turn, with their bytes.
    results: BTreeMap<u64, (Result<T, Error>, usize)>,
    /// The number of the next item to take.
    taken: u64,
    /// The number of items passed to the sink.
    sunk: u64,
    /// The total bytes of items in flight.
    bytes: usize,
    /// Whether no more items are taken: the source is exhausted, or an error occurred.
    ended: bool,
    /// Whether a thread panicked, so that its result never comes.
    panicked: bool,
}

struct Line<T> {
    shared: Mutex<Shared<T>>,
    /// Signalled when an item was passed to the sink or its result is ready, and at the end.
    changed: Condvar,
}

/// Takes items from `next` until it returns `None`, applies `work` to each, and passes the results to `sink` in the
/// order of the items. The first error ends processing.
///
/// # Errors
/// The first error of `next`, `work` or `sink`, in the order of the items.
pub fn in_order<I: Send, T: Send>(
    bounds: Bounds,
    next: impl FnMut() -> Result<Option<Weighed<I>>, Error> + Send,
    work: impl Fn(I) -> Result<T, Error> + Sync,
    sink: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Error> {
    let results = BTreeMap::new();
    let shared = Shared { results, taken: 0, sunk: 0, bytes: 0, ended: false, panicked: false };
    let line = Line { shared: Mutex::new(shared), changed: Condvar::new() };
    let next = Mutex::new(next);
    std::thread::scope(|scope| {
        for _ in 0..bounds.threads.max(1) {
            scope.spawn(|| line.run(bounds, &next, &work));
        }
        line.drain(sink)
    })
}

impl<T> Line<T> {
    /// One thread: takes and processes items.
    fn run<I>(
        &self,
        bounds: Bounds,
        next: &Mutex<impl FnMut() -> Result<Option<Weighed<I>>, Error>>,
        work: &impl Fn(I) -> Result<T, Error>,
    ) {
        let _end = End(self);
        while let Some((number, Weighed { item, bytes })) = self.take(bounds, next) {
            let result = work(item);
            let mut shared = self.shared.lock();
            shared.ended |= result.is_err();
            shared.results.insert(number, (result, bytes));
            self.changed.notify_all();
        }
    }

    /// Takes the next item; waits until the bounds allow it.
    fn take<I>(
        &self,
        bounds: Bounds,
        next: &Mutex<impl FnMut() -> Result<Option<Weighed<I>>, Error>>,
    ) -> Option<(u64, Weighed<I>)> {
        // The holder of this lock is the thread whose turn it is.
        let mut next = next.lock();
        let mut shared = self.shared.lock();
        let most = (bounds.threads.max(1) * ITEMS_PER_THREAD) as u64;
        self.changed.wait_while(&mut shared, |shared| {
            let in_flight = shared.taken - shared.sunk;
            !shared.ended && in_flight > 0 && (in_flight >= most || shared.bytes >= bounds.bytes)
        });
        if shared.ended {
            return None;
        }
        drop(shared);
        let item = next();
        let mut shared = self.shared.lock();
        let number = shared.taken;
        match item {
            Ok(Some(item)) => {
                shared.taken += 1;
                shared.bytes += item.bytes;
                return Some((number, item));
            }
            Ok(None) => {}
            Err(error) => {
                shared.taken += 1;
                shared.results.insert(number, (Err(error), 0));
            }
        }
        shared.ended = true;
        None
    }

    /// Passes results to the sink until all items are done.
    fn drain(&self, mut sink: impl FnMut(T) -> Result<(), Error>) -> Result<(), Error> {
        let _end = End(self);
        loop {
            let mut shared = self.shared.lock();
            self.changed.wait_while(&mut shared, |shared| {
                let over = shared.panicked || (shared.ended && shared.sunk == shared.taken);
                !over && !shared.results.contains_key(&shared.sunk)
            });
            let number = shared.sunk;
            let Some((result, bytes)) = shared.results.remove(&number) else { return Ok(()) };
            drop(shared);
            sink(result?)?;
            let mut shared = self.shared.lock();
            shared.sunk += 1;
            shared.bytes -= bytes;
            self.changed.notify_all();
        }
    }
}

/// Ends processing when dropped: at the end of a thread, after an error, or by a panic, which the scope propagates.
struct End<'a, T>(&'a Line<T>);

impl<T> Drop for End<'_, T> {
    fn drop(&mut self) {
        let mut shared = self.0.shared.lock();
        shared.ended = true;
        shared.panicked |= std::thread::panicking();
        self.0.changed.notify_all();
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
