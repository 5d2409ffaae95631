//! Optimizer steps: on whole matrices, and on the table rows that a batch touches.

use std::ops::Range;

use crate::backend::GradientColumns;
use crate::cpu::matrix::{CpuMatrix, CpuTable, SharedTables};
use crate::cpu::memory::{LINE, Parts, prefetch};
use crate::cpu::rows::{CpuRowPlan, Entry};
use crate::cpu::rules::{ByRule, Rule, by_rule_of};
use crate::cpu::{Cpu, rows_of_task, tasks_for};
use crate::device::{Lookup, Pooling};
use crate::host::{HostBatch, Ids};
use crate::update::Update;

/// Numbers of a task that steps a matrix.
const NUMBERS: usize = 8192;
/// Sorted ids of a task that steps a table. A task takes the runs of equal ids that start among its
/// own, so that each row is one task's.
const ENTRIES: usize = 1024;
/// Runs of equal ids that table rows are fetched ahead, and ids that their gradients are: enough for
/// memory to answer, few enough that the answers are still in the first-level cache.
const RUNS_AHEAD: usize = 16;
const ENTRIES_AHEAD: usize = 16;
/// Columns of a row that are summed and stepped together, in registers.
const STRIP: usize = 16;

/// One optimizer step on a matrix.
pub(crate) fn step(
    cpu: &Cpu,
    update: &Update,
    weights: &mut CpuMatrix,
    states: &mut [CpuMatrix],
    gradient: &CpuMatrix,
) {
    by_rule_of(update, MatrixStep { cpu, weights, states, gradient });
}

struct MatrixStep<'a> {
    cpu: &'a Cpu,
    weights: &'a mut CpuMatrix,
    states: &'a mut [CpuMatrix],
    gradient: &'a CpuMatrix,
}

impl ByRule for MatrixStep<'_> {
    fn by<R: Rule>(self, rule: R) {
        assert!(!R::ROW_STATE, "a formula over single weights");
        step_by(self.cpu, rule, self.weights, self.states, self.gradient);
    }
}

fn step_by<R: Rule>(
    cpu: &Cpu,
    rule: R,
    weights: &mut CpuMatrix,
    states: &mut [CpuMatrix],
    gradient: &CpuMatrix,
) {
    assert_eq!(states.len(), R::STATES, "a state matrix for each that the update keeps");
    let shape = |matrix: &CpuMatrix| (matrix.rows(), matrix.columns());
    assert!(shape(weights) == shape(gradient) && states.iter().all(|state| shape(state) == shape(weights)));
    // What lies between rows is stepped along with them: it starts as zeros, has a gradient of zero and
    // is never read.
    let gradient = gradient.as_slice();
    let weights = weights.parts();
    let [first, second] = states_of(states);
    cpu.run(tasks_for(gradient.len(), NUMBERS), |task| {
        let part = rows_of_task(task, NUMBERS, gradient.len());
        let gradient = &gradient[part.clone()];
        // SAFETY: parts of tasks are disjoint.
        let weights = unsafe { weights.get(part.clone()) };
        // SAFETY: as above.
        let first = unsafe { first.get(if R::STATES > 0 { part.clone() } else { 0..0 }) };
        // SAFETY: as above.
        let second = unsafe { second.get(if R::STATES > 1 { part } else { 0..0 }) };
        for (item, (w, &g)) in weights.iter_mut().zip(gradient).enumerate() {
            let state = [
                if R::STATES > 0 { first[item] } else { 0.0 },
                if R::STATES > 1 { second[item] } else { 0.0 },
            ];
            let (next, state) = rule.next(*w, state, g);
            *w = next;
            if R::STATES > 0 {
                first[item] = state[0];
            }
            if R::STATES > 1 {
                second[item] = state[1];
            }
        }
    });
}

/// The state matrices' memory, empty where there is none.
fn states_of(states: &mut [CpuMatrix]) -> [Parts<'_, f32>; 2] {
    let mut parts = states.iter_mut().map(CpuMatrix::parts);
    let mut next = || parts.next().unwrap_or_else(|| Parts::new(&mut []));
    [next(), next()]
}

/// One optimizer step on the touched rows of each table.
#[allow(clippy::too_many_arguments, reason = "the operation's own")]
pub(crate) fn step_rows(
    cpu: &Cpu,
    update: &Update,
    batch: &HostBatch,
    plan: &CpuRowPlan,
    lookups: &[Lookup],
    gradient: &CpuMatrix,
    columns: GradientColumns,
    tables: &mut [CpuTable],
) {
    assert_eq!(lookups.len(), tables.len(), "a lookup a table");
    by_rule_of(update, RowsStep { cpu, batch, plan, lookups, gradient, columns, tables });
}

/// One step over all tables.
struct RowsStep<'a> {
    cpu: &'a Cpu,
    batch: &'a HostBatch,
    plan: &'a CpuRowPlan,
    lookups: &'a [Lookup],
    gradient: &'a CpuMatrix,
    columns: GradientColumns,
    tables: &'a mut [CpuTable],
}

impl ByRule for RowsStep<'_> {
    fn by<R: Rule>(self, rule: R) {
        let Self { cpu, batch, plan, lookups, gradient, columns, tables } = self;
        let all = TablesStep { batch, plan, lookups, gradient, columns };
        let tables = CpuTable::share(tables);
        let longest = lookups.iter().map(|lookup| plan.column(lookup.column).entries().len()).max();
        let tasks_each = tasks_for(longest.unwrap_or(0), ENTRIES);
        cpu.run(tables.len() * tasks_each, |task| {
            let (number, task) = (task / tasks_each, task % tasks_each);
            // SAFETY: below, each row is taken once by the task whose run of equal ids it is.
            let step = unsafe { all.table_step(&tables, number, task) };
            let shape = tables.shape(number);
            let kept = (shape.states, shape.row_states);
            assert_eq!(kept, (R::STATES, usize::from(R::ROW_STATE)), "the state that the update keeps");
            match step.width {
                1 if !R::ROW_STATE => step.single_column(rule),
                _ => step.run(rule),
            }
        });
    }
}

/// What every table's step reads.
struct TablesStep<'a> {
    batch: &'a HostBatch,
    plan: &'a CpuRowPlan,
    lookups: &'a [Lookup],
    gradient: &'a CpuMatrix,
    columns: GradientColumns,
}

/// One table's step over some runs of equal ids.
struct TableStep<'a> {
    entries: &'a [Entry],
    /// Bounds of the runs, one more than there are.
    starts: &'a [u32],
    /// Where ids count by how many there are in a batch row: how, and the offsets of each row's ids.
    pooled: Option<(Pooling, &'a [u32])>,
    /// From the first column on that is this table's.
    gradient: &'a [f32],
    gradient_stride: usize,
    /// The table's rows, `stride` apart; of each the weights, then the state, `width` columns each.
    table: Parts<'a, f32>,
    width: usize,
    stride: usize,
}

impl TablesStep<'_> {
    /// The step of table `number` over the runs that start among the ids of its task `task`.
    ///
    /// # Safety
    /// Nothing else uses the table's rows that the step's ids name.
    unsafe fn table_step<'a>(
        &'a self,
        tables: &'a SharedTables<'_>,
        number: usize,
        task: usize,
    ) -> TableStep<'a> {
        let lookup = &self.lookups[number];
        let sorted = self.plan.column(lookup.column);
        let bounds = sorted.starts();
        let runs = &bounds[..bounds.len() - 1];
        let first = runs.partition_point(|&start| (start as usize) < task * ENTRIES);
        let end = runs.partition_point(|&start| (start as usize) < (task + 1) * ENTRIES);
        let offset = match self.columns {
            GradientColumns::Apart { first } => {
                first + (0..number).map(|table| tables.shape(table).width).sum::<usize>()
            }
            GradientColumns::Shared => 0,
        };
        let pooled = match (lookup.pooling, self.batch.ids(lookup.column)) {
            (Pooling::Sum, _) | (_, Ids::Single(_)) => None,
            (pooling, Ids::Ragged(offsets, _)) => Some((pooling, offsets)),
        };
        TableStep {
            entries: sorted.entries(),
            starts: &bounds[first..=end],
            pooled,
            gradient: &self.gradient.as_slice()[offset..],
            gradient_stride: self.gradient.stride(),
            // SAFETY: by the caller's promise.
            table: unsafe { tables.parts(number) },
            width: tables.shape(number).width,
            stride: tables.stride(number),
        }
    }
}

impl TableStep<'_> {
    /// Steps each row in strips of [`STRIP`] columns, and what is left of it.
    #[inline(always)]
    fn run<R: Rule>(&self, rule: R) {
        for (run, pair) in self.starts.windows(2).enumerate() {
            self.fetch_row_ahead(run);
            self.fetch_gradients_ahead(pair[0] as usize..pair[1] as usize);
            let entries = &self.entries[pair[0] as usize..pair[1] as usize];
            let start = entries[0].id as usize * self.stride;
            // SAFETY: the row of this run's id, taken by no other run.
            let row = unsafe { self.table.get(start..start + self.stride) };
            let rule = if R::ROW_STATE { self.rule_of_row(rule, entries, row) } else { rule };
            for (first, columns) in self.strips() {
                self.strip(rule, entries, row, first, columns);
            }
        }
    }

    /// The row's strips: first column and number of columns.
    #[inline(always)]
    fn strips(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let whole = self.width / STRIP * STRIP;
        let rest = self.width - whole;
        (0..whole).step_by(STRIP).map(|first| (first, STRIP)).chain((rest > 0).then_some((whole, rest)))
    }

    /// Steps the state of the whole row, and returns the formula for its weights.
    #[inline(always)]
    fn rule_of_row<R: Rule>(&self, rule: R, entries: &[Entry], row: &mut [f32]) -> R {
        let mut squares = [0.0_f32; STRIP];
        for (first, columns) in self.strips() {
            let sum = self.sum(entries, first, columns);
            for (squares, sum) in squares.iter_mut().zip(sum) {
                *squares += sum * sum;
            }
        }
        let mean_square = squares.iter().sum::<f32>() / self.width as f32;
        let state = &mut row[(1 + R::STATES) * self.width];
        let (rule, next) = rule.of_row(*state, mean_square);
        *state = next;
        rule
    }

    /// The gradient of `columns` columns from `first` on, summed over `entries`.
    #[inline(always)]
    fn sum(&self, entries: &[Entry], first: usize, columns: usize) -> [f32; STRIP] {
        let mut sum = [0.0_f32; STRIP];
        for entry in entries {
            let start = entry.row as usize * self.gradient_stride + first;
            let gradient = &self.gradient[start..start + columns];
            let factor = self.factor(entry);
            for (sum, &g) in sum[..columns].iter_mut().zip(gradient) {
                *sum += g * factor;
            }
        }
        sum
    }

    /// Steps `columns` columns from `first` on.
    #[inline(always)]
    fn strip<R: Rule>(&self, rule: R, entries: &[Entry], row: &mut [f32], first: usize, columns: usize) {
        let sum = self.sum(entries, first, columns);
        let (mut w, mut state) = ([0.0_f32; STRIP], [[0.0_f32; STRIP]; 2]);
        w[..columns].copy_from_slice(&row[first..first + columns]);
        for (number, state) in state[..R::STATES].iter_mut().enumerate() {
            let start = (1 + number) * self.width + first;
            state[..columns].copy_from_slice(&row[start..start + columns]);
        }
        step_lanes(rule, &mut w, &mut state, &sum);
        row[first..first + columns].copy_from_slice(&w[..columns]);
        for (number, state) in state[..R::STATES].iter().enumerate() {
            let start = (1 + number) * self.width + first;
            row[start..start + columns].copy_from_slice(&state[..columns]);
        }
    }

    /// Steps rows of one column, [`STRIP`] at once.
    #[inline(always)]
    fn single_column<R: Rule>(&self, rule: R) {
        let runs = self.starts.len() - 1;
        for first in (0..runs).step_by(STRIP) {
            let lanes = STRIP.min(runs - first);
            let mut sum = [0.0_f32; STRIP];
            let (mut w, mut state) = ([0.0_f32; STRIP], [[0.0_f32; STRIP]; 2]);
            let mut rows = [0_usize; STRIP];
            for lane in 0..lanes {
                let run = first + lane;
                self.fetch_row_ahead(run);
                let entries = &self.entries[self.starts[run] as usize..self.starts[run + 1] as usize];
                for entry in entries {
                    sum[lane] +=
                        self.gradient[entry.row as usize * self.gradient_stride] * self.factor(entry);
                }
                rows[lane] = entries[0].id as usize * self.stride;
                // SAFETY: the row of this run's id, taken by no other run, and released here.
                let row = unsafe { self.table.get(rows[lane]..rows[lane] + 1 + R::STATES) };
                w[lane] = row[0];
                for (number, state) in state[..R::STATES].iter_mut().enumerate() {
                    state[lane] = row[1 + number];
                }
            }
            step_lanes(rule, &mut w, &mut state, &sum);
            for lane in 0..lanes {
                // SAFETY: as above.
                let row = unsafe { self.table.get(rows[lane]..rows[lane] + 1 + R::STATES) };
                row[0] = w[lane];
                for (number, state) in state[..R::STATES].iter().enumerate() {
                    row[1 + number] = state[lane];
                }
            }
        }
    }

    /// What the gradient of `entry` counts for.
    #[inline(always)]
    fn factor(&self, entry: &Entry) -> f32 {
        match self.pooled {
            Some((pooling, offsets)) => {
                let row = entry.row as usize;
                pooling.factor((offsets[row + 1] - offsets[row]) as usize) as f32
            }
            None => 1.0,
        }
    }

    /// Asks for the gradients of as many ids to come as are about to be summed.
    #[inline(always)]
    fn fetch_gradients_ahead(&self, entries: Range<usize>) {
        let ahead = self.entries.get(entries.start + ENTRIES_AHEAD..).unwrap_or_default();
        for entry in ahead.iter().take(entries.len()) {
            prefetch(self.gradient, entry.row as usize * self.gradient_stride);
        }
    }

    /// Asks for the table row of a run to come.
    #[inline(always)]
    fn fetch_row_ahead(&self, run: usize) {
        if let Some(&start) = self.starts[..self.starts.len() - 1].get(run + RUNS_AHEAD) {
            let row = self.entries[start as usize].id as usize * self.stride;
            for line in (0..self.stride).step_by(LINE) {
                self.table.prefetch(row + line);
            }
        }
    }
}

/// Steps lanes of weights and state that lie in registers.
#[inline(always)]
fn step_lanes<R: Rule>(
    rule: R,
    w: &mut [f32; STRIP],
    [first, second]: &mut [[f32; STRIP]; 2],
    g: &[f32; STRIP],
) {
    for lane in 0..STRIP {
        let (next, state) = rule.next(w[lane], [first[lane], second[lane]], g[lane]);
        w[lane] = next;
        first[lane] = state[0];
        second[lane] = state[1];
    }
}
