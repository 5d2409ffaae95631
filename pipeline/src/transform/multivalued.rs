//! Multi-valued features: any number of ids a row, cut at a maximum.
//!
//! Absent values within a list are left out rather than given the id for missing: an empty list already
//! says that there is nothing.
//!
//! A weighted feature has a column of numbers beside that of its values, in each row as many as there are values,
//! absent ones included: they belong together by their places. What becomes of a value becomes of its weight: it is
//! left out with it, and cut off with it; nobody looks at weights that are.

use std::ops::Range;

use super::INVALID;
use super::column::Elements;
use super::crossed::{Crossed, Part};
use super::fault::Problem;
use super::label::Target;
use crate::chunk::RaggedColumn;

/// What a weight should be, for messages.
const A_WEIGHT: &str = "a finite weight";

/// What happened while a column was filled.
#[derive(Default)]
pub(crate) struct Filled {
    /// The first unusable element of each row that has one, as (row, element).
    pub(crate) invalid: Vec<(usize, usize)>,
    /// What is wrong with the weights of each row whose values have not the weights that they should, as (row,
    /// problem).
    pub(crate) unweighted: Vec<(usize, Problem)>,
    /// Rows that held more than the maximum.
    pub(crate) truncated_rows: u64,
}

/// Fills a ragged column from its elements' ids. `absent` is the id that is left out.
pub(crate) fn fill(
    elements: &Elements,
    codes: &[u32],
    absent: u32,
    maximum: u32,
    rows: usize,
) -> (RaggedColumn, Filled) {
    let mut column = empty(rows, codes.len());
    let mut filled = Filled::default();
    for row in 0..rows {
        fill_row(&mut column, &mut filled, row, elements.of_row(row), codes, absent, maximum, |_| Ok(()));
    }
    (column, filled)
}

/// Fills a row of a ragged column with the ids of `elements` that are not left out, each once `keep` has taken it.
#[inline]
#[allow(clippy::too_many_arguments, reason = "what is filled, from what, and how")]
fn fill_row(
    column: &mut RaggedColumn,
    filled: &mut Filled,
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

/// The weights of a column's values.
pub(crate) struct Weights {
    pub(crate) elements: Elements,
    /// By element.
    pub(crate) targets: Vec<Target>,
}

/// [`fill`] of a feature whose values have weights; `column` is that of the values, for messages.
pub(crate) fn fill_weighted(
    (elements, column): (&Elements, usize),
    codes: &[u32],
    weights: &Weights,
    absent: u32,
    maximum: u32,
    rows: usize,
) -> (RaggedColumn, Filled) {
    let mut filled = Filled::default();
    let mut ragged = empty(rows, codes.len());
    let mut kept = Vec::with_capacity(codes.len());
    let (of_values, of_weights) = (held(elements), held(&weights.elements));
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

/// The elements that each row holds: none where a column that has no lists has nothing.
fn held(elements: &Elements) -> impl Fn(usize) -> Range<usize> + '_ {
    let nulls = if elements.are_lists() { None } else { elements.leaf.logical_nulls() };
    move |row| {
        let range = elements.of_row(row);
        let is_absent = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        if is_absent { range.start..range.start } else { range }
    }
}

/// Fills a ragged column with the combinations of several columns' values.
pub(crate) fn fill_crossed(
    crossed: &Crossed,
    parts: &[Part],
    maximum: u32,
    rows: usize,
) -> (RaggedColumn, Filled) {
    let mut column = empty(rows, rows);
    let mut filled = Filled::default();
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
    // A chunk's ids are far fewer than 2^32: they lie in memory beside all the rest of it.
    column.offsets.push(column.values.len() as u32);
}
