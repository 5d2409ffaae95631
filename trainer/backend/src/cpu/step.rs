//! Optimizer steps on whole matrices.

use crate::cpu::Cpu;
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::parts::{Blocks, Rows};
use crate::cpu::rules::{ByRule, Rule, by_rule_of};
use crate::cpu::shaping::Shaping;
use crate::ops::Step;

/// Elements per task.
const NUMBERS: usize = 8192;

/// One optimizer step on a matrix.
pub(crate) fn step(cpu: &Cpu, operation: Step<'_, Cpu>) {
    let Step { update, scale, weights, states, grad: gradient } = operation;
    let shaping = Shaping::new(update, scale);
    if shaping.skips() {
        return;
    }
    by_rule_of(&update.formula, MatrixStep { cpu, shaping, weights, states, gradient });
}

struct MatrixStep<'a> {
    cpu: &'a Cpu,
    shaping: Shaping,
    weights: &'a mut CpuMatrix,
    states: &'a mut [CpuMatrix],
    gradient: &'a CpuMatrix,
}

impl ByRule for MatrixStep<'_> {
    fn by<R: Rule>(self, rule: R) {
        let Self { cpu, shaping, weights, states, gradient } = self;
        assert!(!R::ROW_STATE, "a formula without per-row state");
        assert_eq!(states.len(), R::STATES, "one matrix per state of the update");
        let shape = |matrix: &CpuMatrix| (matrix.rows(), matrix.columns());
        assert!(
            shape(weights) == shape(gradient) && states.iter().all(|state| shape(state) == shape(weights))
        );
        // The padding between rows is stepped as well: it starts as zeros, has a gradient of zero and is never
        // read.
        let gradient = gradient.as_slice();
        let blocks = Blocks::of(gradient.len(), NUMBERS);
        let [first, second] = states_of(states);
        let out = (Rows::of(weights.as_mut_slice(), 1), (first, second));
        run_blocks!(cpu, blocks, out, |block, (weights, (first, second))| {
            // Slices of equal length let the compiler drop bounds checks and vectorize.
            let gradient = &gradient[block];
            let weights = &mut weights[..gradient.len()];
            let first = &mut first[..if R::STATES > 0 { gradient.len() } else { 0 }];
            let second = &mut second[..if R::STATES > 1 { gradient.len() } else { 0 }];
            for item in 0..gradient.len() {
                let (w, g) = (weights[item], gradient[item]);
                let state = [
                    if R::STATES > 0 { first[item] } else { 0.0 },
                    if R::STATES > 1 { second[item] } else { 0.0 },
                ];
                let (next, state) = rule.next(w, state, shaping.of(g, w));
                weights[item] = next;
                if R::STATES > 0 {
                    first[item] = state[0];
                }
                if R::STATES > 1 {
                    second[item] = state[1];
                }
            }
        });
    }
}

/// The state matrices as single elements; empty where there is no state.
fn states_of(states: &mut [CpuMatrix]) -> [Rows<'_, f32>; 2] {
    let mut states = states.iter_mut().map(|state| Rows::of(state.as_mut_slice(), 1));
    let mut next = || states.next().unwrap_or_else(|| Rows::of(&mut [], 0));
    [next(), next()]
}
