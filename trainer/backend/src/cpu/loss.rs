//! Losses with their gradients, and probabilities from logits: the sigmoid, and the softmax over classes.

use std::ops::Range;

use crate::cpu::exp::exp;
use crate::cpu::parts::{Blocks, Rows};
use crate::cpu::{Cpu, columns, lists, vectors};
use crate::float::Float;
use crate::ops::{Loss, Sigmoid, Softmax, TaskLoss};

/// Rows per task.
const ROWS: usize = 512;

/// A training task's loss and its gradient. Each row's loss is computed by one task of the team; they are summed in
/// order.
pub(crate) fn loss(cpu: &Cpu, operation: TaskLoss<'_, Cpu>) {
    let (column, float) = (operation.task.label, operation.logits_grad.float());
    match operation.task.loss {
        Loss::BinaryCrossEntropy { smoothing, positive_weight, negative_weight } => {
            let (keep, add) = ((1.0 - smoothing) as f32, (smoothing / 2.0) as f32);
            let (positive, negative) = (positive_weight as f32, negative_weight as f32);
            let weight = move |label: f32| label * positive + (1.0 - label) * negative;
            let loss = of_column(column, float, move |logit, label| {
                let label = label * keep + add;
                // e = exp(-|x|) is at most 1, so neither the loss nor the sigmoid overflows.
                let e = (-logit.abs()).exp();
                let probability = if logit >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
                (logit.max(0.0) - logit * label + e.ln_1p(), probability - label)
            });
            by_row(cpu, operation, weight, loss);
        }
        Loss::Focal { gamma, positive, negative } => {
            let (gamma, positive, negative) = (gamma as f32, positive as f32, negative as f32);
            let loss = of_column(column, float, move |logit, label| {
                let (of_one, slope_of_one) = focal(gamma, logit);
                let (of_zero, slope_of_zero) = focal(gamma, -logit);
                let (ones, zeros) = (label * positive, (1.0 - label) * negative);
                (ones * of_one + zeros * of_zero, ones * slope_of_one - zeros * slope_of_zero)
            });
            by_row(cpu, operation, |_| 1.0, loss);
        }
        Loss::SquaredError => {
            let weight = |_: f32| 1.0;
            let loss = of_column(column, float, |logit, label| {
                let difference = logit - label;
                (difference * difference, 2.0 * difference)
            });
            by_row(cpu, operation, weight, loss);
        }
        Loss::Huber { delta } => {
            let delta = delta as f32;
            let loss = of_column(column, float, move |logit, label| {
                let difference = logit - label;
                let gradient = difference.clamp(-delta, delta);
                (gradient * (difference - 0.5 * gradient), gradient)
            });
            by_row(cpu, operation, |_| 1.0, loss);
        }
        Loss::Quantile { quantile } => {
            let (rising, falling) = ((1.0 - quantile) as f32, -quantile as f32);
            let loss = of_column(column, float, move |logit, label| {
                let above = label - logit;
                let gradient = if above > 0.0 {
                    falling
                } else if above < 0.0 {
                    rising
                } else {
                    // 0 or NaN.
                    above
                };
                (-gradient * above, gradient)
            });
            by_row(cpu, operation, |_| 1.0, loss);
        }
        Loss::Poisson => by_row(cpu, operation, |_| 1.0, of_column(column, float, poisson)),
        Loss::Listwise { group } | Loss::Pairwise { group } => lists::loss(cpu, operation, group),
        Loss::CrossEntropy { smoothing, ref class_weights } => {
            let classes = class_weights.len();
            let (keep, add) = ((1.0 - smoothing) as f32, (smoothing / classes as f64) as f32);
            let weight = |label: f32| class_weights[label as usize] as f32;
            by_row(
                cpu,
                operation,
                weight,
                #[inline(always)]
                |logits, label, scale, gradients| {
                    let class = label as usize;
                    let (largest, sum) = softmax(logits, gradients);
                    // Subtract the maximum from both terms, to keep precision.
                    let others = add * vectors::sum(logits, |x| x - largest);
                    let loss = sum.ln() - keep * (logits[class] - largest) - others;
                    gradients.iter_mut().for_each(|gradient| *gradient -= add);
                    gradients[class] -= keep;
                    gradients.iter_mut().for_each(|gradient| *gradient = float.round(scale * *gradient));
                    loss
                },
            );
        }
    }
}

/// The loss of one logit column; `loss_of` returns the loss and its gradient.
fn of_column(
    column: usize,
    float: Float,
    loss_of: impl Fn(f32, f32) -> (f32, f32) + Sync,
) -> impl Fn(&[f32], f32, f32, &mut [f32]) -> f32 + Sync {
    move |logits, label, scale, gradients| {
        let (loss, gradient) = loss_of(logits[column], label);
        gradients[column] = float.round(scale * gradient);
        loss
    }
}

/// The focal loss of a row whose label has this logit, and its derivative with respect to it.
fn focal(gamma: f32, logit: f32) -> (f32, f32) {
    // As in the cross-entropy, nothing overflows.
    let e = (-logit.abs()).exp();
    let (small, large) = (e / (1.0 + e), 1.0 / (1.0 + e));
    let (of_label, of_other) = if logit >= 0.0 { (large, small) } else { (small, large) };
    let log = e.ln_1p();
    let cross_entropy = (-logit).max(0.0) + log;
    // The other label's probability to the power of gamma.
    let focus = (-gamma * (logit.max(0.0) + log)).exp();
    (focus * cross_entropy, -focus * (gamma * of_label * cross_entropy + of_other))
}

/// The Poisson deviance, and its gradient.
fn poisson(logit: f32, label: f32) -> (f32, f32) {
    const MOST: f32 = Loss::MAX_LOG_RATE as f32;
    let bounded = if logit > MOST { MOST } else { logit };
    let rate = bounded.exp();
    let ratio = bounded - label.ln();
    let half = if label == 0.0 {
        rate
    } else if ratio.abs() < 1.0 {
        // Without the cancellation of numbers near the label.
        label * (ratio.exp_m1() - ratio)
    } else {
        rate - label - label * ratio
    };
    let slope = rate - label;
    (2.0 * (half + (logit - bounded) * slope), 2.0 * slope)
}

/// Computes a loss row by row. `weight_of` maps a label to a factor of the row's weight. `loss_of` maps logits and
/// label to the loss; it also writes the gradient, multiplied by a scale.
fn by_row(
    cpu: &Cpu,
    operation: TaskLoss<'_, Cpu>,
    weight_of: impl Fn(f32) -> f32 + Sync,
    loss_of: impl Fn(&[f32], f32, f32, &mut [f32]) -> f32 + Sync,
) {
    let TaskLoss { task, batch, rows, total, logits, logits_grad: gradient, sums } = operation;
    let labels = batch.labels(task.label);
    let weights_of = |rows: Range<usize>| {
        let labeled = labels[rows.clone()].iter().zip(&batch.weights()[rows]);
        labeled.map(|(&label, &weight)| weight * weight_of(label))
    };
    let sum_of = |rows| weights_of(rows).map(f64::from).sum::<f64>();
    let weight_sum = sum_of(rows.clone());
    let total = total.unwrap_or_else(|| sum_of(0..batch.rows()));
    let scale = if total > 0.0 { (task.weight / total) as f32 } else { 0.0 };
    let mut scratch = cpu.scratch(rows.len());
    let (columns, stride) = (gradient.columns(), gradient.stride());
    let out = (Rows::of(scratch.as_mut_slice(), 1), gradient.by_rows());
    run_blocks!(cpu, Blocks::of(rows.len(), ROWS), out, |block, (losses, gradients)| {
        let of_batch = rows.start + block.start..rows.start + block.end;
        let labels = &labels[of_batch.clone()];
        for (row, weight) in weights_of(of_batch).enumerate() {
            let gradients = &mut gradients[row * stride..][..columns];
            losses[row] =
                weight * loss_of(logits.row(block.start + row), labels[row], weight * scale, gradients);
        }
    });
    let loss_sum: f64 = scratch.as_slice()[..rows.len()].iter().map(|&loss| f64::from(loss)).sum();
    let of_label = sums.stride() * task.label;
    for (sum, of_rows) in sums.as_mut_slice()[of_label..][..2].iter_mut().zip([loss_sum, weight_sum]) {
        *sum = (f64::from(*sum) + of_rows) as f32;
    }
}

/// `1 / (1 + exp(-x))`
pub(crate) fn sigmoid(cpu: &Cpu, operation: Sigmoid<'_, Cpu>) {
    let Sigmoid { rows, logits, out } = operation;
    let (float, stride) = (out.float(), out.stride());
    run_blocks!(cpu, Blocks::of(rows, ROWS), out.by_rows(), |block, out| {
        let numbers = block.start * stride..block.end * stride;
        for (out, &logit) in out.iter_mut().zip(&logits.as_slice()[numbers]) {
            *out = float.round(1.0 / (1.0 + (-logit).exp()));
        }
    });
}

/// `exp(x) / sum of exp(x)` of each row.
pub(crate) fn softmax_of_rows(cpu: &Cpu, operation: Softmax<'_, Cpu>) {
    let Softmax { rows, logits, out } = operation;
    run_rows!(cpu, rows, columns::ROWS, out, |row, out| {
        softmax(logits.row(row), out);
    });
}

/// `exp(x - m) / sum of exp(x - m)`, where `m` is the largest `x`, to avoid overflow; returns `m` and the sum.
#[inline(always)]
fn softmax(logits: &[f32], out: &mut [f32]) -> (f32, f32) {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |largest, &x| largest.max(x));
    for (out, x) in out.iter_mut().zip(logits) {
        *out = exp(x - largest);
    }
    let sum = vectors::sum(out, |x| x);
    out.iter_mut().for_each(|out| *out /= sum);
    (largest, sum)
}
