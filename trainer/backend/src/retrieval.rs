//! What the in-batch softmax of a retrieval model reads.

use crate::device::Device;

/// Queries and items of a batch: row `i` of one belongs to row `i` of the other.
///
/// Row `i` is to choose its item among those of all rows, by the softmax of `s_ij = q_i . v_j / temperature` over `j`.
/// Its loss, `log(sum over j of exp(s_ij)) - s_ii`, counts by the row's weight times its label: a row of label 0 chooses
/// nothing, and its item is there to be chosen by others all the same.
pub struct InBatchSoftmax<'a, D: Device> {
    /// The batch, for labels, weights and ids.
    pub batch: &'a D::Batch,
    /// `[B, W]`
    pub queries: &'a D::Matrix,
    /// `[B, W]`
    pub items: &'a D::Matrix,
    /// What products are divided by.
    pub temperature: f64,
    /// The feature, of one id a row, that tells items apart: those of other rows that have row `i`'s id are not among
    /// those that it chooses from. Without it all are, so that an item that is there twice is its own rival.
    pub item_id: Option<usize>,
}

/// The square of a vector's length counts as no less than this when it is made of length 1, as in TensorFlow's
/// `l2_normalize`: zeros stay zeros, and vectors shorter than `1e-6` are made `1e6` times as long.
pub(crate) const LEAST_SQUARE: f64 = 1e-12;
