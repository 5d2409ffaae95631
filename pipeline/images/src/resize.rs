//! Resizing by a triangular filter, which covers as many pixels as a pixel of the result stands for, as Pillow's and torchvision's
//! do.
//!
//! Both passes are sums of products of bytes with weights of 16 bits, rounded to bytes: the vertical pass first, a row of the result at a
//! time, so that what is between the passes stays in the first cache.
//!
//! With AVX-512 (VBMI and VNNI: Ice Lake, Zen 4 and later) both passes are here. A vertical sum takes two rows of 64 bytes at a time. For
//! a horizontal one, a permutation of 64 bytes gathers two neighbouring pixels for each of 16 values of the result; the permutations
//! depend on the columns alone, and are made once per image. Elsewhere `fast_image_resize` does the same sums: results are the same
//! to the bit.

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

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m512i, _mm_cvtsi32_si128, _mm512_dpwssd_epi32, _mm512_loadu_si512,
        _mm512_mask_cvtusepi32_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_maskz_permutexvar_epi8,
        _mm512_max_epi32, _mm512_packs_epi32, _mm512_packus_epi16, _mm512_set1_epi32, _mm512_setzero_si512,
        _mm512_sra_epi32, _mm512_storeu_si512, _mm512_unpackhi_epi8, _mm512_unpacklo_epi8,
    };

    use super::{Pixels, Region, Weights, Window};

    /// The bytes of a register.
    const BYTES: usize = 64;
    /// The sums of a register.
    const SUMS: usize = 16;
    /// The bytes to which a permutation gathers pairs: each pixel's byte, and a zero.
    const GATHERED: u64 = 0x5555_5555_5555_5555;

    /// Resizes with AVX-512.
    pub(super) struct Wide {
        across: Weights,
        down: Weights,
        groups: Vec<Group>,
        /// Of each group and each pair of its taps.
        pairs: Vec<Pair>,
        /// A row between the passes, with room for a register behind it.
        row: Vec<u8>,
    }

    /// Pixels of the result whose sums fill a register.
    struct Group {
        /// The first byte of the row that they need.
        start: usize,
        /// The first byte of them in the result, and their number.
        out: usize,
        count: usize,
    }

    /// What two neighbouring pixels add to a group.
    struct Pair {
        indices: [u8; BYTES],
        weights: [i16; BYTES / 2],
    }

    impl Wide {
        /// `None` if the processor lacks instructions.
        pub(super) fn of_host() -> Option<Self> {
            let has_all = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("avx512vnni");
            has_all.then(|| Self {
                across: Weights::default(),
                down: Weights::default(),
                groups: Vec::new(),
                pairs: Vec::new(),
                row: Vec::new(),
            })
        }

        pub(super) fn resize(
            &mut self,
            source: Pixels<'_>,
            window: Window,
            region: Region,
            size: (u32, u32),
            out: &mut [u8],
        ) {
            // SAFETY: the processor has the instructions.
            unsafe { self.resize_with_instructions(source, window, region, size, out) }
        }

        #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
        fn resize_with_instructions(
            &mut self,
            source: Pixels<'_>,
            window: Window,
            region: Region,
            (width, height): (u32, u32),
            out: &mut [u8],
        ) {
            let channels = source.channels.count();
            let (pitch, out_pitch) = (source.width as usize * channels, width as usize * channels);
            let fits = |window: u32, start: u32, size: u32| start <= size && window <= size - start;
            assert!(
                fits(window.width, window.left, source.width)
                    && fits(window.height, window.top, source.height),
                "the window lies in the source"
            );
            let source = &source.bytes[..pitch * source.height as usize];
            // A dimension that keeps its pixels needs no pass.
            let is_kept = |start: f64, length: f64, results: u32| {
                start == start.round() && length == f64::from(results)
            };
            let keeps_columns = is_kept(region.left, region.width, width);
            let keeps_rows = is_kept(region.top, region.height, height);
            let columns = if keeps_columns {
                region.left as usize..region.left as usize + width as usize
            } else {
                self.across.fill(window.width, region.left, region.width, width);
                let last = self.across.starts.len() - 1;
                // Taps of the last pixel that lie beyond the window have no weight.
                let taps =
                    self.across.of(last).iter().rposition(|&weight| weight != 0).map_or(1, |tap| tap + 1);
                self.across.starts[0] as usize
                    ..(self.across.starts[last] as usize + taps).min(window.width as usize)
            };
            let bytes = columns.len() * channels;
            let first = (window.left as usize + columns.start) * channels;
            self.row.clear();
            self.row.resize(bytes.next_multiple_of(BYTES) + BYTES, 0);
            if !keeps_columns {
                self.group(columns.start, channels);
            }
            if !keeps_rows {
                self.down.fill(window.height, region.top, region.height, height);
            }
            let line = |row: usize| &source[(window.top as usize + row) * pitch + first..][..bytes];
            let mut rows = Vec::with_capacity(self.down.taps);
            for (number, out) in out.chunks_exact_mut(out_pitch).enumerate() {
                if keeps_rows {
                    self.row[..bytes].copy_from_slice(line(region.top as usize + number));
                } else {
                    let (start, weights) = (self.down.starts[number] as usize, self.down.of(number));
                    // A row behind the last one has no weight.
                    let row = |tap: usize| line((start + tap).min(window.height as usize - 1));
                    rows.clear();
                    rows.extend((0..weights.len()).map(row));
                    vertical(&rows, weights, self.down.bits, &mut self.row);
                }
                if keeps_columns {
                    out.copy_from_slice(&self.row[..out_pitch]);
                } else {
                    horizontal(&self.row, &self.groups, &self.pairs, (channels, self.across.bits), out);
                }
            }
        }

        /// Makes the groups and pairs of the weights across, of rows that begin at pixel `first`.
        fn group(&mut self, first: usize, channels: usize) {
            self.groups.clear();
            self.pairs.clear();
            let (starts, taps) = (&self.across.starts, self.across.taps);
            let mut next = 0;
            while next < starts.len() {
                let fits = |end: usize| {
                    (starts[end] - starts[next]) as usize + 2 <= BYTES / channels
                        && (end - next + 1) * channels <= SUMS
                };
                let count = (next..starts.len()).take_while(|&end| fits(end)).count();
                let start = starts[next] as usize;
                for tap in (0..taps).step_by(2) {
                    let mut pair = Pair { indices: [0; BYTES], weights: [0; BYTES / 2] };
                    for place in 0..count {
                        let offset = starts[next + place] as usize - start;
                        let weights = &self.across.of(next + place)[tap..tap + 2];
                        for channel in 0..channels {
                            let sum = place * channels + channel;
                            for (side, &weight) in weights.iter().enumerate() {
                                pair.indices[4 * sum + 2 * side] =
                                    ((offset + side) * channels + channel) as u8;
                                pair.weights[2 * sum + side] = weight;
                            }
                        }
                    }
                    self.pairs.push(pair);
                }
                self.groups.push(Group {
                    start: (start - first) * channels,
                    out: next * channels,
                    count: count * channels,
                });
                next += count;
            }
            // The last taps of a group may lie behind the row, without weight.
            let most =
                self.groups.iter().map(|group| group.start).max().unwrap_or(0) + taps * channels + BYTES;
            self.row.resize(self.row.len().max(most), 0);
        }

        #[cfg(test)]
        pub(super) fn bytes(&self) -> usize {
            let weights = |weights: &Weights| 4 * weights.starts.capacity() + 10 * weights.values.capacity();
            weights(&self.across)
                + weights(&self.down)
                + self.groups.capacity() * size_of::<Group>()
                + self.pairs.capacity() * size_of::<Pair>()
                + self.row.capacity()
        }

        pub(super) fn release(&mut self) {
            (self.across, self.down) = (Weights::default(), Weights::default());
            (self.groups, self.pairs, self.row) = (Vec::new(), Vec::new(), Vec::new());
        }
    }

    /// Sums rows of equal length with `weights`. `out` has room for whole registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
    fn vertical(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8]) {
        let (half, shift) = (_mm512_set1_epi32(1 << (bits - 1)), _mm_cvtsi32_si128(bits as i32));
        let (zero, bytes) = (_mm512_setzero_si512(), rows[0].len());
        for at in (0..bytes).step_by(BYTES) {
            let left = bytes - at;
            let mask = if left >= BYTES { u64::MAX } else { (1 << left) - 1 };
            // SAFETY: the row has `left` bytes from here on, to which the mask restricts the load.
            let load = |row: &[u8]| unsafe { _mm512_maskz_loadu_epi8(mask, row[at..].as_ptr().cast()) };
            let mut sums = [half; 4];
            for (rows, weights) in rows.chunks_exact(2).zip(weights.chunks_exact(2)) {
                if weights == [0, 0] {
                    continue;
                }
                let (upper, lower) = (load(rows[0]), load(rows[1]));
                let both = u32::from(weights[0] as u16) | u32::from(weights[1] as u16) << 16;
                let both = _mm512_set1_epi32(both as i32);
                let (low, high) = (_mm512_unpacklo_epi8(upper, lower), _mm512_unpackhi_epi8(upper, lower));
                sums[0] = _mm512_dpwssd_epi32(sums[0], _mm512_unpacklo_epi8(low, zero), both);
                sums[1] = _mm512_dpwssd_epi32(sums[1], _mm512_unpackhi_epi8(low, zero), both);
                sums[2] = _mm512_dpwssd_epi32(sums[2], _mm512_unpacklo_epi8(high, zero), both);
                sums[3] = _mm512_dpwssd_epi32(sums[3], _mm512_unpackhi_epi8(high, zero), both);
            }
            let [a, b, c, d] = sums.map(|sum| _mm512_sra_epi32(sum, shift));
            let levels = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
            let out: &mut [u8; BYTES] = (&mut out[at..at + BYTES]).try_into().expect("of this length");
            // SAFETY: the array has as many bytes.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), levels) };
        }
    }

    /// Sums the pixels of a row.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
    fn horizontal(
        row: &[u8],
        groups: &[Group],
        pairs: &[Pair],
        (channels, bits): (usize, u32),
        out: &mut [u8],
    ) {
        let (half, shift) = (_mm512_set1_epi32(1 << (bits - 1)), _mm_cvtsi32_si128(bits as i32));
        let of_group = pairs.len() / groups.len();
        for (group, pairs) in groups.iter().zip(pairs.chunks_exact(of_group)) {
            let mut sums = half;
            let starts = (group.start..).step_by(2 * channels);
            for (pair, start) in pairs.iter().zip(starts) {
                let from: &[u8; BYTES] = row[start..][..BYTES].try_into().expect("of this length");
                let from = load(from);
                let gathered = _mm512_maskz_permutexvar_epi8(GATHERED, load(&pair.indices), from);
                // SAFETY: the array has as many bytes.
                let weights = unsafe { _mm512_loadu_si512(pair.weights.as_ptr().cast()) };
                sums = _mm512_dpwssd_epi32(sums, gathered, weights);
            }
            let sums = _mm512_max_epi32(_mm512_sra_epi32(sums, shift), _mm512_setzero_si512());
            let out = &mut out[group.out..][..group.count];
            let mask = ((1_u32 << group.count) - 1) as u16;
            // SAFETY: the mask restricts the store to the bytes of `out`.
            unsafe { _mm512_mask_cvtusepi32_storeu_epi8(out.as_mut_ptr().cast(), mask, sums) };
        }
    }

    #[target_feature(enable = "avx512f")]
    fn load(bytes: &[u8; BYTES]) -> __m512i {
        // SAFETY: the array has as many bytes.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
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
