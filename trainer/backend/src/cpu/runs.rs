//! The gradients of table rows: sorted by row, they are runs that are summed in the order of the batch.

use std::ops::Range;

use crate::backend::{GradientColumns, RowGradients};
use crate::cpu::memory::prefetch;
use crate::cpu::rows::{Entry, SortedIds};
use crate::cpu::{Cpu, tasks_for};
use crate::device::{Lookup, Pooling};
use crate::host::{HostBatch, Ids};

/// Sorted ids of a task. A task takes the runs of equal ids that start among its own, so that each row is one task's.
const ENTRIES: usize = 1024;
/// Ids that gradients are fetched ahead: enough for memory to answer, few enough that the answers are still in the
/// first-level cache.
const ENTRIES_AHEAD: usize = 16;
/// Columns of a row that are summed together, in registers.
pub(super) const STRIP: usize = 16;

/// Tasks that the runs of each table make.
pub(super) fn tasks_each(gradients: &RowGradients<'_, Cpu>) -> usize {
    let tables = gradients.lookups.chunk_by(|one, next| one.table == next.table);
    let entries = tables.map(|lookups| gradients.plan.group(lookups).entries().len());
    tasks_for(entries.max().unwrap_or(0), ENTRIES)
}

/// Some runs of equal ids of one table, with their gradients.
pub(super) struct Runs<'a> {
    entries: &'a [Entry],
    /// Bounds of the runs, one more than there are.
    starts: &'a [u32],
    /// Of the table's one lookup; none of several.
    pooled: Option<(Pooling, &'a [u32])>,
    several: Option<Several<'a>>,
    /// From the first column on that is the table's one lookup's.
    gradient: &'a [f32],
    gradient_stride: usize,
    pub(super) width: usize,
}

/// Where the gradients of a table lie that several columns are looked up in.
struct Several<'a> {
    lookups: &'a [Lookup],
    batch: &'a HostBatch,
    columns: GradientColumns,
    row_bits: u32,
}

impl Several<'_> {
    /// Where the gradient of `entry` begins, in rows `stride` apart, and what it counts for.
    #[inline(always)]
    fn place(&self, entry: &Entry, stride: usize) -> (usize, f32) {
        let (number, row) = SortedIds::place(self.row_bits, entry);
        let lookup = &self.lookups[number];
        let factor = factor(pooled(self.batch, lookup), row);
        (row * stride + self.columns.first_of(lookup), factor)
    }
}

/// Where ids count by how many there are in a batch row: how, and the offsets of each row's ids.
fn pooled<'a>(batch: &'a HostBatch, lookup: &Lookup) -> Option<(Pooling, &'a [u32])> {
    match (lookup.pooling, batch.ids(lookup.column)) {
        (Pooling::Sum, _) | (_, Ids::Single(_)) => None,
        (pooling, Ids::Ragged(offsets, _)) => Some((pooling, offsets)),
    }
}

/// What the gradient of an id of batch row `row` counts for.
#[inline(always)]
fn factor(pooled: Option<(Pooling, &[u32])>, row: usize) -> f32 {
    match pooled {
        Some((pooling, offsets)) => pooling.factor((offsets[row + 1] - offsets[row]) as usize) as f32,
        None => 1.0,
    }
}

impl<'a> Runs<'a> {
    /// The runs of table `number`, of this width, that start among the ids of its task `task`.
    pub(super) fn new(gradients: &RowGradients<'a, Cpu>, number: usize, task: usize, width: usize) -> Self {
        let RowGradients { batch, plan, lookups, gradient, columns } = *gradients;
        let lookups = Lookup::of_table(lookups, number);
        let sorted = plan.group(lookups);
        let bounds = sorted.starts();
        let runs = &bounds[..bounds.len() - 1];
        let first = runs.partition_point(|&start| (start as usize) < task * ENTRIES);
        let end = runs.partition_point(|&start| (start as usize) < (task + 1) * ENTRIES);
        let (offset, pooled, several) = match lookups {
            [lookup] => (columns.first_of(lookup), pooled(batch, lookup), None),
            _ => (0, None, Some(Several { lookups, batch, columns, row_bits: sorted.row_bits() })),
        };
        Self {
            entries: sorted.entries(),
            starts: &bounds[first..=end],
            pooled,
            several,
            gradient: &gradient.as_slice()[offset..],
            gradient_stride: gradient.stride(),
            width,
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The ids of run `number`: never none.
    #[inline(always)]
    pub(super) fn entries(&self, number: usize) -> &'a [Entry] {
        &self.entries[self.range(number)]
    }

    /// The id of run `number`, if there is one.
    #[inline(always)]
    pub(super) fn id(&self, number: usize) -> Option<u32> {
        (number < self.len()).then(|| self.entries[self.starts[number] as usize].id)
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

    /// The gradient of `columns` columns from `first` on, summed over `entries`.
    #[inline(always)]
    pub(super) fn sum(&self, entries: &[Entry], first: usize, columns: usize) -> [f32; STRIP] {
        let mut sum = [0.0_f32; STRIP];
        let mut add = |(start, factor): (usize, f32)| {
            let gradient = &self.gradient[start + first..][..columns];
            for (sum, &g) in sum[..columns].iter_mut().zip(gradient) {
                *sum += g * factor;
            }
        };
        match &self.several {
            None => entries.iter().for_each(|entry| add(self.place(entry))),
            Some(several) => {
                entries.iter().for_each(|entry| add(several.place(entry, self.gradient_stride)));
            }
        }
        sum
    }

    /// The same of a table of one column.
    #[inline(always)]
    pub(super) fn sum_of_one(&self, entries: &[Entry]) -> f32 {
        let mut sum = 0.0;
        let mut add = |(start, factor): (usize, f32)| sum += self.gradient[start] * factor;
        match &self.several {
            None => entries.iter().for_each(|entry| add(self.place(entry))),
            Some(several) => {
                entries.iter().for_each(|entry| add(several.place(entry, self.gradient_stride)));
            }
        }
        sum
    }

    /// Where the gradient of `entry` of the one lookup begins, and what it counts for.
    #[inline(always)]
    fn place(&self, entry: &Entry) -> (usize, f32) {
        let row = entry.row as usize;
        (row * self.gradient_stride, factor(self.pooled, row))
    }

    /// Asks for the gradients of as many ids to come as run `number` has.
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
