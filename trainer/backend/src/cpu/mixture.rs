//! Mixtures of experts: a softmax of each task's gate, and the experts' outputs summed by it.
//!
//! A row is worked on whole: its gates are a few numbers, and what its experts gave stays in the first-level cache
//! for all tasks. Inner loops go over the columns of one expert.

use crate::backend::MixtureShape;
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::vectors::product;
use crate::cpu::{Cpu, rows_of_task, tasks_for};

/// Batch rows of a task.
const ROWS: usize = 64;

/// Fills gates and mixtures.
pub(crate) fn forward(
    cpu: &Cpu,
    rows: usize,
    shape: MixtureShape,
    logits: &CpuMatrix,
    experts: &CpuMatrix,
    gates: &mut CpuMatrix,
    output: &mut CpuMatrix,
) {
    let MixtureShape { tasks, experts: count, width } = shape;
    assert!(logits.columns() == tasks * count && gates.columns() == tasks * count);
    assert!(experts.columns() == count * width && output.columns() == tasks * width);
    assert!([logits, experts, gates, output].iter().all(|matrix| rows <= matrix.rows()));
    let (gates_stride, output_stride) = (gates.stride(), output.stride());
    let (gates_float, output_float) = (gates.float(), output.float());
    let (gates, output) = (gates.parts(), output.parts());
    run!(cpu, tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let (gates, output) = unsafe {
            let gates = gates.get(block.start * gates_stride..block.end * gates_stride);
            (gates, output.get(block.start * output_stride..block.end * output_stride))
        };
        let out = gates.chunks_exact_mut(gates_stride).zip(output.chunks_exact_mut(output_stride));
        for (row, (gates, output)) in block.zip(out) {
            let (logits, experts) = (logits.row(row).chunks_exact(count), experts.row(row));
            let of_tasks = gates.chunks_exact_mut(count).zip(output.chunks_exact_mut(width));
            for (logits, (gates, output)) in logits.zip(of_tasks) {
                softmax(logits, gates);
                output.fill(0.0);
                for (&gate, expert) in gates.iter().zip(experts.chunks_exact(width)) {
                    add_times(gate, expert, output);
                }
                gates_float.round_all(gates);
                output_float.round_all(output);
            }
        }
    });
}

/// Fills the gradients by the gates' logits and by what the experts gave. `saved` are gates and experts.
///
/// With `s_e` the product of the gradient by a task's mixture and what expert `e` gave, that by its gate's logit is
/// `g_e (s_e - sum of g s)`; that by the expert is the sum over tasks of gate times gradient.
pub(crate) fn backward(
    cpu: &Cpu,
    rows: usize,
    shape: MixtureShape,
    (gates, experts): (&CpuMatrix, &CpuMatrix),
    output_gradient: &CpuMatrix,
    logits_gradient: &mut CpuMatrix,
    experts_gradient: &mut CpuMatrix,
) {
    let MixtureShape { tasks, experts: count, width } = shape;
    assert!(gates.columns() == tasks * count && logits_gradient.columns() == tasks * count);
    assert!(experts.columns() == count * width && experts_gradient.columns() == count * width);
    assert!(output_gradient.columns() == tasks * width && rows <= output_gradient.rows());
    assert!([gates, experts, logits_gradient, experts_gradient].iter().all(|matrix| rows <= matrix.rows()));
    let (logits_stride, experts_stride) = (logits_gradient.stride(), experts_gradient.stride());
    let (logits_float, experts_float) = (logits_gradient.float(), experts_gradient.float());
    let (by_logits, by_experts) = (logits_gradient.parts(), experts_gradient.parts());
    run!(cpu, tasks_for(rows, ROWS), |task| {
        let block = rows_of_task(task, ROWS, rows);
        // SAFETY: blocks of rows are disjoint.
        let (by_logits, by_experts) = unsafe {
            let by_logits = by_logits.get(block.start * logits_stride..block.end * logits_stride);
            (by_logits, by_experts.get(block.start * experts_stride..block.end * experts_stride))
        };
        let out = by_logits.chunks_exact_mut(logits_stride).zip(by_experts.chunks_exact_mut(experts_stride));
        for (row, (by_logits, by_experts)) in block.zip(out) {
            let experts = experts.row(row);
            by_experts.fill(0.0);
            let of_tasks =
                gates.row(row).chunks_exact(count).zip(output_gradient.row(row).chunks_exact(width));
            for ((gates, by_output), by_logits) in of_tasks.zip(by_logits.chunks_exact_mut(count)) {
                let places = experts.chunks_exact(width).zip(by_experts.chunks_exact_mut(width));
                let mut mean = 0.0;
                for ((&gate, by_logit), (expert, by_expert)) in gates.iter().zip(&mut *by_logits).zip(places)
                {
                    let product = product(by_output, expert);
                    *by_logit = product;
                    mean += gate * product;
                    add_times(gate, by_output, by_expert);
                }
                for (&gate, by_logit) in gates.iter().zip(by_logits) {
                    *by_logit = logits_float.round(gate * (*by_logit - mean));
                }
            }
            experts_float.round_all(&mut by_experts[..count * width]);
        }
    });
}

/// `exp(x - m) / sum of exp(x - m)`, where `m` is the largest `x`, so that nothing overflows.
#[inline(always)]
fn softmax(logits: &[f32], out: &mut [f32]) {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |largest, &x| largest.max(x));
    let mut sum = 0.0;
    for (out, x) in out.iter_mut().zip(logits) {
        *out = (x - largest).exp();
        sum += *out;
    }
    out.iter_mut().for_each(|out| *out /= sum);
}

/// `to += factor * from`
#[inline(always)]
fn add_times(factor: f32, from: &[f32], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}
