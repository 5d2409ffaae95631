//! Gradients of table rows as a value: summed on one worker, they can be sent to others and merged there.

use crate::collective::Buffer;
use crate::device::Scalar;

/// The gradient of each table row that a batch touches, summed over the batch, in host memory.
///
/// Both buffers can be sent as they are: the first has everything that a receiver needs to divide them by table.
#[derive(Debug, Default)]
pub struct RowSums<S: Scalar> {
    /// The number of touched rows of each table, then their ids, table by table, ascending within a table.
    pub ids: Buffer<u32>,
    /// Their gradients in the same order, each with as many values as the table is wide.
    pub rows: Buffer<S>,
}

impl<S: Scalar> RowSums<S> {
    /// Makes room for tables with these numbers of touched rows, and widths. Ids and gradients are then arbitrary.
    pub(crate) fn resize(&mut self, tables: impl Iterator<Item = (usize, usize)> + Clone) {
        let touched = tables.clone().map(|(count, _)| count).sum::<usize>();
        let values = tables.clone().map(|(count, width)| count * width).sum();
        let counts = tables.clone().count();
        self.ids.resize(counts + touched);
        self.rows.resize(values);
        for (place, (count, _)) in self.ids.iter_mut().zip(tables) {
            *place = u32::try_from(count).expect("ids have 32 bits");
        }
    }

    /// The ids of `tables` tables and the gradients, to be written.
    pub(crate) fn parts_mut(&mut self, tables: usize) -> (&mut [u32], &mut [S]) {
        (&mut self.ids[tables..], &mut self.rows)
    }

    /// The ids and gradients of each of the tables with these `widths`; `None` if the sums are not of such tables.
    pub(crate) fn by_table_mut(&mut self, widths: &[usize]) -> Option<Vec<(&[u32], &mut [S])>> {
        let (counts, mut ids) = self.ids.split_at_checked(widths.len())?;
        let mut rows = &mut self.rows[..];
        let mut tables = Vec::with_capacity(widths.len());
        for (&count, width) in counts.iter().zip(widths) {
            let count = count as usize;
            let (of_table, other_ids) = ids.split_at_checked(count)?;
            let (sums, other_rows) = rows.split_at_mut_checked(count.checked_mul(*width)?)?;
            tables.push((of_table, sums));
            (ids, rows) = (other_ids, other_rows);
        }
        (ids.is_empty() && rows.is_empty()).then_some(tables)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn sums_are_divided_by_table_only_if_they_are_of_such_tables() {
        let mut sums = RowSums::<f32>::default();
        sums.resize([(2, 3), (0, 5), (1, 1)].into_iter());
        let (ids, rows) = sums.parts_mut(3);
        ids.copy_from_slice(&[4, 9, 1]);
        rows.copy_from_slice(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let tables = sums.by_table_mut(&[3, 5, 1]).unwrap();
        let tables: Vec<(&[u32], &[f32])> = tables.into_iter().map(|(ids, rows)| (ids, &*rows)).collect();
        let expected: [(&[u32], &[f32]); 3] =
            [(&[4, 9], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), (&[], &[]), (&[1], &[6.0])];
        assert_eq!(tables, expected);
        for wrong in [&[3, 5][..], &[3, 5, 2], &[2, 5, 1], &[3, 5, 1, 1]] {
            assert!(sums.by_table_mut(wrong).is_none(), "{wrong:?}");
        }
        sums.ids[0] = u32::MAX;
        assert!(sums.by_table_mut(&[3, 5, 1]).is_none());
        sums.resize([(1, 2)].into_iter());
        assert_eq!((sums.ids.len(), sums.rows.len()), (2, 2));
        assert!(RowSums::<f64>::default().by_table_mut(&[]).unwrap().is_empty());
    }
}
