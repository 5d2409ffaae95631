//! A chunk under construction: the columns so far, and the faulty rows.

use millstream_format::RawChunk;

use super::column::Elements;
use super::fault::{Fault, Problem};
use super::multivalued;
use super::rows::NarrowColumn;
use crate::chunk::{ChunkColumn, RaggedColumn};

/// A chunk under construction.
pub(super) struct ChunkBuilder<'a> {
    pub(super) raw: &'a RawChunk,
    /// `[L][rows]`
    pub(super) labels: Vec<Vec<f32>>,
    pub(super) weights: Option<Vec<f32>>,
    /// `[D][rows]`
    pub(super) dense: Vec<Vec<f32>>,
    /// `[F][rows]`
    pub(super) ids: Vec<Vec<u32>>,
    pub(super) ragged: Vec<RaggedColumn>,
    pub(super) columns: Vec<ChunkColumn>,
    /// The values of the narrow ones of `columns`.
    pub(super) narrow: Vec<NarrowColumn>,
    pub(super) faults: Vec<Fault>,
    pub(super) truncated_rows: u64,
}

impl<'a> ChunkBuilder<'a> {
    pub(super) fn new(raw: &'a RawChunk) -> Self {
        Self {
            raw,
            labels: Vec::new(),
            weights: None,
            dense: Vec::new(),
            ids: Vec::new(),
            ragged: Vec::new(),
            columns: Vec::new(),
            narrow: Vec::new(),
            faults: Vec::new(),
            truncated_rows: 0,
        }
    }

    /// The elements of a column, with numeric dictionaries decoded.
    pub(super) fn elements(&self, column: usize) -> Elements {
        Elements::of(self.raw.columns().column(column))
    }

    /// The elements of a column, still dictionary-encoded where the column is.
    pub(super) fn elements_with_dictionary(&self, column: usize) -> Elements {
        Elements::with_dictionary(self.raw.columns().column(column))
    }

    /// Records an unusable value.
    pub(super) fn fault(&mut self, row: usize, column: usize, problem: Problem) {
        self.faults.push(Fault { row, column, problem });
    }

    /// Adds a multi-valued feature's column.
    pub(super) fn ragged(&mut self, column: RaggedColumn, filled: &multivalued::FillOutcome) {
        self.ragged.push(column);
        self.truncated_rows += filled.truncated_rows;
    }
}
