//! Columns as stored in the data, before any transform.

use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;

use crate::Error;

/// The columns that a job reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    /// The columns in chunk order; names are unique.
    pub columns: Vec<ProjectedColumn>,
    /// Whether numbers that are stored as keys of a dictionary are delivered as values. Suits readers that need each value
    /// only once; for others, a dictionary saves repeated work.
    pub numbers_as_values: bool,
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
    lines: Option<Vec<u64>>,
}

impl RawChunk {
    /// Consecutive records of the file `path`, starting at `first_record`.
    pub fn new(path: Arc<str>, columns: RecordBatch, first_record: u64) -> Self {
        Self { path, columns, first_record, numbers: None, lines: None }
    }

    /// The records with these `numbers`, one per row, ascending.
    pub fn of_records(path: Arc<str>, columns: RecordBatch, numbers: Vec<u64>) -> Self {
        let first_record = numbers.first().copied().unwrap_or(0);
        let consecutive = numbers.last().is_none_or(|last| last - first_record + 1 == numbers.len() as u64);
        Self { path, columns, first_record, numbers: (!consecutive).then_some(numbers), lines: None }
    }

    /// The same rows, which begin at these lines of a text file, for messages.
    #[must_use]
    pub fn at_lines(self, lines: Vec<u64>) -> Self {
        Self { lines: Some(lines), ..self }
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

    /// These `columns` of the rows for which `keep` is true, which may be none.
    ///
    /// # Errors
    /// `keep` has another length, or there is no such column.
    pub fn retain(&self, keep: &[bool], columns: &[usize]) -> Result<Self, Error> {
        let projected = self.columns.project(columns);
        let columns = projected.and_then(|columns| match keep.contains(&false) {
            false => Ok(columns),
            true => filter_record_batch(&columns, &BooleanArray::from(keep.to_vec())),
        });
        let columns = columns
            .map_err(|error| Error::Mismatch { path: self.path().to_owned(), message: error.to_string() })?;
        let passing = || (0..self.rows()).filter(|&row| keep[row]);
        let numbers = passing().map(|row| self.record(row)).collect();
        let lines: Option<Vec<u64>> = passing().map(|row| self.line(row)).collect();
        let chunk = Self::of_records(Arc::clone(&self.path), columns, numbers);
        Ok(match lines {
            Some(lines) => chunk.at_lines(lines),
            None => chunk,
        })
    }

    /// The record number of row `row`, within the file or part that [`RawChunk::path`] names.
    pub fn record(&self, row: usize) -> u64 {
        self.numbers.as_ref().map_or(self.first_record + row as u64, |numbers| numbers[row])
    }
    /// The line at which row `row` begins, of a text file.
    pub(crate) fn line(&self, row: usize) -> Option<u64> {
        self.lines.as_ref().and_then(|lines| lines.get(row).copied())
    }

    /// The error of an unusable value in row `row`.
    pub fn bad_value(&self, row: usize, column: &str, message: &str) -> Error {
        Error::BadValue {
            path: self.path.to_string(),
            record: self.record(row),
            column: column.to_owned(),
            message: match self.line(row) {
                Some(line) => format!("line {line}: {message}"),
                None => message.to_owned(),
            },
        }
    }
}
