//! Mixture of experts: a softmax per task gate, and the gated sum of the experts' outputs.
//!
//! Each row is processed as a whole: its gates are a few values, and its expert outputs stay in the L1 cache for
//! all tasks. Inner loops run over the columns of one expert.

use crate::cpu::Cpu;
use crate::cpu::parts::Blocks;
use crate::cpu::vectors::{add_times, product};
use crate::ops::{MixtureBackward, MixtureForward, MixtureShape};

/// Batch rows per task.
const ROWS: usize = 64;

/// Computes gates and mixtures.
pub(crate) fn forward(cpu: &Cpu, operation: MixtureForward<'_, Cpu>) {
    let MixtureForward { rows, shape, logits, experts, gates, output } = operation;
    let MixtureShape { experts: count, width, .. } = shape;
    let (gates_stride, output_stride) = (gates.stride(), output.stride());
    let (gates_float, output_float) = (gates.float(), output.float());
    let out = (gates.by_rows(), output.by_rows());
    run_blocks!(cpu, Blocks::of(rows, ROWS), out, |block, (gates, output)| {
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

/// Computes the gradients with respect to the gate logits and the expert outputs. `saved` holds gates and experts.
///
/// Let `s_e` be the dot product of the gradient with respect to a task's mixture and the output of expert `e`. The
/// gradient with respect to the expert's gate logit is `g_e (s_e - sum of g s)`; with respect to the expert's
/// output it is the sum over tasks of gate times gradient.
pub(crate) fn backward(cpu: &Cpu, operation: MixtureBackward<'_, Cpu>) {
    let MixtureBackward { rows, shape, gates, experts, output_grad, logits_grad, experts_grad } = operation;
    let MixtureShape { experts: count, width, .. } = shape;
    let (logits_stride, experts_stride) = (logits_grad.stride(), experts_grad.stride());
    let (logits_float, experts_float) = (logits_grad.float(), experts_grad.float());
    let out = (logits_grad.by_rows(), experts_grad.by_rows());
    run_blocks!(cpu, Blocks::of(rows, ROWS), out, |block, (logits_grad, experts_grad)| {
        let out =
            logits_grad.chunks_exact_mut(logits_stride).zip(experts_grad.chunks_exact_mut(experts_stride));
        for (row, (logits_grad, experts_grad)) in block.zip(out) {
            let experts = experts.row(row);
            experts_grad.fill(0.0);
            let of_tasks = gates.row(row).chunks_exact(count).zip(output_grad.row(row).chunks_exact(width));
            for ((gates, output_grad), logits_grad) in of_tasks.zip(logits_grad.chunks_exact_mut(count)) {
                let places = experts.chunks_exact(width).zip(experts_grad.chunks_exact_mut(width));
                let mut mean = 0.0;
                for ((&gate, by_logit), (expert, by_expert)) in
                    gates.iter().zip(&mut *logits_grad).zip(places)
                {
                    let product = product(output_grad, expert);
                    *by_logit = product;
                    mean += gate * product;
                    add_times(gate, output_grad, by_expert);
                }
                for (&gate, by_logit) in gates.iter().zip(logits_grad) {
                    *by_logit = logits_float.round(gate * (*by_logit - mean));
                }
            }
            experts_float.round_all(&mut experts_grad[..count * width]);
        }
    });
}

/// `exp(x - m) / sum of exp(x - m)`, where `m` is the largest `x`, to avoid overflow.
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
