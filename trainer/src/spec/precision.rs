//! The mixed-precision policy: the format of every value in a step.

use millstream_backend::Float;
use serde::{Deserialize, Serialize};

/// The arithmetic precision of a step: a format for each kind of value.
///
/// | values | `fp32` | `bf16` | `fp16` |
/// |---|---|---|---|
/// | [non-embedding](super::TrainingSpec::embedding_precision) parameters, optimizer state, running moments | f32 | f32 | f32 |
/// | gradients with respect to parameters, their norm, all sums | f32 | f32 | f32 |
/// | logits and their summands, losses, gradients with respect to logits | f32 | f32 | f32 |
/// | outputs of tables (pooled in f32) and the dense columns next to them | f32 | bf16 | f16 |
/// | outputs of hidden layers, cross layers, interactions and normalizations | f32 | bf16 | f16 |
/// | gradients with respect to those | f32 | bf16 | f16 |
/// | operands of matrix products: weights and gradients with respect to logits are rounded first | f32 | bf16 | f16 |
/// | biases of hidden layers, rounded first | f32 | bf16 | f16 |
/// | factor of the gradient with respect to the logits | 1 | 1 | the [loss scale](LossScaleSpec) |
///
/// `tf32` equals `fp32`, except that a GPU may use TF32 for the operands of matrix products.
///
/// So logits keep the precision that distinguishes the scores of rows, and the contribution of a linear model
/// is never rounded. [`Float`] describes each format. Micikevicius et al., "Mixed Precision Training", 2018,
/// section 3; Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE single precision everywhere.
    #[default]
    Fp32,
    /// Single precision, but on a GPU the operands of matrix products have 11 significant bits: TF32 (NVIDIA,
    /// "A100 Tensor Core GPU Architecture", 2020). On the CPU it equals fp32.
    Tf32,
    /// Activations in bfloat16.
    Bf16,
    /// Activations in IEEE half precision, with a loss scale.
    Fp16,
}

impl Precision {
    /// All precisions.
    pub const ALL: [Self; 4] = [Self::Fp32, Self::Tf32, Self::Bf16, Self::Fp16];

    /// The precisions in which tables may be stored, and gradients exchanged.
    pub const STORAGE: [Self; 3] = [Self::Fp32, Self::Bf16, Self::Fp16];

    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }

    /// The format of activations and of their gradients.
    pub fn activations(self) -> Float {
        match self {
            Self::Fp32 | Self::Tf32 => Float::F32,
            Self::Bf16 => Float::Bf16,
            Self::Fp16 => Float::F16,
        }
    }

    /// The format of embedding tables' weights with this storage precision; see [`Float`]. The weights of
    /// linear models are always fp32, because they are added to logits.
    pub fn tables(self) -> Float {
        self.activations()
    }

    /// The format of the gradients that workers exchange with this precision; see [`Float`].
    pub fn gradients(self) -> Float {
        self.activations()
    }

    /// Whether gradients are likely to underflow, so that the loss is scaled.
    pub fn scales_loss(self) -> bool {
        self == Self::Fp16
    }
}

/// Dynamic loss scaling: Micikevicius et al., 2018, section 3.2; the constants are those of PyTorch's
/// `torch.amp.GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScaleSpec {
    /// The initial scale.
    pub initial: f32,
    /// The factor after `growth_interval` consecutive steps without an overflow.
    pub growth: f32,
    /// The number of steps before the scale grows.
    pub growth_interval: u32,
    /// The factor after a step that was skipped because of an overflow.
    pub backoff: f32,
}

impl Default for LossScaleSpec {
    fn default() -> Self {
        Self { initial: 65536.0, growth: 2.0, growth_interval: 2000, backoff: 0.5 }
    }
}
