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
mod share;

use std::cmp::Ordering;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_schema::DataType;
use serde::{Deserialize, Serialize};

use crate::type_name::TypeName;
use crate::{Error, ProjectedColumn, Projection, RawChunk};

use cells::{Cell, Unusable, each_cell};
pub use condition::{Comparison, Condition, Literal, Test};
pub use share::{Share, Side};

/// Which rows of the data belong to a dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowFilter {
    /// Conditions that a row must meet, all of them.
    pub conditions: Vec<Condition>,
    /// The sides of divisions on which a row must be, all of them.
    pub shares: Vec<Share>,
}

impl RowFilter {
    /// Whether all rows pass.
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.shares.is_empty()
    }

    /// The filter of the rows that pass both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            conditions: [self.conditions.as_slice(), &other.conditions].concat(),
            shares: [self.shares.as_slice(), &other.shares].concat(),
        }
    }

    /// The columns that it tests.
    fn columns(&self) -> impl Iterator<Item = &String> {
        let of_share = self.shares.iter().filter_map(|share| share.column.as_ref());
        self.conditions.iter().map(|condition| &condition.column).chain(of_share)
    }
}

/// A filter resolved to the columns of a reader.
#[derive(Clone, Debug)]
pub struct ResolvedFilter {
    /// Each condition, with the index of its column.
    conditions: Vec<(Condition, usize)>,
    /// Each share, with the index of its column.
    shares: Vec<(Share, Option<usize>)>,
    /// Number of requested columns; the columns after them are read only for the filter.
    columns: usize,
}

impl ResolvedFilter {
    /// Resolves `filter`; also appends the columns that only it needs to `projection`.
    pub fn new(filter: &RowFilter, projection: &Projection) -> (Projection, Self) {
        let mut extended = projection.clone();
        for name in filter.columns() {
            if extended.columns.iter().all(|column| column.name != *name) {
                extended.columns.push(ProjectedColumn { name: name.clone(), multi: false });
            }
        }
        let place = |name: &String| extended.columns.iter().position(|column| column.name == *name);
        let conditions = filter.conditions.iter();
        let conditions =
            conditions.filter_map(|condition| Some((condition.clone(), place(&condition.column)?))).collect();
        let shares = filter.shares.iter();
        let shares = shares.map(|share| (share.clone(), share.column.as_ref().and_then(place))).collect();
        (extended, Self { conditions, shares, columns: projection.columns.len() })
    }

    /// The rows of `raw` that pass, with the requested columns; `None` if no row passes.
    ///
    /// A cell with several values passes no test. Each such row is an error passed to `skip`, which decides whether to
    /// continue without the row.
    pub fn apply<E: From<Error>>(
        &self,
        raw: &RawChunk,
        skip: impl FnMut(Error) -> Result<(), E>,
    ) -> Result<Option<RawChunk>, E> {
        let keep = self.passing(raw, skip)?;
        if !keep.contains(&true) {
            return Ok(None);
        }
        let requested: Vec<usize> = (0..self.columns).collect();
        Ok(Some(raw.retain(&keep, &requested)?))
    }

    /// For each row of `raw`, whether it passes. `skip` is as in [`ResolvedFilter::apply`].
    ///
    /// # Errors
    /// When a column has another type than its test, or that of `skip`.
    pub fn passing<E: From<Error>>(
        &self,
        raw: &RawChunk,
        mut skip: impl FnMut(Error) -> Result<(), E>,
    ) -> Result<Vec<bool>, E> {
        let rows = raw.rows();
        let mut keep = vec![true; rows];
        for (condition, place) in &self.conditions {
            let array = raw.columns().column(*place);
            let bound = Bound::new(&condition.test, cells::element_type(array.data_type()));
            let bound = bound.map_err(|expected| mistyped(raw, &condition.column, array, &expected))?;
            let unusable = retain(array, &mut keep, |cell| bound.holds(cell));
            reject(unusable, &mut keep, raw, &condition.column, &mut skip)?;
        }
        for (share, place) in &self.shares {
            if let (Some(column), Some(place)) = (&share.column, place) {
                let array = raw.columns().column(*place);
                Share::check(array.data_type())
                    .map_err(|expected| mistyped(raw, column, array, &expected))?;
                let unusable = retain(array, &mut keep, |cell| share.holds(cell));
                reject(unusable, &mut keep, raw, column, &mut skip)?;
            } else {
                let rows = keep.iter_mut().enumerate();
                rows.for_each(|(row, keep)| *keep &= share.holds_record(raw.path(), raw.record(row)));
            }
        }
        Ok(keep)
    }
}

/// The kind of column that a literal can be compared with.
pub(crate) struct Mismatch(pub(crate) &'static str);

fn mistyped(raw: &RawChunk, column: &str, array: &dyn Array, Mismatch(expected): &Mismatch) -> Error {
    Error::WrongType {
        path: raw.path().to_owned(),
        column: column.to_owned(),
        found: TypeName(array.data_type()).to_string(),
        expected: format!("{expected}, to match the filter"),
    }
}

/// Clears `keep` for rows with several values, and passes an error for each to `skip`.
fn reject<E: From<Error>>(
    unusable: Vec<Unusable>,
    keep: &mut [bool],
    raw: &RawChunk,
    column: &str,
    skip: &mut impl FnMut(Error) -> Result<(), E>,
) -> Result<(), E> {
    for (row, count) in unusable {
        keep[row] = false;
        skip(raw.bad_value(row, column, &format!("{count} values; the filter expects one")))?;
    }
    Ok(())
}

/// Clears `keep` for rows whose value fails; returns the rows with several values, and their number of values.
fn retain(array: &dyn Array, keep: &mut [bool], holds: impl Fn(Option<Cell<'_>>) -> bool) -> Vec<Unusable> {
    let Some(dictionary) = array.as_any_dictionary_opt() else {
        return each_cell(array, |row, cell| keep[row] &= holds(cell));
    };
    let values = dictionary.values();
    let mut passing = vec![false; values.len()];
    each_cell(values, |value, cell| passing[value] = holds(cell));
    let absent = holds(None);
    let passes = |key: usize| passing.get(key).copied().unwrap_or(absent);
    let keys = if values.is_empty() { vec![0; array.len()] } else { dictionary.normalized_keys() };
    for (row, key) in keys.into_iter().enumerate() {
        keep[row] &= if array.is_null(row) { absent } else { passes(key) };
    }
    Vec::new()
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
