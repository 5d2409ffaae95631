//! Proves from column statistics that no row of a row group passes.
//!
//! Statistics are bounds: the minimum may be above its bound and the maximum below. Incorrect writers produce
//! wrong bounds, so only those are trusted whose order the file defines.

use std::cmp::Ordering;

use arrow_schema::DataType;
use parquet::basic::{ColumnOrder, SortOrder};
use parquet::file::statistics::Statistics;

use super::Bound;
use super::cells::Cell;
use crate::filter::{Comparison, Test};

/// The known bounds of a column in a row group.
pub(crate) struct ColumnBounds<'a> {
    min: Option<Cell<'a>>,
    max: Option<Cell<'a>>,
    /// Whether both bounds are attained.
    exact: bool,
    absent: Option<u64>,
    rows: u64,
}

impl<'a> ColumnBounds<'a> {
    /// A column that the file lacks.
    pub(crate) fn all_absent(rows: u64) -> Self {
        Self { min: None, max: None, exact: false, absent: Some(rows), rows }
    }

    /// A flat column of Arrow type `data_type`.
    pub(crate) fn of(
        statistics: Option<&'a Statistics>,
        order: Option<ColumnOrder>,
        data_type: &DataType,
        rows: u64,
    ) -> Self {
        let mut known = Self { min: None, max: None, exact: false, absent: None, rows };
        let Some(statistics) = statistics else { return known };
        known.absent = statistics.null_count_opt();
        let ordered =
            matches!(order, Some(ColumnOrder::TYPE_DEFINED_ORDER(SortOrder::SIGNED | SortOrder::UNSIGNED)));
        if ordered && !statistics.is_min_max_deprecated() {
            let (min, max) = bounds(statistics, data_type);
            known.exact = statistics.min_is_exact() && statistics.max_is_exact();
            (known.min, known.max) = (min, max);
        }
        known
    }

    /// Whether no row can pass `test`. `false` if its literals do not match the column type, which reading rows
    /// reports.
    pub(crate) fn rules_out(&self, test: &Test, data_type: &DataType) -> bool {
        let Ok(bound) = Bound::new(test, data_type) else { return false };
        let all_absent = self.absent == Some(self.rows);
        match bound {
            Bound::IsNull => self.absent == Some(0),
            Bound::IsNotNull => all_absent,
            Bound::Compare(op, literal) => all_absent || self.excludes(op, &literal),
            Bound::OneOf(literals) => {
                all_absent || literals.iter().all(|literal| self.excludes(Comparison::Equal, literal))
            }
        }
    }

    fn excludes(&self, op: Comparison, literal: &Cell<'_>) -> bool {
        let min = self.min.as_ref().and_then(|min| min.compare(literal));
        let max = self.max.as_ref().and_then(|max| max.compare(literal));
        let all_above = min == Some(Ordering::Greater);
        let all_below = max == Some(Ordering::Less);
        match op {
            Comparison::Equal => all_above || all_below,
            Comparison::Less => min.is_some_and(Ordering::is_ge),
            Comparison::LessOrEqual => all_above,
            Comparison::Greater => max.is_some_and(Ordering::is_le),
            Comparison::GreaterOrEqual => all_below,
            // NaN is unequal to everything and not covered by the bounds.
            Comparison::NotEqual => {
                let same = min == Some(Ordering::Equal) && max == Some(Ordering::Equal);
                same && self.exact && !matches!(self.min, Some(Cell::Number(_)))
            }
        }
    }
}

fn bounds<'a>(statistics: &'a Statistics, data_type: &DataType) -> (Option<Cell<'a>>, Option<Cell<'a>>) {
    use DataType::{
        Binary, Boolean, Date32, Float32, Float64, Time32, Time64, Timestamp, UInt32, UInt64, Utf8,
    };
    fn both<'a, T>(
        min: Option<&'a T>,
        max: Option<&'a T>,
        cell: impl Fn(&'a T) -> Cell<'a>,
    ) -> (Option<Cell<'a>>, Option<Cell<'a>>) {
        (min.map(&cell), max.map(&cell))
    }
    match (statistics, data_type) {
        (Statistics::Boolean(of), Boolean) => both(of.min_opt(), of.max_opt(), |value| Cell::Bool(*value)),
        (Statistics::Int32(of), UInt32) => {
            both(of.min_opt(), of.max_opt(), |value| Cell::Whole((*value as u32).into()))
        }
        (Statistics::Int64(of), UInt64) => {
            both(of.min_opt(), of.max_opt(), |value| Cell::Whole((*value as u64).into()))
        }
        (Statistics::Int32(of), data_type)
            if data_type.is_integer() || matches!(data_type, Date32 | Time32(_)) =>
        {
            both(of.min_opt(), of.max_opt(), |value| Cell::Whole((*value).into()))
        }
        (Statistics::Int64(of), data_type)
            if data_type.is_integer() || matches!(data_type, Time64(_) | Timestamp(..)) =>
        {
            both(of.min_opt(), of.max_opt(), |value| Cell::Whole((*value).into()))
        }
        (Statistics::Float(of), Float32) => {
            both(of.min_opt(), of.max_opt(), |value| Cell::Number((*value).into()))
        }
        (Statistics::Double(of), Float64) => both(of.min_opt(), of.max_opt(), |value| Cell::Number(*value)),
        (Statistics::ByteArray(of), Utf8 | Binary) => {
            both(of.min_opt(), of.max_opt(), |value| Cell::Bytes(value.data()))
        }
        _ => (None, None),
    }
}
