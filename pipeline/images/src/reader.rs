//! Reads images, with the buffers of one thread.

use std::sync::Arc;

use crate::ImageError;
use crate::color::ColorMap;
use crate::crop::{Draws, Region, Window};
use crate::decoder::{Decoder, Opened};
use crate::large::LargeImages;
use crate::resize::{Pixels, Resizer};
use crate::spec::{Decode, ImageSpec};
use crate::tensor::Values;
use crate::turbo::{Turbo, TurboError};

/// The resolutions at which a JPEG image can be decoded, from the lowest on.
const REDUCTIONS: [u32; 4] = [8, 4, 2, 1];

/// Reads images of one specification.
pub struct ImageReader {
    spec: Arc<ImageSpec>,
    values: Values,
    decoder: Decoder,
    resizer: Resizer,
    /// The decoded image.
    decoded: Vec<u8>,
    /// The region, at the size of the result.
    resized: Vec<u8>,
    large: Arc<LargeImages>,
}

impl ImageReader {
    /// A reader with no images read. JPEG images need `turbo`; if it could not be loaded, each is an error. Large images wait for
    /// a place of `large`.
    pub fn new(
        spec: &Arc<ImageSpec>,
        turbo: Result<Arc<Turbo>, Arc<TurboError>>,
        large: &Arc<LargeImages>,
    ) -> Self {
        Self {
            spec: Arc::clone(spec),
            values: Values::of(spec),
            decoder: Decoder::new(turbo),
            resizer: Resizer::new(),
            decoded: Vec::new(),
            resized: Vec::new(),
            large: Arc::clone(large),
        }
    }

    /// Writes the image of `bytes` to `out`: its row of the column ([`ImageSpec::column_kind`]). Parts, flips and colours are
    /// drawn from the numbers that `random` returns.
    ///
    /// # Errors
    /// The image is unusable. The contents of `out` are then undefined.
    ///
    /// # Panics
    /// When `out` has another size than a row.
    pub fn read(
        &mut self,
        bytes: &[u8],
        random: &mut dyn FnMut() -> u64,
        out: &mut [u8],
    ) -> Result<(), ImageError> {
        let spec = Arc::clone(&self.spec);
        let output = (spec.width, spec.height);
        assert_eq!(out.len() as u64, spec.column_kind().row_bytes(), "the size of a row");
        let opened = self.decoder.open(bytes, spec.max_pixels)?;
        let draws = &mut Draws(random);
        let size = (opened.width, opened.height);
        let region = spec.crop.region(size, output, draws);
        let flipped = spec.flip && draws.coin();
        let color = (!spec.jitter.is_none()).then(|| ColorMap::draw(&spec.jitter, draws));
        let pixels = u64::from(size.0) * u64::from(size.1);
        let needed = pixels.max(pixels_between(&region, output));
        if needed > spec.most_pixels() {
            let ((width, height), max_pixels) = (size, spec.max_pixels);
            return Err(ImageError::TooWide { width, height, max_pixels });
        }
        let large = Arc::clone(&self.large);
        let place = (needed > spec.small_pixels()).then(|| large.take());
        let reduction = match spec.decode {
            Decode::Fast if opened.is_reducible() => reduction(&region, output),
            _ => 1,
        };
        let resized = self.resized(&spec, opened, region, reduction);
        if place.is_some() {
            // The place stands for this memory.
            self.decoder.release();
            self.decoded = Vec::new();
            self.resizer.release();
        }
        resized?;
        if let Some(color) = color {
            color.apply(spec.channels, &mut self.resized);
        }
        self.values.write(&spec, &self.resized, flipped, out);
        Ok(())
    }

    /// Decodes what the region of an image needs, and resizes the region.
    fn resized(
        &mut self,
        spec: &ImageSpec,
        opened: Opened<'_>,
        region: Region,
        reduction: u32,
    ) -> Result<(), ImageError> {
        let (size, output) = ((opened.width, opened.height), (spec.width, spec.height));
        let reduced_size = (size.0.div_ceil(reduction), size.1.div_ceil(reduction));
        let region = reduced(region, size, reduced_size);
        let needed = region.window(reduced_size, output);
        let decoded = self.decoder.decode(opened, spec.channels, reduction, needed, &mut self.decoded)?;
        if is_whole(&region, reduced_size) && reduced_size == output {
            std::mem::swap(&mut self.decoded, &mut self.resized);
            return Ok(());
        }
        let source = Pixels {
            bytes: &self.decoded,
            width: decoded.width,
            height: decoded.height,
            channels: spec.channels,
        };
        let window = Window { left: needed.left - decoded.left, top: needed.top - decoded.top, ..needed };
        self.resizer.resize(source, window, region.within(needed), output, &mut self.resized)
    }
}

/// The pixels between the two passes of resizing, of which the first one is vertical.
fn pixels_between(region: &Region, (_, height): (u32, u32)) -> u64 {
    (region.width.ceil() as u64 + 2).saturating_mul(height.into())
}

/// The greatest reduction at which the region is at least as large as the result.
fn reduction(region: &Region, (width, height): (u32, u32)) -> u32 {
    let fits = |reduction: &u32| {
        let reduction = f64::from(*reduction);
        region.width / reduction >= width.into() && region.height / reduction >= height.into()
    };
    REDUCTIONS.into_iter().find(fits).unwrap_or(1)
}

/// The region of an image of size `from` in its decoded form of size `to`, within its borders in spite of rounding.
fn reduced(region: Region, from: (u32, u32), to: (u32, u32)) -> Region {
    let [across, down] = [(to.0, from.0), (to.1, from.1)].map(|(to, from)| f64::from(to) / f64::from(from));
    let (left, top) = ((region.left * across).max(0.0), (region.top * down).max(0.0));
    Region {
        left,
        top,
        width: (region.width * across).min(f64::from(to.0) - left),
        height: (region.height * down).min(f64::from(to.1) - top),
    }
}

fn is_whole(region: &Region, (width, height): (u32, u32)) -> bool {
    *region == Region { left: 0.0, top: 0.0, width: width.into(), height: height.into() }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_batch::Dtype;

    use super::*;
    use crate::spec::{Channels, Crop, Jitter, Layout};
    use crate::turbo::tests::{noise, turbo};

    pub(crate) fn spec() -> ImageSpec {
        ImageSpec {
            height: 4,
            width: 4,
            channels: Channels::Rgb,
            crop: Crop::None,
            flip: false,
            jitter: Jitter::default(),
            normalize: None,
            layout: Layout::Nhwc,
            dtype: Dtype::Uint8,
            decode: Decode::Exact,
            max_pixels: 1 << 20,
            average_bytes: None,
        }
    }

    fn no_turbo() -> Result<Arc<Turbo>, Arc<TurboError>> {
        Err(Arc::new(TurboError::Missing { file: "none".to_owned(), reason: "not loaded".to_owned() }))
    }

    /// A PNG file of these pixels.
    fn png(width: u32, height: u32, color: png::ColorType, pixels: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(color);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header().unwrap().write_image_data(pixels).unwrap();
        bytes
    }

    fn read(spec: ImageSpec, bytes: &[u8], random: &mut dyn FnMut() -> u64) -> Result<Vec<u8>, ImageError> {
        let mut out = vec![0; usize::try_from(spec.column_kind().row_bytes()).unwrap()];
        let large = Arc::new(LargeImages::new(1));
        ImageReader::new(&Arc::new(spec), no_turbo(), &large).read(bytes, random, &mut out).map(|()| out)
    }

    #[test]
    fn an_image_of_the_results_size_keeps_its_pixels() {
        let pixels: Vec<u8> = (0..48).map(|i| i * 5).collect();
        let bytes = png(4, 4, png::ColorType::Rgb, &pixels);
        assert_eq!(read(spec(), &bytes, &mut || 0).unwrap(), pixels);
        let flipped = read(ImageSpec { flip: true, ..spec() }, &bytes, &mut || u64::MAX).unwrap();
        assert_eq!(flipped[..3], pixels[9..12]);
        // Opacity is dropped, and grey has equal channels.
        let opaque: Vec<u8> = pixels.chunks(3).flat_map(|pixel| [pixel[0], pixel[1], pixel[2], 7]).collect();
        assert_eq!(read(spec(), &png(4, 4, png::ColorType::Rgba, &opaque), &mut || 0).unwrap(), pixels);
        let gray = read(spec(), &png(4, 4, png::ColorType::Grayscale, &pixels[..16]), &mut || 0).unwrap();
        assert_eq!(gray[..6], [0, 0, 0, 5, 5, 5]);
    }

    #[test]
    fn resizing_averages_the_pixels_that_a_result_stands_for() {
        let pixels: Vec<u8> = (0..64_u8).flat_map(|i| [if i / 8 % 2 == 0 { 0 } else { 200 }; 3]).collect();
        let bytes = png(8, 8, png::ColorType::Rgb, &pixels);
        let out = read(ImageSpec { height: 2, width: 2, ..spec() }, &bytes, &mut || 0).unwrap();
        assert!(out.iter().all(|level| level.abs_diff(100) < 15), "{out:?}");
    }

    /// Of 17 x 9 pixels, by Pillow.
    const BASELINE: &[u8] = include_bytes!("../../../tests/properties/src/image/baseline.jpg");

    #[test]
    fn a_damaged_image_does_not_spoil_the_next_one() {
        let Some(turbo) = turbo() else { return };
        let mut reader =
            ImageReader::new(&Arc::new(spec()), Ok(Arc::new(turbo)), &Arc::new(LargeImages::new(1)));
        let mut read = |bytes: &[u8]| {
            let mut out = vec![0; 48];
            reader.read(bytes, &mut || 0, &mut out).map(|()| out).map_err(|error| error.to_string())
        };
        let intact = read(BASELINE);
        assert!(intact.is_ok(), "{intact:?}");
        for length in 3..BASELINE.len() - 2 {
            assert!(read(&BASELINE[..length]).is_err(), "{length}");
            assert_eq!(read(BASELINE), intact, "after an image of {length} bytes");
        }
    }

    #[test]
    fn parts_do_not_change_the_result() {
        let (Some(turbo), Some(old)) = (turbo(), turbo()) else { return };
        let crops = [
            Crop::RandomResized { scale: [0.01, 1.0], ratio: [0.5, 2.0] },
            Crop::Center { fraction: 0.3 },
            Crop::Center { fraction: 0.875 },
        ];
        let size = (203, 149);
        let images =
            [0, 1, 2, 3].map(|kind| turbo.encode(&noise(size, kind), size, (kind as i32, 90, kind == 1)));
        let large = Arc::new(LargeImages::new(1));
        let (turbo, old) = (Arc::new(turbo), Arc::new(old.without_parts()));
        for (number, crop) in crops.into_iter().cycle().take(60).enumerate() {
            for decode in [Decode::Exact, Decode::Fast] {
                let spec = Arc::new(ImageSpec { height: 33, width: 40, crop, decode, ..spec() });
                for image in &images {
                    let [parts, whole] = [&turbo, &old].map(|turbo| {
                        let (mut out, mut state) = (vec![0; 33 * 40 * 3], number as u64);
                        let mut random = || {
                            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(11);
                            state ^ state >> 29
                        };
                        let mut reader = ImageReader::new(&spec, Ok(Arc::clone(turbo)), &large);
                        reader.read(image, &mut random, &mut out).unwrap();
                        out
                    });
                    assert!(parts == whole, "draw {number} of {crop:?}, {decode:?}");
                }
            }
        }
    }

    #[test]
    fn large_images_leave_no_memory_behind() {
        let spec = Arc::new(ImageSpec { max_pixels: 1 << 22, ..spec() });
        let mut reader = ImageReader::new(&spec, no_turbo(), &Arc::new(LargeImages::new(1)));
        let mut read = |width: u32, height: u32| {
            let bytes = png(width, height, png::ColorType::Grayscale, &vec![7; (width * height) as usize]);
            let mut out = vec![0; 48];
            reader.read(&bytes, &mut || 0, &mut out).unwrap();
            assert!(out.iter().all(|&level| level == 7));
            reader.decoded.capacity() + reader.resizer.bytes()
        };
        assert!(read(600, 600) >= 3 * 600 * 600);
        assert_eq!(read(1_000, 1_000), 0);
        assert_eq!(read(500_000, 2), 0);
    }

    #[test]
    fn unusable_images_are_errors() {
        let message = |bytes: &[u8]| read(spec(), bytes, &mut || 0).unwrap_err().to_string();
        assert_eq!(message(b""), "expected a JPEG, PNG or WebP image, found none");
        // Of 16,384 x 16,384 pixels.
        let greatest = b"RIFF\x16\0\0\0WEBPVP8L\x0a\0\0\0\x2f\xff\xff\xff\x0f\0\0\0\0\0";
        assert_eq!(message(greatest), "the WebP image is damaged: it has no pixels");
        assert_eq!(message(b"GIF89a"), "expected a JPEG, PNG or WebP image, found 6 bytes of another kind");
        let whole = png(4, 4, png::ColorType::Rgb, &[9; 48]);
        for length in 8..whole.len() - 12 {
            assert!(message(&whole[..length]).starts_with("the PNG image is damaged: "), "{length}");
        }
        let large = png(40, 30, png::ColorType::Grayscale, &[9; 1_200]);
        let error = read(ImageSpec { max_pixels: 1_199, ..spec() }, &large, &mut || 0).unwrap_err();
        assert!(error.to_string().contains("40 x 30 pixels, more than `max_pixels` = 1199"), "{error}");
        // Of few pixels, but the first pass of resizing would make four times as many.
        let wide = png(1_199, 1, png::ColorType::Grayscale, &[9; 1_199]);
        let error = read(ImageSpec { max_pixels: 1_199, ..spec() }, &wide, &mut || 0).unwrap_err();
        assert!(error.to_string().contains("1199 x 1 pixels, and resizing it needs more memory"), "{error}");
        let error = read(spec(), &[0xff, 0xd8, 0xff, 0xe0], &mut || 0).unwrap_err();
        assert!(!error.is_of_image() && error.to_string().contains("libturbojpeg0"), "{error}");
    }

    #[test]
    fn a_reduced_image_is_at_least_as_large_as_the_result() {
        let region = Region { left: 0.0, top: 0.0, width: 1_000.0, height: 450.0 };
        let cases = [((224, 224), 2), ((226, 226), 1), ((100, 100), 4), ((10, 10), 8), ((1_000, 1), 1)];
        for (output, expected) in cases {
            assert_eq!(reduction(&region, output), expected, "{output:?}");
        }
        let whole = Region { left: 0.0, top: 0.0, width: 101.0, height: 51.0 };
        assert!(is_whole(&reduced(whole, (101, 51), (51, 26)), (51, 26)));
    }

    #[test]
    fn evaluation_draws_nothing() {
        let crop = Crop::RandomResized { scale: [0.08, 1.0], ratio: [0.75, 1.333] };
        let jitter = Jitter { hue: 0.1, brightness: 0.1, ..Jitter::default() };
        let spec = ImageSpec { crop, jitter, flip: true, ..spec() }.for_evaluation();
        let pixels: Vec<u8> = (0..192).collect();
        let bytes = png(8, 8, png::ColorType::Rgb, &pixels);
        read(spec, &bytes, &mut || panic!("a draw")).unwrap();
    }
}
