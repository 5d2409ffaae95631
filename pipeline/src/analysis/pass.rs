//! The analysis pass over the training data.
//!
//! Threads take splits in order and count each separately; the counts are merged in the same order. A thread waits
//! before it starts a split too far ahead of the merged ones, so only a few [`Partial`]s exist at a time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use millstream_format::RawChunk;
use tokio::runtime::Handle;

use super::partial::{Partial, Plan};
use super::{Analysis, learns_terms};
use crate::Error;
use crate::bad_records::BadRecords;
use crate::dataset::Dataset;
use crate::spec::{DataSpec, FeatureSpec, LabelSpec};

/// Rows per chunk.
const CHUNK_ROWS: usize = 4096;

/// More threads do not help, and each holds separate counts in memory.
const MOST_THREADS: usize = 8;

/// The pass over the training data that learns the statistics of features.
pub struct AnalysisPass<'a> {
    /// The training data.
    pub dataset: &'a Dataset,
    /// The job's features.
    pub features: &'a [FeatureSpec],
    /// The job's label.
    pub label: &'a LabelSpec,
    /// Values that mean "missing".
    pub missing: &'a [String],
    /// The policy for bad records; exclusive to this pass.
    pub bad: &'a BadRecords,
    /// The number of reader threads, at most 8. It does not affect the result.
    pub threads: usize,
    /// The memory limit for counting the terms of one column, which applies separately in each of
    /// `threads + 2` places; see [`AnalysisPass::vocabulary_bytes`]. Counts are exact for columns whose distinct
    /// values fit.
    pub vocabulary_bytes: usize,
    /// Runs the fetches.
    pub runtime: &'a Handle,
    /// Aborts the pass with [`Error::Cancelled`] when set.
    pub cancel: &'a AtomicBool,
    /// Called after each chunk, from any thread.
    pub progress: &'a (dyn Fn(AnalysisProgress) + Sync),
}

/// The progress of an analysis pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnalysisProgress {
    /// Rows counted so far.
    pub rows: u64,
    /// Bytes of the finished splits.
    pub bytes: u64,
}

/// Reads one split; each call returns the next chunk.
pub(super) type NextChunk<'a> = Box<dyn FnMut() -> Result<Option<RawChunk>, Error> + 'a>;

/// The source of chunks: a dataset, or test data.
pub(super) struct Source<'a> {
    /// The size of each split in bytes.
    pub(super) split_bytes: Vec<u64>,
    /// Starts reading a split.
    pub(super) read: &'a (dyn Fn(usize) -> Result<NextChunk<'a>, Error> + Sync),
}

/// A running pass.
pub(super) struct Counting<'a> {
    pub(super) plan: &'a Plan,
    pub(super) source: &'a Source<'a>,
    pub(super) bad: &'a BadRecords,
    pub(super) cancel: &'a AtomicBool,
    pub(super) progress: &'a (dyn Fn(AnalysisProgress) + Sync),
    /// Whether to stop once every label has had a positive row.
    pub(super) until_positive: bool,
}

/// The state of counting and merging splits.
struct Merging {
    /// The next split to take.
    next: usize,
    /// The number of splits merged.
    merged: usize,
    /// Counted splits that wait for an earlier one.
    waiting: BTreeMap<usize, Result<Partial, Error>>,
    total: Partial,
    error: Option<Error>,
    /// Whether to take no more splits.
    stop: bool,
}

/// State shared by the threads of a pass.
struct Shared {
    merging: Mutex<Merging>,
    merged: Condvar,
    rows: AtomicU64,
    bytes: AtomicU64,
}

impl AnalysisPass<'_> {
    /// The value of `vocabulary_bytes` that keeps counting within the job's memory budget.
    pub fn vocabulary_bytes(data: &DataSpec, features: &[FeatureSpec]) -> usize {
        let columns = features.iter().filter(|feature| learns_terms(feature)).count().max(1) as u64;
        let places = MOST_THREADS as u64 + 2;
        usize::try_from(data.memory_budget_bytes / (columns * places)).unwrap_or(usize::MAX)
    }

    /// Reads the data and learns the statistics. When no feature learns any, it reads only until every label
    /// that distinguishes positives has had a positive row, and returns an empty analysis.
    ///
    /// # Errors
    /// [`Error::NeverPositive`], a numeric column without any number, a column of the wrong type, bad records
    /// that `bad` rejects, any read error, and [`Error::Cancelled`].
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
    /// Counts all splits, or as many as needed.
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

    /// The loop of one thread: counts splits until none is left.
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

    /// Takes the next split, after waiting until it is not too far ahead of the merged ones. The next split to
    /// merge is always either being counted or available to take, so the wait ends.
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
            (self.progress)(AnalysisProgress {
                rows: shared.rows.fetch_add(rows, Ordering::Relaxed) + rows,
                bytes: shared.bytes.load(Ordering::Relaxed),
            });
            if self.until_positive && partial.has_required_positives() {
                break;
            }
        }
        Ok(partial)
    }
}

/// Stops the other threads when one panics, so that the panic propagates instead of hanging the pass.
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
        // A thread that panicked ends the pass, and its state is not used afterwards.
        self.merging.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Merging {
    /// Adds a counted split and merges all splits that are next in order. The pass fails with the first error
    /// in that order.
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
        self.stop |= until_positive && self.total.has_required_positives();
    }
}
