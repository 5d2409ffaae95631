//! Small tables, whose gradients workers sum as a whole: the parts of a batch touch more rows of these, counted together, than
//! there are ([`PartRows::sums_whole`](millstream_backend::PartRows::sums_whole)).
//!
//! Among the gradients of layers, each has
//!
//! ```text
//! gradients  [C, W]   zeros in rows that are not touched
//! marks      [C]      how many parts touch each row: optimizers leave the others unchanged
//! ```
//!
//! Gradients that travel in 16 bits are rounded once before they are added, and their sums once more, like those of layers.

use millstream_backend::{RowSums, Scalar, TableShape};

/// The tables of a group, of which some are summed as a whole.
pub struct WholeTables {
    tables: Vec<Table>,
    numbers: usize,
}

#[derive(Clone, Copy)]
struct Table {
    rows: usize,
    width: usize,
    is_whole: bool,
}

impl Table {
    /// The numbers of its gradients.
    fn values(self) -> usize {
        self.rows * self.width
    }

    /// The numbers of its gradients and marks.
    fn numbers(self) -> usize {
        self.values() + self.rows
    }
}

impl WholeTables {
    /// Tables of these shapes; `None` if none of them is summed as a whole.
    pub(crate) fn of(shapes: &[TableShape], are_whole: &[bool]) -> Option<Self> {
        let table = |(shape, &is_whole): (&TableShape, &bool)| {
            let TableShape { rows, width, .. } = *shape;
            Table { rows, width, is_whole }
        };
        let tables: Vec<Table> = shapes.iter().zip(are_whole).map(table).collect();
        let numbers = tables.iter().filter(|table| table.is_whole).map(|table| table.numbers()).sum();
        are_whole.contains(&true).then_some(Self { tables, numbers })
    }

    /// How many numbers the whole tables have.
    pub(crate) fn numbers(&self) -> usize {
        self.numbers
    }

    /// Moves the rows of whole tables from `sums`, which has those of all tables, to their `numbers`.
    pub(crate) fn take<S: Scalar>(&self, sums: &mut RowSums<S>, mut numbers: &mut [S]) {
        let (mut next_id, mut next_value) = (self.tables.len(), 0);
        let (mut kept_ids, mut kept_values) = (next_id, next_value);
        for (number, &table) in self.tables.iter().enumerate() {
            let ids = next_id..next_id + sums.ids[number] as usize;
            let values = next_value..next_value + ids.len() * table.width;
            (next_id, next_value) = (ids.end, values.end);
            if table.is_whole {
                let (gradients, marks) = split(&mut numbers, table);
                gradients.fill(S::default());
                marks.fill(S::default());
                for (&id, row) in sums.ids[ids].iter().zip(sums.rows[values].chunks_exact(table.width)) {
                    let first = id as usize * table.width;
                    gradients[first..first + table.width].copy_from_slice(row);
                    marks[id as usize] = S::from_f64(1.0);
                }
                sums.ids[number] = 0;
            } else {
                if kept_ids < ids.start {
                    sums.ids.copy_within(ids.clone(), kept_ids);
                    sums.rows.copy_within(values.clone(), kept_values);
                }
                (kept_ids, kept_values) = (kept_ids + ids.len(), kept_values + values.len());
            }
        }
        sums.ids.truncate(kept_ids);
        sums.rows.truncate(kept_values);
    }

    /// Fills `sums` with the touched rows of whole tables, of which `numbers` are the sums over all parts, and with no rows of the
    /// other tables.
    pub(crate) fn touched<S: Scalar>(&self, mut numbers: &mut [S], sums: &mut RowSums<S>) {
        let whole = self.tables.iter().filter(|table| table.is_whole);
        let rows = whole.map(|table| table.rows).sum::<usize>();
        sums.ids.resize(self.tables.len() + rows);
        sums.rows.resize(self.numbers - rows);
        let (mut end_of_ids, mut end_of_values) = (self.tables.len(), 0);
        for (number, &table) in self.tables.iter().enumerate() {
            let first = end_of_ids;
            if table.is_whole {
                let (gradients, marks) = split(&mut numbers, table);
                let rows = (0..).zip(gradients.chunks_exact(table.width)).zip(marks);
                for ((id, row), _) in rows.filter(|(_, mark)| **mark != S::default()) {
                    sums.ids[end_of_ids] = id;
                    sums.rows[end_of_values..end_of_values + table.width].copy_from_slice(row);
                    (end_of_ids, end_of_values) = (end_of_ids + 1, end_of_values + table.width);
                }
            }
            sums.ids[number] = (end_of_ids - first) as u32;
        }
        sums.ids.truncate(end_of_ids);
        sums.rows.truncate(end_of_values);
    }
}

/// The gradients and the marks of the next whole table.
fn split<'a, S>(numbers: &mut &'a mut [S], table: Table) -> (&'a mut [S], &'a mut [S]) {
    let of_table = numbers.split_off_mut(..table.numbers()).expect("the numbers of every whole table");
    of_table.split_at_mut(table.values())
}

#[cfg(test)]
mod tests {
    use millstream_backend::Float;

    use super::*;

    fn tables() -> WholeTables {
        let shape =
            |(rows, width)| TableShape { rows, width, float: Float::F32, key: 0, states: 0, row_states: 0 };
        let shapes = [(3, 2), (100, 1), (2, 1), (9, 3)].map(shape);
        WholeTables::of(&shapes, &[true, false, true, false]).expect("two whole tables")
    }

    fn sums(ids: &[u32], rows: &[f32]) -> RowSums<f32> {
        RowSums { ids: ids.into(), rows: rows.into() }
    }

    #[test]
    fn rows_of_whole_tables_are_summed_and_found_again() {
        let tables = tables();
        let mut numbers = vec![f32::NAN; tables.numbers()];
        let mut first = sums(&[2, 2, 1, 1, 0, 2, 50, 99, 1, 8], &[1., 2., 3., 4., 5., 6., 7., 8., 9., 10.]);
        tables.take(&mut first, &mut numbers);
        assert_eq!(numbers, [1., 2., 0., 0., 3., 4., 1., 0., 1., 0., 7., 0., 1.]);
        assert_eq!(
            (&first.ids[..], &first.rows[..]),
            (&[0, 2, 0, 1, 50, 99, 8][..], &[5., 6., 8., 9., 10.][..])
        );

        // The gradient of a row that is touched twice becomes zero.
        let mut second = sums(&[1, 0, 0, 0, 2], &[-3., -4.]);
        let mut others = vec![f32::NAN; tables.numbers()];
        tables.take(&mut second, &mut others);
        assert_eq!((&second.ids[..], second.rows.len()), (&[0; 4][..], 0));
        numbers.iter_mut().zip(&others).for_each(|(sum, x)| *sum += x);
        let mut touched = sums(&[7; 90], &[7.; 2]);
        tables.touched(&mut numbers, &mut touched);
        assert_eq!(
            (&touched.ids[..], &touched.rows[..]),
            (&[2, 0, 1, 0, 0, 2, 1][..], &[1., 2., 0., 0., 7.][..])
        );
    }

    #[test]
    fn tables_of_which_none_is_whole_need_no_sum() {
        assert!(WholeTables::of(&[], &[]).is_none());
        let shape = TableShape { rows: 1, width: 1, float: Float::F32, key: 0, states: 0, row_states: 0 };
        assert!(WholeTables::of(&[shape], &[false]).is_none());
    }
}
