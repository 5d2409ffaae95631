//! Optimizers, as kernels see them: a formula and its constants.

/// One optimizer's update of weights by their gradients: first the gradient is shaped, then the formula is applied.
///
/// ```text
/// g = min(max(scale * g, -clip), clip) + l2 * w
/// ```
///
/// `scale` is a number on the device, passed to operations separately because it may depend on the gradients. If it
/// is 0, the step is skipped: weights and state stay unchanged, whatever the gradients are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// How a weight is updated.
    pub formula: Formula,
    /// The bound of a gradient's absolute value; may be infinite.
    pub clip: f64,
    /// The factor of the penalty `l2 / 2 * w^2`, whose gradient is added to the loss's; for tables, only in touched
    /// rows.
    pub l2: f64,
}

/// How a weight `w` is updated by its gradient `g`.
///
/// Rows of a table that a batch does not touch keep their weights and state: so Adam and momentum are "lazy" there,
/// like TensorFlow's `LazyAdam` and PyTorch's `SparseAdam`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Formula {
    /// `w -= learning_rate * g`
    Sgd {
        /// Step size.
        learning_rate: f64,
    },
    /// Polyak, 1964; with `nesterov`, Sutskever et al., 2013: state `m`
    ///
    /// ```text
    /// m = momentum * m + g
    /// w -= learning_rate * m, or learning_rate * (g + momentum * m)
    /// ```
    Momentum {
        /// Step size.
        learning_rate: f64,
        /// The decay factor of `m`.
        momentum: f64,
        /// Whether to use Nesterov's look-ahead.
        nesterov: bool,
    },
    /// `a += g^2; w -= learning_rate * g / (sqrt(a) + epsilon)`, state `a`
    Adagrad {
        /// Step size.
        learning_rate: f64,
        /// Keeps the quotient finite.
        epsilon: f64,
    },
    /// Adagrad with one accumulator per row, which accumulates the mean of the row's squares; Mudigere et al.,
    /// "Software-Hardware Co-design for Fast and Scalable Training of DLRMs", 2022, section 4.1.2. For tables only.
    RowWiseAdagrad {
        /// Step size.
        learning_rate: f64,
        /// Keeps the quotient finite.
        epsilon: f64,
    },
    /// Kingma and Ba, 2015, Algorithm 1; with `weight_decay`, AdamW: Loshchilov and Hutter, 2019, Algorithm 2, as
    /// PyTorch implements it. State `m`, `v`; `t` is the number of the step:
    ///
    /// ```text
    /// w -= learning_rate * weight_decay * w
    /// m = beta1 * m + (1 - beta1) * g
    /// v = beta2 * v + (1 - beta2) * g^2
    /// w -= learning_rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
    /// ```
    Adam {
        /// Step size.
        learning_rate: f64,
        /// The decay factor of `m`.
        beta1: f64,
        /// The decay factor of `v`.
        beta2: f64,
        /// Keeps the quotient finite.
        epsilon: f64,
        /// Decoupled weight decay: a step also subtracts `learning_rate * weight_decay * w`.
        weight_decay: f64,
        /// The number of the step, from 1.
        step: u64,
    },
    /// FTRL-Proximal, state `z`, `n`; McMahan et al. 2013, Algorithm 1, with the weight recomputed immediately
    /// instead of at its next use, which gives the same numbers:
    ///
    /// ```text
    /// sigma = (sqrt(n + g^2) - sqrt(n)) / learning_rate
    /// z += g - sigma * w
    /// n += g^2
    /// w = 0 if |z| <= l1, else (sign(z) * l1 - z) / ((beta + sqrt(n)) / learning_rate + l2)
    /// ```
    Ftrl {
        /// `alpha` in the paper.
        learning_rate: f64,
        /// `beta` in the paper.
        beta: f64,
        /// `lambda_1`
        l1: f64,
        /// `lambda_2`
        l2: f64,
    },
}

/// How the loss scale changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaling {
    /// The factor applied after `growth_interval` consecutive steps without overflow.
    pub growth: f64,
    /// The number of consecutive steps without overflow before the scale grows.
    pub growth_interval: u32,
    /// The factor applied after an overflow.
    pub backoff: f64,
}

impl LossScaling {
    /// The gradients' factor, and the next state; see [`crate::ops::Unscale`]. A device rounds the loss scale with
    /// `round`.
    pub(crate) fn unscale(
        &self,
        maximum: Option<f64>,
        squares: f64,
        [loss_scale, good_steps, skipped_steps]: [f64; 3],
        round: impl Fn(f64) -> f64,
    ) -> (f64, [f64; 3]) {
        if !squares.is_finite() {
            return (0.0, [round(loss_scale * self.backoff), 0.0, skipped_steps + 1.0]);
        }
        let norm = squares.sqrt() / loss_scale;
        let shortened = maximum.map_or(1.0, |maximum| if norm <= maximum { 1.0 } else { maximum / norm });
        let good_steps = good_steps + 1.0;
        let state = if good_steps < f64::from(self.growth_interval) {
            [loss_scale, good_steps, skipped_steps]
        } else {
            let grown = round(loss_scale * self.growth);
            [if grown.is_finite() { grown } else { loss_scale }, 0.0, skipped_steps]
        };
        (shortened / loss_scale, state)
    }
}

impl From<Formula> for Update {
    /// Without clipping or L2 penalty.
    fn from(formula: Formula) -> Self {
        Self { formula, clip: f64::INFINITY, l2: 0.0 }
    }
}

impl Formula {
    /// Values of state kept for each weight.
    pub fn states(&self) -> usize {
        match self {
            Self::Sgd { .. } | Self::RowWiseAdagrad { .. } => 0,
            Self::Momentum { .. } | Self::Adagrad { .. } => 1,
            Self::Adam { .. } | Self::Ftrl { .. } => 2,
        }
    }

    /// Values of state kept for each row of a table.
    pub fn row_states(&self) -> usize {
        match self {
            Self::RowWiseAdagrad { .. } => 1,
            _ => 0,
        }
    }
}

/// Adam's constants with the bias correction of a step.
pub(crate) struct AdamCorrection {
    /// `learning_rate / (1 - beta1^t)`
    pub(crate) rate: f64,
    /// `1 / sqrt(1 - beta2^t)`
    pub(crate) root_scale: f64,
}

impl AdamCorrection {
    pub(crate) fn new(learning_rate: f64, beta1: f64, beta2: f64, step: u64) -> Self {
        let step = step as f64;
        Self {
            rate: learning_rate / (1.0 - beta1.powf(step)),
            root_scale: 1.0 / (1.0 - beta2.powf(step)).sqrt(),
        }
    }
}
