//! What is known of a span.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A span of time in which something was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// What was done.
    pub name: Cow<'static, str>,
    /// What kind of thing that is.
    pub category: Category,
    /// The part of a step that it belongs to, where it belongs to one.
    pub phase: Option<Phase>,
    /// `CLOCK_MONOTONIC`, nanoseconds: the same clock in all processes of a host.
    pub start_ns: u64,
    /// As the start; never before it.
    pub end_ns: u64,
    /// How much was done.
    pub work: Work,
    /// Inputs and outputs of a layer, where it is one's.
    pub shape: Option<[u32; 2]>,
}

/// How much was done. What is not known, or does not apply, is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Rows.
    pub rows: u64,
    /// Bytes moved. Of an operation the least that there can be: each input read once, each output written once.
    pub bytes: u64,
    /// Additions and multiplications of floating-point numbers.
    pub flops: u64,
}

/// Kinds of spans. But for fetches, those of one thread lie within each other or apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// A stage of ingest at work.
    Ingest,
    /// A thread of ingest waits.
    Wait,
    /// A range of an object is on its way. Several are at once.
    Fetch,
    /// A step of training, from the wait for its batch on.
    Step,
    /// A part of a step, or what is done between two.
    Phase,
    /// An operation of a backend.
    Operation,
    /// A kernel of a device, which an operation has one or several of.
    Kernel,
    /// A device copies from the host's memory.
    Copy,
}

impl Category {
    /// As it is called in messages and files.
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

/// What the time of training goes into. At any moment it is one of these, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for a batch.
    Wait,
    /// Copying a batch to the device, and checking it.
    Upload,
    /// Sorting the ids of a batch by table row.
    Plan,
    /// Computing logits.
    Forward,
    /// Computing the loss and the gradient by the logits.
    Loss,
    /// Computing gradients.
    Backward,
    /// Measuring gradients, and the optimizers' steps.
    Update,
    /// Reading the loss.
    Read,
    /// Giving the batch's slot back, which wakes ingest.
    Release,
    /// Evaluating held-out rows.
    Evaluation,
    /// Copying the model for a checkpoint, or waiting for one.
    Checkpoint,
    /// Writing for TensorBoard.
    Events,
}

impl Phase {
    /// All, in the order of a step.
    pub const ALL: [Self; 12] = [
        Self::Wait,
        Self::Upload,
        Self::Plan,
        Self::Forward,
        Self::Loss,
        Self::Backward,
        Self::Update,
        Self::Read,
        Self::Release,
        Self::Evaluation,
        Self::Checkpoint,
        Self::Events,
    ];

    /// As it is called in messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Upload => "upload",
            Self::Plan => "plan",
            Self::Forward => "forward",
            Self::Loss => "loss",
            Self::Backward => "backward",
            Self::Update => "update",
            Self::Read => "read",
            Self::Release => "release",
            Self::Evaluation => "evaluation",
            Self::Checkpoint => "checkpoint",
            Self::Events => "events",
        }
    }
}

/// An operation of a backend, before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it is called.
    pub name: &'static str,
    /// How much it does.
    pub work: Work,
    /// Inputs and outputs of a layer, where it is one's.
    pub shape: Option<[u32; 2]>,
}
