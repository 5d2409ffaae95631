//! Steps in flight: those that the host has submitted and the device has not completed.

use std::collections::VecDeque;

use millstream_backend::{Backend, BatchError, Scalar};

use super::Parts;
use super::scaling::{LossScale, Scaling};
use crate::loss::LossSum;

/// The steps in flight and their reports.
pub(super) struct Steps<B: Backend> {
    /// The maximum number of steps in flight when another one is submitted.
    pub(super) ahead: usize,
    pub(super) in_flight: VecDeque<B::Report>,
    /// The report of one step on the host: sums `[T, 2]`, then the state of the loss scale.
    numbers: Vec<B::Scalar>,
    /// The sums as losses by task.
    pub(super) of_tasks: Vec<LossSum>,
}

/// Number of values in the report of a step: sums of each task, and the state of the loss scale.
pub(super) fn reported_numbers(tasks: usize, is_scaled: bool) -> usize {
    2 * tasks + if is_scaled { LossScale::NUMBERS } else { 0 }
}

impl<B: Backend> Steps<B> {
    pub(super) fn new(tasks: usize, parts: &mut Parts<B>) -> Self {
        let parameters = parts.network.parameters();
        let counts = parameters.iter().any(|it| it.spec.optimizer.is_some_and(|it| it.counts_steps()));
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
        let mut report = idle.pop().expect("one report per step in flight");
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
        let mut report = self.in_flight.pop_front().expect("a step is in flight");
        let received = backend.receive(&mut report, &mut self.numbers);
        idle.push(report);
        if received.is_err() {
            // Those steps were not taken either; their reports are dropped.
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
