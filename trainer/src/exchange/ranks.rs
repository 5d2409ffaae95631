//! Sums in the middle of a pass, for what depends on the rows of all workers: the moments of batch normalization, and losses
//! that compare rows.

use millstream_backend::collective::{Buffer, Communicator};
use millstream_backend::{Backend, Float};
use millstream_trace::Work;

/// The workers that pass the rows of a global batch through the model at the same time, each those of its part.
///
/// Matrices are summed. They are gathered by sums too: of matrices with room for the rows of all workers, in which each has
/// its own rows and zeros elsewhere. So devices need no other operation, and gathered numbers are exact.
pub(crate) struct Ranks<'a, B: Backend> {
    pub(super) communicator: &'a Communicator,
    /// The devices of the other workers, if they are connected.
    pub(super) peers: Option<&'a B::Peers>,
    /// The number of rows of the global batch.
    pub(crate) rows: usize,
    /// The number of rows of each part; the last ones may have fewer, or none.
    pub(crate) part: usize,
}

impl<B: Backend> Ranks<'_, B> {
    /// The same for the values of rows, of which each row has `values`.
    pub(crate) fn of_values(&self, values: usize) -> Self {
        Self { rows: self.rows * values, part: self.part * values, ..*self }
    }

    /// The number of this worker.
    pub(crate) fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// Replaces the first rows of fp32 matrices, as many as are given with each, by their sums over all workers.
    ///
    /// # Panics
    /// If another worker does not take part in time: with the [`CollectiveError`](millstream_backend::collective::CollectiveError).
    pub(crate) fn sum<const N: usize>(&self, backend: &B, matrices: [(usize, &mut B::Matrix); N]) {
        if let Some(peers) = self.peers {
            backend.sum_over_ranks(peers, |sum| {
                for (_, matrix) in matrices {
                    sum(matrix);
                }
            });
            return;
        }
        let sizes = matrices.each_ref().map(|(rows, matrix)| rows * B::matrix_shape(matrix).columns);
        let all: usize = sizes.iter().sum();
        let work = || Work { bytes: 2 * (all * size_of::<B::Scalar>()) as u64, ..Work::default() };
        let summed = backend.record_transfer("sum_over_ranks", work, || {
            let mut numbers = Buffer::<B::Scalar>::zeroed(all);
            let mut rest = &mut numbers[..];
            for ((_, matrix), size) in matrices.iter().zip(sizes) {
                let (own, others) = rest.split_at_mut(size);
                backend.read_matrix(matrix, own);
                rest = others;
            }
            self.communicator.sum(numbers, Float::F32).join().unwrap_or_else(|error| error.raise())
        });
        let mut rest = &summed[..];
        for ((_, matrix), size) in matrices.into_iter().zip(sizes) {
            let (own, others) = rest.split_at(size);
            backend.write_matrix(matrix, own);
            rest = others;
        }
    }
}

impl<B: Backend> Clone for Ranks<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Ranks<'_, B> {}
