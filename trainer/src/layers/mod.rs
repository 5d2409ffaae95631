//! Layers, as explicit pairs of `forward` and `backward` over a backend's buffers.
//!
//! A layer owns its parameters, and the activations that its backward pass needs from the last forward pass, allocated
//! once for the largest pass. There is no tape: a model calls its layers forward in order and backward in reverse
//! order.
//!
//! Tables have no `backward`: their gradients are summed per row and applied immediately in the optimizer
//! step.

pub mod attention;
pub mod cross;
pub mod dense;
pub mod embedding;
pub mod linear;
pub mod mlp;
pub mod normalization;
pub mod tables;
mod whole_tables;

pub use attention::Attention;
pub use cross::Cross;
pub use dense::Dense;
pub use embedding::Embedding;
pub use linear::{Linear, linear_weights};
pub use mlp::{Mlp, MlpGradients};
pub use normalization::Normalization;
pub use tables::Tables;
pub use whole_tables::WholeTables;
