//! Attention over sequences.

use super::Cuda;
use super::kernels::{ATTEND_BACKWARD, ATTEND_FORWARD, Attention, PAIR_BACKWARD, PAIR_FORWARD};
use crate::ops::{AttendBackward, AttendForward, PairBackward, PairForward, Sequence};

fn attention(rows: usize, sequence: Sequence) -> Attention {
    let Sequence { first, target, values, width } = sequence;
    Attention {
        rows: rows as u32,
        first: first as u32,
        target: target as u32,
        values: values as u32,
        width: width as u32,
        ..Attention::default()
    }
}

impl Cuda {
    pub(super) fn pair_forward(&self, operation: PairForward<'_, Self>) {
        let PairForward { rows, sequence, vectors, pairs } = operation;
        let arguments =
            Attention { vectors: vectors.view(), pairs: pairs.view(), ..attention(rows, sequence) };
        self.launch(PAIR_FORWARD, [rows * sequence.values * sequence.width, 1], &arguments);
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
        let arguments = Attention {
            vectors: vectors.view(),
            scores: scores.view(),
            sum: out_grad.view(),
            pairs: pairs_grad.view(),
            vectors_grad: vectors_grad.view(),
            first_column: first_column as u32,
            ..attention(rows, sequence)
        };
        self.launch(PAIR_BACKWARD, [rows * sequence.width, 1], &arguments);
    }

    pub(super) fn attend_forward(&self, operation: AttendForward<'_, Self>) {
        let AttendForward { rows, sequence, vectors, scores, out, first_column } = operation;
        let arguments = Attention {
            vectors: vectors.view(),
            scores: scores.view(),
            sum: out.view(),
            first_column: first_column as u32,
            ..attention(rows, sequence)
        };
        self.launch(ATTEND_FORWARD, [rows * sequence.width, 1], &arguments);
    }

    pub(super) fn attend_backward(&self, operation: AttendBackward<'_, Self>) {
        let AttendBackward { rows, sequence, vectors, out_grad, first_column, scores_grad } = operation;
        let arguments = Attention {
            vectors: vectors.view(),
            scores: scores_grad.view(),
            sum: out_grad.view(),
            first_column: first_column as u32,
            ..attention(rows, sequence)
        };
        self.launch(ATTEND_BACKWARD, [rows * sequence.values, 1], &arguments);
    }
}
