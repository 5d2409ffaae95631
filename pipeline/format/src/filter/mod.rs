//! Row filters: conditions on columns; a row must meet all of them.
//!
//! A filter defines the dataset: excluded rows do not exist for the order, for statistics and for counts. It is
//! evaluated exactly, per row (`cells.rs`). Parquet statistics only avoid reading row groups and pages in which
//! they prove that no row passes (`prune.rs`); they never change the result.
//!
//! An absent value meets only `IsNull`, as in SQL. NaN is unequal to all numbers, and neither less nor greater
//! than any.

mod calendar;
mod cells;
mod condition;
pub(crate) mod prune;

use std::cmp::Ordering;

use arrow_array::cast::AsArray;
use arrow_array::{Array, BooleanArray};
use arrow_schema::DataType;
use arrow_select::filter::filter_record_batch;

use crate::type_name::TypeName;
use crate::{Error, ProjectedColumn, Projection, RawChunk};

use cells::{Cell, Unusable, each_cell};
pub use condition::{Comparison, Condition, Literal, Test};

/// A filter resolved to the columns of a reader.
#[derive(Clone, Debug)]
pub struct ResolvedFilter {
    /// Each condition, with the index of its column.
    conditions: Vec<(Condition, usize)>,
    /// Number of requested columns; the columns after them are read only for the filter.
    columns: usize,
}

impl ResolvedFilter {
    /// Resolves `conditions`, all of which a row must meet; also appends the columns that only they need to
    /// `projection`.
    pub fn new(conditions: &[Condition], projection: &Projection) -> (Projection, Self) {
        let mut extended = projection.clone();
        let conditions = conditions.iter().map(|condition| {
            let place = extended.columns.iter().position(|column| column.name == condition.column);
            let place = place.unwrap_or_else(|| {
                extended.columns.push(ProjectedColumn { name: condition.column.clone(), multi: false });
                extended.columns.len() - 1
            });
            (condition.clone(), place)
        });
        let conditions = conditions.collect();
        (extended, Self { conditions, columns: projection.columns.len() })
    }

    /// The rows of `raw` that pass, with the requested columns; `None` if no row passes.
    ///
    /// A cell with several values passes no test. Each such row is an error passed to `skip`, which decides whether to
    /// continue without the row.
    pub fn apply<E: From<Error>>(
        &self,
        raw: &RawChunk,
        mut skip: impl FnMut(Error) -> Result<(), E>,
    ) -> Result<Option<RawChunk>, E> {
        let rows = raw.rows();
        let mut keep = vec![true; rows];
        for (condition, place) in &self.conditions {
            let array = raw.columns().column(*place);
            let unusable =
                test(&condition.test, array, &mut keep).map_err(|Mismatch(expected)| Error::WrongType {
                    path: raw.path().to_owned(),
                    column: condition.column.clone(),
                    found: TypeName(array.data_type()).to_string(),
                    expected: format!("{expected}, to match the filter"),
                })?;
            for (row, count) in unusable {
                keep[row] = false;
                skip(Error::BadValue {
                    path: raw.path().to_owned(),
                    record: raw.record(row),
                    column: condition.column.clone(),
                    message: format!("{count} values; the filter expects one"),
                })?;
            }
        }
        let kept = keep.iter().filter(|&&keep| keep).count();
        if kept == 0 {
            return Ok(None);
        }
        let requested: Vec<usize> = (0..self.columns).collect();
        let columns = raw.columns().project(&requested);
        let columns = columns.and_then(|columns| match kept == rows {
            true => Ok(columns),
            false => filter_record_batch(&columns, &BooleanArray::from(keep.clone())),
        });
        let columns = columns
            .map_err(|error| Error::Mismatch { path: raw.path().to_owned(), message: error.to_string() })?;
        let numbers = (0..rows).filter(|&row| keep[row]).map(|row| raw.record(row)).collect();
        Ok(Some(RawChunk::of_records(raw.shared_path(), columns, numbers)))
    }
}

/// The kind of column that a literal can be compared with.
pub(crate) struct Mismatch(pub(crate) &'static str);

/// Clears `keep` for rows that fail; returns the rows with several values, and their number of values.
fn test(test: &Test, array: &dyn Array, keep: &mut [bool]) -> Result<Vec<Unusable>, Mismatch> {
    if let Some(dictionary) = array.as_any_dictionary_opt() {
        let values = dictionary.values();
        let bound = Bound::new(test, values.data_type())?;
        let mut passing = vec![false; values.len()];
        each_cell(values, |value, cell| passing[value] = bound.holds(cell));
        let absent = bound.holds(None);
        let passes = |key: usize| passing.get(key).copied().unwrap_or(absent);
        let keys = if values.is_empty() { vec![0; array.len()] } else { dictionary.normalized_keys() };
        for (row, key) in keys.into_iter().enumerate() {
            keep[row] &= if array.is_null(row) { absent } else { passes(key) };
        }
        return Ok(Vec::new());
    }
    let bound = Bound::new(test, cells::element_type(array.data_type()))?;
    Ok(each_cell(array, |row, cell| keep[row] &= bound.holds(cell)))
}

/// A test with its literals converted to the column's type.
pub(crate) enum Bound {
    Compare(Comparison, Cell<'static>),
    OneOf(Vec<Cell<'static>>),
    IsNull,
    IsNotNull,
}

impl Bound {
    pub(crate) fn new(test: &Test, data_type: &DataType) -> Result<Self, Mismatch> {
        let bind = |literal: &Literal| cells::bind(literal, data_type).ok_or(Mismatch(kind_of(literal)));
        Ok(match test {
            Test::Compare { op, value } => Bound::Compare(*op, bind(value)?),
            Test::OneOf { values } => Bound::OneOf(values.iter().map(bind).collect::<Result<_, _>>()?),
            Test::IsNull => Bound::IsNull,
            Test::IsNotNull => Bound::IsNotNull,
        })
    }

    /// Whether a value passes; `None` is an absent value.
    pub(crate) fn holds(&self, cell: Option<Cell<'_>>) -> bool {
        match (self, cell) {
            (Bound::IsNull, cell) => cell.is_none(),
            (_, None) => false,
            (Bound::IsNotNull, Some(_)) => true,
            (Bound::Compare(op, literal), Some(cell)) => passes(*op, cell.compare(literal)),
            (Bound::OneOf(literals), Some(cell)) => {
                literals.iter().any(|literal| cell.compare(literal) == Some(Ordering::Equal))
            }
        }
    }
}

/// Whether a value with this ordering relative to the literal passes; `None` means NaN.
fn passes(op: Comparison, ordering: Option<Ordering>) -> bool {
    match op {
        Comparison::Equal => ordering == Some(Ordering::Equal),
        Comparison::NotEqual => ordering != Some(Ordering::Equal),
        Comparison::Less => ordering == Some(Ordering::Less),
        Comparison::LessOrEqual => ordering.is_some_and(Ordering::is_le),
        Comparison::Greater => ordering == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => ordering.is_some_and(Ordering::is_ge),
    }
}

fn kind_of(literal: &Literal) -> &'static str {
    match literal {
        Literal::Bool(_) => "booleans",
        Literal::Whole(_) | Literal::Number(_) => "numbers",
        Literal::Text(_) => "text, or dates and times such as `2026-11-21` and `2026-11-21T12:38:00`",
    }
}
