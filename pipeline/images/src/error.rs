//! Why an image cannot be used.

use std::sync::Arc;

use millstream_batch::Count;

use crate::turbo::TurboError;

/// Why an image cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ImageError {
    /// The bytes are of no supported format.
    #[error("expected a JPEG, PNG or WebP image, found {}", found(*bytes))]
    Format {
        /// The number of bytes.
        bytes: u64,
    },
    /// The image is damaged.
    #[error("the {format} image is damaged: {message}")]
    Damaged {
        /// The format.
        format: &'static str,
        /// The decoder's message.
        message: String,
    },
    /// The image has more pixels than the column allows.
    #[error(
        "the image has {width} x {height} pixels, more than `max_pixels` = {max_pixels}; raise it, and the memory budget \
         if necessary"
    )]
    TooLarge {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// The column's maximum.
        max_pixels: u32,
    },
    /// The image is so wide, or its result so high, that resizing needs too much memory.
    #[error(
        "the image has {width} x {height} pixels, and resizing it needs more memory than for `max_pixels` = {max_pixels}; \
         raise it, and the memory budget if necessary"
    )]
    TooWide {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// The column's maximum.
        max_pixels: u32,
    },
    /// The decoder is not on this host.
    #[error(transparent)]
    NoDecoder(Arc<TurboError>),
}

impl ImageError {
    /// Whether the image is at fault, and not the host.
    pub fn is_of_image(&self) -> bool {
        !matches!(self, Self::NoDecoder(_))
    }
}

fn found(bytes: u64) -> String {
    if bytes == 0 { "none".to_owned() } else { format!("{} of another kind", Count(bytes, "byte")) }
}
