//! Resizing by a triangular filter, which covers as many pixels as a pixel of the result stands for, as Pillow's and torchvision's
//! do.
//!
//! Both passes are sums of products of bytes with weights of 16 bits, rounded to bytes: the vertical pass first, a row of the result at a
//! time, so that what is between the passes stays in the first cache.
//!
//! With AVX-512 (VBMI and VNNI: Ice Lake, Zen 4 and later) both passes are in `wide`. A vertical sum takes two rows of 64 bytes at a time. For
//! a horizontal one, a permutation of 64 bytes gathers two neighbouring pixels for each of 16 values of the result; the permutations
//! depend on the columns alone, and are made once per image. Elsewhere `fast_image_resize` does the same sums: results are the same
//! to the bit.

#[cfg(target_arch = "x86_64")]
mod wide;

use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer as Library};

use crate::ImageError;
use crate::crop::{Region, Window};
use crate::spec::Channels;

/// The factor up to which permutations reduce a row: beyond it, the permutations of an image would need much memory.
#[cfg(target_arch = "x86_64")]
const MOST_REDUCED: f64 = 16.0;

/// Pixels without gaps.
#[derive(Clone, Copy)]
pub(crate) struct Pixels<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) channels: Channels,
}

/// Resizes, with the buffers of one thread.
pub(crate) struct Resizer {
    library: Library,
    #[cfg(target_arch = "x86_64")]
    wide: Option<wide::Wide>,
}

impl Resizer {
    pub(crate) fn new() -> Self {
        Self {
            library: Library::new(),
            #[cfg(target_arch = "x86_64")]
            wide: wide::Wide::of_host(),
        }
    }

    /// Resizes the region of a window of `source` to `size` (width, height). The region is relative to the window; the result depends
    /// on no pixels outside of it.
    pub(crate) fn resize(
        &mut self,
        source: Pixels<'_>,
        window: Window,
        region: Region,
        size: (u32, u32),
        out: &mut Vec<u8>,
    ) -> Result<(), ImageError> {
        out.resize(size.0 as usize * size.1 as usize * source.channels.count(), 0);
        #[cfg(target_arch = "x86_64")]
        if let Some(wide) = self.wide.as_mut().filter(|_| region.width <= MOST_REDUCED * f64::from(size.0)) {
            wide.resize(source, window, region, size, out);
            return Ok(());
        }
        self.by_library(source, window, region, size, out)
    }

    fn by_library(
        &mut self,
        source: Pixels<'_>,
        window: Window,
        region: Region,
        size: (u32, u32),
        out: &mut [u8],
    ) -> Result<(), ImageError> {
        let pixel = match source.channels {
            Channels::Rgb => PixelType::U8x3,
            Channels::Gray => PixelType::U8,
        };
        let failed =
            |error: &dyn ToString| ImageError::Damaged { format: "decoded", message: error.to_string() };
        let source = ImageRef::new(source.width, source.height, source.bytes, pixel)
            .map_err(|error| failed(&error))?;
        let source = CroppedImage::new(&source, window.left, window.top, window.width, window.height)
            .map_err(|error| failed(&error))?;
        let mut out = Image::from_slice_u8(size.0, size.1, out, pixel).map_err(|error| failed(&error))?;
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .use_alpha(false)
            .crop(region.left, region.top, region.width, region.height);
        self.library.resize(&source, &mut out, &options).map_err(|error| failed(&error))
    }

    /// The bytes of its buffers.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        let bytes = self.library.size_of_internal_buffers();
        #[cfg(target_arch = "x86_64")]
        let bytes = bytes + self.wide.as_ref().map_or(0, wide::Wide::bytes);
        bytes
    }

    /// Frees the memory of the last image.
    pub(crate) fn release(&mut self) {
        self.library.reset_internal_buffers();
        #[cfg(target_arch = "x86_64")]
        if let Some(wide) = &mut self.wide {
            wide.release();
        }
    }
}

/// The weights of one dimension.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Default)]
struct Weights {
    /// The first pixel of each pixel of the result.
    starts: Vec<u32>,
    /// The number of pixels of each, rounded up to even.
    taps: usize,
    /// `[results, taps]`: what is beyond a pixel's weights is zero.
    values: Vec<i16>,
    /// The bits behind the point of the weights.
    bits: u32,
    /// Of one result, before rounding.
    exact: Vec<f64>,
}

#[cfg(target_arch = "x86_64")]
impl Weights {
    /// The weights to resize `start..start + length` of `size` pixels to `results`, as `fast_image_resize` and Pillow compute them.
    // Within a function for AVX-512, rounding takes instructions instead of calls.
    #[inline]
    fn fill(&mut self, size: u32, start: f64, length: f64, results: u32) {
        let scale = ((start + length) - start) / f64::from(results);
        let radius = scale.max(1.0);
        let inverse = 1.0 / radius;
        self.taps = (radius.ceil() as usize * 2 + 1).next_multiple_of(2);
        self.starts.clear();
        self.exact.clear();
        for result in 0..results {
            let middle = start + (f64::from(result) + 0.5) * scale;
            let from = (middle - radius).floor().max(0.0) as u32;
            let to = (middle + radius).ceil().min(size.into()) as u32;
            let middle = middle - 0.5;
            let weight = |pixel: u32| (1.0 - ((f64::from(pixel) - middle) * inverse).abs()).max(0.0);
            // Without the zeros before the first weight.
            let first = (from..to).find(|&pixel| weight(pixel) != 0.0).unwrap_or(to);
            let begin = self.exact.len();
            self.starts.push(first);
            self.exact.extend((first..to).map(weight));
            let sum: f64 = self.exact[begin..].iter().sum();
            if sum != 0.0 {
                self.exact[begin..].iter_mut().for_each(|weight| *weight /= sum);
            }
            self.exact.resize(begin + self.taps, 0.0);
        }
        let greatest = self.exact.iter().copied().fold(0.0, f64::max);
        // As many as the greatest weight allows, at most 21: results have 8 bits, and sums 32.
        self.bits =
            (0..21).find(|bits| (greatest * f64::from(1 << (bits + 1))).round() >= 32_768.0).unwrap_or(21);
        let one = f64::from(1_u32 << self.bits);
        self.values.clear();
        self.values.extend(self.exact.iter().map(|weight| (weight * one).round() as i16));
    }

    fn of(&self, result: usize) -> &[i16] {
        &self.values[result * self.taps..][..self.taps]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// A part of `0..size` of any fraction.
    fn part(size: u32, (start, length): (f64, f64), rounds: bool) -> (f64, f64) {
        let size = f64::from(size);
        if rounds {
            let start = (start * (size - 1.0)).floor();
            return (start, 1.0 + (length * (size - start - 1.0)).floor());
        }
        let start = start * size * 0.99;
        (start, (size - start) * length.max(0.001))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn wide_registers_have_the_results_of_the_library(
            (width, height) in (1_u32..150, 1_u32..90), (out_width, out_height) in (1_u32..80, 1_u32..60), gray: bool,
            borders: [u8; 4], across in (0.0..1.0, 0.0..1.0), down in (0.0..1.0, 0.0..1.0), rounds: bool, keeps: (bool, bool),
            seed: u64,
        ) {
            let channels = if gray { Channels::Gray } else { Channels::Rgb };
            let [left, right, top, bottom] = borders.map(|border| u32::from(border % 40));
            let window = Window { left, top, width, height };
            let (whole_width, whole_height) = (left + width + right, top + height + bottom);
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            };
            let count = whole_width as usize * whole_height as usize * channels.count();
            let bytes: Vec<u8> = (0..count).map(|i| if i % 5 == 0 { 255 * (i as u8 & 1) } else { next() }).collect();
            let source = Pixels { bytes: &bytes, width: whole_width, height: whole_height, channels };
            let ((left, width), (top, height)) = (part(width, across, rounds), part(height, down, rounds));
            let region = Region { left, top, width, height };
            let kept = |keeps: bool, length: f64, out: u32| if keeps && rounds { length as u32 } else { out };
            let size = (kept(keeps.0, width, out_width), kept(keeps.1, height, out_height));
            let mut resizer = Resizer::new();
            let mut out = Vec::new();
            resizer.resize(source, window, region, size, &mut out).unwrap();
            let mut expected = vec![0; out.len()];
            resizer.by_library(source, window, region, size, &mut expected).unwrap();
            prop_assert!(out == expected, "{:?} to {:?}: {:?}, {:?}", region, size, out, expected);
        }
    }
}
