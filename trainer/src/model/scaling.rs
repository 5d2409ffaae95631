//! The loss scale, for models whose gradients would underflow in fp16.
//!
//! The state of the scale is a matrix on the device. So is its result for a step: the factor of all
//! gradients, which undoes the scale and is 0 if the step is skipped. No operation waits for the host. The
//! host receives the state together with the loss when a step has completed.
//!
//! A skipped step changes no weight and no optimizer state, and does not count as a step of Adam. Running
//! moments are still updated, because the forward pass ran: both as in PyTorch.

use millstream_backend::{Backend, Device, LossScaling, Scalar};
use serde::{Deserialize, Serialize};

use crate::spec::LossScaleSpec;

/// The state of a loss scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// The factor of the next step's loss.
    pub scale: f32,
    /// Consecutive steps without an overflow since the last change.
    pub good_steps: u32,
    /// Steps skipped so far.
    pub skipped_steps: u32,
}

impl LossScale {
    /// The number of values of its state on a device, in the layout of
    /// [`ops::Unscale`](millstream_backend::ops::Unscale).
    pub(super) const NUMBERS: usize = 3;

    /// Converts the state from these values.
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
    /// The state, `[1, 3]`, in the layout of [`ops::Unscale`](millstream_backend::ops::Unscale).
    pub(super) state: D::Matrix,
    /// The state after the last completed step that the host knows of.
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
    /// Sets the state.
    pub(super) fn set(&mut self, backend: &B, scale: LossScale) {
        let LossScale { scale: factor, good_steps, skipped_steps } = scale;
        let numbers = [f64::from(factor), good_steps.into(), skipped_steps.into()];
        backend.write_matrix(&mut self.state, &numbers.map(B::Scalar::from_f64));
        self.known = scale;
    }
}
