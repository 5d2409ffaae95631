//! Multi-valued features: any number of ids a row, cut at a maximum.
//!
//! Absent values within a list are left out rather than given the id for missing: an empty list already
//! says that there is nothing.

use super::INVALID;
use super::column::Elements;
use super::crossed::{Crossed, Part};
use crate::chunk::RaggedColumn;

/// What happened while a column was filled.
#[derive(Default)]
pub(crate) struct Filled {
    /// The first unusable element of each row that has one, as (row, element).
    pub(crate) invalid: Vec<(usize, usize)>,
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
        let start = column.values.len();
        for element in elements.of_row(row) {
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
            column.values.push(code);
        }
        end_row(&mut column);
    }
    (column, filled)
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
    RaggedColumn { offsets, values: Vec::with_capacity(values) }
}

fn end_row(column: &mut RaggedColumn) {
    // A chunk's ids are far fewer than 2^32: they lie in memory beside all the rest of it.
    column.offsets.push(column.values.len() as u32);
}
