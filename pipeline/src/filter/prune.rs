//! What a column's statistics prove: that no row of a row group passes.
//!
//! Statistics are bounds: the least value may be above the bound and the greatest below it. Those of
//! damaged or careless writers may be wrong, so only those are trusted whose order the file defines.

use std::cmp::Ordering;

use arrow_schema::DataType;
use parquet::basic::{ColumnOrder, SortOrder};
use parquet::file::statistics::Statistics;

use super::cells::Cell;
use super::{Bound, BoundTest};
use crate::spec::{Comparison, Test};

/// What is known of a column of a row group.
pub(crate) struct Known<'a> {
    least: Option<Cell<'a>>,
    greatest: Option<Cell<'a>>,
    /// Whether those two are values that the column holds.
    exact: bool,
    absent: Option<u64>,
    rows: u64,
}

impl<'a> Known<'a> {
    /// Of a column that the file does not have.
    pub(crate) fn all_absent(rows: u64) -> Self {
        Self { least: None, greatest: None, exact: false, absent: Some(rows), rows }
    }

    /// Of a flat column that Arrow holds to be of `data_type`.
    pub(crate) fn of(
        statistics: Option<&'a Statistics>,
        order: Option<ColumnOrder>,
        data_type: &DataType,
        rows: u64,
    ) -> Self {
        let mut known = Self { least: None, greatest: None, exact: false, absent: None, rows };
        let Some(statistics) = statistics else { return known };
        known.absent = statistics.null_count_opt();
        let ordered =
            matches!(order, Some(ColumnOrder::TYPE_DEFINED_ORDER(SortOrder::SIGNED | SortOrder::UNSIGNED)));
        if ordered && !statistics.is_min_max_deprecated() {
            let (least, greatest) = bounds(statistics, data_type);
            known.exact = statistics.min_is_exact() && statistics.max_is_exact();
            (known.least, known.greatest) = (least, greatest);
        }
        known
    }

    /// Whether no row can pass `test`. `false` also where its literals do not fit the column: that is told
    /// when rows are read.
    pub(crate) fn rules_out(&self, test: &Test, data_type: &DataType) -> bool {
        let Ok(Bound { test }) = Bound::new(test, data_type) else { return false };
        let all_absent = self.absent == Some(self.rows);
        match test {
            BoundTest::IsNull => self.absent == Some(0),
            BoundTest::IsNotNull => all_absent,
            BoundTest::Compare(op, literal) => all_absent || self.excludes(op, &literal),
            BoundTest::OneOf(literals) => {
                all_absent || literals.iter().all(|literal| self.excludes(Comparison::Equal, literal))
            }
        }
    }

    fn excludes(&self, op: Comparison, literal: &Cell<'_>) -> bool {
        let least = self.least.as_ref().and_then(|least| least.compare(literal));
        let greatest = self.greatest.as_ref().and_then(|greatest| greatest.compare(literal));
        let all_above = least == Some(Ordering::Greater);
        let all_below = greatest == Some(Ordering::Less);
        match op {
            Comparison::Equal => all_above || all_below,
            Comparison::Less => least.is_some_and(Ordering::is_ge),
            Comparison::LessOrEqual => all_above,
            Comparison::Greater => greatest.is_some_and(Ordering::is_le),
            Comparison::GreaterOrEqual => all_below,
            // NaN is unequal and in no bounds.
            Comparison::NotEqual => {
                let same = least == Some(Ordering::Equal) && greatest == Some(Ordering::Equal);
                same && self.exact && !matches!(self.least, Some(Cell::Number(_)))
            }
        }
    }
}

fn bounds<'a>(statistics: &'a Statistics, data_type: &DataType) -> (Option<Cell<'a>>, Option<Cell<'a>>) {
    use DataType::{
        Binary, Boolean, Date32, Float32, Float64, Time32, Time64, Timestamp, UInt32, UInt64, Utf8,
    };
    fn both<'a, T>(
        least: Option<&'a T>,
        greatest: Option<&'a T>,
        cell: impl Fn(&'a T) -> Cell<'a>,
    ) -> (Option<Cell<'a>>, Option<Cell<'a>>) {
        (least.map(&cell), greatest.map(&cell))
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
