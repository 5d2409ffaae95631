//! Layers, as explicit pairs of `forward` and `backward` over a backend's buffers.
//!
//! A layer holds parameters. What a backward pass needs of its forward pass is in a struct of saved
//! activations that the model owns, made once for the largest batch. There is no tape: a model calls
//! its layers forward in order and backward in reverse.
//!
//! Tables have no `backward`: a row's gradient is summed and applied at once, in `step`.

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
