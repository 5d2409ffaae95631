//! Sums of the gradients of layers over the workers' devices, which may start during the backward pass.
//!
//! The sum of a large gradient starts as soon as the last pass of a step has completed it, while the pass continues with earlier
//! layers. Small gradients are summed at the end, all in one operation: what a small sum costs is latency.
//!
//! Which gradients are large follows from their shapes. The order of their sums is that of the backward pass, which is the same on
//! all workers: one without rows makes a pass over none. One whose batch is invalid starts them, too; it takes no part in the last
//! operation of the step, without which no worker updates its weights.

use std::cell::RefCell;

use millstream_backend::{Backend, Float, MatrixShape, ops};

use crate::gradients::CompletedGradients;
use crate::parameter::{Parameter, ParameterSpec, Parameters, Storage};

/// The least size of a large gradient, in bytes of fp32.
const LARGE_BYTES: usize = 256 << 10;

/// The sums of all gradients of layers.
pub(crate) struct LayerSums<B: Backend>(Vec<LayerSum<B>>);

/// The sum of a gradient.
struct LayerSum<B: Backend> {
    /// The name of the parameter.
    name: String,
    /// Where the gradient is rounded, if it travels in 16 bits.
    rounded: Option<B::Matrix>,
    is_large: bool,
    /// Whether the sum has been started in this step, before that of the small gradients.
    is_started: bool,
}

impl<B: Backend> LayerSums<B> {
    /// The sums of the `gradients` of these parameters, which travel as `wire`.
    pub(crate) fn new<'a>(
        backend: &B,
        gradients: impl Iterator<Item = &'a ParameterSpec>,
        wire: Float,
    ) -> Self {
        let sum = |spec: &ParameterSpec| LayerSum {
            name: spec.name.clone(),
            rounded: (wire != Float::F32).then(|| backend.matrix_of(wire, spec.rows, spec.columns)),
            is_large: spec.len() * size_of::<f32>() >= LARGE_BYTES,
            is_started: false,
        };
        Self(gradients.map(sum).collect())
    }

    /// No sums, of workers whose devices are not connected.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    fn of(&mut self, spec: &ParameterSpec) -> &mut LayerSum<B> {
        self.0.iter_mut().find(|sum| sum.name == spec.name).expect("a parameter of the model")
    }

    /// Prepares a gradient for its sum, and starts that if it is a large one, unless that has been done. With `is_empty`, the
    /// gradient is one of no rows.
    pub(super) fn prepare(
        &mut self,
        backend: &B,
        peers: &B::Peers,
        is_empty: bool,
        (spec, gradient): (&ParameterSpec, &mut B::Matrix),
    ) {
        let sum = self.of(spec);
        if sum.is_started {
            return;
        }
        if is_empty {
            backend.run(ops::Clear { rows: spec.rows, matrix: gradient });
        }
        if let Some(rounded) = &mut sum.rounded {
            copy(backend, gradient, rounded);
        }
        if sum.is_large {
            sum.is_started = true;
            backend.start_sum(peers, |add| add(sum.rounded.as_mut().unwrap_or(gradient)));
        }
    }

    /// What is summed for a gradient at the end; `None` if its sum has been started.
    pub(super) fn not_started<'a>(
        &'a mut self,
        spec: &ParameterSpec,
        gradient: &'a mut B::Matrix,
    ) -> Option<&'a mut B::Matrix> {
        let sum = self.of(spec);
        (!sum.is_started).then(|| sum.rounded.as_mut().unwrap_or(gradient))
    }

    /// Takes a gradient's sum, which has been joined.
    pub(super) fn finish(&mut self, backend: &B, (spec, gradient): (&ParameterSpec, &mut B::Matrix)) {
        let sum = self.of(spec);
        sum.is_started = false;
        if let Some(rounded) = &sum.rounded {
            copy(backend, rounded, gradient);
        }
    }
}

/// Copies a matrix to one of the same shape, in that one's format.
fn copy<B: Backend>(backend: &B, from: &B::Matrix, to: &mut B::Matrix) {
    let MatrixShape { rows, columns, .. } = B::matrix_shape(from);
    backend.run(ops::CopyColumns { rows, from: (from, 0), to: (to, 0), columns });
}

/// Starts the sums of large gradients while a backward pass completes them.
pub(crate) struct StartEarly<'a, B: Backend> {
    peers: &'a B::Peers,
    sums: RefCell<&'a mut LayerSums<B>>,
    /// Whether the pass is over no rows.
    is_empty: bool,
}

impl<'a, B: Backend> StartEarly<'a, B> {
    pub(crate) fn new(peers: &'a B::Peers, sums: &'a mut LayerSums<B>, is_empty: bool) -> Self {
        Self { peers, sums: RefCell::new(sums), is_empty }
    }
}

impl<B: Backend> CompletedGradients<B> for StartEarly<'_, B> {
    fn take(&self, backend: &B, layers: &mut dyn Parameters<B>) {
        let mut sums = self.sums.borrow_mut();
        layers.visit(&mut |Parameter { spec, storage }| {
            if let Storage::Matrix { gradient: Some(gradient), .. } = storage
                && sums.of(spec).is_large
            {
                sums.prepare(backend, self.peers, self.is_empty, (spec, gradient));
            }
        });
    }
}
