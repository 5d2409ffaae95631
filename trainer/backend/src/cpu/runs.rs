//! Gradients of table rows: sorted by row, they form runs, which are summed in batch order.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::cpu::memory::prefetch;
use crate::cpu::rows::{Entry, SortedIds};
use crate::cpu::touched::{STRIP, TouchedRows};
use crate::device::{Lookup, Pooling};
use crate::host::{HostBatch, Ids, Shares};
use crate::ops::{GradientColumns, RowGradients};

/// Sorted ids per task. A task owns the runs of equal ids that start among its ids, so each row belongs to one
/// task.
const ENTRIES: usize = 1024;
/// Prefetch distance for gradients, in ids: far enough to hide memory latency, near enough that prefetched lines
/// are still in the L1 cache.
const ENTRIES_AHEAD: usize = 16;

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
    /// Whether an entry's gradient depends on whether the entry before it is of the same batch row.
    looks_back: bool,
    /// The holders of maxima, from the first column of the table's one lookup on; empty if none of its lookups has maxima.
    holders: &'a [u32],
    holders_stride: usize,
    /// Starts at the first gradient column of the table's one lookup.
    gradient: &'a [f32],
    gradient_stride: usize,
    width: usize,
}

/// A gradient of a run.
struct Part {
    /// Where it starts.
    start: usize,
    factor: f32,
    /// Where the holders of its maxima start: only the columns that the run's id holds go to it.
    holders: Option<usize>,
}

impl Part {
    /// A gradient of which all columns count.
    #[inline(always)]
    fn whole((start, factor): (usize, f32)) -> Self {
        Self { start, factor, holders: None }
    }
}

/// The gradients of a table in which several columns are looked up, or one with a vector for each id.
struct Several<'a> {
    lookups: &'a [Lookup],
    /// The table's first column among the holders of maxima.
    first_holder: usize,
    width: usize,
    batch: &'a HostBatch,
    columns: GradientColumns,
    row_bits: u32,
}

impl Several<'_> {
    /// Whether some lookup has a vector for each id, or maxima.
    fn looks_back(&self) -> bool {
        let looks_back =
            |lookup: &Lookup| lookup.has_maxima() || matches!(lookup.pooling, Pooling::Unpooled(_));
        self.lookups.iter().any(looks_back)
    }

    /// Where the holders of the maxima of `entry` start, with rows `stride` apart, if its lookup has maxima.
    #[inline(always)]
    fn holders(&self, entry: &Entry, stride: usize) -> Option<usize> {
        let (number, row) = SortedIds::place(self.row_bits, entry);
        let (before, lookup) = (&self.lookups[..number], &self.lookups[number]);
        let before = self.first_holder + before.iter().map(|lookup| lookup.maxima(self.width)).sum::<usize>();
        lookup.has_maxima().then_some(row * stride + before)
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
        (Pooling::Sum | Pooling::Max | Pooling::Unpooled(_), _) | (_, Ids::Single(_) | Ids::Weighted(..)) => {
            None
        }
        (pooling, Ids::Ragged(offsets, _)) => Some((pooling, offsets)),
    }
}

/// The shares of a lookup whose ids are weighted.
fn shares<'a>(batch: &'a HostBatch, lookup: &Lookup) -> Option<Shares<'a>> {
    match batch.ids(lookup.column) {
        Ids::Single(_) | Ids::Ragged(..) => None,
        Ids::Weighted(..) if matches!(lookup.pooling, Pooling::Max | Pooling::Unpooled(_)) => None,
        Ids::Weighted(_, _, weights) => Some(weights.shares(lookup.pooling)),
    }
}

/// Whether the table's one `lookup` has maxima, and its column no weights.
fn has_plain_maxima(lookup: &Lookup, sorted: &SortedIds) -> bool {
    lookup.has_maxima() && sorted.weights().is_none()
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
    /// The runs of table `number` that start among the ids of its task `task`. `width_of` is the width of each table.
    pub(super) fn new(
        gradients: &RowGradients<'a, Cpu>,
        number: usize,
        task: usize,
        width_of: impl Fn(usize) -> usize,
    ) -> Self {
        let RowGradients { batch, plan, lookups: all, gradient, columns, maxima } = *gradients;
        let lookups = Lookup::of_table(all, number);
        let sorted = plan.group(lookups);
        let bounds = sorted.starts();
        let runs = &bounds[..bounds.len() - 1];
        let first = runs.partition_point(|&start| (start as usize) < task * ENTRIES);
        let end = runs.partition_point(|&start| (start as usize) < (task + 1) * ENTRIES);
        let before = &all[..all.partition_point(|lookup| lookup.table < number)];
        let first_holder = Lookup::all_maxima(before, &width_of);
        let width = width_of(number);
        let several = Several { lookups, first_holder, width, batch, columns, row_bits: sorted.row_bits() };
        let (offset, pooled, shares, several) = match lookups {
            [lookup] if !several.looks_back() || has_plain_maxima(lookup, sorted) => {
                (columns.first_of(lookup), pooled(batch, lookup), shares(batch, lookup), None)
            }
            _ => (0, None, None, Some(several)),
        };
        let holders = match maxima {
            Some(maxima) if lookups.iter().any(Lookup::has_maxima) => {
                &maxima.as_slice()[if several.is_none() { first_holder } else { 0 }..]
            }
            _ => &[],
        };
        Self {
            entries: sorted.entries(),
            weights: sorted.weights(),
            starts: &bounds[first..=end],
            pooled,
            shares,
            looks_back: several.as_ref().is_some_and(Several::looks_back),
            holders,
            holders_stride: maxima.map_or(0, |maxima| maxima.shape().columns),
            several,
            gradient: &gradient.as_slice()[offset..],
            gradient_stride: gradient.stride(),
            width,
        }
    }

    #[inline(always)]
    fn range(&self, number: usize) -> Range<usize> {
        self.starts[number] as usize..self.starts[number + 1] as usize
    }

    /// Calls `add` with each gradient of run `number`. An id that a batch row repeats holds maxima once.
    #[inline(always)]
    fn each(&self, number: usize, mut add: impl FnMut(Part)) {
        let (range, stride) = (self.range(number), self.gradient_stride);
        let entries = &self.entries[range.clone()];
        match (&self.several, self.weights) {
            (Some(several), weights) if self.looks_back => {
                let mut previous = None;
                for (number, entry) in entries.iter().enumerate() {
                    let (start, factor) = match weights {
                        None => several.place(entry, stride),
                        Some(weights) => {
                            several.place_by_weight(entry, weights[range.start + number], stride)
                        }
                    };
                    let is_repeated = previous.is_some_and(|(row, _)| row == entry.row);
                    let vector = several.vector(entry, previous);
                    previous = Some((entry.row, vector));
                    let holders = several.holders(entry, self.holders_stride);
                    if holders.is_none() || !is_repeated {
                        add(Part { start: start + vector * self.width, factor, holders });
                    }
                }
            }
            (None, None) if !self.holders.is_empty() => {
                let mut previous = None;
                for entry in entries {
                    if previous.replace(entry.row) != Some(entry.row) {
                        let row = entry.row as usize;
                        let holders = Some(row * self.holders_stride);
                        add(Part { start: row * stride, factor: 1.0, holders });
                    }
                }
            }
            (None, None) => entries.iter().for_each(|entry| add(Part::whole(self.place(entry)))),
            (Some(several), None) => {
                entries.iter().for_each(|entry| add(Part::whole(several.place(entry, stride))));
            }
            (several, Some(weights)) => {
                for (entry, &weight) in entries.iter().zip(&weights[range]) {
                    add(Part::whole(match several {
                        None => self.place_by_weight(entry, weight),
                        Some(several) => several.place_by_weight(entry, weight, stride),
                    }));
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
}

impl TouchedRows for Runs<'_> {
    /// The number of runs.
    fn len(&self) -> usize {
        self.starts.len() - 1
    }

    fn width(&self) -> usize {
        self.width
    }

    #[inline(always)]
    fn id_of(&self, number: usize) -> u32 {
        self.entries[self.starts[number] as usize].id
    }

    #[inline(always)]
    fn sum(&self, number: usize, first: usize, columns: usize) -> [f32; STRIP] {
        let id = self.id_of(number);
        let mut sum = [0.0_f32; STRIP];
        self.each(
            number,
            #[inline(always)]
            |Part { start, factor, holders }| {
                let gradient = &self.gradient[start + first..][..columns];
                let Some(holders) = holders else {
                    for (sum, &g) in sum[..columns].iter_mut().zip(gradient) {
                        *sum += g * factor;
                    }
                    return;
                };
                let holders = &self.holders[holders + first..][..columns];
                for ((sum, &g), &holder) in sum[..columns].iter_mut().zip(gradient).zip(holders) {
                    *sum += if holder == id { g } else { 0.0 };
                }
            },
        );
        sum
    }

    #[inline(always)]
    fn sum_of_one(&self, number: usize) -> f32 {
        let id = self.id_of(number);
        let mut sum = 0.0;
        self.each(
            number,
            #[inline(always)]
            |Part { start, factor, holders }| {
                let is_held = holders.is_none_or(|at| self.holders[at] == id);
                sum += if is_held { self.gradient[start] * factor } else { 0.0 };
            },
        );
        sum
    }

    /// Prefetches the gradients of later ids, as many as run `number` has.
    #[inline(always)]
    fn fetch_ahead(&self, number: usize) {
        let run = self.range(number);
        let ahead = self.entries.get(run.start + ENTRIES_AHEAD..).unwrap_or_default();
        for entry in ahead.iter().take(run.len()) {
            let start = match &self.several {
                None => entry.row as usize * self.gradient_stride,
                Some(several) => several.place(entry, self.gradient_stride).0,
            };
            prefetch(self.gradient, start);
            if self.several.is_none() && !self.holders.is_empty() {
                prefetch(self.holders, entry.row as usize * self.holders_stride);
            }
        }
    }
}
