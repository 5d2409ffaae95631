//! The models, as a closed set: what lies between a batch and its logits.

use millstream_backend::{Backend, Device, Task, ops};

use crate::gradients::GradientVisitor;
use crate::model::builder::Builder;
use crate::model::dcn::Dcn;
use crate::model::deepfm::DeepFm;
use crate::model::dlrm::Dlrm;
use crate::model::error::ModelError;
use crate::model::linear::LinearModel;
use crate::model::mlp::MlpModel;
use crate::model::mmoe::Mmoe;
use crate::model::two_tower::TwoTower;
use crate::model::wide_deep::WideDeep;
use crate::parameter::Parameters;
use crate::pass::Pass;
use crate::spec::ModelSpec;

/// What a model computes. One call follows the other, on the same batch.
pub(super) trait Compute<B: Backend> {
    /// Computes the logits of the pass's rows of `batch`.
    fn forward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass);

    /// What the last forward pass gave, `[B, T]`: a column for each label. Of a label of `K` classes, which is alone, it
    /// is `[B, K]`: a column for each class; and so is the gradient by it.
    fn logits(&self) -> &B::Matrix;

    /// The loss of the pass's rows, as the last forward pass has them: adds to `sums` `[T, 2]`, and fills `logits_grad`
    /// `[B, T]`, as [`ops::TaskLoss`] does.
    fn loss(
        &mut self,
        backend: &B,
        tasks: &[Task],
        batch: &B::Batch,
        pass: &Pass,
        logits_grad: &mut B::Matrix,
        sums: &mut B::Matrix,
    ) {
        for task in tasks {
            backend.run(ops::TaskLoss {
                task,
                batch,
                rows: pass.rows.clone(),
                logits: self.logits(),
                logits_grad,
                sums,
            });
        }
    }

    /// Multiplies what the last call of [`Compute::loss`] gave for a gradient by the number in `factor`, `[1, 1]` or wider.
    fn scale(&mut self, backend: &B, pass: &Pass, factor: &B::Matrix, logits_grad: &mut B::Matrix) {
        backend.run(ops::Multiply { rows: pass.len(), factor, matrix: logits_grad });
    }

    /// Computes the gradients by all parameters but tables, and by what tables gave, from that by the logits,
    /// `[B, T]`, which stays as it is: a logit is linear in the layer before it.
    fn backward(&mut self, backend: &B, batch: &B::Batch, pass: &Pass, logits_grad: &mut B::Matrix);

    /// Shows every parameter with its gradient, in a fixed order; `logits_grad` is that of the whole batch.
    fn visit_gradients(&mut self, logits_grad: &B::Matrix, visitor: &mut dyn GradientVisitor<B>);
}

/// A model of any kind.
pub(super) enum Network<D: Device> {
    Linear(LinearModel<D>),
    Mlp(MlpModel<D>),
    WideDeep(WideDeep<D>),
    DeepFm(DeepFm<D>),
    Dcn(Dcn<D>),
    Dlrm(Dlrm<D>),
    Mmoe(Mmoe<D>),
    TwoTower(TwoTower<D>),
}

impl<D: Device> Network<D> {
    pub(super) fn new(builder: &mut Builder<'_, D>, spec: &ModelSpec) -> Result<Self, ModelError> {
        Ok(match spec {
            ModelSpec::Linear(spec) => Self::Linear(LinearModel::new(builder, spec)?),
            ModelSpec::Mlp(spec) => Self::Mlp(MlpModel::new(builder, spec)?),
            ModelSpec::WideDeep(spec) => Self::WideDeep(WideDeep::new(builder, spec)?),
            ModelSpec::DeepFm(spec) => Self::DeepFm(DeepFm::new(builder, spec)?),
            ModelSpec::Dcn(spec) => Self::Dcn(Dcn::new(builder, spec)?),
            ModelSpec::Dlrm(spec) => Self::Dlrm(Dlrm::new(builder, spec)?),
            ModelSpec::Mmoe(spec) => Self::Mmoe(Mmoe::new(builder, spec)?),
            ModelSpec::TwoTower(spec) => Self::TwoTower(TwoTower::new(builder, spec)?),
        })
    }

    pub(super) fn parameters(&self) -> &dyn Parameters<D> {
        match self {
            Self::Linear(model) => model,
            Self::Mlp(model) => model,
            Self::WideDeep(model) => model,
            Self::DeepFm(model) => model,
            Self::Dcn(model) => model,
            Self::Dlrm(model) => model,
            Self::Mmoe(model) => model,
            Self::TwoTower(model) => model,
        }
    }

    pub(super) fn parameters_mut(&mut self) -> &mut dyn Parameters<D> {
        match self {
            Self::Linear(model) => model,
            Self::Mlp(model) => model,
            Self::WideDeep(model) => model,
            Self::DeepFm(model) => model,
            Self::Dcn(model) => model,
            Self::Dlrm(model) => model,
            Self::Mmoe(model) => model,
            Self::TwoTower(model) => model,
        }
    }
}

impl<B: Backend> Network<B> {
    pub(super) fn compute(&mut self) -> &mut dyn Compute<B> {
        match self {
            Self::Linear(model) => model,
            Self::Mlp(model) => model,
            Self::WideDeep(model) => model,
            Self::DeepFm(model) => model,
            Self::Dcn(model) => model,
            Self::Dlrm(model) => model,
            Self::Mmoe(model) => model,
            Self::TwoTower(model) => model,
        }
    }
}
