//! Losses with their gradients, and probabilities from logits.

use std::ops::Range;

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use crate::device::Shapes;

/// The loss that training minimizes, for each row: a function of its logit `x`, or logits, and label `y`.
///
/// The last two compare a row with the others of its list: the rows of the batch with the same id of a single-valued
/// feature. `w` is a row's weight.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// `softplus(x) - y x`, the binary cross-entropy of `sigmoid(x)`.
    BinaryCrossEntropy {
        /// `y` becomes `(1 - smoothing) y + smoothing / 2`: Szegedy et al., "Rethinking the Inception
        /// Architecture", 2016, section 7.
        smoothing: f64,
        /// A row's weight is multiplied by `positive_weight * y + negative_weight * (1 - y)`, with `y` as in the
        /// batch.
        positive_weight: f64,
        /// See `positive_weight`.
        negative_weight: f64,
    },
    /// `-(1 - p)^gamma log p` of the probability `p` that a logit gives the row's label, the cross-entropy with less
    /// weight for easy rows: Lin et al., "Focal Loss for Dense Object Detection", 2017, section 3. A label between 0
    /// and 1 is a positive and a negative row that share the weight.
    Focal {
        /// At 0 every row counts as in the cross-entropy.
        gamma: f64,
        /// The factor of a positive row, the paper's alpha. It is no weight: the mean's denominator ignores it.
        positive: f64,
        /// The factor of a negative row.
        negative: f64,
    },
    /// `(x - y)^2`
    SquaredError,
    /// With `d = |x - y|`: `d^2 / 2` up to `delta`, and `delta (d - delta / 2)` beyond: Huber, "Robust Estimation of a
    /// Location Parameter", 1964, with the constants of Keras and PyTorch.
    Huber {
        /// The distance from which the loss grows linearly.
        delta: f64,
    },
    /// With `d = y - x`: `quantile d` where the label is above, else `(quantile - 1) d`: Koenker and Bassett,
    /// "Regression Quantiles", 1978, section 3. At 0, where it has no derivative, its gradient is 0.
    Quantile {
        /// The share of labels below the optimal `x`.
        quantile: f64,
    },
    /// `2 (y log(y / e^x) - y + e^x)`, the deviance of a Poisson distribution with the mean `e^x`: McCullagh and
    /// Nelder, "Generalized Linear Models", 2nd edition, 1989, section 2.3. Above [`Self::MAX_LOG_RATE`] it continues
    /// linearly, so that it does not overflow.
    Poisson,
    /// `log(sum of e^x) - sum of t x`, the cross-entropy of the softmax of a row's logits, one for each class. `y`
    /// is the index of a class.
    CrossEntropy {
        /// `t` of each class is `smoothing` over the number of classes, and that of class `y` is `1 - smoothing`
        /// larger.
        smoothing: f64,
        /// The weight of a row of each class `y`, which multiplies the row's own weight. It applies to the row's
        /// whole loss, as in Keras; PyTorch weights the smoothed part by the class that receives it.
        class_weights: Vec<f64>,
    },
    /// `y (log(sum over the list of e^x_j) - x)`, the cross-entropy of the softmax over the row's list: Cao et al.,
    /// "Learning to Rank: From Pairwise Approach to Listwise Approach", 2007, section 5, with the labels themselves
    /// as targets, as in TF-Ranking's softmax loss. Labels are at least 0. The mean is over the sum of `w y`.
    Listwise {
        /// The single-valued feature that identifies lists.
        group: usize,
    },
    /// The mean of `log(1 + e^(x_j - x))` over the rows `j` of the list with a smaller label: Burges et al., "Learning
    /// to Rank using Gradient Descent", 2005, section 3. A row without such a row has no loss, and the mean ignores its
    /// weight.
    Pairwise {
        /// As of [`Self::Listwise`].
        group: usize,
    },
}

impl Loss {
    /// The largest logarithm of a mean of [`Self::Poisson`]; a larger one counts as this one.
    pub const MAX_LOG_RATE: f64 = 40.0;

    /// The weight of a row with this label and row weight in the mean. For a label that is no class, 0.
    ///
    /// It is not defined for [`Self::Pairwise`], where the weight of a row depends on its list; 0.
    pub fn weight(&self, label: f64, weight: f64) -> f64 {
        weight
            * match self {
                Self::BinaryCrossEntropy { positive_weight, negative_weight, .. } => {
                    label * positive_weight + (1.0 - label) * negative_weight
                }
                Self::CrossEntropy { class_weights, .. } => {
                    let class = if label >= 0.0 { class_weights.get(label as usize) } else { None };
                    class.copied().unwrap_or(0.0)
                }
                Self::Listwise { .. } => label,
                Self::Pairwise { .. } => 0.0,
                Self::Focal { .. }
                | Self::SquaredError
                | Self::Huber { .. }
                | Self::Quantile { .. }
                | Self::Poisson => 1.0,
            }
    }

    /// The feature that identifies lists, if the loss compares rows.
    pub(crate) fn group(&self) -> Option<usize> {
        match *self {
            Self::Listwise { group } | Self::Pairwise { group } => Some(group),
            _ => None,
        }
    }
}

/// A label to learn.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The loss.
    pub loss: Loss,
    /// The label of the batch, and its column of the logits; a label of classes uses all columns, and
    /// must be the first.
    pub label: usize,
    /// The weight of this task in the sum of all tasks' losses.
    pub weight: f64,
}

/// A task of the first label alone.
impl From<Loss> for Task {
    fn from(loss: Loss) -> Self {
        Self { loss, label: 0, weight: 1.0 }
    }
}

/// The loss of a task over rows `rows` of the batch, and its gradient.
///
/// The loss compares a column of `logits`, or all columns for a label of classes, with the task's label, weighted
/// by the rows' weights (1 without). The gradient is that of the mean over the whole batch, zero if the batch has
/// no weight. If the batch is a part of a larger one, the mean is over that one's `total`.
///
/// # Panics
/// On the CPU, if a label is not the index of a class. On a GPU, such a label makes the loss NaN, and the gradient zero.
pub struct TaskLoss<'a, D: Shapes> {
    /// The task.
    pub task: &'a Task,
    /// The batch.
    pub batch: &'a D::Batch,
    /// Rows of the batch; the first is row 0 of `logits`. A loss that compares rows needs all of them.
    pub rows: Range<usize>,
    /// The divisor of the mean: the sum of all rows' weights, by [`Loss::weight`]; `None` for the sum over this batch.
    pub total: Option<f64>,
    /// `[B, T]`, or `[B, K]` for `K` classes.
    pub logits: &'a D::Matrix,
    /// As `logits`; the task's columns are written.
    pub logits_grad: &'a mut D::Matrix,
    /// `[T, 2]`: the sum of weighted losses and the sum of weights are added to the label's row.
    pub sums: &'a mut D::Matrix,
}

impl<D: Shapes> TaskLoss<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let batch = D::batch_shape(self.batch);
        let rows = checks.rows_of_batch(&self.rows, batch.rows);
        checks.index("task", self.task.label, batch.labels);
        if let Some(group) = self.task.loss.group() {
            checks.index("group", group, batch.single_ids);
            checks.equal("rows", rows, batch.rows);
        }
        let check = checks.matrix::<D>("logits", self.logits);
        match &self.task.loss {
            Loss::CrossEntropy { class_weights, .. } => {
                checks.equal("task", self.task.label, 0);
                check.columns(class_weights.len())
            }
            _ => check.columns_at_least(self.task.label + 1),
        };
        checks.alike::<D>(rows, &[("logits", self.logits), ("logits_grad", self.logits_grad)]);
        checks.matrix::<D>("sums", self.sums).rows_at_least(self.task.label + 1).columns(2);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let rows = self.rows.len();
        let logits = [D::matrix_shape(self.logits), D::matrix_shape(self.logits_grad)];
        cost::sum(rows, [cost::elementwise(rows, logits, 8), cost::columns(rows, 2, 4)].into_iter())
    }
}

/// `out = 1 / (1 + exp(-logits))` over the first `rows` rows.
pub struct Sigmoid<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// `[B, T]`
    pub logits: &'a D::Matrix,
    /// `[B, T]`
    pub out: &'a mut D::Matrix,
}

impl<D: Shapes> Sigmoid<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.alike::<D>(self.rows, &[("logits", self.logits), ("out", self.out)]);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(self.rows, [D::matrix_shape(self.logits), D::matrix_shape(self.out)], 3)
    }
}

/// `out = e^logits / sum of e^logits` of each of the first `rows` rows.
pub struct Softmax<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// `[B, K]`
    pub logits: &'a D::Matrix,
    /// `[B, K]`
    pub out: &'a mut D::Matrix,
}

impl<D: Shapes> Softmax<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        checks.alike::<D>(self.rows, &[("logits", self.logits), ("out", self.out)]);
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        cost::elementwise(self.rows, [D::matrix_shape(self.logits), D::matrix_shape(self.out)], 4)
    }
}
