//! The analysis pass over the training data.
//!
//! Threads take splits in order and count each separately; the counts are merged in the same order
//! ([`parallel`](crate::parallel)). A thread waits before it starts a split too far ahead of the merged ones, so only
//! a few [`Partial`]s exist at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millstream_format::RawChunk;
use tokio::runtime::Handle;

use super::partial::{Partial, Plan};
use super::{Analysis, learns_terms};
use crate::Error;
use crate::bad_records::BadRecords;
use crate::dataset::Dataset;
use crate::parallel::{Bounds, Weighed, in_order};
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
    /// The memory of each of `threads` readers for pages that turn out to be large; see
    /// [`AnalysisPass::reader_bytes`].
    pub reader_bytes: u64,
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

/// What a running pass has counted so far.
#[derive(Default)]
struct Counted {
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

    /// The value of `reader_bytes` that keeps reading within the job's memory budget.
    pub fn reader_bytes(data: &DataSpec) -> u64 {
        data.memory_budget_bytes / MOST_THREADS as u64
    }

    /// Reads the data and learns the statistics. When no feature learns any, it reads only until every label
    /// that distinguishes positives has had a positive row, and returns an empty analysis.
    ///
    /// # Errors
    /// [`Error::NoRows`] and its kin, [`Error::NeverPositive`], a numeric column without any number, a column of the wrong type,
    /// bad records that `bad` rejects, any read error, and [`Error::Cancelled`].
    pub fn run(&self) -> Result<Analysis, Error> {
        let plan = Plan::new(self.features, self.label, self.missing, self.vocabulary_bytes);
        self.dataset.limits().set_decode_bytes(self.reader_bytes);
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
        if total.rows == 0 {
            let skipped = (self.bad.skipped(), self.bad.take_last());
            return Err(Error::of_no_rows("training", skipped, self.dataset.row_filter().is_some()));
        }
        total.check(self.label)?;
        if needed { plan.analysis(&total, self.features) } else { Ok(Analysis::default()) }
    }
}

impl Counting<'_> {
    /// Counts all splits, or as many as needed.
    pub(super) fn run(&self, threads: usize) -> Result<Partial, Error> {
        let threads = threads.clamp(1, MOST_THREADS);
        let (counted, enough) = (Counted::default(), AtomicBool::new(false));
        let mut splits = 0..self.source.split_bytes.len();
        let mut total = self.plan.start();
        in_order(
            // Each split weighs 1: at most one more than there are threads exists at a time.
            Bounds { threads, bytes: threads + 1 },
            || {
                let next = splits.next().filter(|_| !enough.load(Ordering::Relaxed));
                Ok(next.map(|item| Weighed { item, bytes: 1 }))
            },
            |split| self.count(split, &counted),
            |partial| {
                total.merge(partial);
                enough.store(self.until_positive && total.has_required_positives(), Ordering::Relaxed);
                Ok(())
            },
        )?;
        Ok(total)
    }

    fn count(&self, split: usize, counted: &Counted) -> Result<Partial, Error> {
        let mut partial = self.plan.start();
        let mut next = (self.source.read)(split)?;
        while let Some(chunk) = next()? {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            self.plan.count(&chunk, self.bad, &mut partial)?;
            let rows = chunk.rows() as u64;
            (self.progress)(AnalysisProgress {
                rows: counted.rows.fetch_add(rows, Ordering::Relaxed) + rows,
                bytes: counted.bytes.load(Ordering::Relaxed),
            });
            if self.until_positive && partial.has_required_positives() {
                break;
            }
        }
        counted.bytes.fetch_add(self.source.split_bytes[split], Ordering::Relaxed);
        Ok(partial)
    }
}
