//! Optimizers: their constants, update formulas and initial state.

use millstream_backend::{Formula, TablePart, Update};

use crate::init::Init;
use crate::schedule::Step;
use crate::spec::{AdamSpec, OptimizerSpec};

/// An optimizer with validated constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    spec: OptimizerSpec,
}

/// An optimizer constant that is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{constant}` is {found}; expected {expected}")]
pub struct InvalidHyperparameter {
    /// Its key.
    pub constant: &'static str,
    /// Its value.
    pub found: f32,
    /// The valid range.
    pub expected: &'static str,
}

impl Optimizer {
    /// The optimizer described by `spec`.
    ///
    /// # Errors
    /// When a constant is out of range.
    pub fn new(spec: &OptimizerSpec) -> Result<Self, InvalidHyperparameter> {
        let (learning_rate, l2) = spec.common();
        positive("learning_rate", learning_rate)?;
        not_negative("l2", l2)?;
        match *spec {
            OptimizerSpec::Sgd { .. } => {}
            OptimizerSpec::Momentum { momentum, .. } => below_one("momentum", momentum)?,
            OptimizerSpec::Adagrad { initial_accumulator, epsilon, .. }
            | OptimizerSpec::RowWiseAdagrad { initial_accumulator, epsilon, .. } => {
                not_negative("initial_accumulator", initial_accumulator)?;
                not_negative("epsilon", epsilon)?;
                if initial_accumulator == 0.0 {
                    // A gradient of 0 would divide 0 by 0.
                    positive("epsilon", epsilon)?;
                }
            }
            OptimizerSpec::Adam(adam) => check_adam(&adam)?,
            OptimizerSpec::AdamW { adam, weight_decay } => {
                check_adam(&adam)?;
                not_negative("weight_decay", weight_decay)?;
            }
            OptimizerSpec::Ftrl { beta, l1, initial_accumulator, .. } => {
                not_negative("beta", beta)?;
                not_negative("l1", l1)?;
                not_negative("initial_accumulator", initial_accumulator)?;
            }
        }
        Ok(Self { spec: *spec })
    }

    /// The update of `step`, with gradients clipped to `clip`, which may be infinite.
    pub fn update(&self, step: Step, clip: f64) -> Update {
        Update { formula: self.formula(step), clip, l2: self.l2().into() }
    }

    /// Whether the update depends on the number of the step.
    pub fn counts_steps(&self) -> bool {
        matches!(self.spec, OptimizerSpec::Adam(_) | OptimizerSpec::AdamW { .. })
    }

    /// The L2 penalty that is added to the gradient.
    fn l2(&self) -> f32 {
        match self.spec {
            // Part of the formula.
            OptimizerSpec::Ftrl { .. } => 0.0,
            spec => spec.common().1,
        }
    }

    /// The formula and constants for `step`.
    pub fn formula(&self, step: Step) -> Formula {
        let rate = |learning_rate: f32| f64::from(learning_rate) * step.rate_factor;
        match self.spec {
            OptimizerSpec::Sgd { learning_rate, .. } => Formula::Sgd { learning_rate: rate(learning_rate) },
            OptimizerSpec::Momentum { learning_rate, momentum, nesterov, .. } => {
                Formula::Momentum { learning_rate: rate(learning_rate), momentum: momentum.into(), nesterov }
            }
            OptimizerSpec::Adagrad { learning_rate, epsilon, .. } => {
                Formula::Adagrad { learning_rate: rate(learning_rate), epsilon: epsilon.into() }
            }
            OptimizerSpec::RowWiseAdagrad { learning_rate, epsilon, .. } => {
                Formula::RowWiseAdagrad { learning_rate: rate(learning_rate), epsilon: epsilon.into() }
            }
            OptimizerSpec::Adam(adam) => adam_update(&adam, 0.0, step),
            OptimizerSpec::AdamW { adam, weight_decay } => adam_update(&adam, weight_decay, step),
            // FTRL's weights follow from the sum of all gradients and the current rate, so a schedule would
            // rescale what was learned earlier. Its rate decreases by itself, for each weight.
            OptimizerSpec::Ftrl { learning_rate, beta, l1, l2, .. } => Formula::Ftrl {
                learning_rate: learning_rate.into(),
                beta: beta.into(),
                l1: l1.into(),
                l2: l2.into(),
            },
        }
    }

    /// Each state array: its name in checkpoints and its part of a table.
    pub fn states(&self) -> &'static [(&'static str, TablePart)] {
        use TablePart::{RowState, State};
        match self.spec {
            OptimizerSpec::Sgd { .. } => &[],
            OptimizerSpec::Momentum { .. } => &[("momentum", State(0))],
            OptimizerSpec::Adagrad { .. } => &[("accumulator", State(0))],
            OptimizerSpec::RowWiseAdagrad { .. } => &[("accumulator", RowState(0))],
            OptimizerSpec::Adam { .. } | OptimizerSpec::AdamW { .. } => &[("m", State(0)), ("v", State(1))],
            OptimizerSpec::Ftrl { .. } => &[("z", State(0)), ("n", State(1))],
        }
    }

    /// The initial values of a state array.
    pub fn initial_state(&self, part: TablePart) -> Init {
        match (self.spec, part) {
            (
                OptimizerSpec::Adagrad { initial_accumulator, .. }
                | OptimizerSpec::RowWiseAdagrad { initial_accumulator, .. },
                _,
            )
            | (OptimizerSpec::Ftrl { initial_accumulator, .. }, TablePart::State(1)) => {
                Init::Constant(initial_accumulator)
            }
            _ => Init::Zeros,
        }
    }

    /// The state array that determines a weight, if any, and its value for an initial weight, such that
    /// training continues from that weight.
    ///
    /// This is FTRL's `z`: its formula for `w`, solved for `z`. A weight of 0 corresponds to a zero gradient
    /// sum.
    pub fn state_by_weight(&self) -> Option<(TablePart, impl Fn(f64) -> f64 + use<>)> {
        let OptimizerSpec::Ftrl { learning_rate, beta, l1, l2, initial_accumulator } = self.spec else {
            return None;
        };
        let [rate, beta, l1, l2, n] = [learning_rate, beta, l1, l2, initial_accumulator].map(f64::from);
        let divisor = (beta + n.sqrt()) / rate + l2;
        let z = move |weight: f64| {
            if weight == 0.0 { 0.0 } else { -weight * divisor - l1.copysign(weight) }
        };
        Some((TablePart::State(0), z))
    }

    /// Whether it has state per row, which only embeddings support.
    pub fn is_row_wise(&self) -> bool {
        matches!(self.spec, OptimizerSpec::RowWiseAdagrad { .. })
    }
}

fn check_adam(adam: &AdamSpec) -> Result<(), InvalidHyperparameter> {
    below_one("beta1", adam.beta1)?;
    below_one("beta2", adam.beta2)?;
    // A gradient of 0 would divide 0 by 0.
    positive("epsilon", adam.epsilon)
}

fn adam_update(adam: &AdamSpec, weight_decay: f32, step: Step) -> Formula {
    Formula::Adam {
        learning_rate: f64::from(adam.learning_rate) * step.rate_factor,
        beta1: adam.beta1.into(),
        beta2: adam.beta2.into(),
        epsilon: adam.epsilon.into(),
        weight_decay: weight_decay.into(),
        step: step.number,
    }
}

fn below_one(constant: &'static str, found: f32) -> Result<(), InvalidHyperparameter> {
    check(constant, found, (0.0..1.0).contains(&found), "a number of at least 0 and below 1")
}

fn positive(constant: &'static str, found: f32) -> Result<(), InvalidHyperparameter> {
    check(constant, found, found > 0.0 && found.is_finite(), "a number above 0")
}

fn not_negative(constant: &'static str, found: f32) -> Result<(), InvalidHyperparameter> {
    check(constant, found, found >= 0.0 && found.is_finite(), "a number of at least 0")
}

fn check(
    constant: &'static str,
    found: f32,
    is_good: bool,
    expected: &'static str,
) -> Result<(), InvalidHyperparameter> {
    if is_good { Ok(()) } else { Err(InvalidHyperparameter { constant, found, expected }) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn constants_out_of_range_are_refused() {
        let bad = |spec| Optimizer::new(&spec).unwrap_err().constant;
        for learning_rate in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(bad(OptimizerSpec::Sgd { learning_rate, l2: 0.0 }), "learning_rate");
        }
        let adagrad = |initial_accumulator, epsilon| OptimizerSpec::Adagrad {
            learning_rate: 0.1,
            initial_accumulator,
            epsilon,
            l2: 0.0,
        };
        assert_eq!(bad(adagrad(-0.1, 1e-7)), "initial_accumulator");
        assert_eq!(bad(adagrad(0.0, 0.0)), "epsilon");
        assert!(Optimizer::new(&adagrad(0.1, 0.0)).is_ok());
        let l1 = -1.0;
        let ftrl =
            OptimizerSpec::Ftrl { learning_rate: 0.1, beta: 0.0, l1, l2: 0.0, initial_accumulator: 0.1 };
        assert_eq!(bad(ftrl), "l1");
        let momentum =
            |momentum| OptimizerSpec::Momentum { learning_rate: 0.1, momentum, nesterov: false, l2: 0.0 };
        for constant in [1.0, -0.5, f32::NAN] {
            assert_eq!(bad(momentum(constant)), "momentum");
        }
        let adam = AdamSpec { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, l2: 0.0 };
        assert_eq!(bad(OptimizerSpec::Adam(AdamSpec { beta2: 1.0, ..adam })), "beta2");
        assert_eq!(bad(OptimizerSpec::Adam(AdamSpec { epsilon: 0.0, ..adam })), "epsilon");
        assert_eq!(bad(OptimizerSpec::AdamW { adam, weight_decay: -1.0 }), "weight_decay");
    }

    #[test]
    fn a_schedule_changes_every_rate_except_that_of_ftrl() {
        let late = Step { number: 9, rate_factor: 0.25 };
        let sgd = Optimizer::new(&OptimizerSpec::Sgd { learning_rate: 0.5, l2: 0.0 }).unwrap();
        assert_eq!(sgd.formula(late), Formula::Sgd { learning_rate: 0.125 });
        let (learning_rate, initial_accumulator) = (0.5, 0.0);
        let ftrl = OptimizerSpec::Ftrl { learning_rate, beta: 1.0, l1: 0.0, l2: 0.0, initial_accumulator };
        let ftrl = Optimizer::new(&ftrl).unwrap();
        assert_eq!(ftrl.formula(late), ftrl.formula(Step::number(9)));
    }

    #[test]
    fn ftrl_reproduces_the_weight_of_a_derived_state() {
        let (rate, beta, l1, l2, n) = (0.5, 1.0, 0.25, 0.125, 0.0625);
        let spec = OptimizerSpec::Ftrl { learning_rate: rate, beta, l1, l2, initial_accumulator: n };
        let (_, state_of) = Optimizer::new(&spec).unwrap().state_by_weight().unwrap();
        let [rate, beta, l1, l2, n] = [rate, beta, l1, l2, n].map(f64::from);
        for weight in [0.75, -0.001, 0.0, 3.0] {
            let z: f64 = state_of(weight);
            let again =
                if z.abs() <= l1 { 0.0 } else { (l1.copysign(z) - z) / ((beta + n.sqrt()) / rate + l2) };
            assert!((again - weight).abs() < 1e-12, "{weight} became {again}");
        }
    }

    #[test]
    fn the_number_of_states_matches_the_update() {
        let adam = AdamSpec { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, l2: 0.0 };
        let specs = [
            OptimizerSpec::Sgd { learning_rate: 0.1, l2: 0.0 },
            OptimizerSpec::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: true, l2: 0.0 },
            OptimizerSpec::RowWiseAdagrad {
                learning_rate: 0.1,
                initial_accumulator: 0.1,
                epsilon: 1e-7,
                l2: 0.0,
            },
            OptimizerSpec::Adam(adam),
            OptimizerSpec::AdamW { adam, weight_decay: 0.01 },
            OptimizerSpec::Adagrad { learning_rate: 0.1, initial_accumulator: 0.1, epsilon: 1e-7, l2: 0.0 },
            OptimizerSpec::Ftrl { learning_rate: 0.1, beta: 1.0, l1: 0.0, l2: 0.0, initial_accumulator: 0.0 },
        ];
        for spec in specs {
            let optimizer = Optimizer::new(&spec).unwrap();
            let update = optimizer.formula(Step::number(1));
            let of_rows =
                optimizer.states().iter().filter(|(_, part)| matches!(part, TablePart::RowState(_)));
            let (of_rows, all) = (of_rows.count(), optimizer.states().len());
            assert_eq!((all - of_rows, of_rows), (update.states(), update.row_states()));
            assert_eq!(optimizer.is_row_wise(), of_rows > 0);
        }
    }
}
