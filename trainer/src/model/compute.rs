//! The computation that every model implements.

use millstream_backend::{Backend, Task, ops};

use crate::gradients::GradientVisitor;
use crate::pass::Pass;

/// What a step minimizes.
pub(crate) struct Objective<'a, B: Backend> {
    /// The task of each label.
    pub(crate) tasks: &'a [Task],
    /// If the batch is a part of a global batch: the weight of that one, by task.
    pub(crate) totals: Option<&'a [f64]>,
    /// If it is, and rows are compared: labels, weights and the compared ids of all rows of the global batch.
    pub(crate) compared: Option<&'a B::Batch>,
}

/// The computation of a model. The calls follow each other in this order, on the same batch.
pub(crate) trait Compute<B: Backend> {
    /// Computes the logits of the pass's rows of `batch`.
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>);

    /// The logits of the last forward pass, `[B, T]`: a column for each label. For one label of `K` classes they are
    /// `[B, K]`, a column for each class, as are their gradients.
    fn logits(&self) -> &B::Matrix;

    /// The loss of the pass's rows after the last forward pass. Adds to `sums` `[T, 2]` and writes `logits_grad`
    /// `[B, T]`, as [`ops::TaskLoss`] does.
    fn loss(
        &mut self,
        backend: &B,
        objective: &Objective<'_, B>,
        batch: &B::Batch,
        pass: &Pass<'_, B>,
        logits_grad: &mut B::Matrix,
        sums: &mut B::Matrix,
    ) {
        for (number, task) in objective.tasks.iter().enumerate() {
            backend.run(ops::TaskLoss {
                total: objective.totals.map(|totals| totals[number]),
                task,
                batch,
                rows: pass.rows.clone(),
                logits: self.logits(),
                logits_grad,
                sums,
            });
        }
    }

    /// Keeps what the loss compares of the pass's rows after the last forward pass, for [`Compute::loss_of_kept`]. Only models
    /// whose rows depend on each other keep anything.
    fn keep_compared(&mut self, _backend: &B, _pass: &Pass<'_, B>) {}

    /// The loss of the rows of `pass`, all of this worker, of which smaller passes have kept what it compares. Adds to `sums`.
    fn loss_of_kept(
        &mut self,
        _backend: &B,
        _objective: &Objective<'_, B>,
        _pass: &Pass<'_, B>,
        _sums: &mut B::Matrix,
    ) {
    }

    /// Takes the gradient of the pass's rows from that of [`Compute::loss_of_kept`], as [`Compute::loss`] writes it.
    fn take_gradient(&mut self, _backend: &B, _pass: &Pass<'_, B>) {}

    /// Multiplies the gradient of the last call of [`Compute::loss`] by the number in `factor`, `[1, 1]` or wider.
    fn scale(&mut self, backend: &B, pass: &Pass<'_, B>, factor: &B::Matrix, logits_grad: &mut B::Matrix) {
        backend.run(ops::Multiply { rows: pass.len(), factor, matrix: logits_grad });
    }

    /// Computes the gradients of all dense parameters and of the looked-up embeddings from `logits_grad` `[B, T]`.
    fn backward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass<'_, B>, logits_grad: &mut B::Matrix);

    /// Visits every parameter with its gradient, in a fixed order. `logits_grad` is the gradient over the whole batch.
    fn visit_gradients(&mut self, logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>);
}
