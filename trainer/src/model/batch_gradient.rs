//! A gradient that a step needs for the whole batch but that each pass computes for its own rows.

use millstream_backend::{Backend, Device, ops};

use crate::pass::{BufferSpec, Pass};

/// The gradient with respect to the outputs of tables. Tables are updated once for all rows of a batch.
pub(super) struct BatchGradient<D: Device> {
    of_pass: D::Matrix,
    /// `None` if a pass has all rows of a batch.
    of_batch: Option<D::Matrix>,
}

impl<D: Device> BatchGradient<D> {
    /// Allocates `columns` columns for passes of size `buffers` and batches of `rows` rows.
    pub(super) fn new(device: &D, buffers: BufferSpec, rows: usize, columns: usize) -> Self {
        let of_batch = (buffers.rows < rows).then(|| BufferSpec { rows, ..buffers }.matrix(device, columns));
        Self { of_pass: buffers.matrix(device, columns), of_batch }
    }

    /// The buffer that a backward pass writes to.
    pub(super) fn of_pass(&mut self) -> &mut D::Matrix {
        &mut self.of_pass
    }

    /// The gradient of all passes since the first.
    pub(super) fn of_batch(&self) -> &D::Matrix {
        self.of_batch.as_ref().unwrap_or(&self.of_pass)
    }
}

impl<B: Backend> BatchGradient<B> {
    /// Keeps the gradient that `pass` has written.
    pub(super) fn keep(&mut self, backend: &B, pass: &Pass<'_, B>) {
        if let Some(of_batch) = &mut self.of_batch {
            backend.run(ops::CopyRows {
                rows: pass.len(),
                from: (&self.of_pass, 0),
                to: (of_batch, pass.rows.start),
            });
        }
    }
}
