//! Learning-rate schedules, as a job asks for them.

use serde::{Deserialize, Serialize};

/// A factor on every learning rate but FTRL's, which falls by itself, by the number of the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScheduleSpec {
    /// Steps over which the factor grows from nothing to 1: it is `n / warmup_steps` at step `n` of them.
    pub warmup_steps: u64,
    /// What follows, counted from the first step after the warm-up.
    pub decay: DecaySpec,
}

/// How the factor changes from 1; `t` is the number of steps behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DecaySpec {
    /// Not at all.
    #[default]
    Constant,
    /// `factor ^ floor(t / every_steps)`
    Step {
        /// Steps from one change to the next.
        every_steps: u64,
        /// What each multiplies by.
        factor: f32,
    },
    /// `factor ^ (t / every_steps)`
    Exponential {
        /// Steps over which it changes by `factor`.
        every_steps: u64,
        /// What they multiply by.
        factor: f32,
    },
    /// `end + (1 - end) (1 + cos(pi t / steps)) / 2`, then `end`; Loshchilov and Hutter, "SGDR", 2017, without
    /// restarts.
    Cosine {
        /// Steps until the end.
        steps: u64,
        /// What it ends at.
        end: f32,
    },
    /// `end + (1 - end) (1 - t / steps) ^ power`, then `end`.
    Polynomial {
        /// Steps until the end.
        steps: u64,
        /// 1 for a straight line.
        power: f32,
        /// What it ends at.
        end: f32,
    },
}
