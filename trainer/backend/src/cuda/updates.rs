//! Optimizer steps of matrices, and gradient norms.
//!
//! A model requests the steps of its matrices one by one. Consecutive steps are batched in one launch, because most
//! matrices are too small to be worth a launch each.

use std::sync::PoisonError;

use super::Cuda;
use super::buffers::CudaMatrix;
use super::commands::Commands;
use super::kernels::{
    ADD_UP, AddUp, QUAD, SET_SCALE, SQUARES, STEP, STEPS_AT_ONCE, Scale, Squares, Step, Steps, UpdateView,
};
use super::moves::quads;
use crate::ops::{self, ClipScale, Unscale};
use crate::update::{AdamCorrection, Formula, Update};

/// The most blocks of a sum of squares.
const MOST_BLOCKS: usize = 512;
/// Workspace of a sum of squares, in bytes.
pub(super) const SCRATCH_BYTES: usize = MOST_BLOCKS * size_of::<f32>();

/// The kernels' representation of an update: the kinds and constants of update.cuh.
pub(super) fn view(update: &Update) -> UpdateView {
    let (kind, learning_rate, constants) = match update.formula {
        Formula::Sgd { learning_rate } => (0, learning_rate, [0.0; 6]),
        Formula::Momentum { learning_rate, momentum, nesterov } => {
            (if nesterov { 2 } else { 1 }, learning_rate, [momentum, 0.0, 0.0, 0.0, 0.0, 0.0])
        }
        Formula::Adagrad { learning_rate, epsilon } => (3, learning_rate, [epsilon, 0.0, 0.0, 0.0, 0.0, 0.0]),
        Formula::RowWiseAdagrad { learning_rate, epsilon } => {
            (4, learning_rate, [epsilon, 0.0, 0.0, 0.0, 0.0, 0.0])
        }
        Formula::Adam { learning_rate, beta1, beta2, epsilon, weight_decay, step } => {
            let AdamCorrection { rate, root_scale } = AdamCorrection::new(learning_rate, beta1, beta2, step);
            (5, learning_rate, [beta1, beta2, epsilon, rate, root_scale, learning_rate * weight_decay])
        }
        Formula::Ftrl { learning_rate, beta, l1, l2 } => (6, learning_rate, [beta, l1, l2, 0.0, 0.0, 0.0]),
    };
    UpdateView {
        kind,
        learning_rate: learning_rate as f32,
        constants: constants.map(|constant| constant as f32),
        clip: update.clip as f32,
        l2: update.l2 as f32,
    }
}

impl Cuda {
    pub(super) fn step(&self, operation: ops::Step<'_, Self>) {
        let ops::Step { update, scale, weights, states, grad } = operation;
        let state = |number: usize| states.get(number).map(CudaMatrix::view).unwrap_or_default();
        let step = Step {
            update: view(update),
            weights: weights.view(),
            first: state(0),
            second: state(1),
            gradient: grad.view(),
            scale: scale.numbers(),
            fault: self.fault(),
            rows: weights.rows() as u32,
            unused: 0,
        };
        if step.rows == 0 || step.weights.columns == 0 {
            return;
        }
        let steps = || self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        // The steps of one launch run at the same time, so no two may have the same weights.
        let is_repeated = steps().iter().any(|pending| pending.weights.data == step.weights.data);
        if is_repeated || steps().len() == STEPS_AT_ONCE {
            drop(self.commands());
        }
        steps().push(step);
        // The pending steps hold addresses, so their memory must not be freed.
        self.context().fall_behind();
    }

    /// Enqueues the batched steps.
    pub(super) fn put_steps(&self, commands: &mut Commands) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.is_empty() {
            return;
        }
        let blocks = |step: &Step| {
            let [threads, _] = quads(step.rows as usize, step.weights.columns as usize);
            threads.div_ceil(STEP.threads as usize)
        };
        let blocks = [steps.iter().map(blocks).max().unwrap_or(0), steps.len()];
        // Entries past the last step are unused; they repeat it.
        let of = std::array::from_fn(|number| steps[number.min(steps.len() - 1)]);
        self.put_blocks(commands, STEP, blocks, &Steps { of });
        steps.clear();
    }

    pub(super) fn squares(&self, operation: ops::Squares<'_, Self>) {
        let ops::Squares { grad, sum } = operation;
        let quads = grad.rows() * grad.columns().div_ceil(QUAD as usize);
        let blocks = quads.div_ceil(SQUARES.threads as usize).min(MOST_BLOCKS);
        let partials = self.scratch(SCRATCH_BYTES);
        let squares = Squares { matrix: grad.view(), partials, rows: grad.rows() as u32, unused: 0 };
        self.launch_blocks(SQUARES, [blocks, 1], &squares);
        let add_up = AddUp { partials, sum: sum.numbers(), count: blocks as u32, unused: 0 };
        self.launch_blocks(ADD_UP, [1, 1], &add_up);
    }

    pub(super) fn clip_scale(&self, operation: ClipScale<'_, Self>) {
        let ClipScale { maximum, squares, scale } = operation;
        let arguments = Scale {
            squares: squares.numbers(),
            scale: scale.numbers(),
            fault: self.fault(),
            maximum: maximum as f32,
            ..Scale::default()
        };
        self.launch_blocks(SET_SCALE, [1, 1], &arguments);
    }

    pub(super) fn unscale(&self, operation: Unscale<'_, Self>) {
        let Unscale { rule, maximum, squares, state, scale } = operation;
        let arguments = Scale {
            squares: squares.numbers(),
            scale: scale.numbers(),
            state: state.numbers(),
            fault: self.fault(),
            growth: rule.growth as f32,
            backoff: rule.backoff as f32,
            maximum: maximum.map_or(f32::INFINITY, |maximum| maximum as f32),
            growth_interval: rule.growth_interval,
        };
        self.launch_blocks(SET_SCALE, [1, 1], &arguments);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{alone, calls};
    use super::*;
    use crate::{Backend, Device, ops};

    /// Matrices of 1 to `count` columns, each with its own learning rate.
    fn matrices(cuda: &Cuda, count: usize) -> Vec<(CudaMatrix, CudaMatrix, Update)> {
        let matrix = |columns: usize, number: f32| {
            let mut matrix = cuda.matrix(3, columns);
            cuda.write_matrix(&mut matrix, &vec![number; 3 * columns]);
            matrix
        };
        let rate = |number: usize| Formula::Sgd { learning_rate: 0.5_f64.powi(number as i32 % 5) };
        (1..=count)
            .map(|number| (matrix(number, number as f32), matrix(number, -1.0), rate(number).into()))
            .collect()
    }

    #[test]
    fn steps_in_a_row_are_one_launch() {
        let (stand_in, cuda) = alone();
        let mut scale = cuda.matrix(1, 1);
        cuda.write_matrix(&mut scale, &[1.0]);
        let mut all = matrices(&cuda, 2 * STEPS_AT_ONCE + 3);
        let mut none = cuda.matrix(0, 5);
        let empty = cuda.matrix(0, 5);
        cuda.flush();
        let before = calls(&stand_in, c"cuLaunchKernel");
        for (weights, gradient, update) in &mut all {
            cuda.run(ops::Step { update, scale: &scale, weights, states: &mut [], grad: gradient });
            cuda.run(ops::Step { update, scale: &scale, weights: &mut none, states: &mut [], grad: &empty });
        }
        cuda.flush();
        assert_eq!(calls(&stand_in, c"cuLaunchKernel") - before, 3);
        for (weights, _, update) in &all {
            let columns = weights.columns();
            let mut found = vec![0.0; 3 * columns];
            cuda.read_matrix(weights, &mut found);
            let Formula::Sgd { learning_rate } = update.formula else { panic!("{update:?}") };
            assert_eq!(found, vec![columns as f32 + learning_rate as f32; 3 * columns]);
        }
    }

    /// The steps of one launch run at the same time, so one of them would read weights that another one writes.
    #[test]
    fn steps_of_the_same_weights_are_launched_one_after_the_other() {
        let (stand_in, cuda) = alone();
        let mut scale = cuda.matrix(1, 1);
        cuda.write_matrix(&mut scale, &[1.0]);
        let mut all = matrices(&cuda, 2);
        cuda.flush();
        let before = calls(&stand_in, c"cuLaunchKernel");
        for _ in 0..3 {
            for (weights, gradient, update) in &mut all {
                cuda.run(ops::Step { update, scale: &scale, weights, states: &mut [], grad: gradient });
            }
        }
        cuda.flush();
        assert_eq!(calls(&stand_in, c"cuLaunchKernel") - before, 3);
        let mut found = [0.0; 3];
        cuda.read_matrix(&all[0].0, &mut found);
        // 1 + 3 * 0.5
        assert_eq!(found, [2.5; 3]);
    }

    #[test]
    fn a_step_comes_before_what_was_asked_for_after_it() {
        let (_stand_in, cuda) = alone();
        let mut scale = cuda.matrix(1, 1);
        cuda.write_matrix(&mut scale, &[1.0]);
        let mut all = matrices(&cuda, 2);
        let mut sum = cuda.matrix(3, 1);
        for _ in 0..3 {
            let (weights, gradient, update) = &mut all[0];
            cuda.run(ops::Step { update, scale: &scale, weights, states: &mut [], grad: gradient });
            cuda.run(ops::Add { rows: 3, from: weights, to: &mut sum });
        }
        drop(all);
        let mut found = [0.0; 3];
        cuda.read_matrix(&sum, &mut found);
        // 1.5 + 2 + 2.5
        assert_eq!(found, [6.0; 3]);
    }
}
