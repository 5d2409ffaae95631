//! A pass of some rows through a model, forward and backward.

use std::ops::Range;

use millstream_backend::{Device, Float, GradientMode};

use crate::init::key_of;

/// Rows of a batch that pass through a model together: the whole batch, or one micro-batch at a time.
///
/// Activations have the rows of a pass; the gradients for table updates have the rows of the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The rows of the batch.
    pub rows: Range<usize>,
    /// The row of the global batch that is row 0 of the batch, which random choices depend on. It is 0 unless workers
    /// share a global batch.
    pub first_row: usize,
    /// Its purpose.
    pub purpose: Purpose,
}

/// The dimensions of a pass's activations and their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// The maximum number of rows of a pass.
    pub rows: usize,
    /// The format of their values.
    pub float: Float,
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

impl Pass {
    /// The passes of `rows` rows, at most `most` each, of which the first is row `first_row` of the global batch.
    pub fn all(rows: usize, most: usize, first_row: usize, purpose: Purpose) -> impl Iterator<Item = Self> {
        let starts = (0..rows).step_by(most.max(1));
        starts.map(move |start| Self { rows: start..rows.min(start + most), first_row, purpose })
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
        if self.rows.start == 0 { GradientMode::Write } else { GradientMode::Accumulate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_take_each_row_once() {
        for (rows, most, ends) in [(7, 3, &[3, 6, 7][..]), (6, 3, &[3, 6]), (2, 3, &[2]), (0, 3, &[])] {
            let passes: Vec<Pass> = Pass::all(rows, most, 10, Purpose::Scoring).collect();
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
}
