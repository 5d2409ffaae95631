//! The row plan: the table rows that a batch touches, and the batch rows that touch them. Ids are sorted stably, so
//! the gradients of one table row are adjacent and are summed in batch order.
//!
//! Columns that are looked up in one table are sorted together, one column after the other: an entry has its
//! column's number in the bits above its row.
//!
//! If one of the columns is weighted, entries are sorted with their weights, which are then stored in a parallel
//! array. Groups without weights have no such array.

use std::iter::repeat;
use std::ops::Range;

use millstream_batch::BatchSchema;

use crate::cpu::Cpu;
use crate::cpu::parts::{Blocks, Rows};
use crate::device::{IdColumn, Lookup, PLACE_BITS};
use crate::host::{HostBatch, Ids, capacity, cardinality, is_weighted};
use crate::ops::PlanRows;

/// The most bits of a digit of the radix sort: its counters use 8 KiB of the stack.
const DIGIT_BITS: u32 = 11;

/// The plan of a batch: sorted ids for each group of columns.
pub struct CpuRowPlan {
    groups: Vec<SortedIds>,
}

/// The ids of a group of columns, sorted.
pub(crate) struct SortedIds {
    columns: Vec<IdColumn>,
    id_bits: u32,
    /// The number of bits of an entry's row; the column's number is above them.
    row_bits: u32,
    entries: Vec<Entry>,
    /// The second buffer of the sort; empty in a group with weights.
    spare: Vec<Entry>,
    /// Only in a group with weights.
    weighted: Option<Box<WeightedIds>>,
    /// The start of each run of equal ids in `entries`, then the end of the last.
    starts: Vec<u32>,
    /// The lengths in use.
    entries_used: usize,
    runs_used: usize,
}

/// An id of a batch.
#[derive(Clone, Copy, Default)]
pub(crate) struct Entry {
    /// Row of the table.
    pub(crate) id: u32,
    /// Row of the batch, with the number of the column within its group above it.
    pub(crate) row: u32,
}

/// The weights of sorted ids.
struct WeightedIds {
    /// Parallel to the entries.
    weights: Vec<f32>,
    /// The two buffers of the sort.
    entries: [Vec<WeightedEntry>; 2],
}

/// An id with its weight: 1 in a column without weights.
#[derive(Clone, Copy, Default)]
struct WeightedEntry {
    entry: Entry,
    weight: f32,
}

/// An item that is sorted by its id.
trait Item: Copy {
    /// The item of an entry with this weight.
    fn of(entry: Entry, weight: f32) -> Self;
    fn id(&self) -> u32;
}

impl Item for Entry {
    #[inline(always)]
    fn of(entry: Entry, _weight: f32) -> Self {
        entry
    }

    #[inline(always)]
    fn id(&self) -> u32 {
        self.id
    }
}

impl Item for WeightedEntry {
    #[inline(always)]
    fn of(entry: Entry, weight: f32) -> Self {
        Self { entry, weight }
    }

    #[inline(always)]
    fn id(&self) -> u32 {
        self.entry.id
    }
}

impl CpuRowPlan {
    /// Allocates a plan for `groups`.
    ///
    /// # Panics
    /// If a group's columns times the rows of a batch do not fit in [`PLACE_BITS`] bits.
    pub(crate) fn new(schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> Self {
        let sorted = groups.iter().map(|columns| {
            let capacity = capacity_of(schema, columns);
            let row_bits = bits_below(schema.rows);
            let places = (columns.len() as u64) << row_bits;
            assert!(columns.len() == 1 || places <= 1 << PLACE_BITS, "too many columns share a table");
            let ids = columns.iter().map(|&column| cardinality(schema, column)).max();
            let weighted = has_weights(schema, columns);
            SortedIds {
                columns: columns.clone(),
                id_bits: bits_below(ids.unwrap_or_default()),
                row_bits,
                entries: vec![Entry::default(); capacity],
                spare: vec![Entry::default(); if weighted { 0 } else { capacity }],
                weighted: weighted.then(|| Box::new(WeightedIds::new(capacity))),
                starts: vec![0; capacity + 1],
                entries_used: 0,
                runs_used: 0,
            }
        });
        Self { groups: sorted.collect() }
    }

    /// Size of a plan over `groups`, in bytes.
    pub(crate) fn bytes(schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> u64 {
        let each = |columns| match has_weights(schema, columns) {
            false => 2 * size_of::<Entry>() + size_of::<u32>(),
            true => size_of::<Entry>() + 2 * size_of::<WeightedEntry>() + size_of::<f32>() + size_of::<u32>(),
        };
        groups.iter().map(|columns| (capacity_of(schema, columns) * each(columns)) as u64).sum()
    }

    /// The columns of all groups.
    pub(crate) fn columns(&self) -> impl Iterator<Item = IdColumn> {
        self.groups.iter().flat_map(|group| &group.columns).copied()
    }

    /// The sorted ids of the columns of `lookups`, which are the lookups of one table.
    pub(crate) fn group(&self, lookups: &[Lookup]) -> &SortedIds {
        let is_of_all =
            |sorted: &&SortedIds| sorted.columns.iter().eq(lookups.iter().map(|lookup| &lookup.column));
        self.groups.iter().find(is_of_all).expect("a table's lookups are in the plan")
    }
}

impl SortedIds {
    /// The number of an entry's column, and its row.
    #[inline(always)]
    pub(crate) fn place(row_bits: u32, entry: &Entry) -> (usize, usize) {
        let column = u64::from(entry.row) >> row_bits;
        let row = u64::from(entry.row) & ((1 << row_bits) - 1);
        (column as usize, row as usize)
    }

    /// The number of bits of an entry's row; the column's number is above them.
    pub(crate) fn row_bits(&self) -> u32 {
        self.row_bits
    }

    /// Sorted by id, then by row.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries[..self.entries_used]
    }

    /// The weights of [`SortedIds::entries`], if any column has weights.
    pub(crate) fn weights(&self) -> Option<&[f32]> {
        self.weighted.as_ref().map(|weighted| &weighted.weights[..self.entries_used])
    }

    /// `n + 1` bounds of `n` runs of equal ids in [`SortedIds::entries`].
    pub(crate) fn starts(&self) -> &[u32] {
        &self.starts[..=self.runs_used]
    }

    #[inline(always)]
    fn sort(&mut self, batch: &HostBatch) {
        self.entries_used = self.columns.iter().map(|&column| batch.ids(column).len()).sum();
        match (&*self.columns, &self.weighted) {
            (_, Some(_)) => self.sort_weighted(batch),
            (&[column], None) => self.sort_one(batch.ids(column)),
            (_, None) => self.sort_several(batch),
        }
        self.find_runs();
    }

    /// Sorts one column directly from the batch.
    #[inline(always)]
    fn sort_one(&mut self, ids: Ids<'_>) {
        let count = self.entries_used;
        let (entries, spare) = (&mut self.entries[..count], &mut self.spare[..count]);
        let (passes, digit_bits) = passes_of(self.id_bits);
        // Passes alternate between two buffers; choose the first one so that the last pass ends in `entries`.
        let (to, from) = if passes % 2 == 1 { (entries, spare) } else { (spare, entries) };
        match ids {
            Ids::Single(ids) => scatter(of_single(ids, 0), to, 0, digit_bits),
            Ids::Ragged(offsets, values) | Ids::Weighted(offsets, values, _) => {
                scatter(of_ragged(offsets, values, 0), to, 0, digit_bits);
            }
        }
        sort_by_digits(to, from, 1..passes, digit_bits);
    }

    /// Concatenates several columns, and sorts them.
    #[inline(always)]
    fn sort_several(&mut self, batch: &HostBatch) {
        let count = self.entries_used;
        let (entries, spare) = (&mut self.entries[..count], &mut self.spare[..count]);
        let (passes, digit_bits) = passes_of(self.id_bits);
        // As in `sort_one`, but with one more copy.
        let (from, to) = if passes.is_multiple_of(2) { (entries, spare) } else { (spare, entries) };
        concatenate(batch, &self.columns, self.row_bits, from);
        sort_by_digits(from, to, 0..passes, digit_bits);
    }

    /// Sorts any number of columns with the weights of their ids.
    #[inline(always)]
    fn sort_weighted(&mut self, batch: &HostBatch) {
        let Some(weighted) = &mut self.weighted else { return };
        let [from, to] = weighted.entries.each_mut().map(|entries| &mut entries[..self.entries_used]);
        concatenate(batch, &self.columns, self.row_bits, from);
        let (passes, digit_bits) = passes_of(self.id_bits);
        let sorted = sort_by_digits(from, to, 0..passes, digit_bits);
        let apart = self.entries.iter_mut().zip(&mut weighted.weights);
        for ((entry, weight), sorted) in apart.zip(sorted) {
            (*entry, *weight) = (sorted.entry, sorted.weight);
        }
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

impl WeightedIds {
    fn new(capacity: usize) -> Self {
        let entries = || vec![WeightedEntry::default(); capacity];
        Self { weights: vec![0.0; capacity], entries: [entries(), entries()] }
    }
}

/// Whether any of `columns` is weighted.
fn has_weights(schema: &BatchSchema, columns: &[IdColumn]) -> bool {
    columns.iter().any(|&column| is_weighted(schema, column))
}

/// Entries of a single-valued column.
#[inline(always)]
fn of_single(ids: &[u32], base: u32) -> impl Iterator<Item = Entry> + Clone {
    ids.iter().zip(base..).map(|(&id, row)| Entry { id, row })
}

/// Entries of a ragged column.
#[inline(always)]
fn of_ragged<'a>(
    offsets: &'a [u32],
    values: &'a [u32],
    base: u32,
) -> impl Iterator<Item = Entry> + Clone + 'a {
    offsets.windows(2).zip(base..).flat_map(move |(pair, row)| {
        values[pair[0] as usize..pair[1] as usize].iter().map(move |&id| Entry { id, row })
    })
}

/// The number of bits of integers below `bound`.
fn bits_below(bound: u32) -> u32 {
    u32::BITS - bound.saturating_sub(1).leading_zeros()
}

/// The most ids that one batch can have in all of `columns`.
fn capacity_of(schema: &BatchSchema, columns: &[IdColumn]) -> usize {
    columns.iter().map(|&column| capacity(schema, column)).sum()
}

/// Fills `to` with the ids of several columns, one column after the other. Ids without a weight have weight 1.
#[inline(always)]
fn concatenate<E: Item>(batch: &HostBatch, columns: &[IdColumn], row_bits: u32, mut to: &mut [E]) {
    for (number, &column) in (0_u64..).zip(columns) {
        let (ids, base) = (batch.ids(column), (number << row_bits) as u32);
        let to = to.split_off_mut(..ids.len()).expect("room for all ids");
        match ids {
            Ids::Single(ids) => fill(to, of_single(ids, base), repeat(&1.0)),
            Ids::Ragged(offsets, values) => fill(to, of_ragged(offsets, values, base), repeat(&1.0)),
            Ids::Weighted(offsets, values, weights) => {
                fill(to, of_ragged(offsets, values, base), weights.of_values.iter());
            }
        }
    }
}

#[inline(always)]
fn fill<'a, E: Item>(
    to: &mut [E],
    entries: impl Iterator<Item = Entry>,
    weights: impl Iterator<Item = &'a f32>,
) {
    for (to, (entry, &weight)) in to.iter_mut().zip(entries.zip(weights)) {
        *to = E::of(entry, weight);
    }
}

/// The passes of a radix sort by ids of `id_bits` bits, and the bits of a digit.
fn passes_of(id_bits: u32) -> (u32, u32) {
    let passes = id_bits.div_ceil(DIGIT_BITS).max(1);
    (passes, id_bits.div_ceil(passes))
}

/// Runs some passes of a radix sort of `from`, which alternate between both buffers, and returns the last destination.
#[inline(always)]
fn sort_by_digits<'a, E: Item>(
    mut from: &'a mut [E],
    mut to: &'a mut [E],
    passes: Range<u32>,
    digit_bits: u32,
) -> &'a mut [E] {
    for pass in passes {
        scatter(from.iter().copied(), to, pass * digit_bits, digit_bits);
        std::mem::swap(&mut from, &mut to);
    }
    from
}

/// One pass of a radix sort: copies `from` to `to`, stably sorted by the digit at `shift`.
#[inline(always)]
fn scatter<E: Item>(from: impl Iterator<Item = E> + Clone, to: &mut [E], shift: u32, digit_bits: u32) {
    let mask = (1_usize << digit_bits) - 1;
    let mut places = [0_u32; 1 << DIGIT_BITS];
    let places = &mut places[..=mask];
    for entry in from.clone() {
        places[(entry.id() >> shift) as usize & mask] += 1;
    }
    let mut start = 0;
    for place in places.iter_mut() {
        start += std::mem::replace(place, start);
    }
    for entry in from {
        let place = &mut places[(entry.id() >> shift) as usize & mask];
        to[*place as usize] = entry;
        *place += 1;
    }
}

/// Sorts the plan's groups, one task per group.
pub(crate) fn plan(cpu: &Cpu, operation: PlanRows<'_, Cpu>) {
    let PlanRows { batch, plan } = operation;
    let blocks = Blocks::of(plan.groups.len(), 1);
    run_blocks!(cpu, blocks, Rows::of(&mut plan.groups, 1), |_, groups| {
        for sorted in groups {
            sorted.sort(batch);
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use millstream_batch::{BatchBuffer, BatchHeader, IdFeature, SlotLayout, Stream};

    use super::*;
    use crate::device::Pooling;

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
                columns: Vec::new(),
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
                first_row: 0,
                most_rows: rows,
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

            let mut plan = CpuRowPlan::new(&schema, &[vec![IdColumn::Single(0)]]);
            super::plan(&Cpu::new(Some(1)).unwrap(), PlanRows { batch: &batch, plan: &mut plan });
            let column = IdColumn::Single(0);
            let sorted = plan.group(&[Lookup { column, pooling: Pooling::Sum, table: 0, first: 0 }]);
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
