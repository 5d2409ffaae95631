//! The loss scale of a model whose gradients would vanish in half precision.
//!
//! Where it stands is a matrix on the device, and so is what it makes of a step: the number that all gradients are
//! multiplied by, which undoes the scale and is 0 where the step is to be skipped. No operation waits for the host.
//! The host hears where the scale stands when a step has ended, with its loss.
//!
//! A skipped step changes no weight and no optimizer state, and does not count as one of Adam's. Running moments move
//! all the same, since the forward pass was made: both as in PyTorch.

use millstream_backend::{Backend, Device, LossScaling, Scalar};
use serde::{Deserialize, Serialize};

use crate::spec::LossScaleSpec;

/// Where a loss scale stands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// What the loss of the next step is multiplied by.
    pub scale: f32,
    /// Steps in a row without an overflow since it last changed.
    pub good_steps: u32,
    /// Steps skipped so far.
    pub skipped_steps: u32,
}

impl LossScale {
    /// Numbers by which a device has it: as [`ops::Unscale`](millstream_backend::ops::Unscale) has them.
    pub(super) const NUMBERS: usize = 3;

    /// As it stands by these numbers.
    pub(super) fn of<S: Scalar>(numbers: &[S]) -> Self {
        let [scale, good_steps, skipped_steps] = [0, 1, 2].map(|number| numbers[number].to_f64());
        Self { scale: scale as f32, good_steps: good_steps as u32, skipped_steps: skipped_steps as u32 }
    }
}

impl From<&LossScaleSpec> for LossScale {
    fn from(spec: &LossScaleSpec) -> Self {
        Self { scale: spec.initial, good_steps: 0, skipped_steps: 0 }
    }
}

/// A loss scale on a device.
pub(super) struct Scaling<D: Device> {
    pub(super) rule: LossScaling,
    /// As [`ops::Unscale`](millstream_backend::ops::Unscale) has it, `[1, 3]`.
    pub(super) state: D::Matrix,
    /// The same, by the last step that the host knows has ended.
    pub(super) known: LossScale,
}

impl<D: Device> Scaling<D> {
    pub(super) fn new(device: &D, spec: &LossScaleSpec) -> Self {
        let LossScaleSpec { growth, growth_interval, backoff, .. } = *spec;
        let rule = LossScaling { growth: growth.into(), growth_interval, backoff: backoff.into() };
        Self { rule, state: device.matrix(1, LossScale::NUMBERS), known: LossScale::from(spec) }
    }
}

impl<B: Backend> Scaling<B> {
    /// From here on the scale stands there.
    pub(super) fn set(&mut self, backend: &B, scale: LossScale) {
        let LossScale { scale: factor, good_steps, skipped_steps } = scale;
        let numbers = [f64::from(factor), good_steps.into(), skipped_steps.into()];
        backend.write_matrix(&mut self.state, &numbers.map(B::Scalar::from_f64));
        self.known = scale;
    }
}
