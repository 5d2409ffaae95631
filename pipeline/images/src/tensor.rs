//! From the levels of an image to values of a type, in the order of the batch.
//!
//! A value depends on its level and channel alone, so each channel has a table of 256 values. They are those of
//! torchvision's `ToTensor` and `Normalize`, to the bit: `(level / 255 - mean) / std` in `float32`, then rounded once to
//! 16 bits if these are wanted.

use millstream_batch::{Dtype, float16};

use crate::spec::{ImageSpec, Layout};

/// The values of all levels, by channel.
pub(crate) enum Values {
    /// The levels themselves.
    Levels,
    /// Values of 16 bits.
    Bits16(Vec<[u16; 256]>),
    /// Values of 32 bits.
    Bits32(Vec<[u32; 256]>),
}

impl Values {
    pub(crate) fn of(spec: &ImageSpec) -> Self {
        let floats = |channel: usize| -> [f32; 256] {
            let normalize = spec.normalize.as_ref();
            let of = |values: &[f32], usual: f32| values.get(channel).copied().unwrap_or(usual);
            let mean = normalize.map_or(0.0, |normalize| of(&normalize.mean, 0.0));
            let std = normalize.map_or(1.0, |normalize| of(&normalize.std, 1.0));
            std::array::from_fn(|level| (level as f32 / 255.0 - mean) / std)
        };
        let channels = 0..spec.channels.count();
        match spec.dtype {
            Dtype::Float32 => {
                Self::Bits32(channels.map(|channel| floats(channel).map(f32::to_bits)).collect())
            }
            Dtype::Float16 => Self::Bits16(
                channels
                    .map(|channel| floats(channel).map(|value| float16::of_f64::<10>(value.into())))
                    .collect(),
            ),
            Dtype::Bfloat16 => Self::Bits16(
                channels
                    .map(|channel| floats(channel).map(|value| float16::of_f64::<7>(value.into())))
                    .collect(),
            ),
            _ => Self::Levels,
        }
    }

    /// Writes the `pixels` of an image of the specification's size, mirrored if `flipped`. `out` is the image's row of
    /// the column.
    pub(crate) fn write(&self, spec: &ImageSpec, pixels: &[u8], flipped: bool, out: &mut [u8]) {
        match self {
            Self::Levels => write(spec, pixels, flipped, out, |_, level| [level]),
            Self::Bits16(tables) => {
                write(spec, pixels, flipped, out, |channel, level| {
                    tables[channel][level as usize].to_ne_bytes()
                });
            }
            Self::Bits32(tables) => {
                write(spec, pixels, flipped, out, |channel, level| {
                    tables[channel][level as usize].to_ne_bytes()
                });
            }
        }
    }
}

/// The places of a pixel in the planes of red, green and blue.
type Planes<'a> = ((&'a mut [u8], &'a mut [u8]), &'a mut [u8]);

fn write<const N: usize>(
    spec: &ImageSpec,
    pixels: &[u8],
    flipped: bool,
    out: &mut [u8],
    value: impl Fn(usize, u8) -> [u8; N] + Copy,
) {
    let (width, plane) = (spec.width as usize, spec.height as usize * spec.width as usize);
    match (spec.channels.count(), spec.layout) {
        (3, Layout::Nhwc) => {
            for (row, out) in pixels.chunks_exact(3 * width).zip(out.chunks_exact_mut(3 * width * N)) {
                let convert = |(pixel, out): (&[u8], &mut [u8])| {
                    for (channel, (&level, out)) in pixel.iter().zip(out.chunks_exact_mut(N)).enumerate() {
                        out.copy_from_slice(&value(channel, level));
                    }
                };
                let out = out.chunks_exact_mut(3 * N);
                if flipped {
                    row.chunks_exact(3).rev().zip(out).for_each(convert);
                } else {
                    row.chunks_exact(3).zip(out).for_each(convert);
                }
            }
        }
        (3, Layout::Nchw) => {
            let (red, rest) = out.split_at_mut(plane * N);
            let (green, blue) = rest.split_at_mut(plane * N);
            let planes = red.chunks_exact_mut(width * N).zip(green.chunks_exact_mut(width * N));
            let planes = planes.zip(blue.chunks_exact_mut(width * N));
            for (row, ((red, green), blue)) in pixels.chunks_exact(3 * width).zip(planes) {
                let outs =
                    red.chunks_exact_mut(N).zip(green.chunks_exact_mut(N)).zip(blue.chunks_exact_mut(N));
                let convert = |(pixel, outs): (&[u8], Planes<'_>)| {
                    let ((red, green), blue) = outs;
                    red.copy_from_slice(&value(0, pixel[0]));
                    green.copy_from_slice(&value(1, pixel[1]));
                    blue.copy_from_slice(&value(2, pixel[2]));
                };
                if flipped {
                    row.chunks_exact(3).rev().zip(outs).for_each(convert);
                } else {
                    row.chunks_exact(3).zip(outs).for_each(convert);
                }
            }
        }
        // One channel has the same order in both layouts.
        _ => {
            for (row, out) in pixels.chunks_exact(width).zip(out.chunks_exact_mut(width * N)) {
                let convert = |(&level, out): (&u8, &mut [u8])| out.copy_from_slice(&value(0, level));
                let out = out.chunks_exact_mut(N);
                if flipped {
                    row.iter().rev().zip(out).for_each(convert);
                } else {
                    row.iter().zip(out).for_each(convert);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_batch::Dtype;
    use proptest::prelude::*;

    use super::*;
    use crate::reader::tests::spec;
    use crate::spec::{Channels, Normalize};

    /// The definition: where each value goes, one by one.
    fn reference(spec: &ImageSpec, pixels: &[u8], flipped: bool) -> Vec<u8> {
        let (height, width, channels) = (spec.height as usize, spec.width as usize, spec.channels.count());
        let size = spec.dtype.bytes();
        let mut out = vec![0; height * width * channels * size];
        for (y, x, c) in
            (0..height).flat_map(|y| (0..width).flat_map(move |x| (0..channels).map(move |c| (y, x, c))))
        {
            let from = if flipped { width - 1 - x } else { x };
            let level = pixels[(y * width + from) * channels + c];
            let place = match spec.layout {
                Layout::Nhwc => (y * width + x) * channels + c,
                Layout::Nchw => (c * height + y) * width + x,
            };
            let (mean, std) = spec.normalize.as_ref().map_or((0.0, 1.0), |n| (n.mean[c], n.std[c]));
            let float = (f32::from(level) / 255.0 - mean) / std;
            let bytes = match spec.dtype {
                Dtype::Float32 => float.to_ne_bytes().to_vec(),
                Dtype::Float16 => float16::of_f64::<10>(float.into()).to_ne_bytes().to_vec(),
                Dtype::Bfloat16 => float16::of_f64::<7>(float.into()).to_ne_bytes().to_vec(),
                _ => vec![level],
            };
            out[place * size..][..size].copy_from_slice(&bytes);
        }
        out
    }

    proptest! {
        #[test]
        fn matches_the_reference(
            height in 1_u32..9, width in 1_u32..9, gray: bool, nchw: bool, flipped: bool, normalized: bool,
            dtype in 0_usize..4, seed: u8,
        ) {
            let channels = if gray { Channels::Gray } else { Channels::Rgb };
            let dtype = ImageSpec::DTYPES[dtype];
            let normalize = Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] };
            let spec = ImageSpec {
                height, width, channels, dtype,
                layout: if nchw { Layout::Nchw } else { Layout::Nhwc },
                normalize: (normalized && dtype != Dtype::Uint8).then_some(normalize),
                ..spec()
            };
            let count = height as usize * width as usize * channels.count();
            let pixels: Vec<u8> = (0..count).map(|i| (i as u8).wrapping_mul(37).wrapping_add(seed)).collect();
            let mut out = vec![0xaa; count * dtype.bytes()];
            Values::of(&spec).write(&spec, &pixels, flipped, &mut out);
            prop_assert_eq!(out, reference(&spec, &pixels, flipped));
        }
    }
}
