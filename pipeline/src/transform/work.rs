//! A chunk in the making: what is there of it so far, and which rows of it cannot be used.

use super::column::{Elements, Single};
use super::fault::{Fault, Problem};
use super::label::Target;
use super::multivalued;
use crate::chunk::RaggedColumn;
use crate::dataset::RawChunk;

/// A chunk in the making.
pub(super) struct Work<'a> {
    pub(super) raw: &'a RawChunk,
    /// `[L][rows]`
    pub(super) labels: Vec<Vec<f32>>,
    pub(super) weights: Option<Vec<f32>>,
    /// `[D][rows]`
    pub(super) dense: Vec<Vec<f32>>,
    /// `[F][rows]`
    pub(super) ids: Vec<Vec<u32>>,
    pub(super) ragged: Vec<RaggedColumn>,
    pub(super) faults: Vec<Fault>,
    pub(super) truncated_rows: u64,
}

impl<'a> Work<'a> {
    /// All labels 0, and weights, if there are any, 1.
    pub(super) fn new(raw: &'a RawChunk, labels: usize, weighted: bool) -> Self {
        let rows = raw.rows();
        Self {
            raw,
            labels: vec![vec![0.0; rows]; labels],
            weights: weighted.then(|| vec![1.0; rows]),
            dense: Vec::new(),
            ids: Vec::new(),
            ragged: Vec::new(),
            faults: Vec::new(),
            truncated_rows: 0,
        }
    }

    /// The elements of a column. Dictionaries of numbers are undone.
    pub(super) fn elements(&self, column: usize) -> Elements {
        Elements::of(self.raw.columns().column(column))
    }

    /// The elements of a column, keys of a dictionary where it has one.
    pub(super) fn elements_with_dictionary(&self, column: usize) -> Elements {
        Elements::with_dictionary(self.raw.columns().column(column))
    }

    /// Notes a row that cannot be used.
    pub(super) fn fault(&mut self, row: usize, column: usize, problem: Problem) {
        self.faults.push(Fault { row, column, problem });
    }

    /// Adds a multi-valued feature.
    pub(super) fn ragged(&mut self, column: RaggedColumn, filled: &multivalued::Filled) {
        self.ragged.push(column);
        self.truncated_rows += filled.truncated_rows;
    }

    /// Writes a label or weight for each row.
    pub(super) fn targets(
        &mut self,
        column: usize,
        elements: &Elements,
        targets: &[Target],
        expected: &'static str,
        values: &mut [f32],
    ) {
        for (row, value) in values.iter_mut().enumerate() {
            match elements.single(row) {
                Single::One(element) => match targets[element] {
                    Target::Value(target) => *value = target,
                    Target::Absent => self.fault(row, column, Problem::Absent),
                    Target::Invalid => self.fault(row, column, Problem::Unusable { element, expected }),
                },
                Single::Absent => self.fault(row, column, Problem::Absent),
                Single::Several(count) => self.fault(row, column, Problem::Several(count)),
            }
        }
    }
}
