//! Optimizer steps of matrices, and how long gradients are.

use super::Cuda;
use super::buffers::CudaMatrix;
use super::kernels::{
    ADD_UP, AddUp, MatrixView, QUAD, SET_SCALE, SQUARES, STEP, Scale, Squares, Step, UpdateView,
};
use super::moves::quads;
use crate::update::{AdamCorrection, Formula, LossScaling, Update};

/// Blocks of a sum of squares, at most.
const MOST_BLOCKS: usize = 512;
/// Bytes of scratch that a sum of squares takes.
pub(super) const SCRATCH_BYTES: usize = MOST_BLOCKS * size_of::<f32>();

/// As kernels take it: kinds and constants of update.cuh.
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
    pub(super) fn step_all(
        &self,
        update: &Update,
        scale: &CudaMatrix,
        weights: &CudaMatrix,
        states: &[CudaMatrix],
        gradient: &CudaMatrix,
    ) {
        assert!(!matches!(update.formula, Formula::RowWiseAdagrad { .. }), "an update of whole rows");
        assert!(states.len() == update.formula.states(), "a state array for each that the update keeps");
        let alike = states.iter().chain([gradient]);
        let is_alike =
            |other: &CudaMatrix| (other.rows(), other.columns()) == (weights.rows(), weights.columns());
        assert!(alike.into_iter().all(is_alike), "matrices of one shape");
        let state = |number: usize| states.get(number).map_or(MatrixView::NULL, CudaMatrix::view);
        let step = Step {
            update: view(update),
            weights: weights.view(),
            first: state(0),
            second: state(1),
            gradient: gradient.view(),
            scale: scale.numbers(),
            rows: weights.rows() as u32,
            unused: 0,
        };
        self.launch(STEP, quads(weights.rows(), weights.columns()), &step);
    }

    pub(super) fn add_squares(&self, matrix: &CudaMatrix, sum: &CudaMatrix) {
        let quads = matrix.rows() * matrix.columns().div_ceil(QUAD as usize);
        let blocks = quads.div_ceil(SQUARES.threads as usize).min(MOST_BLOCKS);
        let partials = self.scratch(SCRATCH_BYTES);
        let squares = Squares { matrix: matrix.view(), partials, rows: matrix.rows() as u32, unused: 0 };
        self.launch_blocks(SQUARES, [blocks, 1], &squares);
        let add_up = AddUp { partials, sum: sum.numbers(), count: blocks as u32, unused: 0 };
        self.launch_blocks(ADD_UP, [1, 1], &add_up);
    }

    /// With a loss scale's rule and state, or without.
    pub(super) fn set_scale(
        &self,
        scaling: Option<(&LossScaling, &CudaMatrix)>,
        maximum: Option<f64>,
        squares: &CudaMatrix,
        scale: &CudaMatrix,
    ) {
        let rule = scaling.map(|(rule, _)| *rule);
        let rule = rule.unwrap_or(LossScaling { growth: 1.0, growth_interval: 1, backoff: 1.0 });
        let arguments = Scale {
            squares: squares.numbers(),
            scale: scale.numbers(),
            state: scaling.map_or(0, |(_, state)| state.numbers()),
            growth: rule.growth as f32,
            backoff: rule.backoff as f32,
            maximum: maximum.map_or(f32::INFINITY, |maximum| maximum as f32),
            growth_interval: rule.growth_interval,
        };
        self.launch_blocks(SET_SCALE, [1, 1], &arguments);
    }
}
