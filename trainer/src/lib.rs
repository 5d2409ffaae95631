//! Layers, models, losses, optimizers, metrics, checkpoints and the step.
//!
//! * [`spec`]: what a job asks of training.
//! * [`model`]: the models; [`pass`], [`layers`] and [`parameter`] are what they are made of, [`init`],
//!   [`gradients`], [`optimizer`], [`schedule`] and [`loss`] what they start from, change by and are judged by.
//! * [`metrics`]: what an evaluation says of a model.
//! * [`checkpoint`]: models and positions, stored whole or not at all.
//! * [`export`]: a trained model for other programs, as safetensors and ONNX.
//! * [`session`]: training as a worker drives it, over all of these.

#![forbid(unsafe_code)]

pub mod checkpoint;
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
