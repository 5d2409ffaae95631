//! The settings of optimizers.

use serde::{Deserialize, Serialize};

/// An optimizer and its constants.
///
/// `l2` is the factor of a penalty `l2 / 2 * w^2` on every weight: its gradient, `l2 * w`, is added to that
/// of the loss first (PyTorch calls this `weight_decay`). For embeddings it applies to the rows that a batch
/// touches. FTRL's `l2` does the same in closed form, over all steps at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OptimizerSpec {
    /// `w -= learning_rate * g`
    Sgd {
        /// Step size.
        learning_rate: f32,
        /// See [`OptimizerSpec`].
        #[serde(default)]
        l2: f32,
    },
    /// `m = momentum * m + g; w -= learning_rate * m`; with `nesterov`, the look-ahead of Sutskever et al.,
    /// 2013.
    Momentum {
        /// Step size.
        learning_rate: f32,
        /// The decay factor of `m`.
        momentum: f32,
        /// Whether to use Nesterov momentum.
        nesterov: bool,
        /// See [`OptimizerSpec`].
        #[serde(default)]
        l2: f32,
    },
    /// Duchi, Hazan and Singer, 2011: `a += g^2; w -= learning_rate * g / (sqrt(a) + epsilon)`.
    Adagrad {
        /// Step size.
        learning_rate: f32,
        /// The initial value of `a`.
        initial_accumulator: f32,
        /// Prevents division by zero.
        epsilon: f32,
        /// See [`OptimizerSpec`].
        #[serde(default)]
        l2: f32,
    },
    /// Adagrad with one accumulator for each row of an embedding; Mudigere et al., 2022.
    #[serde(rename = "rowwise_adagrad")]
    RowWiseAdagrad {
        /// Step size.
        learning_rate: f32,
        /// The initial value of an accumulator.
        initial_accumulator: f32,
        /// Prevents division by zero.
        epsilon: f32,
        /// See [`OptimizerSpec`].
        #[serde(default)]
        l2: f32,
    },
    /// Kingma and Ba, 2015.
    Adam(AdamSpec),
    /// Loshchilov and Hutter, 2019: Adam with decoupled weight decay.
    #[serde(rename = "adamw")]
    AdamW {
        /// The constants of Adam.
        #[serde(flatten)]
        adam: AdamSpec,
        /// The fraction of a weight that a step with learning rate 1 removes.
        weight_decay: f32,
    },
    /// FTRL-Proximal: McMahan et al., "Ad Click Prediction", 2013, Algorithm 1.
    Ftrl {
        /// `alpha` in the paper.
        learning_rate: f32,
        /// `beta` in the paper.
        beta: f32,
        /// `lambda_1`
        l1: f32,
        /// `lambda_2`
        l2: f32,
        /// The initial value of `n`.
        initial_accumulator: f32,
    },
}

impl OptimizerSpec {
    /// Its step size and `l2`.
    pub(crate) fn common(mut self) -> (f32, f32) {
        let (learning_rate, l2) = self.common_mut();
        (*learning_rate, *l2)
    }

    /// The same, to change them.
    pub(super) fn common_mut(&mut self) -> (&mut f32, &mut f32) {
        match self {
            Self::Sgd { learning_rate, l2 }
            | Self::Momentum { learning_rate, l2, .. }
            | Self::Adagrad { learning_rate, l2, .. }
            | Self::RowWiseAdagrad { learning_rate, l2, .. }
            | Self::Adam(AdamSpec { learning_rate, l2, .. })
            | Self::AdamW { adam: AdamSpec { learning_rate, l2, .. }, .. }
            | Self::Ftrl { learning_rate, l2, .. } => (learning_rate, l2),
        }
    }
}

/// The constants of Adam.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamSpec {
    /// Step size.
    pub learning_rate: f32,
    /// The decay factor of the mean of gradients.
    pub beta1: f32,
    /// The decay factor of the mean of squared gradients.
    pub beta2: f32,
    /// Prevents division by zero.
    pub epsilon: f32,
    /// See [`OptimizerSpec`].
    #[serde(default)]
    pub l2: f32,
}
