//! Layer and batch normalization, followed by ReLU.
//!
//! ```text
//! y = relu(scale * (x - mean) / sqrt(variance + epsilon) + shift)
//! ```
//!
//! Layer normalization uses the mean and variance of each row. Batch normalization uses those of each column
//! over the rows of a step; for scoring it uses running moments, which each step moves a tenth of the way
//! (Ioffe and Szegedy, "Batch Normalization", 2015, Algorithm 2; the tenth, epsilon and the unbiased variance
//! as in PyTorch). If several workers have parts of a batch, its moments are those of the rows of all workers, and so are the
//! sums in its gradient.

use millstream_backend::{
    Axis, Backend, ColumnSums, Device, Normalization as Formula, SavedNormalization, WorkspaceUse, ops,
};

use crate::exchange::Ranks;
use crate::init::Init;
use crate::optimizer::Optimizer;
use crate::parameter::{
    MatrixParameter, Parameter, ParameterSpec, ParameterTooLarge, Parameters, Storage, parameters,
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
    shared: Option<Shared<D>>,
    /// The moments of the input of the last forward pass: `[B, 1]` of its rows, or `[1, N]` of its columns.
    mean: D::Matrix,
    variance: D::Matrix,
    /// The output of that pass, `[B, N]`.
    pub output: D::Matrix,
}

/// The moments of the columns over the steps so far, `[1, N]` each: not trained, but needed for scoring.
struct Running<D: Device> {
    mean: (ParameterSpec, D::Matrix),
    variance: (ParameterSpec, D::Matrix),
}

/// What the columns of several workers share.
struct Shared<D: Device> {
    /// The moments of each worker's rows: mean, variance, and so on, `[2 R, N]`.
    moments: D::Matrix,
    /// The sums of the gradients of scale and shift over all workers, `[1, N]` each.
    scale_sum: D::Matrix,
    shift_sum: D::Matrix,
}

impl<D: Device> Normalization<D> {
    /// A normalization of `columns` columns; `name` is the prefix of its parameters' names.
    ///
    /// # Errors
    /// When the parameters do not fit in memory.
    pub fn new(
        device: &D,
        buffers: BufferSpec,
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
            let spec = ParameterSpec::row(format!("{name}.{part}"), columns, init, optimizer)?;
            Ok((ParameterSpec { optimizer: None, ..spec }, device.matrix(1, columns)))
        };
        let (axis, running) = match kind {
            spec::Normalization::Layer => (Axis::Row, None),
            spec::Normalization::Batch => {
                let (mean, variance) = (kept("mean", Init::Zeros)?, kept("variance", Init::Constant(1.0))?);
                (Axis::Column, Some(Running { mean, variance }))
            }
        };
        let moments = || match axis {
            Axis::Row => buffers.fp32(device, 1),
            Axis::Column => device.matrix(1, columns),
        };
        device.reserve_workspace(&WorkspaceUse::Normalization { axis, rows: buffers.rows, columns });
        let is_shared = running.is_some() && buffers.ranks > 1;
        Ok(Self {
            scale: trained("scale", Init::Constant(1.0))?,
            shift: trained("shift", Init::Zeros)?,
            running,
            shared: is_shared.then(|| Shared {
                moments: device.matrix(2 * buffers.ranks, columns),
                scale_sum: device.matrix(1, columns),
                shift_sum: device.matrix(1, columns),
            }),
            mean: moments(),
            variance: moments(),
            output: buffers.matrix(device, columns),
        })
    }

    fn axis(&self) -> Axis {
        if self.running.is_some() { Axis::Column } else { Axis::Row }
    }
}

fn formula<'a, M>(axis: Axis, scale: &'a M, shift: &'a M) -> Formula<'a, M> {
    Formula { axis, scale, shift, epsilon: EPSILON, is_rectified: true }
}

impl<B: Backend> Normalization<B> {
    /// Computes the output from `input`, `[B, N]`; in training, updates running moments.
    pub fn forward(&mut self, backend: &B, pass: &Pass<'_, B>, input: &B::Matrix) {
        let (rows, axis) = (pass.len(), self.axis());
        let Self { shared, mean, variance, output, .. } = self;
        let formula = formula(axis, &self.scale.value, &self.shift.value);
        if let (Some(running), Purpose::Scoring) = (&self.running, pass.purpose) {
            let moments = (&running.mean.1, &running.variance.1);
            backend.run(ops::NormalizeForward { rows, layer: &formula, moments, input, output });
            return;
        }
        backend.run(ops::Moments { rows, axis, input, mean, variance });
        let mut all_rows = rows;
        if let (Some(shared), Some(ranks)) = (shared, &pass.ranks) {
            shared.merge_moments(backend, ranks, rows, (mean, variance));
            all_rows = ranks.rows;
        }
        backend.run(ops::NormalizeForward {
            rows,
            layer: &formula,
            moments: (mean, variance),
            input,
            output,
        });
        if let Some(running) = &mut self.running {
            let unbiased = all_rows as f64 / (all_rows.max(2) - 1) as f64;
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
    pub fn backward(&mut self, backend: &B, pass: &Pass<'_, B>, input: &B::Matrix, gradient: &mut B::Matrix) {
        let (rows, axis) = (pass.len(), self.axis());
        let Self { scale, shift, shared, mean, variance, output, .. } = self;
        let formula = formula(axis, &scale.value, &shift.value);
        let saved = SavedNormalization { input, mean, variance, output };
        let (scale_grad, shift_grad) = (&mut scale.gradient, &mut shift.gradient);
        backend.run(ops::NormalizeParameters {
            rows,
            layer: &formula,
            saved: &saved,
            grad: gradient,
            mode: pass.sum(),
            scale_grad,
            shift_grad,
        });
        let columns = match (axis, shared, &pass.ranks) {
            (Axis::Row, ..) => None,
            (Axis::Column, Some(shared), Some(ranks)) => {
                let rows = ranks.rows;
                let (scale, shift) = shared.sum_gradients(backend, ranks, (scale_grad, shift_grad));
                Some(ColumnSums { rows, scale, shift })
            }
            (Axis::Column, ..) => Some(ColumnSums { rows, scale: scale_grad, shift: shift_grad }),
        };
        backend.run(ops::NormalizeBackward { rows, layer: &formula, saved: &saved, grad: gradient, columns });
        pass.complete(backend, self);
    }
}

impl<B: Backend> Shared<B> {
    /// Replaces the moments of this worker's `rows` rows by those of the rows of all workers.
    fn merge_moments(
        &mut self,
        backend: &B,
        ranks: &Ranks<'_, B>,
        rows: usize,
        (mean, variance): (&mut B::Matrix, &mut B::Matrix),
    ) {
        let count = B::matrix_shape(&self.moments).rows;
        backend.run(ops::Clear { rows: count, matrix: &mut self.moments });
        if rows > 0 {
            let first = 2 * ranks.rank();
            for (place, of_rows) in [(first, &*mean), (first + 1, &*variance)] {
                backend.run(ops::CopyRows { rows: 1, from: (of_rows, 0), to: (&mut self.moments, place) });
            }
        }
        ranks.sum(backend, [(count, &mut self.moments)]);
        let Ranks { rows, part, .. } = *ranks;
        backend.run(ops::MergeMoments { rows, part, moments: &self.moments, mean, variance });
    }

    /// The sums over all workers of the gradients of scale and shift.
    fn sum_gradients(
        &mut self,
        backend: &B,
        ranks: &Ranks<'_, B>,
        (scale_grad, shift_grad): (&B::Matrix, &B::Matrix),
    ) -> (&B::Matrix, &B::Matrix) {
        let Self { scale_sum, shift_sum, .. } = self;
        backend.run(ops::CopyRows { rows: 1, from: (scale_grad, 0), to: (scale_sum, 0) });
        backend.run(ops::CopyRows { rows: 1, from: (shift_grad, 0), to: (shift_sum, 0) });
        ranks.sum(backend, [(1, &mut *scale_sum), (1, &mut *shift_sum)]);
        (scale_sum, shift_sum)
    }
}

parameters!(Normalization: scale, shift, running);

impl<D: Device> Parameters<D> for Running<D> {
    fn visit<'a>(&'a mut self, visit: &mut dyn FnMut(Parameter<'a, D>)) {
        for (spec, value) in [&mut self.mean, &mut self.variance] {
            visit(Parameter { spec, storage: Storage::Matrix { value, states: &mut [], gradient: None } });
        }
    }
}
