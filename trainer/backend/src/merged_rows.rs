//! The rows of tables that all parts of a batch touch. Each part is computed by one of several workers, which send the sums of
//! their rows to each other ([`RowSums`]); each merges the sums of all parts, and steps the rows.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::collective::Summand;
use crate::device::{Scalar, TableShape};
use crate::float::Float;
use crate::row_sums::RowSums;

/// The rows of tables that a batch touches, and the sums of their gradients over all parts, in host memory.
///
/// Gradients stay where the parts have them: few rows are in several parts, unless the table is small.
pub struct HostMergedRows<S: Scalar> {
    shapes: Vec<MergedShape>,
    /// Parallel to `shapes`.
    tables: Vec<MergedTable>,
    /// A row that several parts have is summed in the first of them.
    parts: Vec<RowSums<S>>,
    /// Where the gradients of each table start, by part.
    starts: Vec<Vec<usize>>,
}

/// The rows of a table that batches touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergedShape {
    /// Rows of the table, `C`.
    pub rows: usize,
    /// Columns of the table, `W`.
    pub width: usize,
    /// The most rows that a batch touches.
    pub most: usize,
    /// The most rows that its parts touch, counted together.
    pub sent: usize,
}

/// How many rows of each table the parts of a batch touch.
#[derive(Clone, Copy, Debug)]
pub struct PartRows<'a> {
    /// The number of parts.
    pub parts: usize,
    /// The most ids of a part, by table.
    pub ids: &'a [usize],
    /// The most ids of a part by table, if all parts have equally many rows. It bounds the rows that all parts touch together,
    /// however the ids are divided.
    pub even_ids: &'a [usize],
    /// Whether devices that are connected gather the rows of all parts, one of each rank:
    /// [`Backend::merge_over_ranks`](crate::Backend::merge_over_ranks).
    pub are_gathered: bool,
    /// The format in which they do.
    pub float: Float,
}

/// How many of the most ids of a part are counted as one row, and the largest table that is summed as a whole.
const IDS_PER_ROW: usize = 4;
const MOST_SUMMED_BYTES: u128 = 16 << 20;

impl PartRows<'_> {
    /// Whether a table is summed as a whole, of which a part looks up at most `ids` ids if all have equally many rows: if a
    /// worker then probably sends and gets fewer bytes than if it gathers the rows of all parts, and never many.
    ///
    /// A sum over many workers sends and gets each number twice, counted as fp32 here. A gather gets the ids and rows of each part
    /// once. How many rows a part touches is unknown: ids repeat, and histories are shorter than the longest one.
    pub fn sums_whole(&self, shape: &TableShape, ids: usize) -> bool {
        let touched = (ids / IDS_PER_ROW).min(shape.rows) as u128;
        let (all, width) = (shape.rows as u128, shape.width as u128);
        let summed = all * (width + 1) * size_of::<f32>() as u128;
        let of_row = width * f32::wire_bytes(self.float) as u128 + size_of::<u32>() as u128;
        summed <= MOST_SUMMED_BYTES && 2 * summed < self.parts as u128 * touched * of_row
    }
}

impl MergedShape {
    /// The rows of each of the tables `shapes` that all parts touch.
    pub(crate) fn of(shapes: &[TableShape], rows: PartRows<'_>) -> Vec<Self> {
        let shape = |(shape, &ids): (&TableShape, &usize)| {
            let sent = ids.min(shape.rows).saturating_mul(rows.parts);
            Self { rows: shape.rows, width: shape.width, most: sent.min(shape.rows), sent }
        };
        shapes.iter().zip(rows.even_ids).map(shape).collect()
    }
}

/// Which rows of a table are touched. The ids ascend, without repetitions, and are below the number of the table's rows.
#[derive(Default)]
struct MergedTable {
    /// How many they are; what follows is of earlier batches.
    count: usize,
    ids: Vec<u32>,
    /// Where the gradient of each row is.
    places: Vec<Place>,
}

/// A row of a table of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    part: u32,
    row: u32,
}

/// The touched rows of a table.
pub(crate) struct MergedRowsOf<'a, S> {
    ids: &'a [u32],
    places: &'a [Place],
    /// The gradients of each part.
    parts: Vec<&'a [S]>,
    width: usize,
}

impl<'a, S> MergedRowsOf<'a, S> {
    pub(crate) fn ids(&self) -> &'a [u32] {
        self.ids
    }

    /// The columns of the table.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The gradient of row `number` of these, `[W]`.
    #[inline(always)]
    pub(crate) fn row(&self, number: usize) -> &'a [S] {
        let (gradients, first) = self.place(number);
        &gradients[first..first + self.width]
    }

    /// The gradients of the part that has row `number` of these, and where the row starts.
    #[inline(always)]
    pub(crate) fn place(&self, number: usize) -> (&'a [S], usize) {
        let Place { part, row } = self.places[number];
        (self.parts[part as usize], row as usize * self.width)
    }

    /// The gradients of all rows, in order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'a [S]> {
        (0..self.ids.len()).map(|number| self.row(number))
    }

    /// Some of these rows.
    pub(crate) fn slice(self, rows: Range<usize>) -> Self {
        Self { ids: &self.ids[rows.clone()], places: &self.places[rows], ..self }
    }
}

impl<S: Scalar> HostMergedRows<S> {
    pub(crate) fn new(shapes: Vec<MergedShape>) -> Self {
        let tables = shapes.iter().map(|_| MergedTable::default()).collect();
        Self { shapes, tables, parts: Vec::new(), starts: Vec::new() }
    }

    /// The most memory that these rows use beside the parts, in bytes.
    pub(crate) fn bytes(shapes: &[MergedShape]) -> u64 {
        let of_row = size_of::<u32>() + size_of::<Place>();
        let of_table = |shape: &MergedShape| (shape.sent as u64).saturating_mul(of_row as u64);
        shapes.iter().map(of_table).fold(0, u64::saturating_add)
    }

    pub(crate) fn shapes(&self) -> &[MergedShape] {
        &self.shapes
    }

    /// The number of touched rows of table `number`.
    pub(crate) fn count(&self, number: usize) -> usize {
        self.tables[number].count
    }

    /// The touched rows of table `number`.
    pub(crate) fn table(&self, number: usize) -> MergedRowsOf<'_, S> {
        let (MergedTable { count, ids, places }, width) = (&self.tables[number], self.shapes[number].width);
        let (ids, places) = (&ids[..*count], &places[..*count]);
        let parts = self.parts.iter().zip(&self.starts);
        let parts = parts.map(|(sums, starts)| &sums.rows[starts[number]..]).collect();
        MergedRowsOf { ids, places, parts, width }
    }

    /// The touched rows of each table.
    pub(crate) fn tables(&self) -> impl Iterator<Item = MergedRowsOf<'_, S>> {
        (0..self.tables.len()).map(|number| self.table(number))
    }

    /// Takes the rows of all `parts`. Sums of a row are added in the order of the parts. Returns whether the parts are of these
    /// tables; if not, no rows are touched.
    ///
    /// `run` calls a task with each number below the given one, perhaps in several threads.
    pub(crate) fn merge(
        &mut self,
        parts: Vec<RowSums<S>>,
        run: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
    ) -> bool {
        self.parts = parts;
        let are_merged = self.merge_parts(run);
        if !are_merged {
            self.take_parts();
        }
        are_merged
    }

    /// Gives back the parts. No rows are touched then.
    pub(crate) fn take_parts(&mut self) -> Vec<RowSums<S>> {
        self.tables.iter_mut().for_each(|table| table.count = 0);
        std::mem::take(&mut self.parts)
    }

    fn merge_parts(&mut self, run: impl FnOnce(usize, &(dyn Fn(usize) + Sync))) -> bool {
        let widths: Vec<usize> = self.shapes.iter().map(|shape| shape.width).collect();
        self.starts.clear();
        let mut of_tables: Vec<Vec<_>> = widths.iter().map(|_| Vec::new()).collect();
        for sums in &mut self.parts {
            let mut start = 0;
            let Some(tables) = sums.by_table_mut(&widths) else { return false };
            let start_of = |(_, rows): &(&[u32], &mut [S])| {
                let next = start + rows.len();
                std::mem::replace(&mut start, next)
            };
            self.starts.push(tables.iter().map(start_of).collect());
            of_tables.iter_mut().zip(tables).for_each(|(of_table, rows)| of_table.push(rows));
        }
        // Each table has one task, so no lock waits.
        let merges = self.tables.iter_mut().zip(&self.shapes).zip(of_tables);
        let merges: Vec<_> = merges.map(Mutex::new).collect();
        let are_of_tables = AtomicBool::new(true);
        run(merges.len(), &|number| {
            let mut merge = merges[number].lock().unwrap_or_else(PoisonError::into_inner);
            let ((table, shape), parts) = &mut *merge;
            if !table.merge(**shape, parts) {
                are_of_tables.store(false, Ordering::Relaxed);
            }
        });
        are_of_tables.into_inner()
    }
}

impl MergedTable {
    /// Takes the rows of all parts: ids, and as many gradients. Returns whether they are of a table of this shape.
    fn merge<S: Scalar>(&mut self, shape: MergedShape, parts: &mut [(&[u32], &mut [S])]) -> bool {
        let MergedShape { rows, width, most, .. } = shape;
        let is_of_table = |ids: &[u32]| {
            ids.is_sorted_by(|id, next| id < next) && ids.last().is_none_or(|&last| (last as usize) < rows)
        };
        if !parts.iter().all(|(ids, sums)| is_of_table(ids) && sums.len() == ids.len() * width) {
            return false;
        }
        let all: usize = parts.iter().map(|(ids, _)| ids.len()).sum();
        if let more @ 1.. = all.saturating_sub(self.ids.len()) {
            self.ids.reserve_exact(more);
            self.places.reserve_exact(more);
            self.ids.resize(all, 0);
            self.places.resize(all, Place::default());
        }
        self.count = match parts {
            [first, second] => self.merge_two(width, first, second),
            _ => self.merge_any(width, parts),
        };
        self.count <= most
    }

    /// Merges two parts; returns the number of merged rows. The usual case: its cursors stay in registers.
    fn merge_two<S: Scalar>(
        &mut self,
        width: usize,
        (first, sums): &mut (&[u32], &mut [S]),
        (second, others): &mut (&[u32], &mut [S]),
    ) -> usize {
        let (mut row, mut other, mut merged) = (0, 0, 0);
        let mut places = self.ids.iter_mut().zip(&mut self.places);
        while let (Some(&id), Some(&other_id)) = (first.get(row), second.get(other)) {
            let (is_first, is_second) = (id <= other_id, other_id <= id);
            let Some((merged_id, place)) = places.next() else { break };
            // Which part is next is random: a branch would be mispredicted.
            *merged_id = id.min(other_id);
            let (part, at) = std::hint::select_unpredictable(is_first, (0, row), (1, other));
            *place = Place { part, row: at as u32 };
            if is_first && is_second {
                S::accumulate(&mut sums[row * width..][..width], &others[other * width..][..width]);
            }
            (row, other) = (row + usize::from(is_first), other + usize::from(is_second));
            merged += 1;
        }
        let rest_of_first = (row..).zip(&first[row..]).map(|(row, id)| (0, row, id));
        let rest_of_second = (other..).zip(&second[other..]).map(|(row, id)| (1, row, id));
        for ((merged_id, place), (part, row, &id)) in places.zip(rest_of_first.chain(rest_of_second)) {
            (*merged_id, *place) = (id, Place { part, row: row as u32 });
            merged += 1;
        }
        merged
    }

    /// Merges any number of parts; returns the number of merged rows.
    fn merge_any<S: Scalar>(&mut self, width: usize, parts: &mut [(&[u32], &mut [S])]) -> usize {
        let mut cursors: Vec<Cursor<'_>> = parts.iter().map(|(ids, _)| Cursor::new(ids)).collect();
        let mut merged = 0;
        for (merged_id, place) in self.ids.iter_mut().zip(&mut self.places) {
            let (mut first, mut id) = (0, Cursor::END);
            for (number, cursor) in cursors.iter().enumerate() {
                // As in `merge_two`.
                (first, id) =
                    std::hint::select_unpredictable(cursor.id < id, (number, cursor.id), (first, id));
            }
            if id == Cursor::END {
                break;
            }
            let row = cursors[first].take();
            (*merged_id, *place) = (id as u32, Place { part: first as u32, row });
            merged += 1;
            for (number, cursor) in cursors.iter_mut().enumerate().skip(first + 1) {
                if cursor.id == id {
                    let other = cursor.take();
                    let (before, later) = parts.split_at_mut(number);
                    let row_of = |row: u32| row as usize * width..(row as usize + 1) * width;
                    S::accumulate(&mut before[first].1[row_of(row)], &later[0].1[row_of(other)]);
                }
            }
        }
        merged
    }
}

/// The rows of a part that have not been merged.
struct Cursor<'a> {
    /// The id of the next row, or [`Cursor::END`].
    id: u64,
    /// The number of the next row.
    row: u32,
    later: std::slice::Iter<'a, u32>,
}

impl<'a> Cursor<'a> {
    /// Above every id.
    const END: u64 = u64::MAX;

    fn new(ids: &'a [u32]) -> Self {
        let mut later = ids.iter();
        Self { id: Self::id_of(later.next()), row: 0, later }
    }

    fn id_of(id: Option<&u32>) -> u64 {
        id.map_or(Self::END, |&id| id.into())
    }

    /// The number of the next row. Moves to the one after it.
    #[inline(always)]
    fn take(&mut self) -> u32 {
        self.id = Self::id_of(self.later.next());
        let row = self.row;
        self.row += 1;
        row
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const SHAPES: [MergedShape; 3] = [
        MergedShape { rows: 10, width: 2, most: 3, sent: 9 },
        MergedShape { rows: 4, width: 1, most: 4, sent: 9 },
        MergedShape { rows: 5, width: 3, most: 5, sent: 9 },
    ];

    fn sums(tables: [(&[u32], &[f32]); 3]) -> RowSums<f32> {
        let counts = tables.iter().map(|(ids, _)| ids.len() as u32);
        let ids: Vec<u32> = counts.chain(tables.iter().flat_map(|(ids, _)| ids.iter().copied())).collect();
        let rows: Vec<f32> = tables.iter().flat_map(|(_, rows)| rows.iter().copied()).collect();
        RowSums { ids: ids[..].into(), rows: rows[..].into() }
    }

    fn merge<const N: usize>(rows: &mut HostMergedRows<f32>, parts: [RowSums<f32>; N]) -> bool {
        rows.merge(parts.into(), |tasks, task| (0..tasks).rev().for_each(task))
    }

    /// The ids and gradients of each table.
    fn found(rows: &HostMergedRows<f32>) -> Vec<(Vec<u32>, Vec<f32>)> {
        rows.tables().map(|table| (table.ids().to_vec(), table.rows().flatten().copied().collect())).collect()
    }

    #[test]
    fn rows_are_added_in_the_order_of_the_parts() {
        let mut rows = HostMergedRows::new(SHAPES.to_vec());
        assert!(rows.tables().all(|table| table.ids().is_empty()));
        // Only in this order is the sum of the last row 1.
        let parts = [
            sums([(&[1, 9], &[1.0, 2.0, 1e30, 0.5]), (&[3], &[7.0]), (&[], &[])]),
            sums([(&[], &[]), (&[0, 3], &[5.0, 1.0]), (&[], &[])]),
            sums([(&[4, 9], &[3.0, 4.0, -1e30, 0.25]), (&[], &[]), (&[], &[])]),
            sums([(&[9], &[1.0, 0.0]), (&[3], &[-8.0]), (&[2], &[1.0, 2.0, 3.0])]),
        ];
        assert!(merge(&mut rows, parts));
        let expected = [
            (vec![1, 4, 9], vec![1.0, 2.0, 3.0, 4.0, 1.0, 0.75]),
            (vec![0, 3], vec![5.0, 0.0]),
            (vec![2], vec![1.0, 2.0, 3.0]),
        ];
        assert_eq!(found(&rows), expected);
        let last = rows.table(0).slice(1..3);
        assert_eq!((last.ids(), last.row(1)), (&[4, 9][..], &[1.0, 0.75][..]));
        assert_eq!(rows.take_parts().len(), 4);
        assert!(rows.tables().all(|table| table.ids().is_empty()));
        assert!(merge(&mut rows, []) && rows.count(0) == 0);
    }

    /// Up to five parts, some of them empty, with rows of widths that are compiled in and others.
    #[test]
    fn rows_are_those_of_a_map_that_is_filled_in_order() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for width in [1, 3, 16, 17] {
            for count in 0..6 {
                let mut part = || {
                    let ids: BTreeSet<u32> = match random(4) {
                        0 => BTreeSet::new(),
                        _ => (0..random(40)).map(|_| u32::MAX - 1 - random(60) as u32).collect(),
                    };
                    let rows = (0..ids.len() * width).map(|_| random(2_001) as f32 / 7.0 - 100.0).collect();
                    (ids.into_iter().collect(), rows)
                };
                let parts: Vec<(Vec<u32>, Vec<f32>)> = (0..count).map(|_| part()).collect();
                let mut expected: BTreeMap<u32, Vec<f32>> = BTreeMap::new();
                for (ids, rows) in &parts {
                    for (&id, row) in ids.iter().zip(rows.chunks_exact(width)) {
                        let sum = expected.entry(id).or_insert_with(|| vec![-0.0; width]);
                        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                    }
                }
                let shape = MergedShape { rows: u32::MAX as usize, width, most: 300, sent: 300 };
                let sums = |(ids, rows): &(Vec<u32>, Vec<f32>)| RowSums {
                    ids: [&[ids.len() as u32], &ids[..]].concat()[..].into(),
                    rows: rows[..].into(),
                };
                let mut rows = HostMergedRows::new(vec![shape]);
                assert!(
                    rows.merge(parts.iter().map(sums).collect(), |tasks, task| (0..tasks).for_each(task))
                );
                let expected =
                    (expected.keys().copied().collect(), expected.into_values().flatten().collect());
                assert_eq!(found(&rows), [expected]);
            }
        }
    }

    #[test]
    fn rows_of_other_tables_are_refused() {
        let mut rows = HostMergedRows::new(SHAPES.to_vec());
        let with_ids = |ids: &[u32]| sums([(ids, &vec![1.0; 2 * ids.len()]), (&[], &[]), (&[], &[])]);
        assert!(merge(&mut rows, [with_ids(&[0, 5, 9])]));
        for wrong in [&[10][..], &[5, 5], &[5, 4], &[0, 1, 2, 3]] {
            assert!(!merge(&mut rows, [with_ids(wrong)]), "{wrong:?}");
        }
        assert!(!merge(&mut rows, [with_ids(&[0, 1]), with_ids(&[2, 3])]), "more than the most rows");
        assert!(merge(&mut rows, [with_ids(&[0, 1]), with_ids(&[1, 3])]));
        assert!(!merge(&mut rows, [sums([(&[1], &[1.0]), (&[], &[]), (&[], &[])])]), "a narrow row");
        assert!(!merge(&mut rows, [RowSums::default()]), "no counts");
        assert!(rows.tables().all(|table| table.ids().is_empty()));
    }
}
