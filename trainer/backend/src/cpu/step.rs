//! Optimizer steps on whole matrices.

use crate::cpu::matrix::CpuMatrix;
use crate::cpu::memory::Parts;
use crate::cpu::rules::{ByRule, Rule, by_rule_of};
use crate::cpu::shaping::Shaping;
use crate::cpu::{Cpu, rows_of_task, tasks_for};
use crate::ops::Step;

/// Numbers of a task.
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
        assert!(!R::ROW_STATE, "a formula over single weights");
        assert_eq!(states.len(), R::STATES, "a state matrix for each that the update keeps");
        let shape = |matrix: &CpuMatrix| (matrix.rows(), matrix.columns());
        assert!(
            shape(weights) == shape(gradient) && states.iter().all(|state| shape(state) == shape(weights))
        );
        // What lies between rows is stepped along with them: it starts as zeros, has a gradient of zero and
        // is never read.
        let gradient = gradient.as_slice();
        let weights = weights.parts();
        let [first, second] = states_of(states);
        run!(cpu, tasks_for(gradient.len(), NUMBERS), |task| {
            let part = rows_of_task(task, NUMBERS, gradient.len());
            let gradient = &gradient[part.clone()];
            // SAFETY: the team runs each task once, and its part starts at a multiple of its number.
            let weights = unsafe { weights.get(part.clone()) };
            // SAFETY: as above.
            let first = unsafe { first.get(if R::STATES > 0 { part.clone() } else { 0..0 }) };
            // SAFETY: as above.
            let second = unsafe { second.get(if R::STATES > 1 { part } else { 0..0 }) };
            for (item, (w, &g)) in weights.iter_mut().zip(gradient).enumerate() {
                let state = [
                    if R::STATES > 0 { first[item] } else { 0.0 },
                    if R::STATES > 1 { second[item] } else { 0.0 },
                ];
                let (next, state) = rule.next(*w, state, shaping.of(g, *w));
                *w = next;
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

/// The state matrices' memory, empty where there is none.
fn states_of(states: &mut [CpuMatrix]) -> [Parts<'_, f32>; 2] {
    let mut parts = states.iter_mut().map(CpuMatrix::parts);
    let mut next = || parts.next().unwrap_or_else(|| Parts::new(&mut []));
    [next(), next()]
}
