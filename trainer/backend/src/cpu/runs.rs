//! Gradients of table rows: sorted by row, they form runs, which are summed in batch order.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::cpu::memory::prefetch;
use crate::cpu::rows::{Entry, SortedIds};
use crate::device::{Lookup, Pooling};
use crate::host::{HostBatch, Ids, Shares};
use crate::ops::{GradientColumns, RowGradients};

/// Sorted ids per task. A task owns the runs of equal ids that start among its ids, so each row belongs to one
/// task.
const ENTRIES: usize = 1024;
/// Prefetch distance for gradients, in ids: far enough to hide memory latency, near enough that prefetched lines
/// are still in the L1 cache.
const ENTRIES_AHEAD: usize = 16;
/// Columns of a row that are summed together, in registers.
pub(super) const STRIP: usize = 16;

/// The number of tasks for the runs of each table.
pub(super) fn tasks_each(gradients: &RowGradients<'_, Cpu>) -> usize {
    let tables = gradients.lookups.chunk_by(|one, next| one.table == next.table);
    let entries = tables.map(|lookups| gradients.plan.group(lookups).entries().len());
    entries.max().unwrap_or(0).div_ceil(ENTRIES)
}

/// Some runs of equal ids of one table, with their gradients.
pub(super) struct Runs<'a> {
    entries: &'a [Entry],
    /// The entries' weights, if any column looked up in the table is weighted.
    weights: Option<&'a [f32]>,
    /// Bounds of the runs: one more than the number of runs.
    starts: &'a [u32],
    /// The pooling of the table's one lookup, if `several` is `None`.
    pooled: Option<(Pooling, &'a [u32])>,
    /// The shares of the table's one lookup, if its column is weighted.
    shares: Option<Shares<'a>>,
    several: Option<Several<'a>>,
    /// Whether some gradients have a vector for each id of a batch row.
    has_sequences: bool,
    /// Starts at the first gradient column of the table's one lookup.
    gradient: &'a [f32],
    gradient_stride: usize,
    pub(super) width: usize,
}

/// The gradients of a table in which several columns are looked up, or one with a vector for each id.
struct Several<'a> {
    lookups: &'a [Lookup],
    batch: &'a HostBatch,
    columns: GradientColumns,
    row_bits: u32,
}

impl Several<'_> {
    /// Whether some lookup has a vector for each id.
    fn has_sequences(&self) -> bool {
        self.lookups.iter().any(|lookup| matches!(lookup.pooling, Pooling::Unpooled(_)))
    }

    /// The number of the vector of `entry` among those of its batch row: the place of its id in the row, after
    /// `previous`, the entry before it in the run, if that is of the same row.
    #[inline(always)]
    fn vector(&self, entry: &Entry, previous: Option<(u32, usize)>) -> usize {
        let (lookup, row) = self.lookup(entry);
        let Pooling::Unpooled(_) = lookup.pooling else { return 0 };
        // Entries of a run are in the order of the values, so that an id that a row has twice is found twice.
        let first = match previous {
            Some((of_row, vector)) if of_row == entry.row => vector + 1,
            _ => 0,
        };
        let ids = &self.batch.ids(lookup.column).row(row)[first..];
        first + ids.iter().position(|&id| id == entry.id).expect("the id of an entry is in its row")
    }

    /// Where the gradient of `entry` starts, with rows `stride` apart, and its factor.
    #[inline(always)]
    fn place(&self, entry: &Entry, stride: usize) -> (usize, f32) {
        let (lookup, row) = self.lookup(entry);
        (row * stride + self.columns.first_of(lookup), factor(pooled(self.batch, lookup), row))
    }

    /// The same for tables with weighted columns; `weight` is the entry's.
    #[inline(always)]
    fn place_by_weight(&self, entry: &Entry, weight: f32, stride: usize) -> (usize, f32) {
        let (lookup, row) = self.lookup(entry);
        let factor = match shares(self.batch, lookup) {
            Some(shares) => shares.of(row, weight),
            None => factor(pooled(self.batch, lookup), row),
        };
        (row * stride + self.columns.first_of(lookup), factor)
    }

    /// The lookup of `entry`, and its batch row.
    #[inline(always)]
    fn lookup(&self, entry: &Entry) -> (&Lookup, usize) {
        let (number, row) = SortedIds::place(self.row_bits, entry);
        (&self.lookups[number], row)
    }
}

/// The pooling and row offsets of a lookup whose ids count by their number in a batch row.
fn pooled<'a>(batch: &'a HostBatch, lookup: &Lookup) -> Option<(Pooling, &'a [u32])> {
    match (lookup.pooling, batch.ids(lookup.column)) {
        (Pooling::Sum | Pooling::Unpooled(_), _) | (_, Ids::Single(_) | Ids::Weighted(..)) => None,
        (pooling, Ids::Ragged(offsets, _)) => Some((pooling, offsets)),
    }
}

/// The shares of a lookup whose ids are weighted.
fn shares<'a>(batch: &'a HostBatch, lookup: &Lookup) -> Option<Shares<'a>> {
    match batch.ids(lookup.column) {
        Ids::Single(_) | Ids::Ragged(..) => None,
        Ids::Weighted(..) if matches!(lookup.pooling, Pooling::Unpooled(_)) => None,
        Ids::Weighted(_, _, weights) => Some(weights.shares(lookup.pooling)),
    }
}

/// The factor of the gradient of an id in batch row `row`.
#[inline(always)]
fn factor(pooled: Option<(Pooling, &[u32])>, row: usize) -> f32 {
    match pooled {
        Some((pooling, offsets)) => pooling.factor((offsets[row + 1] - offsets[row]) as usize) as f32,
        None => 1.0,
    }
}

impl<'a> Runs<'a> {
    /// The runs of table `number`, which has this width, that start among the ids of its task `task`.
    pub(super) fn new(gradients: &RowGradients<'a, Cpu>, number: usize, task: usize, width: usize) -> Self {
        let RowGradients { batch, plan, lookups, gradient, columns } = *gradients;
        let lookups = Lookup::of_table(lookups, number);
        let sorted = plan.group(lookups);
        let bounds = sorted.starts();
        let runs = &bounds[..bounds.len() - 1];
        let first = runs.partition_point(|&start| (start as usize) < task * ENTRIES);
        let end = runs.partition_point(|&start| (start as usize) < (task + 1) * ENTRIES);
        let several = Several { lookups, batch, columns, row_bits: sorted.row_bits() };
        let (offset, pooled, shares, several) = match lookups {
            [lookup] if !several.has_sequences() => {
                (columns.first_of(lookup), pooled(batch, lookup), shares(batch, lookup), None)
            }
            _ => (0, None, None, Some(several)),
        };
        Self {
            entries: sorted.entries(),
            weights: sorted.weights(),
            starts: &bounds[first..=end],
            pooled,
            shares,
            has_sequences: several.as_ref().is_some_and(Several::has_sequences),
            several,
            gradient: &gradient.as_slice()[offset..],
            gradient_stride: gradient.stride(),
            width,
        }
    }

    /// The number of runs.
    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The id of run `number`.
    #[inline(always)]
    pub(super) fn id_of(&self, number: usize) -> u32 {
        self.entries[self.starts[number] as usize].id
    }

    /// The id of run `number`, if the run exists.
    #[inline(always)]
    pub(super) fn id(&self, number: usize) -> Option<u32> {
        (number < self.len()).then(|| self.id_of(number))
    }

    #[inline(always)]
    fn range(&self, number: usize) -> Range<usize> {
        self.starts[number] as usize..self.starts[number + 1] as usize
    }

    /// A row's strips: first column and number of columns.
    #[inline(always)]
    pub(super) fn strips(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let whole = self.width / STRIP * STRIP;
        let rest = self.width - whole;
        (0..whole).step_by(STRIP).map(|first| (first, STRIP)).chain((rest > 0).then_some((whole, rest)))
    }

    /// The gradient of `columns` columns from `first` on, summed over the ids of run `number`.
    #[inline(always)]
    pub(super) fn sum(&self, number: usize, first: usize, columns: usize) -> [f32; STRIP] {
        let mut sum = [0.0_f32; STRIP];
        self.each(
            number,
            #[inline(always)]
            |(start, factor)| {
                let gradient = &self.gradient[start + first..][..columns];
                for (sum, &g) in sum[..columns].iter_mut().zip(gradient) {
                    *sum += g * factor;
                }
            },
        );
        sum
    }

    /// The same for a table of one column.
    #[inline(always)]
    pub(super) fn sum_of_one(&self, number: usize) -> f32 {
        let mut sum = 0.0;
        self.each(
            number,
            #[inline(always)]
            |(start, factor)| sum += self.gradient[start] * factor,
        );
        sum
    }

    /// Calls `add` with the start of each gradient of run `number`, and its factor.
    #[inline(always)]
    fn each(&self, number: usize, mut add: impl FnMut((usize, f32))) {
        let (range, stride) = (self.range(number), self.gradient_stride);
        let entries = &self.entries[range.clone()];
        match (&self.several, self.weights) {
            (Some(several), weights) if self.has_sequences => {
                let mut previous = None;
                for (number, entry) in entries.iter().enumerate() {
                    let (start, factor) = match weights {
                        None => several.place(entry, stride),
                        Some(weights) => {
                            several.place_by_weight(entry, weights[range.start + number], stride)
                        }
                    };
                    let vector = several.vector(entry, previous);
                    previous = Some((entry.row, vector));
                    add((start + vector * self.width, factor));
                }
            }
            (None, None) => entries.iter().for_each(|entry| add(self.place(entry))),
            (Some(several), None) => entries.iter().for_each(|entry| add(several.place(entry, stride))),
            (several, Some(weights)) => {
                for (entry, &weight) in entries.iter().zip(&weights[range]) {
                    add(match several {
                        None => self.place_by_weight(entry, weight),
                        Some(several) => several.place_by_weight(entry, weight, stride),
                    });
                }
            }
        }
    }

    /// Where the gradient of an `entry` of the one lookup starts, and its factor.
    #[inline(always)]
    fn place(&self, entry: &Entry) -> (usize, f32) {
        let row = entry.row as usize;
        (row * self.gradient_stride, factor(self.pooled, row))
    }

    /// The same for a weighted column; `weight` is the entry's.
    #[inline(always)]
    fn place_by_weight(&self, entry: &Entry, weight: f32) -> (usize, f32) {
        let row = entry.row as usize;
        (row * self.gradient_stride, self.shares.map_or(weight, |shares| shares.of(row, weight)))
    }

    /// Prefetches the gradients of later ids, as many as run `number` has.
    #[inline(always)]
    pub(super) fn fetch_ahead(&self, number: usize) {
        let run = self.range(number);
        let ahead = self.entries.get(run.start + ENTRIES_AHEAD..).unwrap_or_default();
        for entry in ahead.iter().take(run.len()) {
            let start = match &self.several {
                None => entry.row as usize * self.gradient_stride,
                Some(several) => several.place(entry, self.gradient_stride).0,
            };
            prefetch(self.gradient, start);
        }
    }
}
