//! Optimizers, as kernels see them: which formula, with which constants.

/// One optimizer's update of weights by their gradients: first what becomes of a gradient, then the formula.
///
/// ```text
/// g = min(max(scale * g, -clip), clip) + l2 * w
/// ```
///
/// `scale` is a number on the device, which operations take beside the update: it may follow from the gradients. Where
/// it is 0, the step is skipped: weights and state stay as they are, whatever the gradients are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// What it does to a weight.
    pub formula: Formula,
    /// The most that a gradient may be, either way; may be infinite.
    pub clip: f64,
    /// Of the penalty `l2 / 2 * w^2`, whose gradient joins the loss's; of tables, in the rows that are touched.
    pub l2: f64,
}

/// How a weight `w` follows from its gradient `g`.
///
/// Rows of a table that a batch does not touch keep their weights and state: so Adam and momentum are "lazy" there,
/// as `LazyAdam` of TensorFlow and `SparseAdam` of PyTorch are.
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
        /// What is kept of `m`.
        momentum: f64,
        /// Whether the step looks ahead.
        nesterov: bool,
    },
    /// `a += g^2; w -= learning_rate * g / (sqrt(a) + epsilon)`, state `a`
    Adagrad {
        /// Step size.
        learning_rate: f64,
        /// Keeps the quotient finite.
        epsilon: f64,
    },
    /// Adagrad with one accumulator a row, which takes the mean of the row's squares; Mudigere et al.,
    /// "Software-Hardware Co-design for Fast and Scalable Training of DLRMs", 2022, section 4.1.2. Of tables only.
    RowWiseAdagrad {
        /// Step size.
        learning_rate: f64,
        /// Keeps the quotient finite.
        epsilon: f64,
    },
    /// Kingma and Ba, 2015, Algorithm 1; with `weight_decay`, AdamW: Loshchilov and Hutter, 2019, Algorithm 2, as
    /// PyTorch has it. State `m`, `v`; `t` is the number of the step:
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
        /// What is kept of `m`.
        beta1: f64,
        /// What is kept of `v`.
        beta2: f64,
        /// Keeps the quotient finite.
        epsilon: f64,
        /// Share of the weight that a step of size 1 takes off it.
        weight_decay: f64,
        /// The number of the step, from 1.
        step: u64,
    },
    /// FTRL-Proximal, state `z`, `n`; McMahan et al. 2013, Algorithm 1, with the weight recomputed at
    /// once instead of at its next use, which gives the same numbers:
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

/// How a loss scale moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaling {
    /// What it is multiplied by after
    pub growth: f64,
    /// so many steps in a row without an overflow.
    pub growth_interval: u32,
    /// What it is multiplied by after an overflow.
    pub backoff: f64,
}

impl LossScaling {
    /// What gradients are multiplied by, and the state after it; see [`crate::ops::Unscale`]. A device rounds the
    /// scale by `round`.
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
    /// By the gradient as it is.
    fn from(formula: Formula) -> Self {
        Self { formula, clip: f64::INFINITY, l2: 0.0 }
    }
}

impl Formula {
    /// Numbers of state kept for each weight.
    pub fn states(&self) -> usize {
        match self {
            Self::Sgd { .. } | Self::RowWiseAdagrad { .. } => 0,
            Self::Momentum { .. } | Self::Adagrad { .. } => 1,
            Self::Adam { .. } | Self::Ftrl { .. } => 2,
        }
    }

    /// Numbers of state kept for each row of a table.
    pub fn row_states(&self) -> usize {
        match self {
            Self::RowWiseAdagrad { .. } => 1,
            _ => 0,
        }
    }
}

/// What Adam's step number makes of its constants.
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
