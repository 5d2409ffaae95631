//! The gradients of table rows: sorted by row, they are runs that are summed in the order of the batch.

use std::ops::Range;

use crate::backend::{GradientColumns, RowGradients};
use crate::cpu::memory::prefetch;
use crate::cpu::rows::Entry;
use crate::cpu::{Cpu, tasks_for};
use crate::device::Pooling;
use crate::host::Ids;

/// Sorted ids of a task. A task takes the runs of equal ids that start among its own, so that each row is one task's.
const ENTRIES: usize = 1024;
/// Ids that gradients are fetched ahead: enough for memory to answer, few enough that the answers are still in the
/// first-level cache.
const ENTRIES_AHEAD: usize = 16;
/// Columns of a row that are summed together, in registers.
pub(super) const STRIP: usize = 16;

/// Tasks that the runs of each table make.
pub(super) fn tasks_each(gradients: &RowGradients<'_, Cpu>) -> usize {
    let columns = gradients.lookups.iter().map(|lookup| gradients.plan.column(lookup.column));
    tasks_for(columns.map(|sorted| sorted.entries().len()).max().unwrap_or(0), ENTRIES)
}

/// Some runs of equal ids of one table, with their gradients.
pub(super) struct Runs<'a> {
    entries: &'a [Entry],
    /// Bounds of the runs, one more than there are.
    starts: &'a [u32],
    /// Where ids count by how many there are in a batch row: how, and the offsets of each row's ids.
    pooled: Option<(Pooling, &'a [u32])>,
    /// From the first column on that is this table's.
    gradient: &'a [f32],
    gradient_stride: usize,
    pub(super) width: usize,
}

impl<'a> Runs<'a> {
    /// The runs of table `number` that start among the ids of its task `task`; `width` gives each table's width.
    pub(super) fn new(
        gradients: &RowGradients<'a, Cpu>,
        number: usize,
        task: usize,
        width: impl Fn(usize) -> usize,
    ) -> Self {
        let RowGradients { batch, plan, lookups, gradient, columns } = *gradients;
        let lookup = &lookups[number];
        let sorted = plan.column(lookup.column);
        let bounds = sorted.starts();
        let runs = &bounds[..bounds.len() - 1];
        let first = runs.partition_point(|&start| (start as usize) < task * ENTRIES);
        let end = runs.partition_point(|&start| (start as usize) < (task + 1) * ENTRIES);
        let offset = match columns {
            GradientColumns::Apart { first } => first + (0..number).map(&width).sum::<usize>(),
            GradientColumns::Shared => 0,
        };
        let pooled = match (lookup.pooling, batch.ids(lookup.column)) {
            (Pooling::Sum, _) | (_, Ids::Single(_)) => None,
            (pooling, Ids::Ragged(offsets, _)) => Some((pooling, offsets)),
        };
        Self {
            entries: sorted.entries(),
            starts: &bounds[first..=end],
            pooled,
            gradient: &gradient.as_slice()[offset..],
            gradient_stride: gradient.stride(),
            width: width(number),
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
        for entry in entries {
            let start = entry.row as usize * self.gradient_stride + first;
            let gradient = &self.gradient[start..start + columns];
            let factor = self.factor(entry);
            for (sum, &g) in sum[..columns].iter_mut().zip(gradient) {
                *sum += g * factor;
            }
        }
        sum
    }

    /// The same of a table of one column.
    #[inline(always)]
    pub(super) fn sum_of_one(&self, entries: &[Entry]) -> f32 {
        let mut sum = 0.0;
        for entry in entries {
            sum += self.gradient[entry.row as usize * self.gradient_stride] * self.factor(entry);
        }
        sum
    }

    /// What the gradient of `entry` counts for.
    #[inline(always)]
    fn factor(&self, entry: &Entry) -> f32 {
        match self.pooled {
            Some((pooling, offsets)) => {
                let row = entry.row as usize;
                pooling.factor((offsets[row + 1] - offsets[row]) as usize) as f32
            }
            None => 1.0,
        }
    }

    /// Asks for the gradients of as many ids to come as run `number` has.
    #[inline(always)]
    pub(super) fn fetch_ahead(&self, number: usize) {
        let run = self.range(number);
        let ahead = self.entries.get(run.start + ENTRIES_AHEAD..).unwrap_or_default();
        for entry in ahead.iter().take(run.len()) {
            prefetch(self.gradient, entry.row as usize * self.gradient_stride);
        }
    }
}
