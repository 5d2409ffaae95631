//! Unit vectors, dot products of rows, and the losses of queries that choose among the items of a batch.

use std::ops::Range;

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use crate::device::Shapes;

/// The least squared length of a vector that is scaled to length 1, as in TensorFlow's `l2_normalize`: zeros stay
/// zeros, and vectors shorter than `1e-6` are multiplied by `1e6`.
pub(crate) const MIN_SQUARE: f64 = 1e-12;

/// `output[b] = input[b] / sqrt(max(sum of input[b]^2, 1e-12))`: rows of length 1.
pub struct UnitForward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// `[B, N]`
    pub input: &'a D::Matrix,
    /// `[B, N]`
    pub output: &'a mut D::Matrix,
}

impl<D: Shapes> UnitForward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.alike::<D>(self.rows, &[("input", self.input), ("output", self.output)]);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(self.rows, [D::matrix_shape(self.input), D::matrix_shape(self.output)], 3)
    }
}

/// The gradient of [`UnitForward`].
pub struct UnitBackward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// `[B, N]`
    pub input: &'a D::Matrix,
    /// `[B, N]`: the gradient with respect to the output, replaced by that with respect to the input.
    pub grad: &'a mut D::Matrix,
}

impl<D: Shapes> UnitBackward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.alike::<D>(self.rows, &[("input", self.input), ("grad", self.grad)]);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let grad = D::matrix_shape(self.grad);
        cost::elementwise(self.rows, [D::matrix_shape(self.input), grad, grad], 7)
    }
}

/// `out[b] = factor * left[b] . right[b]`
pub struct RowProducts<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// Multiplies each product.
    pub factor: f64,
    /// `[B, N]`
    pub left: &'a D::Matrix,
    /// `[B, N]`
    pub right: &'a D::Matrix,
    /// `[B, 1]`
    pub out: &'a mut D::Matrix,
}

impl<D: Shapes> RowProducts<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.alike::<D>(self.rows, &[("left", self.left), ("right", self.right)]);
        checks.matrix::<D>("out", self.out).rows_at_least(self.rows).columns(1);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let [left, right] = [self.left, self.right].map(D::matrix_shape);
        cost::elementwise(self.rows, [left, right, D::matrix_shape(self.out)], 2)
    }
}

/// The loss of a row `i` that chooses its item among candidates `j`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// `log(sum over j of exp(s_ij)) - s_ii`, the cross-entropy of the softmax over the candidates, with the row's item.
    Softmax,
    /// The mean of `log(1 + exp(s_ij - s_ii))` over the other candidates, 0 without any: Rendle et al., "BPR: Bayesian
    /// Personalized Ranking from Implicit Feedback", UAI 2009, section 4.1, with in-batch negatives.
    Pairwise,
}

/// The items of a batch of `B` rows, and the queries of `Q` of them.
///
/// Row `i` chooses its item among those of all rows by the scores `s_ij = q_i . v_j / temperature`. Its loss is weighted
/// by the row's weight times its label: a row with label 0 chooses nothing, but its item is a candidate for other rows.
pub struct InBatchInput<'a, D: Shapes> {
    /// The batch: labels, weights and ids.
    pub batch: &'a D::Batch,
    /// The rows that choose; others have the queries of the other rows.
    pub rows: Range<usize>,
    /// `[Q, W]`, the queries of these rows.
    pub queries: &'a D::Matrix,
    /// `[B, W]`
    pub items: &'a D::Matrix,
    /// Divides the products.
    pub temperature: f64,
    /// The loss of a row.
    pub choice: Choice,
    /// The single-valued feature that identifies items. Items of other rows with row `i`'s id are not candidates of row
    /// `i`. Without it all items are, so an item that occurs twice competes with itself.
    pub item_id: Option<usize>,
}

/// The loss of rows of a batch whose queries choose among its items, and its gradient; see [`InBatchInput`].
pub struct InBatchLoss<'a, D: Shapes> {
    /// Queries and items.
    pub input: &'a InBatchInput<'a, D>,
    /// The workspace, from [`Device::in_batch_work`](crate::Device::in_batch_work).
    pub work: &'a mut D::Matrix,
    /// `[Q, W]`, written: the gradient of the mean loss over all rows of the batch, zeros if the batch has no weight.
    pub query_grad: &'a mut D::Matrix,
    /// `[B, W]`, written: the part of the same gradient that comes from these rows.
    pub item_grad: &'a mut D::Matrix,
    /// `[1, 2]`: the sums of weighted losses and of weights of these rows are added.
    pub sums: &'a mut D::Matrix,
}

impl<D: Shapes> InBatchLoss<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let (batch, columns) =
            (D::batch_shape(self.input.batch), D::matrix_shape(self.input.queries).columns);
        let Range { start, end } = self.input.rows;
        checks.at_most("rows", start, end);
        checks.at_most("rows", end, batch.rows);
        let of_queries = [("queries", self.input.queries), ("query_grad", &*self.query_grad)];
        let of_items = [("items", self.input.items), ("item_grad", &*self.item_grad)];
        checks.alike::<D>(end - start, &of_queries);
        checks.matrix::<D>("items", self.input.items).columns(columns);
        checks.alike::<D>(batch.rows, &of_items);
        if let Some(feature) = self.input.item_id {
            checks.index("item_id", feature, batch.single_ids);
        }
        checks.index("label", 0, batch.labels);
        let work = checks.matrix::<D>("work", self.work);
        work.columns_at_least(D::in_batch_numbers(end - start, batch.rows, columns));
        checks.matrix::<D>("sums", self.sums).rows_at_least(1).columns(2);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let items = D::batch_shape(self.input.batch).rows;
        cost::in_batch_loss(self.input.rows.len(), items, D::matrix_shape(self.input.queries))
    }
}
