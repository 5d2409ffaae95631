//! Rows that cannot be used, and what is said of them.
//!
//! Columns are transformed one after the other, so what is wrong is noted as numbers and put into words,
//! with its address, only at the end and in the order of the rows.

use std::borrow::Cow;

use super::column::{Elements, shown};
use crate::Error;
use crate::dataset::{BadRecords, RawChunk};

/// What is wrong with one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The row of the chunk.
    pub(crate) row: usize,
    /// The column of the chunk.
    pub(crate) column: usize,
    /// What is wrong there.
    pub(crate) problem: Problem,
}

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// There is none.
    Absent,
    /// There is none, and the feature does not say what stands for it.
    AbsentNumber,
    /// There are this many instead of one.
    Several(usize),
    /// There are other numbers of values and of their weights.
    Weights {
        /// The column of the values.
        column: usize,
        /// How many there are of these.
        values: usize,
        /// And of the weights.
        weights: usize,
    },
    /// This element is no id of so many.
    NoId {
        /// Its number among the column's elements.
        element: usize,
        /// How many there are.
        buckets: u32,
    },
    /// This element is not what was expected.
    Unusable {
        /// Its number among the column's elements.
        element: usize,
        /// What was.
        expected: &'static str,
    },
}

/// Gives each faulty row to `bad`, the first row first. Returns which rows to keep, or `None` for all.
pub(crate) fn settle(
    raw: &RawChunk,
    mut faults: Vec<Fault>,
    bad: &BadRecords,
) -> Result<Option<Vec<bool>>, Error> {
    if faults.is_empty() {
        return Ok(None);
    }
    faults.sort_by_key(|fault| fault.row);
    faults.dedup_by_key(|fault| fault.row);
    let mut keep = vec![true; raw.rows()];
    for fault in faults {
        keep[fault.row] = false;
        bad.skip(describe(raw, fault))?;
    }
    Ok(Some(keep))
}

/// The error of a column whose type is of no use.
pub(crate) fn wrong_type(raw: &RawChunk, column: usize, expected: &str) -> Error {
    let schema = raw.columns().schema();
    let field = schema.field(column);
    Error::WrongType {
        path: raw.path().to_owned(),
        column: field.name().clone(),
        found: field.data_type().to_string(),
        expected: expected.to_owned(),
    }
}

fn describe(raw: &RawChunk, fault: Fault) -> Error {
    let found = |element| shown(&Elements::of(raw.columns().column(fault.column)).leaf, element);
    let message: Cow<'static, str> = match fault.problem {
        Problem::Absent => "a value is missing".into(),
        Problem::AbsentNumber => {
            "a value is missing; give the feature `missing = \"mean\"`, or a number to stand for it".into()
        }
        Problem::Several(count) => format!("expected one value, found {count}").into(),
        Problem::Weights { column, values, weights } => {
            let schema = raw.columns().schema();
            let of = schema.field(column).name();
            format!("expected a weight for each value of column `{of}`, of which there are {values}; found {weights}")
                .into()
        }
        Problem::NoId { element, buckets } => {
            let most = buckets.saturating_sub(1);
            format!("expected a whole number from 0 to {most}, found {}", found(element)).into()
        }
        Problem::Unusable { element, expected } => {
            format!("expected {expected}, found {}", found(element)).into()
        }
    };
    Error::BadValue {
        path: raw.path().to_owned(),
        record: raw.record(fault.row),
        column: raw.columns().schema().field(fault.column).name().clone(),
        message: message.into_owned(),
    }
}
