//! From the bytes of an image to pixels.

use std::io::Cursor;
use std::sync::Arc;

use image_webp::WebPDecoder;
use png::{ColorType, Limits, Transformations};

use crate::ImageError;
use crate::crop::Window;
use crate::spec::Channels;
use crate::turbo::{Decompressor, JpegHeader, Turbo, TurboError};

/// Bytes for the metadata of a PNG or WebP image, in addition to its pixels.
const METADATA_BYTES: usize = 1 << 20;

/// The message for an image of no size.
const NO_PIXELS: &str = "it has no pixels";

/// The format of an image, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Jpeg,
    Png,
    WebP,
}

impl Format {
    fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
        }
    }
}

/// Whether the bytes begin as an image of a supported format.
pub fn is_image(bytes: &[u8]) -> bool {
    Format::of(bytes).is_some()
}

/// The brightness of a pixel, as Pillow computes it (ITU-R BT.601, in 16 bits).
pub(crate) fn luma([red, green, blue]: [u8; 3]) -> u8 {
    let sum = 19_595 * u32::from(red) + 38_470 * u32::from(green) + 7_471 * u32::from(blue);
    ((sum + 0x8000) >> 16) as u8
}

/// Decodes images of all formats, with the buffers of one thread.
pub(crate) struct Decoder {
    turbo: Result<Arc<Turbo>, Arc<TurboError>>,
    /// Pixels as a PNG or WebP decoder returns them.
    raw: Vec<u8>,
}

/// An image whose header is read.
pub(crate) struct Opened<'a> {
    bytes: &'a [u8],
    pub(crate) width: u32,
    pub(crate) height: u32,
    content: Content<'a>,
}

enum Content<'a> {
    Jpeg(JpegHeader, Decompressor),
    Png(Box<png::Reader<Cursor<&'a [u8]>>>),
    WebP(Box<WebPDecoder<Cursor<&'a [u8]>>>),
}

impl Decoder {
    pub(crate) fn new(turbo: Result<Arc<Turbo>, Arc<TurboError>>) -> Self {
        Self { turbo, raw: Vec::new() }
    }

    /// Reads the header of an image and checks its size.
    pub(crate) fn open<'a>(&mut self, bytes: &'a [u8], max_pixels: u32) -> Result<Opened<'a>, ImageError> {
        let format = Format::of(bytes).ok_or(ImageError::Format { bytes: bytes.len() as u64 })?;
        let (width, height, content) = match format {
            Format::Jpeg => {
                let mut decompressor = self.decompressor()?;
                let header = decompressor.header(bytes)?;
                (header.width, header.height, Content::Jpeg(header, decompressor))
            }
            Format::Png => {
                let limits = Limits { bytes: METADATA_BYTES + 16 * max_pixels as usize };
                let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
                decoder.set_transformations(Transformations::normalize_to_color8());
                let reader = decoder.read_info().map_err(|error| damaged("PNG", &error))?;
                let (width, height) = reader.info().size();
                (width, height, Content::Png(Box::new(reader)))
            }
            Format::WebP => {
                let mut decoder =
                    WebPDecoder::new(Cursor::new(bytes)).map_err(|error| damaged("WebP", &error))?;
                decoder.set_memory_limit(METADATA_BYTES + 16 * max_pixels as usize);
                let (width, height) = decoder.dimensions();
                (width, height, Content::WebP(Box::new(decoder)))
            }
        };
        // For one, image-webp takes the greatest sides of lossless images, of 16,384 pixels, for none.
        if width == 0 || height == 0 {
            return Err(damaged(format.name(), &NO_PIXELS));
        }
        if u64::from(width) * u64::from(height) > max_pixels.into() {
            return Err(ImageError::TooLarge { width, height, max_pixels });
        }
        Ok(Opened { bytes, width, height, content })
    }

    /// Decodes an opened image to `pixels`, with `channels`. JPEG images may be reduced, by 1, 2, 4 or 8. `needed` is a window of
    /// the image of this resolution; returns the window that was decoded, which contains it.
    pub(crate) fn decode(
        &mut self,
        opened: Opened<'_>,
        channels: Channels,
        reduction: u32,
        needed: Window,
        pixels: &mut Vec<u8>,
    ) -> Result<Window, ImageError> {
        let Opened { bytes, width, height, content } = opened;
        let format = match content {
            Content::Jpeg(header, mut decompressor) => {
                return decompressor.decompress(bytes, header, (channels, reduction), needed, pixels);
            }
            Content::Png(mut reader) => {
                let size = reader.output_buffer_size().ok_or_else(|| damaged("PNG", &NO_PIXELS))?;
                self.raw.resize(size, 0);
                let info = reader.next_frame(&mut self.raw).map_err(|error| damaged("PNG", &error))?;
                self.raw.truncate(info.buffer_size());
                let stored = match info.color_type {
                    ColorType::Grayscale => 1,
                    ColorType::GrayscaleAlpha => 2,
                    ColorType::Rgb | ColorType::Indexed => 3,
                    ColorType::Rgba => 4,
                };
                convert(&self.raw, stored, channels, pixels);
                "PNG"
            }
            Content::WebP(mut decoder) => {
                let size = decoder.output_buffer_size();
                self.raw.resize(size.ok_or_else(|| damaged("WebP", &NO_PIXELS))?, 0);
                decoder.read_image(&mut self.raw).map_err(|error| damaged("WebP", &error))?;
                convert(&self.raw, if decoder.has_alpha() { 4 } else { 3 }, channels, pixels);
                "WebP"
            }
        };
        self.raw.clear();
        if pixels.len() != width as usize * height as usize * channels.count() {
            return Err(damaged(format, &"it has fewer pixels than its header says"));
        }
        Ok(Window::whole((width, height)))
    }

    /// Frees the memory of the last image.
    pub(crate) fn release(&mut self) {
        self.raw = Vec::new();
    }

    /// A decompressor for one image: the library keeps tables, with which a later image that lacks them would be decoded.
    fn decompressor(&self) -> Result<Decompressor, ImageError> {
        let turbo = self.turbo.as_ref().map_err(|error| ImageError::NoDecoder(Arc::clone(error)))?;
        Decompressor::new(turbo).ok_or_else(|| damaged("JPEG", &"out of memory"))
    }
}

impl Opened<'_> {
    /// Whether it can be decoded at a lower resolution.
    pub(crate) fn is_reducible(&self) -> bool {
        matches!(self.content, Content::Jpeg(..))
    }
}

fn damaged(format: &'static str, message: &dyn ToString) -> ImageError {
    ImageError::Damaged { format, message: message.to_string() }
}

/// Converts pixels of `stored` channels, the last of which is opacity if their number is even. Opacity is dropped.
fn convert(raw: &[u8], stored: usize, channels: Channels, pixels: &mut Vec<u8>) {
    pixels.clear();
    match (stored, channels) {
        (3, Channels::Rgb) | (1, Channels::Gray) => pixels.extend_from_slice(raw),
        (3.., Channels::Rgb) => {
            pixels.extend(raw.chunks_exact(stored).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]));
        }
        (3.., Channels::Gray) => {
            pixels.extend(raw.chunks_exact(stored).map(|pixel| luma([pixel[0], pixel[1], pixel[2]])));
        }
        (_, Channels::Rgb) => pixels.extend(raw.chunks_exact(stored).flat_map(|pixel| [pixel[0]; 3])),
        (_, Channels::Gray) => pixels.extend(raw.chunks_exact(stored).map(|pixel| pixel[0])),
    }
}
