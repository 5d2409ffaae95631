//! How learning rates change over the steps of a job.
//!
//! A schedule is a factor on every optimizer's own learning rate but FTRL's: it warms up in a straight line from nothing, then
//! decays. It is a function of the step's number alone, so a resumed job goes on where it was.

use std::f64::consts::PI;

use crate::spec::{DecaySpec, ScheduleSpec};

/// One optimizer step of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Its number, from 1.
    pub number: u64,
    /// What learning rates are multiplied by.
    pub rate_factor: f64,
}

impl Step {
    /// Step `number` at the learning rates as they are.
    pub fn number(number: u64) -> Self {
        Self { number, rate_factor: 1.0 }
    }
}

impl ScheduleSpec {
    /// Step `number`, from 1, of a job with this schedule.
    pub fn step(&self, number: u64) -> Step {
        Step { number, rate_factor: self.rate_factor(number) }
    }

    fn rate_factor(&self, number: u64) -> f64 {
        if number <= self.warmup_steps {
            return number as f64 / self.warmup_steps as f64;
        }
        // Steps behind the first one that is not of the warm-up.
        let passed = number - self.warmup_steps - 1;
        let share_of = |steps: u64| passed.min(steps) as f64 / steps as f64;
        match self.decay {
            DecaySpec::Constant => 1.0,
            DecaySpec::Step { every_steps, factor } => f64::from(factor).powf((passed / every_steps) as f64),
            DecaySpec::Exponential { every_steps, factor } => {
                f64::from(factor).powf(passed as f64 / every_steps as f64)
            }
            DecaySpec::Cosine { steps, end } => between(end, 0.5 * (1.0 + (PI * share_of(steps)).cos())),
            DecaySpec::Polynomial { steps, power, end } => {
                between(end, (1.0 - share_of(steps)).powf(power.into()))
            }
        }
    }
}

/// `end` at 0, and 1 at 1.
fn between(end: f32, share: f64) -> f64 {
    f64::from(end) + (1.0 - f64::from(end)) * share
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        schedule: ScheduleSpec,
        factors: Vec<f64>,
    }

    /// `golden/schedules.py` made them with torch.optim.lr_scheduler.
    #[test]
    fn factors_are_those_of_pytorch() {
        let golden: Vec<Golden> =
            serde_json::from_str(include_str!("../tests/golden/schedules.json")).unwrap();
        assert!(golden.len() >= 7);
        for Golden { schedule, factors } in golden {
            assert_eq!(factors.len(), 60);
            for (number, factor) in (1..).zip(factors) {
                let found = schedule.step(number).rate_factor;
                assert!((found - factor).abs() < 1e-12, "{schedule:?}, step {number}: {found}, not {factor}");
            }
        }
    }

    #[test]
    fn the_last_step_of_a_long_job_has_a_factor() {
        let decays = [
            DecaySpec::Constant,
            DecaySpec::Step { every_steps: 1, factor: 0.5 },
            DecaySpec::Exponential { every_steps: 1, factor: 0.5 },
            DecaySpec::Cosine { steps: 1, end: 0.0 },
            DecaySpec::Polynomial { steps: 1, power: 2.0, end: 0.25 },
        ];
        for decay in decays {
            let factor = ScheduleSpec { warmup_steps: 3, decay }.step(u64::MAX).rate_factor;
            assert!((0.0..=1.0).contains(&factor), "{decay:?}: {factor}");
        }
    }
}
