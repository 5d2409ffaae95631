//! Multi-valued features: any number of ids per row, truncated to a maximum.
//!
//! Absent values within a list are skipped instead of getting the missing id: an empty list already means
//! "missing".
//!
//! A weighted feature has a second column with one number per value, absent values included; values and
//! weights are paired by position. A value that is skipped or truncated takes its weight with it, and
//! the weight is not checked.

use std::ops::Range;

use super::INVALID;
use super::column::Elements;
use super::crossed::{Crossed, Part};
use super::fault::Problem;
use super::label::Target;
use crate::chunk::RaggedColumn;

/// The expected form of a weight, for error messages.
const A_WEIGHT: &str = "a finite weight";

/// Faults and counts collected while filling a column.
#[derive(Default)]
pub(crate) struct FillOutcome {
    /// The first unusable element of each row that has one, as (row, element).
    pub(crate) invalid: Vec<(usize, usize)>,
    /// The first weight fault of each row that has one, as (row, problem).
    pub(crate) unweighted: Vec<(usize, Problem)>,
    /// Rows with more values than the maximum.
    pub(crate) truncated_rows: u64,
}

/// Fills a ragged column from its elements' ids, skipping the id `absent`.
pub(crate) fn fill(
    elements: &Elements,
    codes: &[u32],
    absent: u32,
    maximum: u32,
    rows: usize,
) -> (RaggedColumn, FillOutcome) {
    let mut column = empty(rows, codes.len());
    let mut filled = FillOutcome::default();
    for row in 0..rows {
        fill_row(&mut column, &mut filled, row, elements.of_row(row), codes, absent, maximum, |_| Ok(()));
    }
    (column, filled)
}

/// Fills one row of a ragged column with the ids of `elements`, skipping absent ones. Calls `keep` for each
/// element before its id is stored.
#[inline]
#[allow(clippy::too_many_arguments, reason = "destination, source and per-element hook of one inlined loop")]
fn fill_row(
    column: &mut RaggedColumn,
    filled: &mut FillOutcome,
    row: usize,
    elements: Range<usize>,
    codes: &[u32],
    absent: u32,
    maximum: u32,
    mut keep: impl FnMut(usize) -> Result<(), Problem>,
) {
    let start = column.values.len();
    for element in elements {
        let code = codes[element];
        if code == INVALID {
            filled.invalid.push((row, element));
            break;
        }
        if code == absent {
            continue;
        }
        if column.values.len() - start == maximum as usize {
            filled.truncated_rows += 1;
            break;
        }
        if let Err(problem) = keep(element) {
            filled.unweighted.push((row, problem));
            break;
        }
        column.values.push(code);
    }
    end_row(column);
}

/// The weights of a feature's values.
pub(crate) struct Weights {
    pub(crate) elements: Elements,
    /// By element.
    pub(crate) targets: Vec<Target>,
}

/// Like [`fill`], for weighted values. `column` is the column of the values, for error messages.
pub(crate) fn fill_weighted(
    (elements, column): (&Elements, usize),
    codes: &[u32],
    weights: &Weights,
    absent: u32,
    maximum: u32,
    rows: usize,
) -> (RaggedColumn, FillOutcome) {
    let mut filled = FillOutcome::default();
    let mut ragged = empty(rows, codes.len());
    let mut kept = Vec::with_capacity(codes.len());
    let (of_values, of_weights) = (present_ranges(elements), present_ranges(&weights.elements));
    for row in 0..rows {
        let (values, numbers) = (of_values(row), of_weights(row));
        if values.len() != numbers.len() {
            let problem = Problem::Weights { column, values: values.len(), weights: numbers.len() };
            filled.unweighted.push((row, problem));
            end_row(&mut ragged);
            continue;
        }
        let (first, first_weight) = (values.start, numbers.start);
        fill_row(&mut ragged, &mut filled, row, values, codes, absent, maximum, |element| {
            let weight = first_weight + (element - first);
            match weights.targets[weight] {
                Target::Value(weight) => kept.push(weight),
                Target::Absent => return Err(Problem::Absent),
                Target::Invalid => return Err(Problem::Unusable { element: weight, expected: A_WEIGHT }),
            }
            Ok(())
        });
    }
    ragged.weights = Some(kept);
    (ragged, filled)
}

/// The elements of each row. A null in a column that holds no lists counts as no element.
fn present_ranges(elements: &Elements) -> impl Fn(usize) -> Range<usize> + '_ {
    let nulls = if elements.are_lists() { None } else { elements.leaf.logical_nulls() };
    move |row| {
        let range = elements.of_row(row);
        let is_absent = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        if is_absent { range.start..range.start } else { range }
    }
}

/// Fills a ragged column with all combinations of several columns' values.
pub(crate) fn fill_crossed(
    crossed: &Crossed,
    parts: &[Part],
    maximum: u32,
    rows: usize,
) -> (RaggedColumn, FillOutcome) {
    let mut column = empty(rows, rows);
    let mut filled = FillOutcome::default();
    for row in 0..rows {
        let truncated = crossed.product(parts, row, maximum as usize, &mut column.values);
        filled.truncated_rows += u64::from(truncated);
        end_row(&mut column);
    }
    (column, filled)
}

fn empty(rows: usize, values: usize) -> RaggedColumn {
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0);
    RaggedColumn { offsets, values: Vec::with_capacity(values), weights: None }
}

fn end_row(column: &mut RaggedColumn) {
    // A chunk has far fewer than 2^32 ids, since all of it fits in memory.
    column.offsets.push(column.values.len() as u32);
}
