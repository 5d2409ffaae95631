//! The linear model with several outputs, one per class: a weight vector per id and dense column.
//!
//! A row's sums stay in the L1 cache while all of its vectors are added; inner loops run over columns.

use crate::cpu::Cpu;
use crate::cpu::matrix::CpuTable;
use crate::cpu::parts::{Blocks, Rows};
use crate::cpu::vectors::add_times;
use crate::device::Lookup;
use crate::host::{HostBatch, Ids};
use crate::ops::{GradientMode, LinearBackward, LinearForward};

/// Batch rows per task.
const ROWS: usize = 64;
/// Columns per task that sums over rows.
const COLUMNS: usize = 64;

/// `out[b] += bias + sum of the looked-up vectors + dense columns . dense_weights`
pub(crate) fn forward(cpu: &Cpu, operation: LinearForward<'_, Cpu>) {
    let LinearForward { batch, rows, lookups, tables, dense, dense_weights, bias, out } = operation;
    run_rows!(cpu, rows.len(), ROWS, out, |place, out| {
        let row = rows.start + place;
        add_times(1.0, bias.row(0), out);
        for lookup in lookups {
            add_vectors(batch, lookup, row, &tables[lookup.table], out);
        }
        let values = batch.dense(row);
        for (place, &source) in dense.iter().enumerate() {
            add_times(values[source], dense_weights.row(place), out);
        }
    });
}

/// Adds a row's pooled lookup in a table.
#[inline(always)]
fn add_vectors(batch: &HostBatch, lookup: &Lookup, row: usize, table: &CpuTable, out: &mut [f32]) {
    let columns = out.len();
    let vector = |id: u32| &table.as_slice()[id as usize * table.stride()..][..columns];
    let of_row = |offsets: &[u32]| offsets[row] as usize..offsets[row + 1] as usize;
    match batch.ids(lookup.column) {
        Ids::Single(ids) => add_times(1.0, vector(ids[row]), out),
        Ids::Ragged(offsets, values) => {
            let ids = &values[of_row(offsets)];
            let factor = if ids.len() > 1 { lookup.pooling.factor(ids.len()) as f32 } else { 1.0 };
            ids.iter().for_each(|&id| add_times(factor, vector(id), out));
        }
        Ids::Weighted(offsets, values, weights) => {
            let shares = weights.shares(lookup.pooling);
            let ids = values[of_row(offsets)].iter().zip(&weights.of_values[of_row(offsets)]);
            ids.for_each(|(&id, &weight)| add_times(shares.of(row, weight), vector(id), out));
        }
    }
}

/// The gradients with respect to dense weights and bias; rows are summed in order.
pub(crate) fn backward(cpu: &Cpu, operation: LinearBackward<'_, Cpu>) {
    let LinearBackward { batch, rows, dense, out_grad, mode, weight_grad, bias_grad } = operation;
    let columns = out_grad.columns();
    // A list for each dense column: its row of the gradient, with the padding after the row.
    let blocks = Blocks::of(weight_grad.stride(), COLUMNS).in_lists(dense.len());
    run_blocks!(cpu, blocks, Rows::of(weight_grad.as_mut_slice(), 1), |place, block, weight_grad| {
        let block = block.start.min(columns)..block.end.min(columns);
        let (weight_grad, source) = (&mut weight_grad[..block.len()], dense[place]);
        if mode == GradientMode::Write {
            weight_grad.fill(0.0);
        }
        for (row, place) in rows.clone().zip(0..) {
            add_times(batch.dense(row)[source], &out_grad.row(place)[block.clone()], weight_grad);
        }
    });
    let bias_grad = &mut bias_grad.as_mut_slice()[..columns];
    run_blocks!(cpu, Blocks::of(columns, COLUMNS), Rows::of(bias_grad, 1), |block, bias_grad| {
        for (column, bias_grad) in block.zip(bias_grad) {
            let before = if mode == GradientMode::Write { 0.0 } else { f64::from(*bias_grad) };
            let gradients = (0..rows.len()).map(|row| f64::from(out_grad.row(row)[column]));
            *bias_grad = (before + gradients.sum::<f64>()) as f32;
        }
    });
}
