//! What a job asks of training, resolved.

mod batch_scaling;
mod device;
mod embedding;
mod loss;
mod model;
mod optimizer;
mod precision;
mod schedule;

use serde::{Deserialize, Serialize};

pub use batch_scaling::{BatchScaling, RateRule};
pub use device::DeviceSpec;
pub use embedding::{EmbeddingDim, EmbeddingInit, EmbeddingSpec, Pooling, TableSpec};
pub use loss::{LossSpec, Prediction, TaskSpec};
pub use model::{
    CrossSpec, DcnSpec, DcnStructure, DeepFmSpec, DeepSpec, DlrmInteraction, DlrmSpec, HiddenLayerSpec,
    LayerInit, LinearSpec, MlpSpec, MmoeSpec, ModelSpec, Normalization, TwoTowerSpec, WideDeepSpec, WideSpec,
};
pub use optimizer::{AdamSpec, OptimizerSpec};
pub use precision::{LossScaleSpec, Precision};
pub use schedule::{DecaySpec, ScheduleSpec};

/// How the job trains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingSpec {
    /// Fixes initial weights (and, with the data's own seed, everything else).
    pub seed: u64,
    /// How learning rates change.
    pub schedule: ScheduleSpec,
    /// What is minimised.
    #[serde(default)]
    pub loss: LossSpec,
    /// The same of each label, in the order of the batches, where they have several; else none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskSpec>,
    /// How long gradients may be.
    #[serde(default)]
    pub clip: ClipSpec,
    /// Rows that go through the model together; `None` for all of a batch. A step is that of the batch all the same.
    #[serde(default)]
    pub micro_batch_rows: Option<u32>,
    /// Arithmetic of the step.
    pub precision: Precision,
    /// What tables of embeddings are stored in: their weights, not the state of their optimizer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub embedding_precision: Precision,
    /// How the loss is scaled, where the precision asks for it.
    #[serde(default)]
    pub loss_scale: LossScaleSpec,
    /// Threads of the CPU backend; `None` for one a core.
    pub threads: Option<u32>,
    /// Where it computes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub device: DeviceSpec,
}

impl TrainingSpec {
    /// How each of `labels` labels is learned.
    pub fn tasks(&self, labels: usize) -> Vec<TaskSpec> {
        if self.tasks.is_empty() { vec![self.loss.clone().into(); labels] } else { self.tasks.clone() }
    }

    /// Logits of a row of `labels` labels.
    pub fn outputs(&self, labels: usize) -> usize {
        self.tasks(labels).iter().map(|task| task.loss.outputs()).sum()
    }
}

/// What gradients are held to, before optimizers see them. Those of a table row count once they are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClipSpec {
    /// The most that the norm of all gradients together may be: they are scaled down to it.
    pub norm: Option<f32>,
    /// The most that a number of a gradient may be, either way, after that: it is cut to it.
    pub value: Option<f32>,
}

/// What is not told, so that what a job did not ask for does not change what is known of it.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
