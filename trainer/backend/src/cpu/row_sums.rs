//! Sums of the gradients of touched table rows.

use crate::cpu::Cpu;
use crate::cpu::matrix::CpuTable;
use crate::cpu::parts::{Blocks, Spans};
use crate::cpu::runs::{Runs, tasks_each};
use crate::cpu::touched::{STRIP, TouchedRows};
use crate::device::Lookup;
use crate::ops::RowGradients;
use crate::row_sums::RowSums;

/// Sums the gradient of each touched row of each table. Each row is summed by one task, as for a step.
pub(crate) fn row_sums(
    cpu: &Cpu,
    gradients: &RowGradients<'_, Cpu>,
    tables: &[CpuTable],
    sums: &mut RowSums<f32>,
) {
    let each = tasks_each(gradients);
    let runs_of =
        |task: usize| Runs::new(gradients, task / each, task % each, |table| tables[table].shape().width);
    let bounds_of = |table| gradients.plan.group(Lookup::of_table(gradients.lookups, table)).starts();
    let sizes = (0..tables.len()).map(|table| (bounds_of(table).len() - 1, tables[table].shape().width));
    sums.resize(sizes);
    let (ids, rows) = sums.parts_mut(tables.len());

    let tasks = tables.len() * each;
    let mut starts = Vec::with_capacity(tasks + 1);
    let (mut end, mut ids) = (0, ids.iter_mut());
    for task in 0..tasks {
        let runs = runs_of(task);
        starts.push(end);
        end += runs.len() * runs.width();
        for (number, id) in (0..runs.len()).zip(&mut ids) {
            *id = runs.id_of(number);
        }
    }
    starts.push(end);
    run_blocks!(cpu, Blocks::of(tasks, 1), Spans::of(rows, 1, &starts), |task, rows| {
        let runs = runs_of(task.start);
        match runs.width() {
            1 => {
                for (number, sum) in rows.iter_mut().enumerate() {
                    runs.fetch_ahead(number);
                    *sum = runs.sum_of_one(number);
                }
            }
            width => {
                for (number, row) in rows.chunks_exact_mut(width).enumerate() {
                    runs.fetch_ahead(number);
                    sum_row(&runs, number, row);
                }
            }
        }
    });
}

/// Sums the gradient of run `number`, in strips.
#[inline(always)]
fn sum_row(runs: &Runs<'_>, number: usize, row: &mut [f32]) {
    for (first, columns) in runs.strips() {
        match columns {
            // Compiled for this constant number of columns.
            STRIP => row[first..first + STRIP].copy_from_slice(&runs.sum(number, first, STRIP)),
            _ => row[first..first + columns].copy_from_slice(&runs.sum(number, first, columns)[..columns]),
        }
    }
}
