//! The rows of tables that all parts of a batch touch. Each part is computed by one of several workers, which send the sums of
//! their rows to each other ([`RowSums`]); each merges the sums of all parts, and steps the rows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::collective::Summand;
use crate::device::{Scalar, TableShape};
use crate::float::Float;
use crate::row_sums::RowSums;

/// The rows of tables that a batch touches, and the sums of their gradients over all parts, in host memory.
pub struct HostMergedRows<S: Scalar> {
    shapes: Vec<MergedShape>,
    /// Parallel to `shapes`.
    tables: Vec<MergedTable<S>>,
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
}

/// How many rows of each table the parts of a batch touch.
#[derive(Clone, Copy, Debug)]
pub struct PartRows<'a> {
    /// The number of parts.
    pub parts: usize,
    /// The most ids of a part, by table.
    pub ids: &'a [usize],
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
    /// Whether a table is summed as a whole, of which a part looks up at most `ids` ids: if a worker then probably sends and gets
    /// fewer bytes than if it gathers the rows of all parts, and never many.
    ///
    /// A sum over many workers sends and gets each number twice. A gather gets the ids and rows of each part once. How many
    /// rows a part touches is unknown: ids repeat, and histories are shorter than the longest one.
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
        let shape = |(shape, &ids): (&TableShape, &usize)| Self {
            rows: shape.rows,
            width: shape.width,
            most: ids.saturating_mul(rows.parts).min(shape.rows),
        };
        shapes.iter().zip(rows.ids).map(shape).collect()
    }
}

/// The touched rows of a table. The ids ascend, without repetitions, and are below the number of the table's rows.
pub(crate) struct MergedTable<S> {
    ids: Vec<u32>,
    /// The gradient of each row, `[ids, W]`.
    sums: Vec<S>,
}

impl<S: Scalar> HostMergedRows<S> {
    pub(crate) fn new(shapes: Vec<MergedShape>) -> Self {
        let tables = shapes.iter().map(|_| MergedTable { ids: Vec::new(), sums: Vec::new() }).collect();
        Self { shapes, tables }
    }

    /// The most memory that these rows use, in bytes.
    pub(crate) fn bytes(shapes: &[MergedShape]) -> u64 {
        let of_table = |shape: &MergedShape| {
            let row = size_of::<u32>() + shape.width * size_of::<S>();
            (shape.most as u64).saturating_mul(row as u64)
        };
        shapes.iter().map(of_table).fold(0, u64::saturating_add)
    }

    pub(crate) fn shapes(&self) -> &[MergedShape] {
        &self.shapes
    }

    pub(crate) fn tables(&self) -> &[MergedTable<S>] {
        &self.tables
    }

    /// Takes the rows of all `parts`. Sums of a row are added in the order of the parts. Returns whether the parts are of these
    /// tables; if not, the rows are arbitrary.
    ///
    /// `run` calls a task with each number below the given one, perhaps in several threads.
    pub(crate) fn merge(
        &mut self,
        parts: &[RowSums<S>],
        run: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
    ) -> bool {
        let widths: Vec<usize> = self.shapes.iter().map(|shape| shape.width).collect();
        let Some(parts) = parts.iter().map(|sums| sums.by_table(&widths)).collect::<Option<Vec<_>>>() else {
            return false;
        };
        // Each table has one task, so no lock waits.
        let tables: Vec<_> = self.tables.iter_mut().zip(&self.shapes).map(Mutex::new).collect();
        let are_of_tables = AtomicBool::new(true);
        run(tables.len(), &|number| {
            let of_table: Vec<_> = parts.iter().map(|tables| tables[number]).collect();
            let mut table = tables[number].lock().unwrap_or_else(PoisonError::into_inner);
            let (table, shape) = &mut *table;
            if !table.merge(**shape, &of_table) {
                are_of_tables.store(false, Ordering::Relaxed);
            }
        });
        are_of_tables.into_inner()
    }
}

impl<S: Scalar> MergedTable<S> {
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    pub(crate) fn sums(&self) -> &[S] {
        &self.sums
    }

    /// Takes the rows of all parts: ids, and as many sums. Returns whether they are of a table of this shape.
    fn merge(&mut self, shape: MergedShape, parts: &[(&[u32], &[S])]) -> bool {
        let MergedShape { rows, width, most } = shape;
        self.ids.clear();
        self.sums.clear();
        let is_of_table = |ids: &[u32]| {
            ids.is_sorted_by(|id, next| id < next) && ids.last().is_none_or(|&last| (last as usize) < rows)
        };
        if !parts.iter().all(|(ids, sums)| is_of_table(ids) && sums.len() == ids.len() * width) {
            return false;
        }
        match width {
            // Compiled for these constant widths.
            1 => self.merge_rows(1, parts),
            16 => self.merge_rows(16, parts),
            _ => self.merge_rows(width, parts),
        }
        self.ids.len() <= most
    }

    /// Appends the rows of all parts, of which each has ascending ids.
    #[inline(always)]
    fn merge_rows(&mut self, width: usize, parts: &[(&[u32], &[S])]) {
        let mut cursors: Vec<_> = parts.iter().map(|&(ids, sums)| Cursor::new(ids, sums)).collect();
        loop {
            let (mut first, mut id) = (0, Cursor::<S>::END);
            for (number, cursor) in cursors.iter().enumerate() {
                // Which part is next is random: a branch would be mispredicted.
                (first, id) =
                    std::hint::select_unpredictable(cursor.id < id, (number, cursor.id), (first, id));
            }
            if id == Cursor::<S>::END {
                return;
            }
            let row = self.sums.len();
            self.ids.push(id as u32);
            self.sums.extend_from_slice(cursors[first].take(width));
            // Few rows are in several parts, unless the table is small.
            for cursor in &mut cursors[first + 1..] {
                if cursor.id == id {
                    S::accumulate(&mut self.sums[row..], cursor.take(width));
                }
            }
        }
    }
}

/// The rows of a part that have not been merged.
struct Cursor<'a, S> {
    /// The id of the next row, or [`Cursor::END`].
    id: u64,
    later: std::slice::Iter<'a, u32>,
    sums: &'a [S],
}

impl<'a, S> Cursor<'a, S> {
    /// Above every id.
    const END: u64 = u64::MAX;

    fn new(ids: &'a [u32], sums: &'a [S]) -> Self {
        let mut later = ids.iter();
        Self { id: Self::id_of(later.next()), later, sums }
    }

    fn id_of(id: Option<&u32>) -> u64 {
        id.map_or(Self::END, |&id| id.into())
    }

    /// The next row. Moves to the one after it.
    #[inline(always)]
    fn take(&mut self, width: usize) -> &'a [S] {
        self.id = Self::id_of(self.later.next());
        let (row, later) = self.sums.split_at(width);
        self.sums = later;
        row
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const SHAPES: [MergedShape; 3] = [
        MergedShape { rows: 10, width: 2, most: 3 },
        MergedShape { rows: 4, width: 1, most: 4 },
        MergedShape { rows: 5, width: 3, most: 5 },
    ];

    fn sums(tables: [(&[u32], &[f32]); 3]) -> RowSums<f32> {
        let counts = tables.iter().map(|(ids, _)| ids.len() as u32);
        let ids: Vec<u32> = counts.chain(tables.iter().flat_map(|(ids, _)| ids.iter().copied())).collect();
        let rows: Vec<f32> = tables.iter().flat_map(|(_, rows)| rows.iter().copied()).collect();
        RowSums { ids: ids[..].into(), rows: rows[..].into() }
    }

    fn merge(rows: &mut HostMergedRows<f32>, parts: &[RowSums<f32>]) -> bool {
        rows.merge(parts, |tasks, task| (0..tasks).rev().for_each(task))
    }

    #[test]
    fn rows_are_added_in_the_order_of_the_parts() {
        let mut rows = HostMergedRows::new(SHAPES.to_vec());
        assert!(rows.tables().iter().all(|table| table.ids().is_empty() && table.sums().is_empty()));
        // Only in this order is the sum of the last row 1.
        let parts = [
            sums([(&[1, 9], &[1.0, 2.0, 1e30, 0.5]), (&[3], &[7.0]), (&[], &[])]),
            sums([(&[], &[]), (&[0, 3], &[5.0, 1.0]), (&[], &[])]),
            sums([(&[4, 9], &[3.0, 4.0, -1e30, 0.25]), (&[], &[]), (&[], &[])]),
            sums([(&[9], &[1.0, 0.0]), (&[3], &[-8.0]), (&[2], &[1.0, 2.0, 3.0])]),
        ];
        assert!(merge(&mut rows, &parts));
        let found: Vec<_> = rows.tables().iter().map(|table| (table.ids(), table.sums())).collect();
        let expected: [(&[u32], &[f32]); 3] = [
            (&[1, 4, 9], &[1.0, 2.0, 3.0, 4.0, 1.0, 0.75]),
            (&[0, 3], &[5.0, 0.0]),
            (&[2], &[1.0, 2.0, 3.0]),
        ];
        assert_eq!(found, expected);
        assert!(merge(&mut rows, &[]));
        assert!(rows.tables().iter().all(|table| table.ids().is_empty()));
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
                let mut table = MergedTable { ids: vec![9], sums: vec![9.0] };
                let borrowed: Vec<_> = parts.iter().map(|(ids, rows)| (&ids[..], &rows[..])).collect();
                let shape = MergedShape { rows: u32::MAX as usize, width, most: 300 };
                assert!(table.merge(shape, &borrowed));
                assert_eq!(table.ids, expected.keys().copied().collect::<Vec<_>>());
                assert_eq!(table.sums, expected.into_values().flatten().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn rows_of_other_tables_are_refused() {
        let mut rows = HostMergedRows::new(SHAPES.to_vec());
        let with_ids = |ids: &[u32]| sums([(ids, &vec![1.0; 2 * ids.len()]), (&[], &[]), (&[], &[])]);
        assert!(merge(&mut rows, &[with_ids(&[0, 5, 9])]));
        for wrong in [&[10][..], &[5, 5], &[5, 4], &[0, 1, 2, 3]] {
            assert!(!merge(&mut rows, &[with_ids(wrong)]), "{wrong:?}");
        }
        assert!(!merge(&mut rows, &[with_ids(&[0, 1]), with_ids(&[2, 3])]), "more than the most rows");
        assert!(merge(&mut rows, &[with_ids(&[0, 1]), with_ids(&[1, 3])]));
        assert!(!merge(&mut rows, &[sums([(&[1], &[1.0]), (&[], &[]), (&[], &[])])]), "a narrow row");
        assert!(!merge(&mut rows, &[RowSums::default()]), "no counts");
    }
}
