//! Random changes of colours, as one linear map of each pixel.
//!
//! Brightness, contrast, saturation and hue are linear in red, green and blue, so a pixel is multiplied by one matrix, as
//! NVIDIA DALI's `ColorTwist` does. Results are rounded to levels, as those of a library of images.

use crate::crop::Draws;
use crate::spec::{Channels, Jitter};

/// The share of each channel in the brightness of a pixel (ITU-R BT.601).
const LUMA: [f32; 3] = [0.299, 0.587, 0.114];

/// The level that a change of contrast keeps.
const MIDDLE: f32 = 128.0;

/// A linear map of a pixel: `out = matrix * pixel + offset`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ColorMap {
    matrix: [[f32; 3]; 3],
    offset: f32,
}

impl ColorMap {
    /// Draws the factors. The number of draws depends on `jitter` alone.
    pub(crate) fn draw(jitter: &Jitter, draws: &mut Draws<'_>) -> Self {
        let mut factor = |distance: f32| {
            if distance > 0.0 {
                draws.between((1.0 - distance).into(), (1.0 + distance).into()) as f32
            } else {
                1.0
            }
        };
        let [brightness, contrast, saturation] =
            [jitter.brightness, jitter.contrast, jitter.saturation].map(&mut factor);
        // From -hue to hue, as the distance of the factor from 1.
        let turn = factor(jitter.hue) - 1.0;
        Self::of(brightness.max(0.0), contrast.max(0.0), saturation.max(0.0), turn)
    }

    /// The hue turns first, by `turn` full turns; then saturation, contrast and brightness change.
    fn of(brightness: f32, contrast: f32, saturation: f32, turn: f32) -> Self {
        let saturated: [[f32; 3]; 3] = std::array::from_fn(|row| {
            std::array::from_fn(|column| {
                (1.0 - saturation) * LUMA[column] + if row == column { saturation } else { 0.0 }
            })
        });
        let scale = brightness * contrast;
        let matrix = product(&saturated, &rotation(turn)).map(|row| row.map(|value| scale * value));
        Self { matrix, offset: brightness * MIDDLE * (1.0 - contrast) }
    }

    /// Changes the pixels of an image.
    pub(crate) fn apply(&self, channels: Channels, pixels: &mut [u8]) {
        match channels {
            Channels::Rgb => {
                for pixel in pixels.chunks_exact_mut(3) {
                    let values = [pixel[0], pixel[1], pixel[2]].map(f32::from);
                    for (out, [red, green, blue]) in pixel.iter_mut().zip(self.matrix) {
                        *out = level(red * values[0] + green * values[1] + blue * values[2] + self.offset);
                    }
                }
            }
            // Saturation and hue do not change grey: each row of their matrix adds up to 1.
            Channels::Gray => {
                let factor: f32 = self.matrix[0].iter().sum();
                for pixel in pixels {
                    *pixel = level(factor * f32::from(*pixel) + self.offset);
                }
            }
        }
    }
}

/// The nearest level.
fn level(value: f32) -> u8 {
    (value + 0.5).clamp(0.0, 255.0) as u8
}

/// The matrix that turns hues: a rotation of the chrominance in YIQ (NTSC, 1953).
fn rotation(turn: f32) -> [[f32; 3]; 3] {
    const TO_YIQ: [[f32; 3]; 3] =
        [LUMA, [0.595_716, -0.274_453, -0.321_263], [0.211_456, -0.522_591, 0.311_135]];
    const FROM_YIQ: [[f32; 3]; 3] =
        [[1.0, 0.956_3, 0.621_0], [1.0, -0.272_1, -0.647_4], [1.0, -1.107_0, 1.704_6]];
    if turn == 0.0 {
        return [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    }
    // `libm` has the same results on every machine; the functions of the C library have not.
    let (sin, cos) = libm::sincosf(turn * std::f32::consts::TAU);
    let turned = [[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]];
    product(&FROM_YIQ, &product(&turned, &TO_YIQ))
}

fn product(a: &[[f32; 3]; 3], b: &[[f32; 3]; 3]) -> [[f32; 3]; 3] {
    std::array::from_fn(|row| {
        std::array::from_fn(|column| (0..3).map(|inner| a[row][inner] * b[inner][column]).sum())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIXELS: [u8; 12] = [200, 30, 90, 0, 0, 0, 255, 255, 255, 17, 130, 240];

    fn changed(map: ColorMap) -> [u8; 12] {
        let mut pixels = PIXELS;
        map.apply(Channels::Rgb, &mut pixels);
        pixels
    }

    fn near(found: &[u8], expected: &[u8]) {
        let differ = found.iter().zip(expected).any(|(&found, &expected)| found.abs_diff(expected) > 1);
        assert!(!differ, "{found:?}, expected {expected:?}");
    }

    #[test]
    fn factors_of_one_change_nothing() {
        assert_eq!(changed(ColorMap::of(1.0, 1.0, 1.0, 0.0)), PIXELS);
        let map = ColorMap::draw(&Jitter::default(), &mut Draws(&mut || unreachable!("nothing is drawn")));
        assert_eq!(map, ColorMap::of(1.0, 1.0, 1.0, 0.0));
        // Any number of full turns, up to the rounding of the constants.
        near(&changed(ColorMap::of(1.0, 1.0, 1.0, 1.0)), &PIXELS);
    }

    #[test]
    fn each_factor_does_what_its_name_says() {
        near(&changed(ColorMap::of(0.5, 1.0, 1.0, 0.0)), &PIXELS.map(|level| level / 2));
        let contrast = PIXELS.map(|level| (128.0 + 0.5 * (f32::from(level) - 128.0)).round() as u8);
        near(&changed(ColorMap::of(1.0, 0.5, 1.0, 0.0)), &contrast);
        let grey = changed(ColorMap::of(1.0, 1.0, 0.0, 0.0));
        for (pixel, original) in grey.chunks_exact(3).zip(PIXELS.chunks_exact(3)) {
            assert!(pixel.iter().all(|&level| level == pixel[0]), "{grey:?}");
            let luma: f32 = original.iter().zip(LUMA).map(|(&level, share)| f32::from(level) * share).sum();
            assert!((luma - f32::from(pixel[0])).abs() <= 0.51, "{luma} {grey:?}");
        }
        // Half a turn makes reddish pixels bluish green, and keeps grey.
        let turned = changed(ColorMap::of(1.0, 1.0, 1.0, 0.5));
        assert!(turned[0] < turned[1] && turned[0] < turned[2], "{turned:?}");
        near(&turned[3..9], &PIXELS[3..9]);
    }

    #[test]
    fn gray_images_change_as_grey_pixels_do() {
        let map = ColorMap::of(1.25, 0.75, 1.5, 0.1);
        let mut gray = [0, 60, 128, 200];
        let mut rgb: Vec<u8> = gray.iter().flat_map(|&level| [level; 3]).collect();
        map.apply(Channels::Gray, &mut gray);
        map.apply(Channels::Rgb, &mut rgb);
        for (gray, pixel) in gray.iter().zip(rgb.chunks_exact(3)) {
            near(pixel, &[*gray; 3]);
        }
    }

    #[test]
    fn drawn_factors_lie_within_their_distance() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state ^ state >> 31
        };
        let jitter = Jitter { brightness: 0.25, ..Jitter::default() };
        let mut seen = [f32::MAX, f32::MIN];
        for _ in 0..1_000 {
            let ColorMap { matrix, offset } = ColorMap::draw(&jitter, &mut Draws(&mut next));
            assert_eq!(offset, 0.0);
            seen = [seen[0].min(matrix[0][0]), seen[1].max(matrix[0][0])];
        }
        assert!((0.75..0.76).contains(&seen[0]) && (1.24..=1.25).contains(&seen[1]), "{seen:?}");
    }
}
