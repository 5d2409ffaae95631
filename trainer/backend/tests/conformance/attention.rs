//! Attention over sequences, on random values.

use millstream_backend::{Backend, Sequence, ops};

use crate::case::{Bench, Outcome, Random, Shapes};

/// Runs the operations on sequences before and after their target.
pub(crate) fn attention<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    for (first, target, values, width) in [(0, 6, 2, 3), (16, 0, 5, 16), (20, 1, 3, 17), (4, 2, 1, 1)] {
        run(bench, shapes, Sequence { first, target, values, width }, random, outcome);
    }
}

fn run<B: Backend>(
    bench: &Bench<'_, B>,
    shapes: &Shapes,
    sequence: Sequence,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    let backend = bench.0;
    let Sequence { first, target, values, width } = sequence;
    let (rows, capacity) = (shapes.rows as usize, shapes.capacity as usize);
    // Unrelated columns follow those of the sequence, and surround those of its sum.
    let (columns, first_column) = (first.max(target) + values * width + 2, 3);
    let mut matrix =
        |rows: usize, columns: usize| bench.matrix(rows, columns, &random.numbers(rows * columns));
    let (vectors, scores) = (matrix(capacity, columns), matrix(capacity * values, 1));
    let mut pairs = matrix(capacity * values, 4 * width);
    let name = |what| format!("{what} of {sequence:?}");
    backend.run(ops::PairForward { rows, sequence, vectors: &vectors, pairs: &mut pairs });
    outcome.push((name("pairs"), bench.read(&pairs, rows * values * 4 * width)));

    let sums = first_column + width + 1;
    let (mut out, out_grad) = (matrix(capacity, sums), matrix(capacity, sums));
    backend.run(ops::AttendForward {
        rows,
        sequence,
        vectors: &vectors,
        scores: &scores,
        out: &mut out,
        first_column,
    });
    outcome.push((name("sum"), bench.read(&out, capacity * sums)));
    let mut scores_grad = matrix(capacity * values, 1);
    backend.run(ops::AttendBackward {
        rows,
        sequence,
        vectors: &vectors,
        out_grad: &out_grad,
        first_column,
        scores_grad: &mut scores_grad,
    });
    outcome.push((name("gradient of scores"), bench.read(&scores_grad, rows * values)));
    let (pairs_grad, mut vectors_grad) = (matrix(capacity * values, 4 * width), matrix(capacity, columns));
    backend.run(ops::PairBackward {
        rows,
        sequence,
        vectors: &vectors,
        scores: &scores,
        out_grad: &out_grad,
        first_column,
        pairs_grad: &pairs_grad,
        vectors_grad: &mut vectors_grad,
    });
    outcome.push((name("gradient of vectors"), bench.read(&vectors_grad, capacity * columns)));
}
