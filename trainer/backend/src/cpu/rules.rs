//! The optimizers' formulas for one weight; each gets separate kernels.

use crate::update::{AdamCorrection, Formula};

/// An optimizer's formula for one weight; kernels are compiled once for each.
pub(super) trait Rule: Copy + Sync {
    /// Values of state per weight, at most 2.
    const STATES: usize;
    /// Whether there is also one value of state per row.
    const ROW_STATE: bool = false;

    /// The next weight and state.
    fn next(self, w: f32, state: [f32; 2], g: f32) -> (f32, [f32; 2]);

    /// The formula for a row whose gradient has this mean square, and the row's next state.
    fn of_row(self, state: f32, _mean_square: f32) -> (Self, f32) {
        (self, state)
    }
}

/// Work that is generic over the rule, which is known only at run time.
pub(super) trait ByRule {
    /// Runs the work.
    fn by<R: Rule>(self, rule: R);
}

/// Runs `work` with the rule of `formula`.
pub(super) fn by_rule_of(formula: &Formula, work: impl ByRule) {
    match *formula {
        Formula::Sgd { learning_rate } => work.by(Sgd { rate: learning_rate as f32 }),
        Formula::Momentum { learning_rate, momentum, nesterov } => {
            let (rate, momentum) = (learning_rate as f32, momentum as f32);
            match nesterov {
                false => work.by(Momentum::<false> { rate, momentum }),
                true => work.by(Momentum::<true> { rate, momentum }),
            }
        }
        Formula::Adagrad { learning_rate, epsilon } => {
            work.by(Adagrad { rate: learning_rate as f32, epsilon: epsilon as f32 });
        }
        Formula::RowWiseAdagrad { learning_rate, epsilon } => {
            work.by(RowWiseAdagrad { rate: learning_rate as f32, epsilon: epsilon as f32 });
        }
        Formula::Adam { learning_rate, beta1, beta2, epsilon, weight_decay, step } => {
            let AdamCorrection { rate, root_scale } = AdamCorrection::new(learning_rate, beta1, beta2, step);
            work.by(Adam {
                rate: rate as f32,
                root_scale: root_scale as f32,
                beta1: beta1 as f32,
                gain1: (1.0 - beta1) as f32,
                beta2: beta2 as f32,
                gain2: (1.0 - beta2) as f32,
                epsilon: epsilon as f32,
                keep: (1.0 - learning_rate * weight_decay) as f32,
            });
        }
        Formula::Ftrl { learning_rate, beta, l1, l2 } => {
            work.by(Ftrl { rate: learning_rate as f32, beta: beta as f32, l1: l1 as f32, l2: l2 as f32 });
        }
    }
}

#[derive(Clone, Copy)]
struct Sgd {
    rate: f32,
}

#[derive(Clone, Copy)]
struct Momentum<const NESTEROV: bool> {
    rate: f32,
    momentum: f32,
}

#[derive(Clone, Copy)]
struct Adagrad {
    rate: f32,
    epsilon: f32,
}

/// `rate` is that of the row, after [`Rule::of_row`].
#[derive(Clone, Copy)]
struct RowWiseAdagrad {
    rate: f32,
    epsilon: f32,
}

#[derive(Clone, Copy)]
struct Adam {
    /// Includes this step's bias correction.
    rate: f32,
    root_scale: f32,
    beta1: f32,
    gain1: f32,
    beta2: f32,
    gain2: f32,
    epsilon: f32,
    /// The factor that weight decay applies to a weight.
    keep: f32,
}

#[derive(Clone, Copy)]
struct Ftrl {
    rate: f32,
    beta: f32,
    l1: f32,
    l2: f32,
}

impl Rule for Sgd {
    const STATES: usize = 0;

    #[inline(always)]
    fn next(self, w: f32, state: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        (w - self.rate * g, state)
    }
}

impl<const NESTEROV: bool> Rule for Momentum<NESTEROV> {
    const STATES: usize = 1;

    #[inline(always)]
    fn next(self, w: f32, [m, unused]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let m = self.momentum * m + g;
        let step = if NESTEROV { g + self.momentum * m } else { m };
        (w - self.rate * step, [m, unused])
    }
}

impl Rule for Adagrad {
    const STATES: usize = 1;

    #[inline(always)]
    fn next(self, w: f32, [a, unused]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let a = a + g * g;
        (w - self.rate * g / (a.sqrt() + self.epsilon), [a, unused])
    }
}

impl Rule for RowWiseAdagrad {
    const STATES: usize = 0;
    const ROW_STATE: bool = true;

    #[inline(always)]
    fn next(self, w: f32, state: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        (w - self.rate * g, state)
    }

    #[inline(always)]
    fn of_row(self, a: f32, mean_square: f32) -> (Self, f32) {
        let a = a + mean_square;
        (Self { rate: self.rate / (a.sqrt() + self.epsilon), ..self }, a)
    }
}

impl Rule for Adam {
    const STATES: usize = 2;

    #[inline(always)]
    fn next(self, w: f32, [m, v]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let m = self.beta1 * m + self.gain1 * g;
        let v = self.beta2 * v + self.gain2 * (g * g);
        (w * self.keep - self.rate * m / (v.sqrt() * self.root_scale + self.epsilon), [m, v])
    }
}

impl Rule for Ftrl {
    const STATES: usize = 2;

    /// `sqrt(n + g^2) - sqrt(n)` is computed as `g^2 / (sqrt(n + g^2) + sqrt(n))`, which loses no precision when
    /// `n` is large compared with `g^2`.
    #[inline(always)]
    fn next(self, w: f32, [z, n]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let squared = g * g;
        let n_next = n + squared;
        let root = n_next.sqrt();
        let difference = squared / (root + n.sqrt()).max(f32::MIN_POSITIVE);
        let z = z + (g - difference / self.rate * w);
        let shrunk = z.signum() * self.l1 - z;
        let w = shrunk / ((self.beta + root) / self.rate + self.l2);
        (if z.abs() <= self.l1 { 0.0 } else { w }, [z, n_next])
    }
}
