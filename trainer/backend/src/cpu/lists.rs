//! Losses that compare the rows of a list, which are the rows of the batch with the same id.
//!
//! The rows are sorted by id, and by their place within a list, so that a list is a range. Logits, labels and weights
//! are gathered in this order. The softmax of all lists costs an exponential per row and runs on one thread. Pairs cost
//! an exponential for each two rows of a list with different labels; each row sums over its pairs separately, so that
//! sums do not depend on the number of threads.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use crate::cpu::exp::exp;
use crate::cpu::logistic::{FACTORS, Logistic};
use crate::cpu::memory::LINE;
use crate::cpu::parts::{Blocks, Rows};
use crate::cpu::{Cpu, vectors};
use crate::ops::{Loss, TaskLoss};

/// Rows per task.
const ROWS: usize = 64;

/// The divided workspace. All parts but the first have one value per row.
struct Work<'a> {
    /// Each row's list, in the high half, and place.
    keys: &'a mut [u64],
    logits: &'a mut [f32],
    labels: &'a mut [f32],
    weights: &'a mut [f32],
    /// The weight of each of a row's pairs.
    shares: &'a mut [f32],
    losses: &'a mut [f32],
    gradient: &'a mut [f32],
}

/// The size of the workspace for `rows` rows, in floats.
pub(crate) fn numbers(rows: usize) -> usize {
    8 * rows
}

impl<'a> Work<'a> {
    fn of(memory: &'a mut [f32], rows: usize) -> Self {
        let (keys, rest) = memory[..numbers(rows)].split_at_mut(2 * rows);
        let (logits, rest) = rest.split_at_mut(rows);
        let (labels, rest) = rest.split_at_mut(rows);
        let (weights, rest) = rest.split_at_mut(rows);
        let (shares, rest) = rest.split_at_mut(rows);
        let (losses, gradient) = rest.split_at_mut(rows);
        let keys = <[u64]>::mut_from_bytes(keys.as_mut_bytes()).expect("memory aligned to cache lines");
        Self { keys, logits, labels, weights, shares, losses, gradient }
    }
}

/// The loss of lists that feature `group` identifies, and its gradient.
pub(crate) fn loss(cpu: &Cpu, operation: TaskLoss<'_, Cpu>, group: usize) {
    let TaskLoss { task, batch, rows, total, logits, logits_grad, sums } = operation;
    let (rows, column, float) = (rows.len(), task.label, logits_grad.float());
    let mut scratch = cpu.scratch(numbers(rows));
    let mut work = Work::of(scratch.as_mut_slice(), rows);
    for (place, (key, &id)) in work.keys.iter_mut().zip(batch.single_ids(group)).enumerate() {
        *key = u64::from(id) << 32 | place as u64;
    }
    work.keys.sort_unstable();
    for (at, &key) in work.keys.iter().enumerate() {
        let row = row_of(key);
        work.logits[at] = logits.row(row)[column];
        work.labels[at] = batch.labels(column)[row];
        work.weights[at] = batch.weights()[row];
    }
    let weight = match task.loss {
        Loss::Pairwise { .. } => pairwise(cpu, &mut work),
        _ => listwise(&mut work),
    };
    let total = total.unwrap_or(weight);
    let scale = if total > 0.0 { (task.weight / total) as f32 } else { 0.0 };
    let stride = logits_grad.stride();
    let gradient = logits_grad.as_mut_slice();
    for (&key, of_row) in work.keys.iter().zip(&*work.gradient) {
        gradient[row_of(key) * stride + column] = float.round(scale * of_row);
    }
    let loss: f64 = work.losses.iter().map(|&loss| f64::from(loss)).sum();
    let of_label = sums.stride() * column;
    for (sum, of_rows) in sums.as_mut_slice()[of_label..][..2].iter_mut().zip([loss, weight]) {
        *sum = (f64::from(*sum) + of_rows) as f32;
    }
}

/// The row of a key.
fn row_of(key: u64) -> usize {
    (key & u64::from(u32::MAX)) as usize
}

/// The places of the list of the row at `at`.
fn list_of(keys: &[u64], at: usize) -> Range<usize> {
    let id = keys[at] >> 32;
    keys.partition_point(|key| key >> 32 < id)..keys.partition_point(|key| key >> 32 <= id)
}

/// Writes weighted losses and the gradient of their sum. Returns the sum of weights.
fn listwise(work: &mut Work<'_>) -> f64 {
    let mut start = 0;
    let mut weight = 0.0;
    for list in work.keys.chunk_by(|a, b| a >> 32 == b >> 32) {
        let list = start..start + list.len();
        start = list.end;
        let targets = list.clone().map(|at| f64::from(work.weights[at]) * f64::from(work.labels[at]));
        let target = targets.sum::<f64>();
        weight += target;
        let (logits, gradient) = (&work.logits[list.clone()], &mut work.gradient[list.clone()]);
        let largest = logits.iter().fold(f32::NEG_INFINITY, |largest, &x| largest.max(x));
        for (gradient, x) in gradient.iter_mut().zip(logits) {
            *gradient = exp(x - largest);
        }
        let sum = vectors::sum(gradient, |x| x);
        let share = target as f32 / sum;
        for (gradient, at) in gradient.iter_mut().zip(list) {
            let target = work.weights[at] * work.labels[at];
            *gradient = share * *gradient - target;
            work.losses[at] = target * (sum.ln() + (largest - work.logits[at]));
        }
    }
    weight
}

/// As [`listwise`].
fn pairwise(cpu: &Cpu, work: &mut Work<'_>) -> f64 {
    let Work { keys, logits, labels, weights, shares, losses, gradient } = work;
    let (keys, logits, labels, weights) = (&**keys, &**logits, &**labels, &**weights);
    let rows = keys.len();
    run_blocks!(cpu, Blocks::of(rows, ROWS), Rows::of(shares, 1), |block, shares| {
        let mut list = 0..0;
        for (at, share) in block.zip(shares) {
            if at >= list.end {
                list = list_of(keys, at);
            }
            let below: u32 = labels[list.clone()].iter().map(|&label| u32::from(label < labels[at])).sum();
            *share = if below > 0 { weights[at] / below as f32 } else { 0.0 };
        }
    });
    let shares = &**shares;
    let out = (Rows::of(losses, 1), Rows::of(gradient, 1));
    run_blocks!(cpu, Blocks::of(rows, ROWS), out, |block, (losses, gradient)| {
        let mut list = 0..0;
        for ((at, loss), gradient) in block.zip(losses).zip(gradient) {
            if at >= list.end {
                list = list_of(keys, at);
            }
            let of_list = [logits, labels, shares].map(|numbers| &numbers[list.clone()]);
            let Pairs { loss: of_pairs, below, above } = pairs(of_list, logits[at], labels[at]);
            *loss = shares[at] * of_pairs;
            *gradient = above - shares[at] * below;
        }
    });
    let paired = shares.iter().zip(weights).filter(|(share, _)| **share > 0.0);
    paired.map(|(_, &weight)| f64::from(weight)).sum()
}

/// Sums over the pairs of a row.
struct Pairs {
    /// `log(1 + e^(x_j - x))` over the rows with a smaller label.
    loss: f32,
    /// The derivative with respect to `x_j`, `sigmoid(x_j - x)`, over the same.
    below: f32,
    /// `sigmoid(x - x_j)` times the row's share, over the rows with a larger label.
    above: f32,
}

/// The pairs of a row with this logit and label among the logits, labels and shares of its list.
#[inline(always)]
fn pairs([logits, labels, shares]: [&[f32]; 3], logit: f32, label: f32) -> Pairs {
    let (mut hinges, mut logs) = ([0.0_f32; LINE], [0.0_f32; LINE]);
    let (mut below, mut above) = ([0.0_f32; LINE], [0.0_f32; LINE]);
    let each = FACTORS * LINE;
    for ((logits, labels), shares) in logits.chunks(each).zip(labels.chunks(each)).zip(shares.chunks(each)) {
        let mut products = [1.0_f32; LINE];
        let lines = logits.chunks(LINE).zip(labels.chunks(LINE)).zip(shares.chunks(LINE));
        for ((logits, labels), shares) in lines {
            for lane in 0..logits.len() {
                let Logistic { hinge, factor, rising, falling } = Logistic::of(logits[lane] - logit);
                let (is_below, is_above) = (labels[lane] < label, labels[lane] > label);
                hinges[lane] += if is_below { hinge } else { 0.0 };
                products[lane] *= if is_below { factor } else { 1.0 };
                below[lane] += if is_below { rising } else { 0.0 };
                above[lane] += if is_above { shares[lane] * falling } else { 0.0 };
            }
        }
        for (log, product) in logs.iter_mut().zip(products) {
            *log += product.ln();
        }
    }
    let sum = |lanes: [f32; LINE]| lanes.into_iter().sum::<f32>();
    Pairs { loss: sum(hinges) + sum(logs), below: sum(below), above: sum(above) }
}
