//! Columns as stored in the data, before any transform.

use std::sync::Arc;

use arrow_array::RecordBatch;

/// The columns that a job reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    /// The columns in chunk order; names are unique.
    pub columns: Vec<ProjectedColumn>,
}

/// A column that a job reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectedColumn {
    /// The column's name in the data.
    pub name: String,
    /// Whether a row may have several values. The column of a chunk is then a list (or entirely absent).
    pub multi: bool,
}

/// Some rows of one split, as stored in the data.
#[derive(Clone, Debug)]
pub struct RawChunk {
    path: Arc<str>,
    columns: RecordBatch,
    first_record: u64,
    numbers: Option<Vec<u64>>,
}

impl RawChunk {
    /// Consecutive records of the file `path`, starting at `first_record`.
    pub fn new(path: Arc<str>, columns: RecordBatch, first_record: u64) -> Self {
        Self { path, columns, first_record, numbers: None }
    }

    /// The records with these `numbers`, one per row, ascending.
    pub fn of_records(path: Arc<str>, columns: RecordBatch, numbers: Vec<u64>) -> Self {
        let first_record = numbers.first().copied().unwrap_or(0);
        let consecutive = numbers.last().is_none_or(|last| last - first_record + 1 == numbers.len() as u64);
        Self { path, columns, first_record, numbers: (!consecutive).then_some(numbers) }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.columns.num_rows()
    }

    /// One column per projected column, in the same order.
    pub fn columns(&self) -> &RecordBatch {
        &self.columns
    }

    /// The file or part of a file that contains the rows, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn shared_path(&self) -> Arc<str> {
        Arc::clone(&self.path)
    }

    /// The record number of row `row`, within the file or part that [`RawChunk::path`] names.
    pub fn record(&self, row: usize) -> u64 {
        self.numbers.as_ref().map_or(self.first_record + row as u64, |numbers| numbers[row])
    }
}
