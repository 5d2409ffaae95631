//! Columns as they are in the data, before any transform.

use std::sync::Arc;

use arrow_array::RecordBatch;

/// The columns that a job reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    /// In the order they have in a chunk; names are unique.
    pub columns: Vec<ProjectedColumn>,
}

/// One column that a job reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectedColumn {
    /// Its name in the data.
    pub name: String,
    /// Whether a row may hold several values. If so the column of a chunk is a list (or all absent).
    pub multi: bool,
}

/// Some rows of one split, as they are in the data.
#[derive(Clone, Debug)]
pub struct RawChunk {
    path: Arc<str>,
    columns: RecordBatch,
    first_record: u64,
    numbers: Option<Vec<u64>>,
}

impl RawChunk {
    /// Consecutive records of the file `path`, from `first_record` on.
    pub fn new(path: Arc<str>, columns: RecordBatch, first_record: u64) -> Self {
        Self { path, columns, first_record, numbers: None }
    }

    /// The records that `numbers` says, one for each row and ascending.
    pub fn of_records(path: Arc<str>, columns: RecordBatch, numbers: Vec<u64>) -> Self {
        let first_record = numbers.first().copied().unwrap_or(0);
        let consecutive = numbers.last().is_none_or(|last| last - first_record + 1 == numbers.len() as u64);
        Self { path, columns, first_record, numbers: (!consecutive).then_some(numbers) }
    }

    /// Rows held.
    pub fn rows(&self) -> usize {
        self.columns.num_rows()
    }

    /// One column for each of the projection, in its order.
    pub fn columns(&self) -> &RecordBatch {
        &self.columns
    }

    /// The file, or part of a file, that the rows are from, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn shared_path(&self) -> Arc<str> {
        Arc::clone(&self.path)
    }

    /// The number of the record that row `row` is, in its file or in the part that [`RawChunk::path`] names.
    pub fn record(&self, row: usize) -> u64 {
        self.numbers.as_ref().map_or(self.first_record + row as u64, |numbers| numbers[row])
    }
}
