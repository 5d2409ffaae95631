//! Sums that start during the backward pass.
//!
//! The sum of a large gradient starts as soon as the last pass of a step has completed it, while the pass continues with earlier
//! layers. Small gradients are summed at the end, all in one operation: what a small sum costs is latency.
//!
//! Which gradients are large follows from their shapes. The order of their sums is that of the backward pass, which is the same on
//! all workers: one without rows makes a pass over none.
//!
//! This needs one part of each batch per worker. The gradients of several parts are added before they are sent.

use std::cell::RefCell;

use millstream_backend::collective::{Buffer, CollectiveError, Communicator, Ticket};
use millstream_backend::{Backend, BatchError, Float, Scalar, ops};

use super::devices::{self, Rounded};
use crate::gradients::CompletedGradients;
use crate::parameter::{Parameter, ParameterSpec, Parameters, Storage};

/// The least size of a large gradient, in bytes of fp32.
const LARGE_BYTES: usize = 256 << 10;

/// The sums of large gradients; none if no sum starts early.
pub(super) struct EarlySums<S: Scalar> {
    sums: Vec<EarlySum<S>>,
    /// The fault of the batch, which prevents sums.
    fault: Option<BatchError>,
}

/// The sum of a large gradient.
struct EarlySum<S: Scalar> {
    /// The name of the parameter.
    name: String,
    is_started: bool,
    /// The result, by way of host memory.
    ticket: Option<Ticket<Buffer<S>>>,
    /// Memory of the last step.
    free: Buffer<S>,
}

/// What starts sums of gradients of a batch.
pub(crate) struct Starter<'a, B: Backend> {
    pub(super) communicator: &'a Communicator,
    /// The format in which gradients travel.
    pub(super) wire: Float,
    /// The other workers' devices, if those exchange gradients.
    pub(super) peers: Option<&'a B::Peers>,
    pub(super) batch: &'a B::Batch,
}

/// Starts the sums of large gradients while a backward pass completes them.
pub(crate) struct StartEarly<'a, B: Backend> {
    pub(super) starter: Starter<'a, B>,
    pub(super) early: &'a RefCell<EarlySums<B::Scalar>>,
    pub(super) rounded: RefCell<&'a mut [Rounded<B>]>,
}

impl<S: Scalar> EarlySums<S> {
    /// No sum starts early.
    pub(super) fn none() -> Self {
        Self { sums: Vec::new(), fault: None }
    }

    /// The sums of those of `gradients` that are large.
    pub(super) fn of<'a>(gradients: impl Iterator<Item = &'a ParameterSpec>) -> Self {
        let sum = |spec: &ParameterSpec| EarlySum {
            name: spec.name.clone(),
            is_started: false,
            ticket: None,
            free: Buffer::default(),
        };
        let is_large = |spec: &&ParameterSpec| spec.len() * size_of::<f32>() >= LARGE_BYTES;
        Self { sums: gradients.filter(is_large).map(sum).collect(), fault: None }
    }

    /// Whether none starts early.
    pub(super) fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Whether the gradient of this parameter has a sum of its own.
    pub(super) fn has(&self, spec: &ParameterSpec) -> bool {
        self.sums.iter().any(|sum| sum.name == spec.name)
    }

    fn find(&mut self, spec: &ParameterSpec) -> Option<&mut EarlySum<S>> {
        self.sums.iter_mut().find(|sum| sum.name == spec.name)
    }

    /// The fault of the batch that was found when the first sum was to start.
    pub(super) fn take_fault(&mut self) -> Option<BatchError> {
        self.fault.take()
    }

    /// Starts the sum of a gradient if it has one of its own that has not been started. Returns whether it has one.
    pub(super) fn start<B: Backend<Scalar = S>>(
        &mut self,
        backend: &B,
        starter: &Starter<'_, B>,
        rounded: &mut [Rounded<B>],
        (spec, gradient): (&ParameterSpec, &mut B::Matrix),
    ) -> bool {
        let Some(sum) = self.find(spec) else { return false };
        if std::mem::replace(&mut sum.is_started, true) {
            return true;
        }
        let Starter { communicator, wire, peers, batch } = *starter;
        // A backward pass over no rows need not write gradients.
        let is_empty = B::batch_shape(batch).rows == 0;
        if let Some(peers) = peers {
            if is_empty {
                backend.run(ops::Clear { rows: spec.rows, matrix: gradient });
            }
            devices::start_sum(backend, peers, rounded, (spec, gradient));
            return true;
        }
        let mut numbers = std::mem::take(&mut sum.free);
        numbers.resize(spec.len());
        match is_empty {
            true => numbers.fill(S::default()),
            false => backend.read_matrix(gradient, &mut numbers),
        }
        sum.ticket = Some(communicator.sum(numbers, wire));
        true
    }

    /// Waits for the sum of a gradient by way of host memory, and calls `use_sum` with it. Returns whether it has one of its own.
    pub(super) fn join(
        &mut self,
        spec: &ParameterSpec,
        use_sum: impl FnOnce(&[S]),
    ) -> Result<bool, CollectiveError> {
        let Some(sum) = self.find(spec) else { return Ok(false) };
        let ticket = sum.ticket.take().expect("a sum that was started");
        sum.free = ticket.join()?;
        use_sum(&sum.free);
        Ok(true)
    }

    /// Ends the step: all sums may be started again.
    pub(super) fn end(&mut self) {
        self.sums.iter_mut().for_each(|sum| sum.is_started = false);
    }
}

impl<B: Backend> CompletedGradients<B> for StartEarly<'_, B> {
    fn take(&self, backend: &B, layers: &mut dyn Parameters<B>) {
        let mut early = self.early.borrow_mut();
        layers.visit(&mut |Parameter { spec, storage }| {
            let Storage::Matrix { gradient: Some(gradient), .. } = storage else { return };
            if !early.has(spec) || early.fault.is_some() {
                return;
            }
            // The other workers must not get the gradients of an invalid batch.
            if let Err(fault) = backend.check(self.starter.batch) {
                early.fault = Some(fault);
                return;
            }
            early.start(backend, &self.starter, &mut self.rounded.borrow_mut(), (spec, gradient));
        });
    }
}
