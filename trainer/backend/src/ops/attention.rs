//! Attention over the values of a sequence: the inputs of an activation unit, and the sum that its scores weight.
//!
//! Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", 2018, section 4.3. A [`Sequence`] has a vector
//! `e_v` for each value of a row's history, and zeros where the history is shorter than its room
//! ([`Pooling::Unpooled`](crate::Pooling::Unpooled)), and a vector `t` for the row's target. Value `v` of row `b` is row
//! `b V + v` of the matrices with a row for each value. The vectors of values that a row lacks are zeros: they add
//! nothing to a sum, and their scores have the gradient 0. So neither rows nor operations depend on the lengths.

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use crate::device::{MatrixShape, Shapes};

/// The columns of a sequence in a matrix of vectors, and its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The first column of the values' vectors, which follow each other.
    pub first: usize,
    /// The first column of the target's vector. It is not within the values' vectors.
    pub target: usize,
    /// The most values, `V`.
    pub values: usize,
    /// Columns of a vector, `W`.
    pub width: usize,
}

impl Sequence {
    /// Asserts that `vectors` has `rows` rows and the sequence's columns, of which none is both value and target.
    fn check<D: Shapes>(self, checks: Checks, rows: usize, (name, vectors): (&'static str, &D::Matrix)) {
        let end = self.first.saturating_add(self.values.saturating_mul(self.width));
        let end_of_target = self.target.saturating_add(self.width);
        if self.target < end {
            checks.at_most("sequence", end_of_target, self.first);
        }
        checks.matrix::<D>(name, vectors).rows_at_least(rows).columns_at_least(end.max(end_of_target));
    }

    /// Rows of a matrix with a row for each value.
    fn value_rows(self, rows: usize) -> usize {
        rows.saturating_mul(self.values)
    }

    /// The work of an operation with `flops` FLOPs for each column of each value, which reads or writes the values'
    /// vectors of `rows` rows `moves` times.
    fn work(self, rows: usize, (vectors, moves): (MatrixShape, usize), flops: usize) -> Work {
        let columns = self.values * self.width;
        let moved = cost::columns(rows, columns * moves, vectors.number_bytes);
        Work { flops: (rows * columns * flops) as u64, ..moved }
    }
}

/// Writes the input of the activation unit for each value: `[e_v, t, e_v - t, e_v * t]`.
///
/// As in the authors' code, the products are elementwise; the paper's figure 2 has an outer product and no difference.
pub struct PairForward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The sequence in `vectors`.
    pub sequence: Sequence,
    /// The vectors of each row.
    pub vectors: &'a D::Matrix,
    /// `[B V, 4 W]`
    pub pairs: &'a mut D::Matrix,
}

impl<D: Shapes> PairForward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        self.sequence.check::<D>(checks, self.rows, ("vectors", self.vectors));
        check_pairs::<D>(checks, self.rows, self.sequence, ("pairs", self.pairs));
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        self.sequence.work(self.rows, (D::matrix_shape(self.vectors), 5), 2)
    }
}

/// The gradients of [`PairForward`] and [`AttendForward`] with respect to the vectors: writes those of the values, and
/// adds to that of the target. With the gradient `[g_1, g_2, g_3, g_4]` of a value's pair, its score `a_v`, and the
/// gradient `g` of the sum:
///
/// ```text
/// by e_v = a_v g + g_1 + g_3 + g_4 * t
/// by t  += sum over v of g_2 - g_3 + g_4 * e_v
/// ```
pub struct PairBackward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The sequence in `vectors` and `vectors_grad`.
    pub sequence: Sequence,
    /// The vectors of each row.
    pub vectors: &'a D::Matrix,
    /// `[B V, 1]`
    pub scores: &'a D::Matrix,
    /// The gradient of the sum is in `W` of its columns.
    pub out_grad: &'a D::Matrix,
    /// The first of these columns.
    pub first_column: usize,
    /// `[B V, 4 W]`
    pub pairs_grad: &'a D::Matrix,
    /// As `vectors`.
    pub vectors_grad: &'a mut D::Matrix,
}

impl<D: Shapes> PairBackward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let (rows, sequence) = (self.rows, self.sequence);
        sequence.check::<D>(checks, rows, ("vectors", self.vectors));
        sequence.check::<D>(checks, rows, ("vectors_grad", self.vectors_grad));
        check_scores::<D>(checks, rows, sequence, ("scores", self.scores));
        check_sum::<D>(checks, rows, sequence, ("out_grad", self.out_grad), self.first_column);
        check_pairs::<D>(checks, rows, sequence, ("pairs_grad", self.pairs_grad));
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        self.sequence.work(self.rows, (D::matrix_shape(self.vectors), 6), 9)
    }
}

/// `out[b] = sum over v of a_v e_v`, in `W` columns of `out`, without normalization of the scores `a_v` (equation 3).
pub struct AttendForward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The sequence in `vectors`.
    pub sequence: Sequence,
    /// The vectors of each row.
    pub vectors: &'a D::Matrix,
    /// `[B V, 1]`
    pub scores: &'a D::Matrix,
    /// `W` of its columns are written.
    pub out: &'a mut D::Matrix,
    /// The first of these columns.
    pub first_column: usize,
}

impl<D: Shapes> AttendForward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let (rows, sequence) = (self.rows, self.sequence);
        sequence.check::<D>(checks, rows, ("vectors", self.vectors));
        check_scores::<D>(checks, rows, sequence, ("scores", self.scores));
        check_sum::<D>(checks, rows, sequence, ("out", self.out), self.first_column);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        self.sequence.work(self.rows, (D::matrix_shape(self.vectors), 1), 2)
    }
}

/// The gradient of [`AttendForward`] with respect to the scores: `g . e_v`, with the gradient `g` of the sum.
pub struct AttendBackward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The sequence in `vectors`.
    pub sequence: Sequence,
    /// The vectors of each row.
    pub vectors: &'a D::Matrix,
    /// The gradient of the sum is in `W` of its columns.
    pub out_grad: &'a D::Matrix,
    /// The first of these columns.
    pub first_column: usize,
    /// `[B V, 1]`, written.
    pub scores_grad: &'a mut D::Matrix,
}

impl<D: Shapes> AttendBackward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let (rows, sequence) = (self.rows, self.sequence);
        sequence.check::<D>(checks, rows, ("vectors", self.vectors));
        check_sum::<D>(checks, rows, sequence, ("out_grad", self.out_grad), self.first_column);
        check_scores::<D>(checks, rows, sequence, ("scores_grad", self.scores_grad));
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        self.sequence.work(self.rows, (D::matrix_shape(self.vectors), 1), 2)
    }
}

fn check_pairs<D: Shapes>(
    checks: Checks,
    rows: usize,
    sequence: Sequence,
    (name, pairs): (&'static str, &D::Matrix),
) {
    let columns = sequence.width.saturating_mul(4);
    checks.matrix::<D>(name, pairs).rows_at_least(sequence.value_rows(rows)).columns(columns);
}

fn check_scores<D: Shapes>(
    checks: Checks,
    rows: usize,
    sequence: Sequence,
    (name, scores): (&'static str, &D::Matrix),
) {
    checks.matrix::<D>(name, scores).rows_at_least(sequence.value_rows(rows)).columns(1);
}

fn check_sum<D: Shapes>(
    checks: Checks,
    rows: usize,
    sequence: Sequence,
    (name, sum): (&'static str, &D::Matrix),
    first_column: usize,
) {
    let end = first_column.saturating_add(sequence.width);
    checks.matrix::<D>(name, sum).rows_at_least(rows).columns_at_least(end);
}
