//! The specification of a column of images.

use millstream_batch::{ColumnKind, Dtype};
use serde::{Deserialize, Serialize};

use crate::large::SMALL_PIXELS;

/// Bytes for a pixel while an image is read. Decoding needs up to 16: an animated WebP has a canvas, a frame, and both results;
/// a progressive JPEG in CMYK has 8 of coefficients. Between its two passes, resizing needs 3.
const PIXEL_BYTES: u64 = 19;

/// How the images of a column become tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageSpec {
    /// The height of the result.
    pub height: u32,
    /// The width of the result.
    pub width: u32,
    /// The channels of the result.
    pub channels: Channels,
    /// The part of the image that becomes the result.
    pub crop: Crop,
    /// Whether half of the images, drawn at random, are mirrored.
    pub flip: bool,
    /// The random change of colours.
    pub jitter: Jitter,
    /// The scaling of values. `None`: levels of 0 to 255 for `uint8`, and 0 to 1 for floats.
    pub normalize: Option<Normalize>,
    /// The order of the dimensions.
    pub layout: Layout,
    /// The type of the values: `uint8`, `float16`, `bfloat16` or `float32`.
    pub dtype: Dtype,
    /// How JPEG images are decoded.
    pub decode: Decode,
    /// The maximum number of pixels of an encoded image.
    pub max_pixels: u32,
    /// The usual number of bytes of an encoded image, for which memory is planned. `None`: derived from the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_bytes: Option<u32>,
}

/// The channels of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Channels {
    /// Red, green, blue. Grey images have three equal channels.
    Rgb,
    /// One channel of brightness.
    Gray,
}

/// The part of an image that becomes the result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Crop {
    /// All of it, whatever its aspect ratio.
    None,
    /// The largest centred part of the result's aspect ratio, reduced by a factor: 0.875 for what is usual in the
    /// evaluation of ImageNet, 256 pixels to 224.
    Center {
        /// The factor, above 0 and at most 1.
        fraction: f32,
    },
    /// A random part, as in the training of Inception (Szegedy et al., "Going Deeper with Convolutions", 2015, section 6)
    /// and in torchvision's `RandomResizedCrop`.
    RandomResized {
        /// The least and the greatest share of the image's area.
        scale: [f32; 2],
        /// The least and the greatest ratio of width to height.
        ratio: [f32; 2],
    },
}

/// The random change of colours: each factor is drawn uniformly. 0 changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Jitter {
    /// The factor of brightness is within this distance of 1.
    pub brightness: f32,
    /// The factor of contrast is within this distance of 1.
    pub contrast: f32,
    /// The factor of saturation is within this distance of 1.
    pub saturation: f32,
    /// The hue turns by up to this share of a full turn, at most 0.5, in either direction.
    pub hue: f32,
}

/// The scaling of values from 0 to 1: `(value - mean) / std`, by channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalize {
    /// The mean of each channel.
    pub mean: Vec<f32>,
    /// The standard deviation of each channel.
    pub std: Vec<f32>,
}

/// The order of the dimensions of a batch of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Layout {
    /// Rows of pixels.
    Nhwc,
    /// A plane for each channel.
    Nchw,
}

/// How JPEG images are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decode {
    /// At full resolution.
    Exact,
    /// At 1/2, 1/4 or 1/8 of it where the region is still at least as large as the result: faster, with other pixels.
    Fast,
}

impl Channels {
    /// Their number.
    pub fn count(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::Gray => 1,
        }
    }
}

impl Jitter {
    /// Whether it changes nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl ImageSpec {
    /// Types that an image can have.
    pub const DTYPES: [Dtype; 4] = [Dtype::Uint8, Dtype::Float16, Dtype::Bfloat16, Dtype::Float32];

    /// The column of a batch that holds the results.
    pub fn column_kind(&self) -> ColumnKind {
        let (height, width, channels) = (self.height, self.width, self.channels.count() as u32);
        let shape = match self.layout {
            Layout::Nhwc => vec![height, width, channels],
            Layout::Nchw => vec![channels, height, width],
        };
        ColumnKind::Fixed { dtype: self.dtype, shape }
    }

    /// The specification for held-out data, which draws no random numbers: a random crop becomes a centred one of the usual
    /// size.
    #[must_use]
    pub fn for_evaluation(&self) -> Self {
        let crop = match self.crop {
            Crop::RandomResized { .. } => Crop::Center { fraction: 0.875 },
            crop => crop,
        };
        Self { crop, flip: false, jitter: Jitter::default(), ..self.clone() }
    }

    /// The memory of an [`crate::ImageReader`] that reads such images, in bytes, except for large ones.
    pub fn reader_bytes(&self) -> u64 {
        PIXEL_BYTES * self.small_pixels()
    }

    /// The maximum memory to read a large image, in bytes.
    pub fn large_bytes(&self) -> u64 {
        PIXEL_BYTES * self.most_pixels()
    }

    /// The pixels up to which an image, or what is between it and the result, is small.
    pub(crate) fn small_pixels(&self) -> u64 {
        self.result_pixels().saturating_add(SMALL_PIXELS.min(self.max_pixels.into()))
    }

    /// The maximum pixels of an image, or of what is between it and the result.
    pub(crate) fn most_pixels(&self) -> u64 {
        self.result_pixels().saturating_add(self.max_pixels.into())
    }

    fn result_pixels(&self) -> u64 {
        4 * u64::from(self.height) * u64::from(self.width)
    }
}
