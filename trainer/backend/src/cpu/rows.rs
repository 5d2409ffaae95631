//! Which rows of a table a batch touches, and from which of its own rows: ids sorted stably, so that
//! gradients of one table row lie side by side and are summed in the order of the batch.

use millstream_batch::BatchSchema;

use crate::cpu::Cpu;
use crate::cpu::memory::Parts;
use crate::device::IdColumn;
use crate::host::{HostBatch, Ids, capacity, cardinality};

/// Most bits of a digit of the radix sort: its counters take 8 KiB of the stack.
const DIGIT_BITS: u32 = 11;

/// The plan of a batch: a sorted column for each column of ids.
pub struct CpuRowPlan {
    columns: Vec<SortedColumn>,
}

/// The ids of one column, sorted.
pub(crate) struct SortedColumn {
    column: IdColumn,
    id_bits: u32,
    entries: Vec<Entry>,
    spare: Vec<Entry>,
    /// Where each run of equal ids starts in `entries`, then the end of the last.
    starts: Vec<u32>,
    /// Parts of the above in use.
    entries_used: usize,
    runs_used: usize,
}

/// An id of a batch.
#[derive(Clone, Copy, Default)]
pub(crate) struct Entry {
    /// Row of the table.
    pub(crate) id: u32,
    /// Row of the batch.
    pub(crate) row: u32,
}

impl CpuRowPlan {
    pub(crate) fn new(schema: &BatchSchema, columns: &[IdColumn]) -> Self {
        let sorted = columns.iter().map(|&column| {
            let capacity = capacity(schema, column);
            SortedColumn {
                column,
                id_bits: u32::BITS - cardinality(schema, column).saturating_sub(1).leading_zeros(),
                entries: vec![Entry::default(); capacity],
                spare: vec![Entry::default(); capacity],
                starts: vec![0; capacity + 1],
                entries_used: 0,
                runs_used: 0,
            }
        });
        Self { columns: sorted.collect() }
    }

    /// Bytes that a plan over `columns` takes.
    pub(crate) fn bytes(schema: &BatchSchema, columns: &[IdColumn]) -> u64 {
        let each = 2 * size_of::<Entry>() + size_of::<u32>();
        columns.iter().map(|&column| (capacity(schema, column) * each) as u64).sum()
    }

    /// The sorted ids of `column`.
    pub(crate) fn column(&self, column: IdColumn) -> &SortedColumn {
        self.columns.iter().find(|sorted| sorted.column == column).expect("a lookup's column is in the plan")
    }
}

impl SortedColumn {
    /// Sorted by id, then by row.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries[..self.entries_used]
    }

    /// `n + 1` bounds of `n` runs of equal ids in [`SortedColumn::entries`].
    pub(crate) fn starts(&self) -> &[u32] {
        &self.starts[..=self.runs_used]
    }

    #[inline(always)]
    fn sort(&mut self, ids: Ids<'_>) {
        let count = ids.len();
        let (entries, spare) = (&mut self.entries[..count], &mut self.spare[..count]);
        let passes = self.id_bits.div_ceil(DIGIT_BITS).max(1);
        let digit_bits = self.id_bits.div_ceil(passes);
        // Passes alternate between two places; start so that the last ends in `entries`.
        let (mut to, mut from) = if passes % 2 == 1 { (entries, spare) } else { (spare, entries) };
        match ids {
            Ids::Single(ids) => {
                let unsorted = ids.iter().zip(0..).map(|(&id, row)| Entry { id, row });
                scatter(unsorted, to, 0, digit_bits);
            }
            Ids::Ragged(offsets, values) => {
                let unsorted = offsets.windows(2).zip(0..).flat_map(|(pair, row)| {
                    values[pair[0] as usize..pair[1] as usize].iter().map(move |&id| Entry { id, row })
                });
                scatter(unsorted, to, 0, digit_bits);
            }
        }
        for pass in 1..passes {
            std::mem::swap(&mut to, &mut from);
            scatter(from.iter().copied(), to, pass * digit_bits, digit_bits);
        }
        self.entries_used = count;
        self.find_runs();
    }

    #[inline(always)]
    fn find_runs(&mut self) {
        let entries = &self.entries[..self.entries_used];
        let mut runs = 0;
        let mut previous = None;
        for (position, entry) in (0..).zip(entries) {
            if previous != Some(entry.id) {
                self.starts[runs] = position;
                runs += 1;
                previous = Some(entry.id);
            }
        }
        self.starts[runs] = entries.len() as u32;
        self.runs_used = runs;
    }
}

/// One pass of a radix sort: places `from` in `to` by the digit at `shift`, stably.
#[inline(always)]
fn scatter(from: impl Iterator<Item = Entry> + Clone, to: &mut [Entry], shift: u32, digit_bits: u32) {
    let mask = (1_usize << digit_bits) - 1;
    let mut places = [0_u32; 1 << DIGIT_BITS];
    let places = &mut places[..=mask];
    for entry in from.clone() {
        places[(entry.id >> shift) as usize & mask] += 1;
    }
    let mut start = 0;
    for place in places.iter_mut() {
        start += std::mem::replace(place, start);
    }
    for entry in from {
        let place = &mut places[(entry.id >> shift) as usize & mask];
        to[*place as usize] = entry;
        *place += 1;
    }
}

/// Sorts each of the plan's columns; a task each.
pub(crate) fn plan(cpu: &Cpu, batch: &HostBatch, plan: &mut CpuRowPlan) {
    let count = plan.columns.len();
    let columns = Parts::new(&mut plan.columns);
    cpu.run(count, |task| {
        // SAFETY: each task takes a column of its own.
        let sorted = &mut unsafe { columns.get(task..task + 1) }[0];
        sorted.sort(batch.ids(sorted.column));
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use millstream_batch::{BatchBuffer, BatchHeader, IdFeature, SlotLayout, Stream};

    use super::*;

    /// Ids of one, two and three digits, and at the ends of each.
    #[test]
    fn ids_are_sorted_stably_at_every_cardinality() {
        let rows = 3000_u32;
        for cardinality in [1, 2, 3, 1 << 11, (1 << 11) + 1, 1 << 22, (1 << 22) + 1, u32::MAX] {
            let schema = BatchSchema {
                rows,
                labels: Vec::new(),
                weighted: false,
                dense: Vec::new(),
                ids: vec![IdFeature { name: "id".to_owned(), cardinality }],
                ragged: Vec::new(),
                position_bytes: 0,
            };
            let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema).unwrap()));
            let mut slot = buffer.as_mut();
            slot.set_header(&BatchHeader {
                stream: Stream::Train,
                epoch: 0,
                batch: 0,
                rows,
                global_rows: rows,
                last: false,
            });
            let ids = slot.sections().ids;
            for (row, id) in (0..rows).zip(ids.iter_mut()) {
                *id = row.wrapping_mul(0x9e37_79b9) % cardinality.min(1 << (row % 32)).max(1);
            }
            ids[7] = cardinality - 1;
            let mut expected: Vec<(u32, u32)> = ids.iter().copied().zip(0..).collect();
            expected.sort();
            let mut batch = HostBatch::new(&schema);
            batch.upload(buffer.as_ref()).unwrap();

            let mut plan = CpuRowPlan::new(&schema, &[IdColumn::Single(0)]);
            super::plan(&Cpu::new(Some(1)).unwrap(), &batch, &mut plan);
            let sorted = plan.column(IdColumn::Single(0));
            let found: Vec<(u32, u32)> = sorted.entries().iter().map(|e| (e.id, e.row)).collect();
            assert_eq!(found, expected, "{cardinality}");
            for bounds in sorted.starts().windows(2) {
                let run = &expected[bounds[0] as usize..bounds[1] as usize];
                assert!(!run.is_empty() && run.iter().all(|entry| entry.0 == run[0].0));
            }
            expected.dedup_by_key(|entry| entry.0);
            assert_eq!(sorted.starts().len(), expected.len() + 1);
            assert_eq!(sorted.starts().last(), Some(&rows));
        }
    }
}
