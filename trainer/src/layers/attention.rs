//! An activation unit: an MLP scores each value of a row's history against the row's target, and the scores weight the
//! sum of the values' embeddings.
//!
//! ```text
//! e_v, t --- [e_v, t, e_v - t, e_v * t] --- ReLU layers --- 1 -- a_v          out = sum over v of a_v e_v
//! ```
//!
//! Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018, section 4.3. The MLP's matrices have
//! a row for each value that a row of the batch can have.

use millstream_backend::{Activation, Backend, Device, Sequence, ops};

use crate::layers::mlp::{Mlp, MlpGradients};
use crate::optimizer::Optimizer;
use crate::parameter::{ParameterTooLarge, parameters};
use crate::pass::{BufferSpec, Pass};
use crate::spec::HiddenLayerSpec;

/// The activation unit of one history, and its sum. `V` is the most values of a row, `W` the width of an embedding.
pub struct Attention<D: Device> {
    sequence: Sequence,
    /// The sum's first column in the output.
    first_column: usize,
    mlp: Mlp<D>,
    /// The MLP's input, `[B V, 4 W]`.
    pairs: D::Matrix,
    work: MlpGradients<D>,
    /// `[B V, 4 W]`
    pairs_grad: D::Matrix,
    /// `[B V, 1]`
    scores_grad: D::Matrix,
}

impl<D: Device> Attention<D> {
    /// A unit for `sequence` whose sum starts at column `first_column` of the output. Its MLP has layers `NAME.layer.0`
    /// and so on: hidden ones with these widths and options, then one output. `buffers` are the dimensions of a pass.
    ///
    /// # Errors
    /// When a layer's weights do not fit in memory.
    pub fn new(
        device: &D,
        buffers: BufferSpec,
        name: &str,
        (sequence, first_column): (Sequence, usize),
        hidden: (&[u32], &HiddenLayerSpec),
        optimizer: Optimizer,
    ) -> Result<Self, ParameterTooLarge> {
        let buffers = BufferSpec { rows: buffers.rows.saturating_mul(sequence.values), ..buffers };
        let inputs = 4 * sequence.width;
        let mlp = Mlp::new(device, buffers, name, inputs, hidden, (1, Activation::Identity), optimizer)?;
        Ok(Self {
            sequence,
            first_column,
            pairs: buffers.matrix(device, inputs),
            work: MlpGradients::new(device, buffers, &mlp),
            pairs_grad: buffers.matrix(device, inputs),
            scores_grad: buffers.fp32(device, 1),
            mlp,
        })
    }
}

impl<B: Backend> Attention<B> {
    /// Computes the sum, `W` columns of `out`, from the vectors of the history and its target in `vectors`.
    pub fn forward(&mut self, backend: &B, pass: &Pass<'_, B>, vectors: &B::Matrix, out: &mut B::Matrix) {
        let (rows, of_values) = (pass.len(), pass.of_values(self.sequence.values));
        let Self { sequence, first_column, mlp, pairs, .. } = self;
        let (sequence, first_column) = (*sequence, *first_column);
        backend.run(ops::PairForward { rows, sequence, vectors, pairs });
        mlp.forward(backend, &of_values, pairs);
        let scores = mlp.output();
        backend.run(ops::AttendForward { rows, sequence, vectors, scores, out, first_column });
    }

    /// Computes every parameter's gradient from that of the sum, which is in the same columns of `out_grad`. Writes the
    /// gradient with respect to the history's vectors to `vectors_grad`, and adds that of the target's vector.
    pub fn backward(
        &mut self,
        backend: &B,
        pass: &Pass<'_, B>,
        vectors: &B::Matrix,
        out_grad: &B::Matrix,
        vectors_grad: &mut B::Matrix,
    ) {
        let (rows, of_values) = (pass.len(), pass.of_values(self.sequence.values));
        let Self { sequence, first_column, mlp, pairs, work, pairs_grad, scores_grad } = self;
        let (sequence, first_column) = (*sequence, *first_column);
        backend.run(ops::AttendBackward { rows, sequence, vectors, out_grad, first_column, scores_grad });
        mlp.backward(backend, &of_values, pairs, work, scores_grad, Some(pairs_grad));
        backend.run(ops::PairBackward {
            rows,
            sequence,
            vectors,
            scores: mlp.output(),
            out_grad,
            first_column,
            pairs_grad,
            vectors_grad,
        });
    }
}

parameters!(Attention: mlp);
