//! Layers, models, losses, optimizers, metrics, checkpoints and the step.
//!
//! * [`spec`]: the settings of a training job.
//! * [`model`]: the models, built from [`pass`], [`layers`] and [`parameter`]. [`init`] has their initial
//!   weights, [`loss`] their losses, and [`gradients`], [`optimizer`] and [`schedule`] update them. Workers that train one
//!   model together exchange gradients (`exchange`).
//! * [`metrics`]: the metrics of an evaluation.
//! * [`checkpoint`]: models and positions, stored completely or not at all.
//! * [`export`]: exporting a trained model as safetensors or ONNX.
//! * [`session`]: the training loop's state, as used by a worker.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod exchange;
pub mod export;
pub mod gradients;
pub mod init;
pub mod layers;
pub mod loss;
pub mod metrics;
pub mod model;
pub mod optimizer;
pub mod parameter;
pub mod pass;
pub mod schedule;
pub mod session;
pub mod spec;
pub mod warm_start;
