//! Embeddings, as a job asks for them.

use serde::{Deserialize, Serialize};

use super::OptimizerSpec;

/// The embeddings of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingSpec {
    /// Width of every embedding.
    pub dim: u32,
    /// How a multi-valued feature's embeddings become one.
    pub pooling: Pooling,
    /// What they start from.
    #[serde(default)]
    pub init: EmbeddingInit,
    /// Trains them.
    pub optimizer: OptimizerSpec,
}

/// How the embeddings of a row's ids become one vector. No ids give zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum over the square root of their number.
    #[serde(rename = "sqrtn")]
    SqrtN,
}

/// What the numbers of an embedding start from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EmbeddingInit {
    /// 0.
    Zeros,
    /// Uniform in `-limit..limit`.
    Uniform {
        /// Half the width.
        limit: f64,
    },
    /// Uniform within 1 over the root of the table's rows, as in Naumov et al.'s own DLRM.
    UniformByRows,
    /// Normal around 0.
    Normal {
        /// Its standard deviation.
        stddev: f64,
    },
    /// The same without what lies beyond two of these deviations.
    TruncatedNormal {
        /// The deviation of the distribution before that.
        stddev: f64,
    },
}

impl Default for EmbeddingInit {
    /// As in Keras' `Embedding`.
    fn default() -> Self {
        Self::Uniform { limit: 0.05 }
    }
}
