//! Mixtures of experts with a gate for each task.

use millstream_trace::Work;

use super::check::Checks;
use super::cost;
use crate::device::Shapes;

/// The sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixtureShape {
    /// `T`
    pub tasks: usize,
    /// `E`
    pub experts: usize,
    /// Columns of each expert's output, `N`.
    pub width: usize,
}

impl MixtureShape {
    /// Columns of the gates.
    fn gates(self) -> usize {
        self.tasks.saturating_mul(self.experts)
    }

    /// Columns of the experts' outputs.
    fn experts(self) -> usize {
        self.experts.saturating_mul(self.width)
    }

    /// Columns of the mixtures.
    fn outputs(self) -> usize {
        self.tasks.saturating_mul(self.width)
    }
}

/// Fills `gates` with a softmax over the logits of each task, and `output` with the sum of the experts' outputs, each
/// weighted by its gate.
///
/// Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", 2018,
/// equations 6 and 7.
pub struct MixtureForward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The sizes.
    pub shape: MixtureShape,
    /// `[B, T * E]`
    pub logits: &'a D::Matrix,
    /// The experts' outputs side by side, `[B, E * N]`.
    pub experts: &'a D::Matrix,
    /// `[B, T * E]`
    pub gates: &'a mut D::Matrix,
    /// `[B, T * N]`
    pub output: &'a mut D::Matrix,
}

impl<D: Shapes> MixtureForward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let (rows, shape) = (self.rows, self.shape);
        checks.matrix::<D>("logits", self.logits).rows_at_least(rows).columns(shape.gates());
        checks.matrix::<D>("experts", self.experts).rows_at_least(rows).columns(shape.experts());
        checks.matrix::<D>("gates", self.gates).rows_at_least(rows).columns(shape.gates());
        checks.matrix::<D>("output", self.output).rows_at_least(rows).columns(shape.outputs());
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let moved = [self.logits, self.experts, self.gates, self.output].map(D::matrix_shape);
        cost::mixture(self.rows, self.shape, 2, moved)
    }
}

/// The gradient of [`MixtureForward`] with respect to its logits and the experts' outputs.
pub struct MixtureBackward<'a, D: Shapes> {
    /// Number of rows.
    pub rows: usize,
    /// The sizes.
    pub shape: MixtureShape,
    /// `[B, T * E]`, of the forward pass.
    pub gates: &'a D::Matrix,
    /// `[B, E * N]`
    pub experts: &'a D::Matrix,
    /// `[B, T * N]`
    pub output_grad: &'a D::Matrix,
    /// `[B, T * E]`, written.
    pub logits_grad: &'a mut D::Matrix,
    /// `[B, E * N]`, written.
    pub experts_grad: &'a mut D::Matrix,
}

impl<D: Shapes> MixtureBackward<'_, D> {
    pub(super) fn check(&self, checks: Checks) {
        let (rows, shape) = (self.rows, self.shape);
        let operands = [
            ("gates", self.gates, shape.gates()),
            ("experts", self.experts, shape.experts()),
            ("output_grad", self.output_grad, shape.outputs()),
            ("logits_grad", &*self.logits_grad, shape.gates()),
            ("experts_grad", &*self.experts_grad, shape.experts()),
        ];
        for (name, matrix, columns) in operands {
            checks.matrix::<D>(name, matrix).rows_at_least(rows).columns(columns);
        }
    }

    pub(super) fn work(&self, _backend: &D) -> Work {
        let moved = [self.gates, self.experts, self.output_grad, self.logits_grad, self.experts_grad];
        cost::mixture(self.rows, self.shape, 4, moved.map(D::matrix_shape))
    }
}
