//! Mixture of experts, as in its equations.

use super::Reference;
use crate::ops::{MixtureBackward, MixtureForward, MixtureShape};

impl Reference {
    pub(super) fn mixture_forward(&self, operation: MixtureForward<'_, Self>) {
        let MixtureForward { rows, shape, logits, experts, gates, output } = operation;
        let MixtureShape { tasks, experts: count, width } = shape;
        for (row, task) in (0..rows).flat_map(|row| (0..tasks).map(move |task| (row, task))) {
            let logit = |expert| logits.at(row, task * count + expert);
            let largest = (0..count).map(logit).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = (0..count).map(|expert| (logit(expert) - largest).exp()).sum();
            for expert in 0..count {
                *gates.at_mut(row, task * count + expert) = (logit(expert) - largest).exp() / sum;
            }
            for column in 0..width {
                let gated =
                    |expert| gates.at(row, task * count + expert) * experts.at(row, expert * width + column);
                *output.at_mut(row, task * width + column) = (0..count).map(gated).sum();
            }
        }
        gates.round(rows);
        output.round(rows);
    }

    pub(super) fn mixture_backward(&self, operation: MixtureBackward<'_, Self>) {
        let MixtureBackward { rows, shape, gates, experts, output_grad, logits_grad, experts_grad } =
            operation;
        let MixtureShape { tasks, experts: count, width } = shape;
        for row in 0..rows {
            let gate = |task: usize, expert: usize| gates.at(row, task * count + expert);
            let output_grad = |task: usize, column: usize| output_grad.at(row, task * width + column);
            for (task, expert) in (0..tasks).flat_map(|task| (0..count).map(move |expert| (task, expert))) {
                let by_gate = |expert: usize| -> f64 {
                    (0..width)
                        .map(|column| output_grad(task, column) * experts.at(row, expert * width + column))
                        .sum()
                };
                // The derivative of a softmax: g_e (1 - g_e) with respect to its own logit, -g_e g_f with respect to
                // another.
                let logit_grad = (0..count).map(|other| {
                    let own = if other == expert { 1.0 } else { 0.0 };
                    by_gate(other) * gate(task, other) * (own - gate(task, expert))
                });
                *logits_grad.at_mut(row, task * count + expert) = logit_grad.sum();
            }
            for (expert, column) in
                (0..count).flat_map(|expert| (0..width).map(move |column| (expert, column)))
            {
                *experts_grad.at_mut(row, expert * width + column) =
                    (0..tasks).map(|task| gate(task, expert) * output_grad(task, column)).sum();
            }
        }
        logits_grad.round(rows);
        experts_grad.round(rows);
    }
}
