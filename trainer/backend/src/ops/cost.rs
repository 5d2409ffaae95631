//! Lower bounds of the bytes and FLOPs of operations, from the shapes of their operands.
//!
//! As in the roofline model (Williams, Waterman and Patterson, "Roofline", 2009), each input is read once and each
//! output written once, as with perfect caches. FLOPs are the additions and multiplications of the formula; an
//! exponential, a root or a division counts as one. Shape letters are those of [`crate::ops`].

use millstream_trace::Work;

use super::mixture::MixtureShape;
use crate::device::{MatrixShape, TableShape};
use crate::update::Formula;

/// Size in bytes of a value outside matrices: an id, a label, a weight, or table state.
const WORD: usize = 4;

/// Size in bytes of an entry of a row plan: an id and its place.
const ENTRY: usize = 8;

/// The work of `rows` rows that moves `bytes` bytes and computes `flops` FLOPs.
fn work(rows: usize, bytes: usize, flops: usize) -> Work {
    Work { rows: rows as u64, bytes: bytes as u64, flops: flops as u64 }
}

/// Size of the first `rows` rows of a matrix, in bytes.
fn bytes(rows: usize, shape: MatrixShape) -> usize {
    rows * shape.columns * shape.number_bytes
}

/// An elementwise operation on `rows` rows. `moved` lists each matrix once per read or write; `flops` counts per
/// element of the first one.
pub(crate) fn elementwise<const N: usize>(rows: usize, moved: [MatrixShape; N], flops: usize) -> Work {
    let bytes = moved.iter().map(|&shape| bytes(rows, shape)).sum();
    work(rows, bytes, rows * moved[0].columns * flops)
}

/// A copy of a host array: each value is read and written.
pub(crate) fn copied<T>(numbers: usize) -> Work {
    columns(usize::from(numbers > 0), 2 * numbers, size_of::<T>())
}

/// Sorting ids.
pub(crate) fn plan(rows: usize, ids: usize) -> Work {
    work(rows, ids * (WORD + ENTRY), 0)
}

/// Table lookups: reads the ids and, at the least, each row once; adds the rows.
pub(crate) fn lookup(ids: usize, table: TableShape, weight_bytes: usize) -> Work {
    let read = ids * WORD + ids.min(table.rows) * table.width * weight_bytes;
    work(0, read, ids * table.width)
}

/// The sum of several works, for `rows` rows.
pub(crate) fn sum(rows: usize, parts: impl Iterator<Item = Work>) -> Work {
    let add =
        |sum: Work, part: Work| Work { bytes: sum.bytes + part.bytes, flops: sum.flops + part.flops, ..sum };
    parts.fold(work(rows, 0, 0), add)
}

/// Reads or writes `columns` columns of values of `number_bytes` bytes.
pub(crate) fn columns(rows: usize, columns: usize, number_bytes: usize) -> Work {
    work(rows, rows * columns * number_bytes, 0)
}

/// Dense columns times weights `[D, K]`, plus a bias; forward or backward.
pub(crate) fn linear(rows: usize, dense: usize, out: MatrixShape) -> Work {
    let (weights, products) = (dense * out.columns * WORD, rows * out.columns * (2 * dense + 1));
    work(rows, rows * dense * WORD + weights + bytes(rows, out), products)
}

/// `[B, N] . [N, M]`
pub(crate) fn layer_forward(
    rows: usize,
    input: MatrixShape,
    weights: MatrixShape,
    output: MatrixShape,
) -> Work {
    let moved = bytes(rows, input) + bytes(weights.rows, weights) + bytes(rows, output);
    work(rows, moved, 2 * rows * weights.rows * weights.columns)
}

/// `[N, B] . [B, M]`, and `[B, M] . [M, K]` for the `K` columns of the input that have a gradient.
pub(crate) fn layer_backward(
    rows: usize,
    input: MatrixShape,
    weights: MatrixShape,
    output_gradient: MatrixShape,
    input_gradient: Option<MatrixShape>,
) -> Work {
    let by_input = input_gradient.map_or(0, |shape| bytes(rows, shape) + bytes(weights.rows, weights));
    let moved = bytes(rows, input) + bytes(rows, output_gradient) + bytes(weights.rows, weights) + by_input;
    let inputs = weights.rows + input_gradient.map_or(0, |shape| shape.columns);
    work(rows, moved, 2 * rows * inputs * weights.columns)
}

/// Dot products of all pairs of `V` vectors of `W` columns, or their sum: `flops` per element of the vectors;
/// `moved` as for [`elementwise`].
pub(crate) fn pairs<const N: usize>(
    rows: usize,
    (vectors, width): (usize, usize),
    is_each_pair: bool,
    flops: usize,
    moved: [MatrixShape; N],
) -> Work {
    let products = if is_each_pair { vectors * vectors.saturating_sub(1) / 2 } else { vectors };
    Work { flops: (rows * products * width * flops) as u64, ..elementwise(rows, moved, 0) }
}

/// `T` sums of `E` experts of `N` columns, with `flops` per product.
pub(crate) fn mixture<const N: usize>(
    rows: usize,
    shape: MixtureShape,
    flops: usize,
    moved: [MatrixShape; N],
) -> Work {
    let products = shape.tasks * shape.experts * shape.width;
    Work { flops: (rows * products * flops) as u64, ..elementwise(rows, moved, 0) }
}

/// Each of `rows` queries times each of `items` items, and each gradient of a product times both.
pub(crate) fn in_batch_loss(rows: usize, items: usize, queries: MatrixShape) -> Work {
    let moved = 2 * (bytes(rows, queries) + bytes(items, queries));
    work(rows, moved, 6 * rows * items * queries.columns)
}

/// An optimizer step on a matrix with its states.
pub(crate) fn step(weights: MatrixShape, states: usize, formula: &Formula) -> Work {
    let numbers = weights.rows * weights.columns;
    let moved = numbers * weights.number_bytes * (2 + 2 * states + 1);
    work(weights.rows, moved, numbers * step_flops(formula))
}

/// An optimizer step on the touched rows of a table: gradients of `ids` ids, summed for each of `touched` rows.
pub(crate) fn step_rows(
    ids: usize,
    touched: usize,
    table: TableShape,
    weight_bytes: usize,
    formula: &Formula,
) -> Work {
    let row = row_bytes(table, weight_bytes);
    let moved = ids * ENTRY + 2 * touched * row;
    work(0, moved, ids * table.width + touched * table.width * step_flops(formula))
}

/// Size of a row of a table with its optimizer state, in bytes.
fn row_bytes(table: TableShape, weight_bytes: usize) -> usize {
    table.width * weight_bytes + (table.width * table.states + table.row_states) * WORD
}

/// An optimizer step on `touched` rows of a table, with one gradient each.
pub(crate) fn step_merged_rows(
    touched: usize,
    table: TableShape,
    weight_bytes: usize,
    formula: &Formula,
) -> Work {
    let row = row_bytes(table, weight_bytes);
    let gradient = (1 + table.width) * WORD;
    work(0, touched * (gradient + 2 * row), touched * table.width * step_flops(formula))
}

/// The squared norm of `touched` rows of `width` gradients.
pub(crate) fn merged_row_squares(touched: usize, width: usize) -> Work {
    work(0, touched * width * WORD, 2 * touched * width)
}

/// Adding up the rows of several parts of a batch, with `numbers` ids and gradients, each of which is read and written.
pub(crate) fn merge_rows(numbers: usize) -> Work {
    work(0, 2 * numbers * WORD, numbers)
}

/// Merging so many ids of several parts of a batch: each is read, and written with the place of its row. Sums of rows that several
/// parts have, and copies to a device, are not counted.
pub(crate) fn merge_ids(ids: usize) -> Work {
    work(0, 4 * ids * WORD, 0)
}

/// The squared norm of the same gradients as of [`step_rows`].
pub(crate) fn row_squares(ids: usize, touched: usize, table: TableShape) -> Work {
    work(0, ids * ENTRY, (ids + 2 * touched) * table.width)
}

/// FLOPs per weight of a formula, as written at [`Formula`].
fn step_flops(formula: &Formula) -> usize {
    match formula {
        Formula::Sgd { .. } => 2,
        Formula::Momentum { nesterov, .. } => 4 + 2 * usize::from(*nesterov),
        Formula::Adagrad { .. } | Formula::RowWiseAdagrad { .. } => 6,
        Formula::Adam { .. } => 13,
        Formula::Ftrl { .. } => 14,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::Float;

    fn shape(rows: usize, columns: usize) -> MatrixShape {
        MatrixShape { rows, columns, number_bytes: 4 }
    }

    #[test]
    fn a_layer_moves_its_matrices_once_and_multiplies_all_with_all() {
        let (input, weights, output) = (shape(100, 3), shape(3, 5), shape(100, 5));
        let forward = layer_forward(10, input, weights, output);
        assert_eq!(forward, work(10, 4 * (30 + 15 + 50), 2 * 10 * 15));
        let backward = layer_backward(10, input, weights, output, None);
        assert_eq!(backward, work(10, 4 * (30 + 50 + 15), 2 * 10 * 15));
        // Two of the three inputs have gradients.
        let backward = layer_backward(10, input, weights, output, Some(shape(100, 2)));
        assert_eq!(backward, work(10, 4 * (30 + 50 + 15 + 20 + 15), 2 * 10 * 5 * (3 + 2)));
    }

    #[test]
    fn half_the_bytes_of_a_number_are_half_the_bytes_moved() {
        let half = MatrixShape { number_bytes: 2, ..shape(8, 6) };
        assert_eq!(elementwise(8, [half, half], 3), work(8, 2 * 2 * 48, 3 * 48));
        assert_eq!(elementwise(8, [shape(8, 6); 2], 3), work(8, 2 * 4 * 48, 3 * 48));
    }

    #[test]
    fn a_table_is_read_at_most_whole_and_stepped_where_it_is_touched() {
        let table = TableShape { rows: 10, width: 4, float: Float::F32, key: 0, states: 1, row_states: 0 };
        assert_eq!(lookup(3, table, 4), work(0, 4 * (3 + 3 * 4), 12));
        assert_eq!(lookup(3, table, 2), work(0, 4 * 3 + 2 * 3 * 4, 12));
        assert_eq!(lookup(1000, table, 4), work(0, 4 * (1000 + 10 * 4), 4000));
        let adagrad = Formula::Adagrad { learning_rate: 0.1, epsilon: 0.0 };
        assert_eq!(step_rows(7, 5, table, 4, &adagrad), work(0, 7 * 8 + 2 * 5 * 8 * 4, 7 * 4 + 5 * 4 * 6));
        assert_eq!(step_rows(7, 5, table, 2, &adagrad).bytes, 7 * 8 + 2 * 5 * (4 * 2 + 4 * 4));
    }

    #[test]
    fn pairs_of_vectors_are_counted_once() {
        let (vectors, out) = (shape(9, 12), shape(9, 7));
        assert_eq!(pairs(9, (3, 4), true, 2, [vectors, out]), work(9, 9 * 4 * (12 + 7), 9 * 3 * 4 * 2));
        assert_eq!(pairs(9, (3, 4), false, 4, [vectors, out]).flops, 9 * 12 * 4);
    }
}
