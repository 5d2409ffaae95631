//! Steps that a device takes while the host is ahead of it.

use std::collections::VecDeque;

use millstream_backend::{Backend, BatchError, Scalar};

use super::Parts;
use super::scaling::{LossScale, Scaling};
use crate::loss::LossSum;

/// Steps that were in_flight and have not ended, and what the host is told of them.
pub(super) struct Steps<B: Backend> {
    /// So many may be in_flight before another one is.
    pub(super) ahead: usize,
    pub(super) in_flight: VecDeque<B::Report>,
    /// Of one on the host: sums `[T, 2]`, and then where the loss scale stands.
    numbers: Vec<B::Scalar>,
    /// What the sums say.
    pub(super) of_tasks: Vec<LossSum>,
}

/// Numbers that the host is told of a step: sums of each task, and where the loss scale stands.
pub(super) fn reported_numbers(tasks: usize, is_scaled: bool) -> usize {
    2 * tasks + if is_scaled { LossScale::NUMBERS } else { 0 }
}

impl<B: Backend> Steps<B> {
    pub(super) fn new(tasks: usize, parts: &Parts<B>) -> Self {
        let parameters = parts.network.parameters().stored();
        let counts = parameters.iter().any(|(spec, _)| spec.optimizer.is_some_and(|it| it.counts_steps()));
        Self {
            ahead: if counts && parts.scaling.is_some() { 0 } else { B::STEPS_AHEAD },
            in_flight: VecDeque::with_capacity(B::STEPS_AHEAD + 1),
            numbers: vec![B::Scalar::default(); reported_numbers(tasks, parts.scaling.is_some())],
            of_tasks: vec![LossSum::default(); tasks],
        }
    }

    pub(super) fn send(
        &mut self,
        backend: &B,
        idle: &mut Vec<B::Report>,
        batch: &B::Batch,
        sums: &B::Matrix,
        scaling: Option<&Scaling<B>>,
    ) {
        let mut report = idle.pop().expect("a report for each step that may be in_flight");
        match scaling {
            Some(scaling) => backend.send(batch, &[sums, &scaling.state], &mut report),
            None => backend.send(batch, &[sums], &mut report),
        }
        self.in_flight.push_back(report);
    }

    pub(super) fn receive(
        &mut self,
        backend: &B,
        idle: &mut Vec<B::Report>,
        scaling: Option<&mut Scaling<B>>,
    ) -> Result<(), BatchError> {
        let mut report = self.in_flight.pop_front().expect("a step that was in_flight");
        let received = backend.receive(&mut report, &mut self.numbers);
        idle.push(report);
        if received.is_err() {
            // They were not taken either, and say no more.
            for mut report in self.in_flight.drain(..) {
                let _ = backend.receive(&mut report, &mut self.numbers);
                idle.push(report);
            }
            return received;
        }
        let (sums, scale) = self.numbers.split_at(2 * self.of_tasks.len());
        for (sum, values) in self.of_tasks.iter_mut().zip(sums.chunks_exact(2)) {
            *sum = LossSum { loss: values[0].to_f64(), weight: values[1].to_f64() };
        }
        if let Some(scaling) = scaling {
            scaling.known = LossScale::of(scale);
        }
        Ok(())
    }
}
