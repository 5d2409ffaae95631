//! The settings of learning rate schedules.

use serde::{Deserialize, Serialize};

/// A factor of every learning rate, depending on the number of the step. FTRL is exempt, because its rates
/// decrease by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScheduleSpec {
    /// Steps of linear warm-up: the factor is `n / warmup_steps` at step `n` of them.
    pub warmup_steps: u64,
    /// The decay, counted from the first step after the warm-up.
    pub decay: DecaySpec,
}

/// The decay of the factor from 1; `t` is the number of steps since the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DecaySpec {
    /// Constant.
    #[default]
    Constant,
    /// `factor ^ floor(t / every_steps)`
    Step {
        /// Steps between changes.
        every_steps: u64,
        /// The factor of each change.
        factor: f32,
    },
    /// `factor ^ (t / every_steps)`
    Exponential {
        /// Steps over which the rate changes by `factor`.
        every_steps: u64,
        /// The factor over that many steps.
        factor: f32,
    },
    /// `end + (1 - end) (1 + cos(pi t / steps)) / 2`, then `end`; Loshchilov and Hutter, "SGDR", 2017, without
    /// restarts.
    Cosine {
        /// Steps until the end.
        steps: u64,
        /// The final factor.
        end: f32,
    },
    /// `end + (1 - end) (1 - t / steps) ^ power`, then `end`.
    Polynomial {
        /// Steps until the end.
        steps: u64,
        /// 1 for a straight line.
        power: f32,
        /// The final factor.
        end: f32,
    },
}
