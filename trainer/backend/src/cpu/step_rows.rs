//! Optimizer steps on the table rows that a batch touches, or all parts of one.

use crate::cpu::Cpu;
use crate::cpu::matrix::{CpuTable, SharedTables};
use crate::cpu::memory::LINE;
use crate::cpu::parts::Parts;
use crate::cpu::rounding::Rounding;
use crate::cpu::rules::{ByRule, Rule, by_rule_of};
use crate::cpu::runs::{Runs, tasks_each};
use crate::cpu::shaping::Shaping;
use crate::cpu::touched::{MergedPart, STRIP, TouchedRows};
use crate::ops::{StepMergedRows, StepRows};

/// Prefetch distance for table rows, in touched rows: far enough to hide memory latency, near enough that
/// prefetched rows are still in the L1 cache.
const RUNS_AHEAD: usize = 16;

/// One optimizer step on the touched rows of each table.
pub(crate) fn step_rows(cpu: &Cpu, operation: StepRows<'_, Cpu>) {
    let StepRows { update, scale, draws, gradients, tables } = operation;
    let shaping = Shaping::new(update, scale);
    if shaping.skips() {
        return;
    }
    let tasks = tasks_each(gradients);
    // The runs of a plan have different ids, because `rows::plan` has sorted them, and `Runs::new` assigns each run to one task.
    let rows_of = |tables: &SharedTables<'_>, number, task| {
        Runs::new(gradients, number, task, |table| tables.shape(table).width)
    };
    by_rule_of(&update.formula, RowsStep { cpu, shaping, draws, tables, tasks, rows_of });
}

/// The same for the rows that all parts of a batch touch.
pub(crate) fn step_merged_rows(cpu: &Cpu, operation: StepMergedRows<'_, Cpu>) {
    let StepMergedRows { update, scale, draws, rows, tables } = operation;
    let shaping = Shaping::new(update, scale);
    if shaping.skips() {
        return;
    }
    let tasks = MergedPart::tasks_each(rows);
    // Merged rows have different ids, and each belongs to one part.
    let rows_of = |_: &SharedTables<'_>, number, task| MergedPart::new(rows, number, task);
    by_rule_of(&update.formula, RowsStep { cpu, shaping, draws, tables, tasks, rows_of });
}

/// One step over all tables.
struct RowsStep<'a, F> {
    cpu: &'a Cpu,
    shaping: Shaping,
    draws: u64,
    tables: &'a mut [CpuTable],
    /// Tasks of each table.
    tasks: usize,
    /// The rows of a table that belong to one of its tasks. Rows of different tasks are different.
    rows_of: F,
}

impl<T: TouchedRows, F: Fn(&SharedTables<'_>, usize, usize) -> T + Sync> ByRule for RowsStep<'_, F> {
    fn by<R: Rule>(self, rule: R) {
        let Self { cpu, shaping, draws, tables, tasks, rows_of } = self;
        let tables = CpuTable::share(tables);
        run!(cpu, tables.len() * tasks, |task| {
            let (number, task) = (task / tasks, task % tasks);
            let rows = rows_of(&tables, number, task);
            let shape = tables.shape(number);
            let rounding = Rounding::new(shape, draws);
            // SAFETY: this operation borrows the tables exclusively. No other task has the rows of this one, and they have
            // different ids. So nothing else uses them.
            let step = unsafe { TableStep::new(rows, shaping, rounding, &tables, number) };
            let kept = (shape.states, shape.row_states);
            assert_eq!(kept, (R::STATES, usize::from(R::ROW_STATE)), "as many states as the update has");
            match shape.width {
                1 if !R::ROW_STATE => step.single_column(rule),
                _ => step.run(rule),
            }
        });
    }
}

/// One table's step over some rows.
struct TableStep<'a, T> {
    rows: T,
    shaping: Shaping,
    rounding: Rounding,
    /// The table's rows, `stride` apart; each has the weights, then the state arrays, with as many columns each.
    table: Parts<'a, f32>,
    stride: usize,
}

impl<'a, T: TouchedRows> TableStep<'a, T> {
    /// The step of table `number` on `rows`.
    ///
    /// # Safety
    /// While the result is alive, nothing else uses the table's rows that `rows` name, and no two of `rows` have the same id.
    unsafe fn new(
        rows: T,
        shaping: Shaping,
        rounding: Rounding,
        tables: &'a SharedTables<'_>,
        number: usize,
    ) -> Self {
        // SAFETY: the result accesses these rows only; the caller guarantees that nothing else uses them.
        let table = unsafe { tables.rows(number) };
        Self { rows, shaping, rounding, table, stride: tables.stride(number) }
    }

    /// Steps each row in strips of [`STRIP`] columns, then the remainder.
    #[inline(always)]
    fn run<R: Rule>(&self, rule: R) {
        for number in 0..self.rows.len() {
            self.fetch_row_ahead(number);
            self.rows.fetch_ahead(number);
            let start = self.rows.id_of(number) as usize * self.stride;
            // SAFETY: the caller of `new` guarantees that nothing else uses this row, and the slice is dropped before the
            // next one.
            let row = unsafe { self.table.get(start..start + self.stride) };
            let rule = if R::ROW_STATE { self.rule_of_row(rule, number, row) } else { rule };
            for (first, columns) in self.rows.strips() {
                match columns {
                    // Compiled for this constant number of columns.
                    STRIP => self.strip(rule, number, row, first, STRIP),
                    _ => self.strip(rule, number, row, first, columns),
                }
            }
        }
    }

    /// Updates the row's state, and returns the formula for its weights.
    #[inline(always)]
    fn rule_of_row<R: Rule>(&self, rule: R, number: usize, row: &mut [f32]) -> R {
        let mut squares = [0.0_f32; STRIP];
        for (first, columns) in self.rows.strips() {
            let sum = self.rows.sum(number, first, columns);
            for ((squares, sum), &w) in squares.iter_mut().zip(sum).zip(&row[first..first + columns]) {
                let g = self.shaping.of(sum, w);
                *squares += g * g;
            }
        }
        let mean_square = squares.iter().sum::<f32>() / self.rows.width() as f32;
        let state = &mut row[(1 + R::STATES) * self.rows.width()];
        let (rule, next) = rule.of_row(*state, mean_square);
        *state = next;
        rule
    }

    /// Steps `columns` columns from `first` on, in row `number`.
    #[inline(always)]
    fn strip<R: Rule>(&self, rule: R, number: usize, row: &mut [f32], first: usize, columns: usize) {
        let sum = self.rows.sum(number, first, columns);
        let (mut w, mut state) = ([0.0_f32; STRIP], [[0.0_f32; STRIP]; 2]);
        w[..columns].copy_from_slice(&row[first..first + columns]);
        for (number, state) in state[..R::STATES].iter_mut().enumerate() {
            let start = (1 + number) * self.rows.width() + first;
            state[..columns].copy_from_slice(&row[start..start + columns]);
        }
        self.step_lanes(rule, &mut w, &mut state, &sum);
        self.rounding.of_row(self.rows.id_of(number), first, &mut w);
        row[first..first + columns].copy_from_slice(&w[..columns]);
        for (number, state) in state[..R::STATES].iter().enumerate() {
            let start = (1 + number) * self.rows.width() + first;
            row[start..start + columns].copy_from_slice(&state[..columns]);
        }
    }

    /// Steps rows of one column, [`STRIP`] at once.
    #[inline(always)]
    fn single_column<R: Rule>(&self, rule: R) {
        for first in (0..self.rows.len()).step_by(STRIP) {
            let lanes = STRIP.min(self.rows.len() - first);
            let mut sum = [0.0_f32; STRIP];
            let (mut w, mut state) = ([0.0_f32; STRIP], [[0.0_f32; STRIP]; 2]);
            let (mut rows, mut ids) = ([0_usize; STRIP], [0; STRIP]);
            for lane in 0..lanes {
                let number = first + lane;
                self.fetch_row_ahead(number);
                sum[lane] = self.rows.sum_of_one(number);
                ids[lane] = self.rows.id_of(number);
                rows[lane] = ids[lane] as usize * self.stride;
                // SAFETY: the caller of `new` guarantees that nothing else uses this row; the slice is dropped before the
                // next one.
                let row = unsafe { self.table.get(rows[lane]..rows[lane] + 1 + R::STATES) };
                w[lane] = row[0];
                for (number, state) in state[..R::STATES].iter_mut().enumerate() {
                    state[lane] = row[1 + number];
                }
            }
            self.step_lanes(rule, &mut w, &mut state, &sum);
            self.rounding.of_rows(ids, &mut w);
            for lane in 0..lanes {
                // SAFETY: as in the loop above, nothing else uses this row, and the slice is dropped before the next one.
                let row = unsafe { self.table.get(rows[lane]..rows[lane] + 1 + R::STATES) };
                row[0] = w[lane];
                for (number, state) in state[..R::STATES].iter().enumerate() {
                    row[1 + number] = state[lane];
                }
            }
        }
    }

    /// Steps lanes of weights and state that are in registers.
    #[inline(always)]
    fn step_lanes<R: Rule>(
        &self,
        rule: R,
        w: &mut [f32; STRIP],
        [first, second]: &mut [[f32; STRIP]; 2],
        g: &[f32; STRIP],
    ) {
        for lane in 0..STRIP {
            let g = self.shaping.of(g[lane], w[lane]);
            let (next, state) = rule.next(w[lane], [first[lane], second[lane]], g);
            w[lane] = next;
            first[lane] = state[0];
            second[lane] = state[1];
        }
    }

    /// Prefetches a later row of the table.
    #[inline(always)]
    fn fetch_row_ahead(&self, number: usize) {
        if let Some(id) = self.rows.id(number + RUNS_AHEAD) {
            let row = id as usize * self.stride;
            for line in (0..self.stride).step_by(LINE) {
                self.table.prefetch(row + line);
            }
        }
    }
}
