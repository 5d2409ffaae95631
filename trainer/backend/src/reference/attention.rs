//! Attention over sequences, as in its equations.

use super::{Reference, ReferenceMatrix};
use crate::ops::{AttendBackward, AttendForward, PairBackward, PairForward, Sequence};

impl Reference {
    pub(super) fn pair_forward(&self, operation: PairForward<'_, Self>) {
        let PairForward { rows, sequence, vectors, pairs } = operation;
        let (values, width) = (sequence.values, sequence.width);
        pairs.set(rows * values, |pair, column| {
            let (e, t) = vectors.pair(pair, sequence, column % width);
            [e, t, e - t, e * t][column / width]
        });
    }

    pub(super) fn pair_backward(&self, operation: PairBackward<'_, Self>) {
        let PairBackward {
            rows,
            sequence,
            vectors,
            scores,
            out_grad,
            first_column,
            pairs_grad,
            vectors_grad,
        } = operation;
        let Sequence { first, target, values, width } = sequence;
        for (row, column) in (0..rows).flat_map(|row| (0..width).map(move |column| (row, column))) {
            for value in 0..values {
                let pair = row * values + value;
                let (e, t) = vectors.pair(pair, sequence, column);
                let [g1, g2, g3, g4] = [0, 1, 2, 3].map(|part| pairs_grad.at(pair, part * width + column));
                let of_sum = scores.at(pair, 0) * out_grad.at(row, first_column + column);
                *vectors_grad.at_mut(row, first + value * width + column) = of_sum + g1 + g3 + g4 * t;
                *vectors_grad.at_mut(row, target + column) += g2 - g3 + g4 * e;
            }
        }
        vectors_grad.round(rows);
    }

    pub(super) fn attend_forward(&self, operation: AttendForward<'_, Self>) {
        let AttendForward { rows, sequence, vectors, scores, out, first_column } = operation;
        let Sequence { values, width, .. } = sequence;
        for (row, column) in (0..rows).flat_map(|row| (0..width).map(move |column| (row, column))) {
            let pairs = row * values..(row + 1) * values;
            let products = pairs.map(|pair| scores.at(pair, 0) * vectors.pair(pair, sequence, column).0);
            *out.at_mut(row, first_column + column) = products.sum();
        }
        out.round(rows);
    }

    pub(super) fn attend_backward(&self, operation: AttendBackward<'_, Self>) {
        let AttendBackward { rows, sequence, vectors, out_grad, first_column, scores_grad } = operation;
        let Sequence { values, width, .. } = sequence;
        scores_grad.set(rows * values, |pair, _| {
            let g = |column| out_grad.at(pair / values, first_column + column);
            (0..width).map(|column| g(column) * vectors.pair(pair, sequence, column).0).sum()
        });
    }
}

impl ReferenceMatrix {
    /// A column of the vector of value `pair % V` of row `pair / V`, and the same column of its target.
    fn pair(&self, pair: usize, sequence: Sequence, column: usize) -> (f64, f64) {
        let Sequence { first, target, values, width } = sequence;
        let (row, value) = (pair / values, pair % values);
        (self.at(row, first + value * width + column), self.at(row, target + column))
    }
}
