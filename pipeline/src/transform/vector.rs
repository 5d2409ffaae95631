//! Vectors: a list of numbers, all rows' of the same length, as dense columns.

use millstream_batch::BatchSchema;

use super::column::{Elements, Missing, NUMBERS, numbers};
use super::fault::{Problem, wrong_type};
use super::memo::Memo;
use super::numeric::{ScaleError, Scaling};
use super::{A_NUMBER, ChunkBuilder};
use crate::Error;
use crate::analysis::Analysis;
use crate::spec::{MissingNumber, Normalize};

/// A feature of `size` numbers per row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vector {
    pub(crate) size: usize,
    /// Copies numbers, and replaces absent ones.
    pub(crate) scaling: Scaling,
}

impl Vector {
    /// # Errors
    /// The replacement for missing numbers is not finite.
    pub(crate) fn resolve(column: &str, size: u32, missing: MissingNumber) -> Result<Self, Error> {
        let scaling = Scaling::resolve(column, Normalize::None, missing, &Analysis::default())?;
        Ok(Self { size: size as usize, scaling })
    }

    /// The names of its dense columns.
    pub(crate) fn columns(self, feature: &str) -> impl Iterator<Item = String> {
        (0..self.size).map(move |place| BatchSchema::component(feature, place))
    }

    /// Adds the dense columns of `column`. A row without a value has `size` absent numbers.
    pub(crate) fn fill(
        self,
        column: usize,
        missing: &Missing,
        spare: &mut Vec<Vec<f32>>,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<(), Error> {
        let Self { size, scaling } = self;
        let rows = builder.raw.rows();
        let elements = builder.elements(column);
        let plain = scaling.values(&elements.leaf, missing, &mut Memo::default(), Vec::new());
        let values: Vec<Result<f32, ScaleError>> = match plain {
            Some(values) => values.into_iter().map(Ok).collect(),
            None => numbers(&elements.leaf, missing, |number| scaling.value(number))
                .ok_or_else(|| wrong_type(builder.raw, column, NUMBERS))?,
        };
        let mut columns: Vec<Vec<f32>> = Vec::with_capacity(size);
        columns.resize_with(size, || {
            let mut buffer = spare.pop().unwrap_or_default();
            buffer.clear();
            buffer.resize(rows, scaling.absent.unwrap_or(0.0));
            buffer
        });
        for row in 0..rows {
            let range = present(&elements, row);
            if range.is_empty() {
                if scaling.absent.is_none() {
                    builder.fault(row, column, Problem::AbsentNumber);
                }
            } else if range.len() != size {
                builder.fault(row, column, Problem::Length { expected: size, found: range.len() });
            } else {
                for (of_column, element) in columns.iter_mut().zip(range) {
                    match values[element] {
                        Ok(value) => of_column[row] = value,
                        Err(ScaleError::Absent) => builder.fault(row, column, Problem::AbsentNumber),
                        Err(ScaleError::NotFinite) => {
                            builder.fault(row, column, Problem::Unusable { element, expected: A_NUMBER });
                        }
                    }
                }
            }
        }
        builder.dense.append(&mut columns);
        Ok(())
    }
}

/// The elements of a row. A null in a column that holds no lists counts as no element.
fn present(elements: &Elements, row: usize) -> std::ops::Range<usize> {
    let range = elements.of_row(row);
    let is_absent = !elements.are_lists() && elements.leaf.is_null(row);
    if is_absent { 0..0 } else { range }
}
