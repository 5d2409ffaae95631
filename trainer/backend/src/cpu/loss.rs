//! Losses with their gradients, and the sigmoid.

use std::ops::Range;

use crate::backend::{Loss, Task};
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::{Cpu, rows_of_task, tasks_for};
use crate::host::HostBatch;

/// Rows of a task.
const ROWS: usize = 512;

/// A task's loss and its gradient; each row's loss is computed by a task of the team and summed in order.
pub(crate) fn loss(
    cpu: &Cpu,
    task: &Task,
    batch: &HostBatch,
    rows: Range<usize>,
    logits: &CpuMatrix,
    gradient: &mut CpuMatrix,
    sums: &mut CpuMatrix,
) {
    match task.loss {
        Loss::BinaryCrossEntropy { smoothing, positive_weight, negative_weight } => {
            let (keep, add) = ((1.0 - smoothing) as f32, (smoothing / 2.0) as f32);
            let (positive, negative) = (positive_weight as f32, negative_weight as f32);
            let weight = move |label: f32| label * positive + (1.0 - label) * negative;
            by_row(cpu, task, batch, rows, logits, gradient, sums, weight, move |logit, label| {
                let label = label * keep + add;
                // e = exp(-|x|) is at most 1, so neither the loss nor the sigmoid overflows.
                let e = (-logit.abs()).exp();
                let probability = if logit >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
                (logit.max(0.0) - logit * label + e.ln_1p(), probability - label)
            });
        }
        Loss::SquaredError => {
            let weight = |_: f32| 1.0;
            by_row(cpu, task, batch, rows, logits, gradient, sums, weight, |logit, label| {
                let difference = logit - label;
                (difference * difference, 2.0 * difference)
            });
        }
    }
}

/// By each row's loss and gradient, and by what its weight is multiplied by for its label.
#[allow(clippy::too_many_arguments, reason = "the operation's own, and what differs between losses")]
fn by_row(
    cpu: &Cpu,
    task: &Task,
    batch: &HostBatch,
    rows: Range<usize>,
    logits: &CpuMatrix,
    gradient: &mut CpuMatrix,
    sums: &mut CpuMatrix,
    weight_of: impl Fn(f32) -> f32 + Sync,
    loss_of: impl Fn(f32, f32) -> (f32, f32) + Sync,
) {
    let column = task.label;
    assert!(column < logits.columns() && column < gradient.columns() && sums.columns() == 2);
    assert!(rows.len() <= logits.rows() && rows.len() <= gradient.rows());
    let labels = batch.labels(task.label);
    let weights_of = |rows: Range<usize>| {
        let labeled = labels[rows.clone()].iter().zip(&batch.weights()[rows]);
        labeled.map(|(&label, &weight)| weight * weight_of(label))
    };
    let sum_of = |rows| weights_of(rows).map(f64::from).sum::<f64>();
    let (weight_sum, weight_of_all) = (sum_of(rows.clone()), sum_of(0..batch.rows()));
    let scale = if weight_of_all > 0.0 { (task.weight / weight_of_all) as f32 } else { 0.0 };
    let mut scratch = cpu.scratch(rows.len());
    let losses = scratch.parts();
    let (float, stride) = (gradient.float(), gradient.stride());
    let gradients = gradient.parts();
    run!(cpu, tasks_for(rows.len(), ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows.len());
        // SAFETY: blocks of rows are disjoint.
        let (losses, gradients) =
            unsafe { (losses.get(block.clone()), gradients.get(block.start * stride..block.end * stride)) };
        let of_batch = rows.start + block.start..rows.start + block.end;
        let labels = &labels[of_batch.clone()];
        for (row, weight) in weights_of(of_batch).enumerate() {
            let (loss, gradient) = loss_of(logits.row(block.start + row)[column], labels[row]);
            losses[row] = weight * loss;
            gradients[row * stride + column] = float.round(weight * scale * gradient);
        }
    });
    let loss_sum: f64 = scratch.as_slice()[..rows.len()].iter().map(|&loss| f64::from(loss)).sum();
    let of_label = sums.stride() * task.label;
    for (sum, of_rows) in sums.as_mut_slice()[of_label..][..2].iter_mut().zip([loss_sum, weight_sum]) {
        *sum = (f64::from(*sum) + of_rows) as f32;
    }
}

/// `1 / (1 + exp(-x))`
pub(crate) fn sigmoid(cpu: &Cpu, rows: usize, logits: &CpuMatrix, out: &mut CpuMatrix) {
    assert!(logits.columns() == out.columns() && rows <= logits.rows() && rows <= out.rows());
    let (float, stride) = (out.float(), out.stride());
    let out = out.parts();
    run!(cpu, tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        let numbers = block.start * stride..block.end * stride;
        // SAFETY: blocks of rows are disjoint.
        let out = unsafe { out.get(numbers.clone()) };
        for (out, &logit) in out.iter_mut().zip(&logits.as_slice()[numbers]) {
            *out = float.round(1.0 / (1.0 + (-logit).exp()));
        }
    });
}
