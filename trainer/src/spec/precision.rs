//! The policy of mixed precision: which format each number of a step has.

use millstream_backend::Float;
use serde::{Deserialize, Serialize};

/// Arithmetic of the step, as a policy of formats.
///
/// | numbers | `fp32` | `bf16` | `fp16` |
/// |---|---|---|---|
/// | parameters but [embeddings](super::TrainingSpec::embedding_precision), optimizer state, running moments | f32 | f32 | f32 |
/// | gradients by parameters, their norm, sums of all kinds | f32 | f32 | f32 |
/// | logits and what is added up to them, losses, gradients by logits | f32 | f32 | f32 |
/// | what tables give (pooled in f32), dense columns beside it | f32 | bf16 | f16 |
/// | outputs of hidden layers, of cross layers, interactions and normalisations | f32 | bf16 | f16 |
/// | gradients by those | f32 | bf16 | f16 |
/// | both factors of a layer's products: weights, and gradients by logits, rounded on their way in | f32 | bf16 | f16 |
/// | biases of hidden layers, rounded on their way in | f32 | bf16 | f16 |
/// | what the gradient by the logits is multiplied by | 1 | 1 | the [loss scale](LossScaleSpec) |
///
/// `tf32` is `fp32` but for the factors of products, which a GPU may take with 11 digits.
///
/// So a logit keeps the digits that tell one row's score from another's, and what a linear model adds to it never
/// loses any. It is what [`Float`] says of matrices, by the format each is made with; Micikevicius et al., "Mixed
/// Precision Training", 2018, section 3; Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE single precision throughout.
    #[default]
    Fp32,
    /// As single precision, but on a GPU factors of products have 11 digits: TF32 (NVIDIA, "A100 Tensor Core GPU
    /// Architecture", 2020). Elsewhere it is single precision.
    Tf32,
    /// Activations in bfloat16.
    Bf16,
    /// Activations in IEEE half precision, and a loss scale.
    Fp16,
}

impl Precision {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Fp32, Self::Tf32, Self::Bf16, Self::Fp16];

    /// Those that tables may be stored in.
    pub const STORAGE: [Self; 3] = [Self::Fp32, Self::Bf16, Self::Fp16];

    /// What a job file calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }

    /// The format of activations and of the gradients by them.
    pub fn activations(self) -> Float {
        match self {
            Self::Fp32 | Self::Tf32 => Float::F32,
            Self::Bf16 => Float::Bf16,
            Self::Fp16 => Float::F16,
        }
    }

    /// The format of the weights of embedding tables, where those have this precision: see [`Float`]. What a linear model
    /// looks up, which is added to logits, has single precision in all.
    pub fn tables(self) -> Float {
        self.activations()
    }

    /// Whether gradients are so small beside the least number of the format that the loss is scaled.
    pub fn scales_loss(self) -> bool {
        self == Self::Fp16
    }
}

/// How the loss scale moves: Micikevicius et al., 2018, section 3.2; the constants are those of PyTorch's
/// `torch.amp.GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScaleSpec {
    /// What it starts from.
    pub initial: f32,
    /// What it is multiplied by after
    pub growth: f32,
    /// so many steps in a row without an overflow, and
    pub growth_interval: u32,
    /// what it is multiplied by after a step that was skipped for one.
    pub backoff: f32,
}

impl Default for LossScaleSpec {
    fn default() -> Self {
        Self { initial: 65536.0, growth: 2.0, growth_interval: 2000, backoff: 0.5 }
    }
}
