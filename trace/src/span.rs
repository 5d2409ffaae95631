//! The data of a span.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A time span of one piece of work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The name of the stage, phase, operation or kernel.
    pub name: Cow<'static, str>,
    /// The kind of work.
    pub category: Category,
    /// The phase of the step it belongs to, if any.
    pub phase: Option<Phase>,
    /// `CLOCK_MONOTONIC` in nanoseconds: the same clock in all processes of a host.
    pub start_ns: u64,
    /// On the same clock; never before `start_ns`.
    pub end_ns: u64,
    /// The amount of work.
    pub work: Work,
    /// Inputs and outputs of the layer, for a layer's operations.
    pub shape: Option<[u32; 2]>,
}

/// An amount of work. A field that is unknown or does not apply is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Rows processed.
    pub rows: u64,
    /// Bytes moved. For an operation, the minimum: each input read once, each output written once.
    pub bytes: u64,
    /// Floating-point additions and multiplications.
    pub flops: u64,
}

/// Kinds of spans. Spans of one thread are nested or disjoint, except fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// An ingest stage at work.
    Ingest,
    /// An ingest thread waiting.
    Wait,
    /// A ranged read of an object. Several are in flight at a time.
    Fetch,
    /// A training step, starting with the wait for its batch.
    Step,
    /// A part of a step, or work between two steps.
    Phase,
    /// A backend operation.
    Operation,
    /// A device kernel. An operation launches one or more.
    Kernel,
    /// A copy from host memory to the device.
    Copy,
}

impl Category {
    /// The name in messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Wait => "wait",
            Self::Fetch => "fetch",
            Self::Step => "step",
            Self::Phase => "phase",
            Self::Operation => "operation",
            Self::Kernel => "kernel",
            Self::Copy => "copy",
        }
    }
}

/// What training spends its time on. At any moment at most one phase is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for a batch.
    Wait,
    /// Agreeing with the other workers of the job that a step is taken: waiting for the slowest of them.
    Agreement,
    /// Copying a batch to the device and validating it.
    Upload,
    /// Sorting a batch's ids by table row.
    Plan,
    /// Computing logits.
    Forward,
    /// Computing the loss and its gradient with respect to the logits.
    Loss,
    /// Computing gradients.
    Backward,
    /// Exchanging gradients with the other workers of the job.
    Exchange,
    /// Computing gradient norms and applying optimizer updates.
    Update,
    /// Reading the loss back from the device.
    Read,
    /// Releasing the batch's ring slot, which wakes ingest.
    Release,
    /// Evaluating on held-out rows.
    Evaluation,
    /// Copying the model for a checkpoint, or waiting for the previous one.
    Checkpoint,
    /// Writing TensorBoard events.
    Events,
}

impl Phase {
    /// All phases, in the order of a step.
    pub const ALL: [Self; 14] = [
        Self::Wait,
        Self::Agreement,
        Self::Upload,
        Self::Plan,
        Self::Forward,
        Self::Loss,
        Self::Backward,
        Self::Exchange,
        Self::Update,
        Self::Read,
        Self::Release,
        Self::Evaluation,
        Self::Checkpoint,
        Self::Events,
    ];

    /// The name in messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Agreement => "agreement",
            Self::Upload => "upload",
            Self::Plan => "plan",
            Self::Forward => "forward",
            Self::Loss => "loss",
            Self::Backward => "backward",
            Self::Exchange => "exchange",
            Self::Update => "update",
            Self::Read => "read",
            Self::Release => "release",
            Self::Evaluation => "evaluation",
            Self::Checkpoint => "checkpoint",
            Self::Events => "events",
        }
    }
}

/// Describes a backend operation before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationInfo {
    /// The operation's name.
    pub name: &'static str,
    /// The amount of work.
    pub work: Work,
    /// Inputs and outputs of the layer, for a layer's operations.
    pub shape: Option<[u32; 2]>,
}
