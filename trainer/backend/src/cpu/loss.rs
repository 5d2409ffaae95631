//! Losses with their gradients, and the sigmoid.

use std::ops::Range;

use crate::backend::Loss;
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::{Cpu, rows_of_task, tasks_for};
use crate::host::HostBatch;

/// Rows of a task.
const ROWS: usize = 512;

/// Losses and their gradient; each row's loss is computed by a task and summed in order.
pub(crate) fn loss(
    cpu: &Cpu,
    loss: &Loss,
    batch: &HostBatch,
    rows: Range<usize>,
    logits: &CpuMatrix,
    gradient: &mut CpuMatrix,
    sums: &mut CpuMatrix,
) {
    match *loss {
        Loss::BinaryCrossEntropy { smoothing, positive_weight, negative_weight } => {
            let (keep, add) = ((1.0 - smoothing) as f32, (smoothing / 2.0) as f32);
            let (positive, negative) = (positive_weight as f32, negative_weight as f32);
            let weight = move |label: f32| label * positive + (1.0 - label) * negative;
            by_row(cpu, batch, rows, logits, gradient, sums, weight, move |logit, label| {
                let label = label * keep + add;
                // e = exp(-|x|) is at most 1, so neither the loss nor the sigmoid overflows.
                let e = (-logit.abs()).exp();
                let probability = if logit >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
                (logit.max(0.0) - logit * label + e.ln_1p(), probability - label)
            });
        }
        Loss::SquaredError => {
            by_row(
                cpu,
                batch,
                rows,
                logits,
                gradient,
                sums,
                |_| 1.0,
                |logit, label| {
                    let difference = logit - label;
                    (difference * difference, 2.0 * difference)
                },
            );
        }
    }
}

/// By each row's loss and gradient, and by what its weight is multiplied by for its label.
#[allow(clippy::too_many_arguments, reason = "the operation's own, and what differs between losses")]
fn by_row(
    cpu: &Cpu,
    batch: &HostBatch,
    rows: Range<usize>,
    logits: &CpuMatrix,
    gradient: &mut CpuMatrix,
    sums: &mut CpuMatrix,
    weight_of: impl Fn(f32) -> f32 + Sync,
    loss_of: impl Fn(f32, f32) -> (f32, f32) + Sync,
) {
    assert!(logits.columns() == 1 && gradient.columns() == 1 && sums.columns() == 2);
    assert!(rows.len() <= logits.rows() && rows.len() <= gradient.rows());
    let weights_of = |rows: Range<usize>| {
        let labeled = batch.labels()[rows.clone()].iter().zip(&batch.weights()[rows]);
        labeled.map(|(&label, &weight)| weight * weight_of(label))
    };
    let sum_of = |rows| weights_of(rows).map(f64::from).sum::<f64>();
    let (weight_sum, weight_of_all) = (sum_of(rows.clone()), sum_of(0..batch.rows()));
    let scale = if weight_of_all > 0.0 { (1.0 / weight_of_all) as f32 } else { 0.0 };
    let mut scratch = cpu.scratch(rows.len());
    let losses = scratch.parts();
    let (float, gradients) = (gradient.float(), gradient.parts());
    cpu.run(tasks_for(rows.len(), ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows.len());
        // SAFETY: blocks of rows are disjoint.
        let (losses, gradients) = unsafe { (losses.get(block.clone()), gradients.get(block.clone())) };
        let logits = &logits.as_slice()[block.clone()];
        let of_batch = rows.start + block.start..rows.start + block.end;
        let labels = &batch.labels()[of_batch.clone()];
        for (row, weight) in weights_of(of_batch).enumerate() {
            let (loss, gradient) = loss_of(logits[row], labels[row]);
            losses[row] = weight * loss;
            gradients[row] = float.round(weight * scale * gradient);
        }
    });
    let loss_sum: f64 = scratch.as_slice()[..rows.len()].iter().map(|&loss| f64::from(loss)).sum();
    for (sum, of_rows) in sums.as_mut_slice().iter_mut().zip([loss_sum, weight_sum]) {
        *sum = (f64::from(*sum) + of_rows) as f32;
    }
}

/// `1 / (1 + exp(-x))`
pub(crate) fn sigmoid(cpu: &Cpu, rows: usize, logits: &CpuMatrix, out: &mut CpuMatrix) {
    assert!(logits.columns() == 1 && out.columns() == 1);
    let (float, out) = (out.float(), out.parts());
    cpu.run(tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(block.clone()) };
        for (out, &logit) in out.iter_mut().zip(&logits.as_slice()[block]) {
            *out = float.round(1.0 / (1.0 + (-logit).exp()));
        }
    });
}
