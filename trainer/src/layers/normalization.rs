//! Layer and batch normalization, followed by ReLU.
//!
//! ```text
//! y = relu(scale * (x - mean) / sqrt(variance + epsilon) + shift)
//! ```
//!
//! Layer normalization uses the mean and variance of each row. Batch normalization uses those of each column
//! over the rows of a step; for scoring it uses running moments, which each step moves a tenth of the way
//! (Ioffe and Szegedy, "Batch Normalization", 2015, Algorithm 2; the tenth, epsilon and the unbiased variance
//! as in PyTorch).

use millstream_backend::{
    Axis, Backend, Device, Normalization as Formula, SavedNormalization, WorkspaceUse, ops,
};

use crate::gradients::GradientVisitor;
use crate::init::Init;
use crate::optimizer::Optimizer;
use crate::parameter::{
    MatrixParameter, ParameterSpec, ParameterTooLarge, Parameters, Stored, StoredMut, parameters,
};
use crate::pass::{BufferSpec, Pass, Purpose};
use crate::spec;

/// Added to the variance to avoid division by zero.
pub(crate) const EPSILON: f64 = 1e-5;
/// The fraction by which a step moves running moments.
const SHARE: f64 = 0.1;

/// Scale, shift and, for batch normalization, running moments.
pub struct Normalization<D: Device> {
    /// `[1, N]`
    pub scale: MatrixParameter<D>,
    /// `[1, N]`
    pub shift: MatrixParameter<D>,
    running: Option<Running<D>>,
}

/// The moments of the columns over the steps so far, `[1, N]` each: not trained, but needed for scoring.
struct Running<D: Device> {
    mean: (ParameterSpec, D::Matrix),
    variance: (ParameterSpec, D::Matrix),
}

/// The activations of a forward pass, kept for the backward pass.
pub struct SavedMoments<D: Device> {
    mean: D::Matrix,
    variance: D::Matrix,
}

impl<D: Device> Normalization<D> {
    /// A normalization of `columns` columns; `name` is the prefix of its parameters' names.
    ///
    /// # Errors
    /// When the parameters do not fit in memory.
    pub fn new(
        device: &D,
        name: &str,
        columns: usize,
        kind: spec::Normalization,
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let trained = |part, init| {
            let spec = ParameterSpec::row(format!("{name}.{part}"), columns, init, optimizer)?;
            Ok(MatrixParameter::new(device, spec))
        };
        let kept = |part, init| {
            let spec = ParameterSpec::untrained_row(format!("{name}.{part}"), columns, init)?;
            Ok((spec, device.matrix(1, columns)))
        };
        let running = match kind {
            spec::Normalization::Layer => None,
            spec::Normalization::Batch => Some(Running {
                mean: kept("mean", Init::Zeros)?,
                variance: kept("variance", Init::Constant(1.0))?,
            }),
        };
        Ok(Self {
            scale: trained("scale", Init::Constant(1.0))?,
            shift: trained("shift", Init::Zeros)?,
            running,
        })
    }

    /// Allocates the moments of a pass's activations, and reserves the workspace.
    pub fn saved(&self, device: &D, buffers: BufferSpec) -> SavedMoments<D> {
        let (axis, rows, columns) = (self.axis(), buffers.rows, self.scale.spec.columns);
        device.reserve_workspace(&WorkspaceUse::Normalization { axis, rows, columns });
        let matrix = || match axis {
            Axis::Row => buffers.fp32(device, 1),
            Axis::Column => device.matrix(1, columns),
        };
        SavedMoments { mean: matrix(), variance: matrix() }
    }

    fn axis(&self) -> Axis {
        if self.running.is_some() { Axis::Column } else { Axis::Row }
    }
}

fn formula<'a, M>(axis: Axis, scale: &'a M, shift: &'a M) -> Formula<'a, M> {
    Formula { axis, scale, shift, epsilon: EPSILON, is_rectified: true }
}

impl<B: Backend> Normalization<B> {
    /// Computes `saved` and `output` from `input`, `[B, N]` both.
    pub fn forward(
        &mut self,
        backend: &B,
        pass: &Pass,
        input: &B::Matrix,
        saved: &mut SavedMoments<B>,
        output: &mut B::Matrix,
    ) {
        let (rows, axis) = (pass.len(), self.axis());
        let formula = formula(axis, &self.scale.value, &self.shift.value);
        if let (Some(running), Purpose::Scoring) = (&self.running, pass.purpose) {
            let moments = (&running.mean.1, &running.variance.1);
            backend.run(ops::NormalizeForward { rows, layer: &formula, moments, input, output });
            return;
        }
        let SavedMoments { mean, variance } = saved;
        backend.run(ops::Moments { rows, axis, input, mean, variance });
        backend.run(ops::NormalizeForward {
            rows,
            layer: &formula,
            moments: (mean, variance),
            input,
            output,
        });
        if let Some(running) = &mut self.running {
            let unbiased = rows as f64 / (rows.max(2) - 1) as f64;
            backend.run(ops::Blend { share: SHARE, factor: 1.0, from: mean, to: &mut running.mean.1 });
            backend.run(ops::Blend {
                share: SHARE,
                factor: unbiased,
                from: variance,
                to: &mut running.variance.1,
            });
        }
    }

    /// Computes the parameters' gradients, and replaces the gradient with respect to the output with that
    /// with respect to the input.
    pub fn backward(
        &mut self,
        backend: &B,
        pass: &Pass,
        (input, output): (&B::Matrix, &B::Matrix),
        saved: &SavedMoments<B>,
        gradient: &mut B::Matrix,
    ) {
        let SavedMoments { mean, variance } = saved;
        let axis = self.axis();
        let (scale, shift) = (&mut self.scale, &mut self.shift);
        let formula = formula(axis, &scale.value, &shift.value);
        let saved = SavedNormalization { input, mean, variance, output };
        let (scale_grad, shift_grad) = (&mut scale.gradient, &mut shift.gradient);
        backend.run(ops::NormalizeBackward {
            rows: pass.len(),
            layer: &formula,
            saved: &saved,
            grad: gradient,
            mode: pass.sum(),
            scale_grad,
            shift_grad,
        });
    }

    /// Visits the parameters with the gradients of the last backward pass.
    pub fn visit_gradients(&mut self, visitor: &mut dyn GradientVisitor<B>) {
        visitor.matrix(&mut self.scale);
        visitor.matrix(&mut self.shift);
    }
}

parameters!(Normalization: scale, shift, running);

impl<D: Device> Parameters<D> for Running<D> {
    fn stored(&self) -> Vec<(&ParameterSpec, Stored<'_, D>)> {
        let Self { mean, variance } = self;
        [mean, variance].map(|(spec, value)| (spec, Stored::Matrix { value, states: &[] })).into()
    }

    fn stored_mut(&mut self) -> Vec<(&ParameterSpec, StoredMut<'_, D>)> {
        let Self { mean, variance } = self;
        [mean, variance].map(|(spec, value)| (&*spec, StoredMut::Matrix { value, states: &mut [] })).into()
    }
}
