//! What a job asks of training, resolved.

mod model;
mod optimizer;
mod schedule;

use serde::{Deserialize, Serialize};

pub use model::{
    CrossSpec, DcnSpec, DcnStructure, DeepFmSpec, DeepSpec, DlrmInteraction, DlrmSpec, EmbeddingSpec,
    LinearSpec, MlpSpec, ModelSpec, Pooling, WideDeepSpec, WideSpec,
};
pub use optimizer::{AdamSpec, OptimizerSpec};
pub use schedule::{DecaySpec, ScheduleSpec};

/// How the job trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingSpec {
    /// Fixes initial weights (and, with the data's own seed, everything else).
    pub seed: u64,
    /// How learning rates change.
    pub schedule: ScheduleSpec,
    /// Arithmetic of the step.
    pub precision: Precision,
    /// Threads of the CPU backend; `None` for one a core.
    pub threads: Option<u32>,
}

/// Arithmetic of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE single precision throughout.
    Fp32,
}
