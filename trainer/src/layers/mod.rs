//! Layers, as explicit pairs of `forward` and `backward` over a backend's buffers.
//!
//! A layer owns its parameters. The model owns a struct of activations that the backward pass needs from the
//! forward pass, allocated once for the largest batch. There is no tape: a model calls its layers forward in
//! order and backward in reverse order.
//!
//! Tables have no `backward`: their gradients are summed per row and applied immediately in the optimizer
//! step.

pub mod cross;
pub mod dense;
pub mod embedding;
pub mod linear;
pub mod mlp;
pub mod normalization;
pub mod tables;

pub use cross::{Cross, CrossActivations, CrossGradients};
pub use dense::Dense;
pub use embedding::Embedding;
pub use linear::{Linear, linear_weights};
pub use mlp::{Mlp, MlpActivations, MlpGradients};
pub use normalization::{Normalization, SavedMoments};
pub use tables::Tables;
