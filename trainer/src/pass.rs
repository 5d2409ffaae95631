//! A pass of some rows through a model, forward and backward.

use std::ops::Range;

use millstream_backend::{Backend, Device, Float, GradientMode};

use crate::exchange::Ranks;
use crate::gradients::CompletedGradients;
use crate::init::key_of;
use crate::parameter::Parameters;

/// Rows of a batch that pass through a model together: the whole batch, or one micro-batch at a time.
///
/// Activations have the rows of a pass; the gradients for table updates have the rows of the batch.
pub struct Pass<'a, B: Backend> {
    /// The rows of the batch.
    pub rows: Range<usize>,
    /// The row of the global batch that is row 0 of the batch, which random choices depend on. It is 0 unless workers
    /// share a global batch.
    pub first_row: usize,
    /// Its purpose.
    pub purpose: Purpose,
    /// The workers of which each has a pass with its part of the global batch, if this is one of them. They all make the
    /// same calls, also those without rows.
    pub(crate) ranks: Option<Ranks<'a, B>>,
    /// Receives the gradients of each layer as the last pass of a batch completes them; `None` if they are taken at its end.
    pub(crate) completed: Option<&'a dyn CompletedGradients<B>>,
}

/// The dimensions of a pass's activations and their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// The maximum number of rows of a pass.
    pub rows: usize,
    /// The format of their values.
    pub float: Float,
    /// The number of workers of which each has such a pass, with its part of a batch.
    pub ranks: usize,
}

impl BufferSpec {
    /// Allocates a matrix of `columns` columns.
    pub fn matrix<D: Device>(self, device: &D, columns: usize) -> D::Matrix {
        device.matrix_of(self.float, self.rows, columns)
    }

    /// The same for values that need fp32: logits, and moments of rows.
    pub fn fp32<D: Device>(self, device: &D, columns: usize) -> D::Matrix {
        device.matrix(self.rows, columns)
    }
}

/// The purpose of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Predictions, without randomness.
    Scoring,
    /// A training step; this number seeds its random choices.
    Training(u64),
}

impl Purpose {
    /// Training in step `number` of a job with this seed.
    pub fn training(seed: u64, number: u64) -> Self {
        Self::Training(key_of(seed, &format!("step {number}")))
    }
}

/// The random key for stochastic rounding of tables in step `number` of a job with this seed.
pub fn rounding_key(seed: u64, number: u64) -> u64 {
    key_of(seed, &format!("rounding of step {number}"))
}

impl<'a, B: Backend> Pass<'a, B> {
    /// The passes of `rows` rows, at most `most` each, of which the first is row `first_row` of the global batch.
    pub fn all(rows: usize, most: usize, first_row: usize, purpose: Purpose) -> impl Iterator<Item = Self> {
        let starts = (0..rows).step_by(most.max(1));
        starts.map(move |start| Self::of_rows(start..rows.min(start + most), first_row, purpose))
    }

    /// The pass of these rows of a batch, of which the first is row `first_row` of the global batch.
    pub(crate) fn of_rows(rows: Range<usize>, first_row: usize, purpose: Purpose) -> Self {
        Self { rows, first_row, purpose, ranks: None, completed: None }
    }

    /// The pass of all of this worker's `rows` rows, at the same time as those of the other `ranks`.
    pub(crate) fn of_rank(rows: usize, first_row: usize, purpose: Purpose, ranks: Ranks<'a, B>) -> Self {
        Self { ranks: Some(ranks), ..Self::of_rows(0..rows, first_row, purpose) }
    }

    /// These rows in passes of at most `most` rows; an empty one if there are no rows.
    pub(crate) fn split(&self, most: usize) -> impl Iterator<Item = Self> {
        let Self { rows, first_row, purpose, ranks, completed } = self;
        let starts = (rows.start..rows.end.max(rows.start + 1)).step_by(most.max(1));
        starts.map(move |start| {
            let rows = start..rows.end.min(start + most);
            let completed = completed.filter(|_| rows.end == self.rows.end);
            Self { rows, first_row: *first_row, purpose: *purpose, ranks: *ranks, completed }
        })
    }

    /// The pass of the values of these rows, of which each has `values`.
    pub fn of_values(&self, values: usize) -> Self {
        Self {
            rows: self.rows.start * values..self.rows.end * values,
            first_row: self.first_row * values,
            purpose: self.purpose,
            ranks: self.ranks.as_ref().map(|ranks| ranks.of_values(values)),
            completed: self.completed,
        }
    }

    /// Passes on the gradients of `layers`, which are complete unless later passes add to them.
    pub(crate) fn complete(&self, backend: &B, layers: &mut dyn Parameters<B>) {
        if let Some(completed) = self.completed {
            completed.take(backend, layers);
        }
    }

    /// Its rows in the global batch.
    pub fn global_rows(&self) -> Range<usize> {
        self.first_row + self.rows.start..self.first_row + self.rows.end
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// How sums over the rows of the batch are updated: the first pass overwrites, later ones accumulate.
    pub fn sum(&self) -> GradientMode {
        if self.is_first() { GradientMode::Write } else { GradientMode::Accumulate }
    }

    /// Whether it is the first pass of a batch.
    pub(crate) fn is_first(&self) -> bool {
        self.rows.start == 0
    }
}

#[cfg(test)]
mod tests {
    use millstream_backend::Reference;

    use super::*;

    #[test]
    fn passes_take_each_row_once() {
        for (rows, most, ends) in [(7, 3, &[3, 6, 7][..]), (6, 3, &[3, 6]), (2, 3, &[2]), (0, 3, &[])] {
            let passes: Vec<Pass<'_, Reference>> = Pass::all(rows, most, 10, Purpose::Scoring).collect();
            assert_eq!(passes.iter().map(|pass| pass.rows.end).collect::<Vec<_>>(), ends);
            let mut start = 0;
            for (number, pass) in passes.iter().enumerate() {
                assert_eq!((pass.rows.start, pass.is_empty()), (start, false));
                assert_eq!(pass.global_rows(), start + 10..pass.rows.end + 10);
                assert_eq!(
                    pass.sum(),
                    if number == 0 { GradientMode::Write } else { GradientMode::Accumulate }
                );
                start = pass.rows.end;
            }
        }
    }

    #[test]
    fn a_pass_is_split_at_the_same_rows() {
        for (rows, most) in [(7, 3), (6, 3), (2, 3), (0, 3)] {
            let whole: Pass<'_, Reference> = Pass::of_rows(0..rows, 10, Purpose::Scoring);
            let split: Vec<_> = whole.split(most).map(|pass| pass.rows).collect();
            let passes = Pass::<Reference>::all(rows, most, 10, Purpose::Scoring).map(|pass| pass.rows);
            let none = (rows == 0).then_some(0..0);
            assert_eq!(split, passes.chain(none).collect::<Vec<_>>());
        }
    }
}
