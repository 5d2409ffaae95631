//! Images: from the bytes of a JPEG, PNG or WebP file to a tensor in a batch.
//!
//! ```text
//! bytes -> decoder: pixels -> crop: a region of them -> resize -> color: jitter -> tensor: type, range, layout
//! ```
//!
//! [`ImageSpec`] specifies the tensor. An [`ImageReader`] produces it, with the buffers of one thread. The result depends on the
//! bytes, the specification and the random numbers that the caller passes, not on the thread, the time or the processor.
//!
//! JPEG is decoded by libjpeg-turbo of the host ([`Turbo`]), as other loaders do; it is loaded at run time. PNG and WebP are
//! decoded in Rust. The orientation in EXIF metadata is not applied, as in Pillow, TensorFlow and torchvision.

mod color;
mod crop;
mod decoder;
mod error;
mod large;
mod reader;
mod resize;
mod spec;
mod tensor;
mod turbo;

pub use decoder::is_image;
pub use error::ImageError;
pub use large::LargeImages;
pub use reader::ImageReader;
pub use spec::{Channels, Crop, Decode, ImageSpec, Jitter, Layout, Normalize};
pub use turbo::{Turbo, TurboError};
