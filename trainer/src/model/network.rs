//! The models as a closed set: the computation from a batch to its logits.

use millstream_backend::{Backend, Device};

use crate::model::builder::Builder;
use crate::model::compute::Compute;
use crate::model::dcn::Dcn;
use crate::model::deepfm::DeepFm;
use crate::model::din::Din;
use crate::model::dlrm::Dlrm;
use crate::model::error::ModelError;
use crate::model::linear::LinearModel;
use crate::model::mlp::MlpModel;
use crate::model::mmoe::Mmoe;
use crate::model::two_tower::TwoTower;
use crate::model::wide_deep::WideDeep;
use crate::parameter::{Parameter, Parameters};
use crate::spec::ModelSpec;

/// A model of any kind.
pub(super) enum Network<D: Device> {
    Linear(LinearModel<D>),
    Mlp(MlpModel<D>),
    WideDeep(WideDeep<D>),
    DeepFm(DeepFm<D>),
    Dcn(Dcn<D>),
    Din(Din<D>),
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
            ModelSpec::Din(spec) => Self::Din(Din::new(builder, spec)?),
            ModelSpec::Dlrm(spec) => Self::Dlrm(Dlrm::new(builder, spec)?),
            ModelSpec::Mmoe(spec) => Self::Mmoe(Mmoe::new(builder, spec)?),
            ModelSpec::TwoTower(spec) => Self::TwoTower(TwoTower::new(builder, spec)?),
        })
    }

    /// Every non-empty parameter, in a fixed order.
    pub(super) fn parameters(&mut self) -> Vec<Parameter<'_, D>> {
        match self {
            Self::Linear(model) => model.parameters(),
            Self::Mlp(model) => model.parameters(),
            Self::WideDeep(model) => model.parameters(),
            Self::DeepFm(model) => model.parameters(),
            Self::Dcn(model) => model.parameters(),
            Self::Din(model) => model.parameters(),
            Self::Dlrm(model) => model.parameters(),
            Self::Mmoe(model) => model.parameters(),
            Self::TwoTower(model) => model.parameters(),
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
            Self::Din(model) => model,
            Self::Dlrm(model) => model,
            Self::Mmoe(model) => model,
            Self::TwoTower(model) => model,
        }
    }
}
