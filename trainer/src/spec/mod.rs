//! The settings of a training job, resolved.

mod batch_scaling;
mod device;
mod embedding;
mod groups;
mod loss;
mod model;
mod optimizer;
mod precision;
mod schedule;

use std::num::NonZeroU32;

use millstream_batch::BatchSchema;
use serde::{Deserialize, Serialize};

pub use batch_scaling::{BatchScaling, RateRule};
pub use device::DeviceSpec;
pub use embedding::{EmbeddingDim, EmbeddingInit, EmbeddingSpec, Pooling, TableSpec};
pub use groups::{Gains, GroupSpec, RankingSpec};
pub use loss::{LossSpec, Prediction, TaskSpec};
pub use model::{
    AttentionSpec, ChoiceLoss, CrossSpec, DcnSpec, DcnStructure, DeepFmSpec, DeepSpec, DinSpec,
    DlrmInteraction, DlrmSpec, HiddenLayerSpec, LayerInit, LinearSpec, MlpSpec, MmoeSpec, ModelSpec,
    Normalization, SequenceSpec, TwoTowerSpec, WideDeepSpec, WideSpec,
};
pub use optimizer::{AdamSpec, OptimizerSpec};
pub use precision::{LossScaleSpec, Precision};
pub use schedule::{DecaySpec, ScheduleSpec};

/// How the job trains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingSpec {
    /// The seed of initial weights and random choices.
    pub seed: u64,
    /// The learning rate schedule.
    pub schedule: ScheduleSpec,
    /// The loss.
    #[serde(default)]
    pub loss: LossSpec,
    /// The loss of each label, in the order of the batches, if there are several; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskSpec>,
    /// Gradient clipping.
    #[serde(default)]
    pub clip: ClipSpec,
    /// Rows per micro-batch; `None` for whole batches. A step always covers a whole batch.
    #[serde(default)]
    pub micro_batch_rows: Option<u32>,
    /// The arithmetic precision of the step.
    pub precision: Precision,
    /// The storage precision of embedding tables: of their weights, not of optimizer state.
    #[serde(default, skip_serializing_if = "is_default")]
    pub embedding_precision: Precision,
    /// The loss scaling, for a precision that needs it.
    #[serde(default)]
    pub loss_scale: LossScaleSpec,
    /// Threads of the CPU backend; `None` for one per core.
    pub threads: Option<u32>,
    /// The device.
    #[serde(default, skip_serializing_if = "is_default")]
    pub device: DeviceSpec,
    /// The number of each worker's GPU, by rank; empty if they follow that of `device`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u32>,
    /// The number of workers that train the model together; `None` for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<NonZeroU32>,
    /// The number of parts that every batch is cut into, if results must have the same bits for every number of workers
    /// that divides it: a power of two. `None` for a part per worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<NonZeroU32>,
    /// Whether parts of a batch may differ in their number of rows, from none to all; required if rows are dealt by lanes.
    /// Otherwise all parts but the last ones have equally many. Activations have room for the rows of equal parts, so a larger part
    /// needs several passes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uneven_parts: bool,
    /// The precision in which workers exchange gradients.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gradient_precision: Precision,
    /// Whether gradients pass through the memory of the hosts although devices could add them: reducers on other hosts do.
    #[serde(default, skip_serializing_if = "is_default")]
    pub through_hosts: bool,
}

impl TrainingSpec {
    /// The number of workers that train the model together.
    pub fn ranks(&self) -> u32 {
        self.workers.map_or(1, NonZeroU32::get)
    }

    /// Whether gradients are exchanged, if only with itself: a worker alone that must have the bits of several takes a step
    /// as they do.
    pub fn exchanges(&self) -> bool {
        self.ranks() > 1 || self.shards.is_some()
    }

    /// Whether devices that can be connected add gradients: the order of their sums is not known.
    pub fn may_sum_on_devices(&self) -> bool {
        self.ranks() > 1 && self.shards.is_none() && !self.through_hosts
    }

    /// The number of parts that every batch is cut into.
    pub fn parts(&self) -> u32 {
        self.shards.or(self.workers).map_or(1, NonZeroU32::get)
    }

    /// The rows of each part if all parts of a batch of `rows` rows have equally many, rounded up.
    pub fn even_rows(&self, rows: u32) -> u32 {
        rows.div_ceil(self.parts())
    }

    /// The schema of the parts of batches of `schema`.
    pub fn part_schema(&self, schema: &BatchSchema) -> BatchSchema {
        if self.uneven_parts { schema.clone() } else { schema.part(self.parts()) }
    }

    /// The task of each of `labels` labels.
    pub fn tasks(&self, labels: usize) -> Vec<TaskSpec> {
        if self.tasks.is_empty() { vec![self.loss.clone().into(); labels] } else { self.tasks.clone() }
    }

    /// Number of logits per row with `labels` labels.
    pub fn outputs(&self, labels: usize) -> usize {
        self.tasks(labels).iter().map(|task| task.loss.outputs()).sum()
    }
}

/// Gradient clipping, applied before the optimizers. The gradient of a table row is clipped after its sum is
/// complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClipSpec {
    /// The maximum norm of all gradients together; larger ones are scaled down to it.
    pub norm: Option<f32>,
    /// The maximum absolute value of a gradient's elements, applied after the norm; larger ones are clipped.
    pub value: Option<f32>,
}

/// Skips default values when serializing, so that settings that a job does not use do not change its
/// fingerprint.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
