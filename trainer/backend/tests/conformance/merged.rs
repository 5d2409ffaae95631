//! Steps of the rows that all parts of a batch touch.

use millstream_backend::{Backend, Float, PartRows, RowSums, Scalar, TablePart, TableShape, ops};

use crate::case::{Bench, DRAWS, Outcome, Random, SCALE, UPDATES, state_parts};

/// Rows and columns of the tables: of one column, of a width that is no power of two, of one row, and with rows of several
/// vectors; enough rows for several tasks; and two of equal widths.
const TABLES: [(usize, usize); 6] = [(40, 1), (3_000, 7), (1, 16), (20, 70), (25, 7), (5_000, 1)];

/// Ids of one part of a batch, ascending, and a gradient for each: of about one in `one_in` rows of each table.
fn part<S: Scalar>(random: &mut Random, one_in: usize) -> RowSums<S> {
    let (mut counts, mut ids, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (count, width) in TABLES {
        let touched: Vec<u32> = (0..count as u32).filter(|_| random.below(one_in) == 0).collect();
        counts.push(touched.len() as u32);
        rows.extend(random.numbers(touched.len() * width).into_iter().map(|x| S::from_f64(x.into())));
        ids.extend(touched);
    }
    RowSums { ids: [counts, ids].concat()[..].into(), rows: rows[..].into() }
}

/// Steps with every optimizer, and squares, of rows with random gradients.
pub(crate) fn run<B: Backend>(backend: &B) -> Outcome {
    let (bench, random, mut outcome) = (Bench(backend), &mut Random(5), Outcome::new());
    let weights = TABLES.map(|(rows, width)| random.numbers(rows * width));
    // The second batch touches other rows, and fewer; the third one none.
    let batches: [Vec<RowSums<B::Scalar>>; 3] = [
        [2, 5, 1, 3].map(|one_in| part(random, one_in)).into(),
        [9, 4].map(|one_in| part(random, one_in)).into(),
        vec![part(random, usize::MAX)],
    ];
    let shapes = TABLES.map(|(rows, width)| TableShape {
        rows,
        width,
        float: Float::F32,
        key: 0,
        states: 0,
        row_states: 0,
    });
    for (name, update, start) in UPDATES {
        let mut tables: Vec<B::Table> = TABLES
            .iter()
            .zip(&weights)
            .map(|(&size, weights)| bench.table(size, weights, &update.formula, start))
            .collect();
        let ids = &TABLES.map(|(rows, _)| rows);
        let of_parts = PartRows { parts: 3, ids, even_ids: ids, are_gathered: false, float: Float::F32 };
        let mut rows = backend.merged_rows(&shapes, of_parts);
        for (number, parts) in batches.iter().enumerate() {
            let copy =
                |RowSums { ids, rows }: &RowSums<_>| RowSums { ids: ids[..].into(), rows: rows[..].into() };
            let parts = parts.iter().map(copy).collect();
            assert!(backend.merge_rows(parts, &mut rows), "rows of these tables");
            let mut squares = bench.matrix(1, 1, &[2.0]);
            backend.run(ops::MergedRowSquares { rows: &rows, tables: &tables, sum: &mut squares });
            outcome.push((format!("merged_row_squares {number} {name}"), bench.read(&squares, 1)));
            backend.run(ops::StepMergedRows {
                update: &update,
                scale: &bench.matrix(1, 1, &[SCALE]),
                draws: DRAWS,
                rows: &rows,
                tables: &mut tables,
            });
        }
        for (number, (table, (rows, width))) in tables.iter().zip(TABLES).enumerate() {
            for part in state_parts(&update.formula).into_iter().chain([TablePart::Weights]) {
                let columns = if let TablePart::RowState(_) = part { 1 } else { width };
                let values = bench.read_table(table, part, rows * columns);
                outcome.push((format!("step_merged_rows {name} table {number} {part:?}"), values));
            }
        }
    }
    outcome
}
