//! The pass over the training data.
//!
//! Threads take splits in their order and count each by itself; what they counted is merged in that order
//! too. A split is not begun before those far ahead of it in the order are merged, so only a few
//! [`Partial`]s are held at a time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;

use super::partial::{Partial, Plan};
use super::{Analysis, learns_terms};
use crate::Error;
use crate::dataset::{BadRecords, Dataset, RawChunk};
use crate::spec::{DataSpec, FeatureSpec, LabelSpec};

/// Rows of a chunk.
const CHUNK_ROWS: usize = 4096;

/// More threads than this do not help, and each holds what it has counted.
const MOST_THREADS: usize = 8;

/// A pass over the training data that learns what features need.
pub struct Learn<'a> {
    /// The training data.
    pub dataset: &'a Dataset,
    /// The job's features.
    pub features: &'a [FeatureSpec],
    /// The job's label.
    pub label: &'a LabelSpec,
    /// Values that stand for "missing".
    pub missing: &'a [String],
    /// What becomes of bad records; of this pass alone.
    pub bad: &'a BadRecords,
    /// Threads to read and count on; at most 8 are used. The result does not depend on it.
    pub threads: usize,
    /// Memory that counting the terms of one column may take at a time in each of `threads + 2` places;
    /// see [`Learn::vocabulary_bytes`]. Counts are exact for columns whose distinct values fit.
    pub vocabulary_bytes: usize,
    /// Fetches run on it.
    pub runtime: &'a Handle,
    /// Ends the pass with [`Error::Cancelled`] once true.
    pub cancel: &'a AtomicBool,
    /// Called once a chunk, from any thread.
    pub progress: &'a (dyn Fn(Progress) + Sync),
}

/// How far a pass has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows counted.
    pub rows: u64,
    /// Bytes of the splits that are done.
    pub bytes: u64,
}

/// Reads one split: the next chunk at each call.
pub(super) type NextChunk<'a> = Box<dyn FnMut() -> Result<Option<RawChunk>, Error> + 'a>;

/// Where the chunks come from: a dataset, or in tests anything.
pub(super) struct Source<'a> {
    /// Bytes of each split.
    pub(super) split_bytes: Vec<u64>,
    /// Starts to read a split.
    pub(super) read: &'a (dyn Fn(usize) -> Result<NextChunk<'a>, Error> + Sync),
}

/// A pass in progress.
pub(super) struct Counting<'a> {
    pub(super) plan: &'a Plan,
    pub(super) source: &'a Source<'a>,
    pub(super) bad: &'a BadRecords,
    pub(super) cancel: &'a AtomicBool,
    pub(super) progress: &'a (dyn Fn(Progress) + Sync),
    /// Whether to end once every label was found to be positive somewhere.
    pub(super) until_positive: bool,
}

/// The splits being counted and merged.
struct Merging {
    /// The next split to take.
    next: usize,
    /// Splits merged.
    merged: usize,
    /// Counted, but one before them is not.
    waiting: BTreeMap<usize, Result<Partial, Error>>,
    total: Partial,
    error: Option<Error>,
    /// No more splits are taken.
    stop: bool,
}

/// What the threads of a pass share.
struct Shared {
    merging: Mutex<Merging>,
    merged: Condvar,
    rows: AtomicU64,
    bytes: AtomicU64,
}

impl Learn<'_> {
    /// What to set `vocabulary_bytes` to, so that counting stays within the job's memory budget.
    pub fn vocabulary_bytes(data: &DataSpec, features: &[FeatureSpec]) -> usize {
        let columns = features.iter().filter(|feature| learns_terms(feature)).count().max(1) as u64;
        let places = MOST_THREADS as u64 + 2;
        usize::try_from(data.memory_budget_bytes / (columns * places)).unwrap_or(usize::MAX)
    }

    /// Reads the data and learns. Where no feature learns anything, only as much is read as shows that
    /// there are positive labels, of each that has classes, and the analysis is empty.
    ///
    /// # Errors
    /// [`Error::NeverPositive`], a column of numbers without any, columns of the wrong type, bad records
    /// that `bad` does not put up with, whatever reading comes to, and [`Error::Cancelled`].
    pub fn run(&self) -> Result<Analysis, Error> {
        let plan = Plan::new(self.features, self.label, self.missing, self.vocabulary_bytes);
        let read = |split: usize| -> Result<NextChunk<'_>, Error> {
            let mut reader = self.dataset.read(split, &plan.projection, self.bad, self.runtime)?;
            Ok(Box::new(move || reader.next_chunk(CHUNK_ROWS)))
        };
        let split_bytes = self.dataset.splits().iter().map(|split| split.bytes).collect();
        let source = Source { split_bytes, read: &read };
        let needed = Analysis::needed(self.features);
        let counting = Counting {
            plan: &plan,
            source: &source,
            bad: self.bad,
            cancel: self.cancel,
            progress: self.progress,
            until_positive: !needed,
        };
        let total = counting.run(self.threads)?;
        total.check(self.label)?;
        if needed { plan.analysis(&total, self.features) } else { Ok(Analysis::default()) }
    }
}

impl Counting<'_> {
    /// Counts all splits, or enough of them.
    pub(super) fn run(&self, threads: usize) -> Result<Partial, Error> {
        let threads = threads.clamp(1, MOST_THREADS);
        let shared = Shared {
            merging: Mutex::new(Merging {
                next: 0,
                merged: 0,
                waiting: BTreeMap::new(),
                total: self.plan.start(),
                error: None,
                stop: false,
            }),
            merged: Condvar::new(),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.work(threads, &shared));
            }
        });
        let merging = shared.merging.into_inner().unwrap_or_else(PoisonError::into_inner);
        match merging.error {
            Some(error) => Err(error),
            None => Ok(merging.total),
        }
    }

    /// One thread: takes splits until there are none.
    fn work(&self, threads: usize, shared: &Shared) {
        let _release = ReleaseOnPanic(shared);
        while let Some(split) = self.take(threads, shared) {
            let counted = self.count(split, shared);
            shared.bytes.fetch_add(self.source.split_bytes[split], Ordering::Relaxed);
            let mut merging = shared.lock();
            merging.add(split, counted, self.until_positive);
            drop(merging);
            shared.merged.notify_all();
        }
    }

    /// The next split, once it is not too far ahead of what is merged. The one to be merged next is
    /// always being counted or free to take, so this wait ends.
    fn take(&self, threads: usize, shared: &Shared) -> Option<usize> {
        let mut merging = shared.lock();
        loop {
            if merging.stop || merging.next == self.source.split_bytes.len() {
                return None;
            }
            if merging.next <= merging.merged + threads {
                merging.next += 1;
                return Some(merging.next - 1);
            }
            merging = shared.merged.wait(merging).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn count(&self, split: usize, shared: &Shared) -> Result<Partial, Error> {
        let mut partial = self.plan.start();
        let mut next = (self.source.read)(split)?;
        while let Some(chunk) = next()? {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            self.plan.count(&chunk, self.bad, &mut partial)?;
            let rows = chunk.rows() as u64;
            (self.progress)(Progress {
                rows: shared.rows.fetch_add(rows, Ordering::Relaxed) + rows,
                bytes: shared.bytes.load(Ordering::Relaxed),
            });
            if self.until_positive && partial.shows_every_label() {
                break;
            }
        }
        Ok(partial)
    }
}

/// Lets the other threads end when one panics, so that the panic is passed on instead of waited for.
struct ReleaseOnPanic<'a>(&'a Shared);

impl Drop for ReleaseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().stop = true;
            self.0.merged.notify_all();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Merging> {
        // A thread that panicked ends the pass, and nobody looks at what it left.
        self.merging.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Merging {
    /// Adds a counted split, and merges all that is next in order. The first error in that order is the
    /// pass's.
    fn add(&mut self, split: usize, counted: Result<Partial, Error>, until_positive: bool) {
        self.stop |= counted.is_err();
        self.waiting.insert(split, counted);
        while let Some(counted) = self.waiting.remove(&self.merged) {
            self.merged += 1;
            match counted {
                Ok(partial) if self.error.is_none() => self.total.merge(partial),
                Ok(_) => {}
                Err(error) => self.error = self.error.take().or(Some(error)),
            }
        }
        self.stop |= until_positive && self.total.shows_every_label();
    }
}
