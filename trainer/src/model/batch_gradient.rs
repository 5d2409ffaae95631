//! A gradient that a step needs of the whole batch, and a pass gives of its rows.

use millstream_backend::{Backend, Device, ops};

use crate::pass::{BufferSpec, Pass};

/// The gradient by what tables gave: tables are stepped once for all rows of a batch.
pub(super) struct BatchGradient<D: Device> {
    of_pass: D::Matrix,
    /// None where a pass has all rows of a batch.
    of_batch: Option<D::Matrix>,
}

impl<D: Device> BatchGradient<D> {
    /// BufferSpec for `columns` numbers a row, of passes that take `buffers` and of batches of `rows` rows.
    pub(super) fn new(device: &D, buffers: BufferSpec, rows: usize, columns: usize) -> Self {
        let of_batch = (buffers.rows < rows).then(|| BufferSpec { rows, ..buffers }.matrix(device, columns));
        Self { of_pass: buffers.matrix(device, columns), of_batch }
    }

    /// What a backward pass writes to.
    pub(super) fn of_pass(&mut self) -> &mut D::Matrix {
        &mut self.of_pass
    }

    /// That of all passes since the first.
    pub(super) fn of_batch(&self) -> &D::Matrix {
        self.of_batch.as_ref().unwrap_or(&self.of_pass)
    }
}

impl<B: Backend> BatchGradient<B> {
    /// Keeps what `pass` has written.
    pub(super) fn keep(&mut self, backend: &B, pass: &Pass) {
        if let Some(of_batch) = &mut self.of_batch {
            backend.run(ops::CopyRows {
                rows: pass.len(),
                from: &self.of_pass,
                to: of_batch,
                first: pass.rows.start,
            });
        }
    }
}
