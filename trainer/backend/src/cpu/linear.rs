//! The linear model with one output: one weight per id and dense column. See [`super::linear_columns`] for several
//! outputs.

use crate::cpu::gather::one_row_each;
use crate::cpu::matrix::CpuTable;
use crate::cpu::memory::prefetch;
use crate::cpu::parts::Blocks;
use crate::cpu::{Cpu, linear_columns};
use crate::device::Pooling;
use crate::host::{Ids, Shares};
use crate::ops::{GradientMode, LinearBackward, LinearForward};

/// Batch rows per task, and the prefetch distance for weights (see [`super::gather`]).
const ROWS: usize = 128;

/// `out[b] += bias + sum of the looked-up weights + dense columns . dense_weights`
pub(crate) fn forward(cpu: &Cpu, operation: LinearForward<'_, Cpu>) {
    if operation.out.columns() != 1 {
        return linear_columns::forward(cpu, operation);
    }
    let LinearForward { batch, rows, lookups, tables, dense, dense_weights, bias, out } = operation;
    let bias = bias.row(0)[0];
    let float = out.float();
    run_blocks!(cpu, Blocks::of(rows.len(), ROWS), out.by_rows(), |block, out| {
        let block = rows.start + block.start..rows.start + block.end;
        let mut sums = [bias; ROWS];
        let sums = &mut sums[..block.len()];
        for (number, lookup) in lookups.iter().enumerate() {
            let table = &tables[lookup.table];
            match batch.ids(lookup.column) {
                Ids::Single(ids) => {
                    let next = one_row_each(lookups.get(number + 1), batch, &block, tables);
                    add_weights(table, &ids[block.clone()], next, sums);
                }
                Ids::Ragged(offsets, values) => {
                    pool_weights(table, &offsets[block.start..=block.end], values, lookup.pooling, sums);
                }
                Ids::Weighted(offsets, values, weights) => {
                    let shares = weights.shares(lookup.pooling);
                    let of_rows = (block.start, &offsets[block.start..=block.end]);
                    pool_weights_by_shares(table, of_rows, (values, weights.of_values), shares, sums);
                }
            }
        }
        for (row, (out, sum)) in block.zip(out.iter_mut().zip(&*sums)) {
            let values = batch.dense(row);
            let products = dense.iter().zip(dense_weights.as_slice()).map(|(&d, &w)| values[d] * w);
            *out += products.fold(*sum, |sum, product| sum + product);
            *out = float.round(*out);
        }
    });
}

#[inline(always)]
fn add_weights(table: &CpuTable, ids: &[u32], next: Option<(&[u32], &CpuTable)>, sums: &mut [f32]) {
    let (data, stride) = (table.as_slice(), table.stride());
    for (row, (&id, sum)) in ids.iter().zip(sums).enumerate() {
        if let Some((ids, table)) = next {
            prefetch(table.as_slice(), ids[row] as usize * table.stride());
        }
        *sum += data[id as usize * stride];
    }
}

#[inline(always)]
fn pool_weights(table: &CpuTable, offsets: &[u32], values: &[u32], pooling: Pooling, sums: &mut [f32]) {
    let (data, stride) = (table.as_slice(), table.stride());
    for (pair, sum) in offsets.windows(2).zip(sums) {
        let ids = &values[pair[0] as usize..pair[1] as usize];
        let pooled: f32 = ids.iter().map(|&id| data[id as usize * stride]).sum();
        *sum += if ids.len() > 1 { pooled * pooling.factor(ids.len()) as f32 } else { pooled };
    }
}

/// `offsets` come with the first batch row, and `values` with their weights.
#[inline(always)]
fn pool_weights_by_shares(
    table: &CpuTable,
    (first, offsets): (usize, &[u32]),
    (values, weights): (&[u32], &[f32]),
    shares: Shares<'_>,
    sums: &mut [f32],
) {
    let (data, stride) = (table.as_slice(), table.stride());
    for ((row, pair), sum) in (first..).zip(offsets.windows(2)).zip(sums) {
        let of_row = pair[0] as usize..pair[1] as usize;
        let values = values[of_row.clone()].iter().zip(&weights[of_row]);
        let products = values.map(|(&id, &weight)| shares.of(row, weight) * data[id as usize * stride]);
        *sum += products.sum::<f32>();
    }
}

/// The gradients with respect to the dense weights and the bias.
///
/// There are only a few values per row, so one thread sums them, in the order of the rows.
pub(crate) fn backward(cpu: &Cpu, operation: LinearBackward<'_, Cpu>) {
    if operation.out_grad.columns() != 1 {
        return linear_columns::backward(cpu, operation);
    }
    let LinearBackward { batch, rows, dense, out_grad, mode, weight_grad, bias_grad } = operation;
    let gradients = &out_grad.as_slice()[..rows.len()];
    let weight_grad = &mut weight_grad.as_mut_slice()[..dense.len()];
    let bias = cpu.simd.run(
        #[inline(always)]
        || {
            if mode == GradientMode::Write {
                weight_grad.fill(0.0);
            }
            for (row, &g) in rows.zip(gradients) {
                let values = batch.dense(row);
                for (sum, &source) in weight_grad.iter_mut().zip(dense) {
                    *sum += values[source] * g;
                }
            }
            gradients.iter().map(|&g| f64::from(g)).sum::<f64>()
        },
    );
    let bias_grad = &mut bias_grad.as_mut_slice()[0];
    *bias_grad = match mode {
        GradientMode::Write => bias as f32,
        GradientMode::Accumulate => (f64::from(*bias_grad) + bias) as f32,
    };
}
