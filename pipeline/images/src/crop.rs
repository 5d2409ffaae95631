//! The region of an image that becomes the result.

use crate::spec::Crop;

/// Attempts to draw a region that fits, as torchvision makes.
const ATTEMPTS: u32 = 10;

/// A region of an image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Region {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// A rectangle of whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) left: u32,
    pub(crate) top: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

impl Window {
    /// All of an image of `size` (width, height).
    pub(crate) fn whole((width, height): (u32, u32)) -> Self {
        Self { left: 0, top: 0, width, height }
    }
}

impl Region {
    /// The pixels of an image of `size` (width, height) on which the region depends when it is resized to `output`: the filter
    /// reaches as far beyond the region as a pixel of the result covers, at least one pixel.
    pub(crate) fn window(&self, size: (u32, u32), output: (u32, u32)) -> Window {
        let along = |start: f64, length: f64, size: u32, output: u32| {
            let reach = (length / f64::from(output)).max(1.0) + 1.0;
            let first = (start - reach).floor().max(0.0) as u32;
            let end = (start + length + reach).ceil().min(size.into()) as u32;
            (first, end - first)
        };
        let (left, width) = along(self.left, self.width, size.0, output.0);
        let (top, height) = along(self.top, self.height, size.1, output.1);
        Window { left, top, width, height }
    }

    /// The same region in coordinates of a window of the image.
    pub(crate) fn within(self, window: Window) -> Self {
        let (left, top) = (self.left - f64::from(window.left), self.top - f64::from(window.top));
        // Rounding must not move it beyond the border.
        let width = self.width.min(f64::from(window.width) - left);
        let height = self.height.min(f64::from(window.height) - top);
        Self { left, top, width, height }
    }
}

/// Random numbers.
pub(crate) struct Draws<'a>(pub(crate) &'a mut dyn FnMut() -> u64);

impl Draws<'_> {
    /// A number from 0 to 1, excluding 1.
    fn unit(&mut self) -> f64 {
        ((self.0)() >> 11) as f64 / (1_u64 << f64::MANTISSA_DIGITS) as f64
    }

    /// A number between `from` and `to`.
    pub(crate) fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    /// A whole number from 0 to `most`.
    fn whole(&mut self, most: u32) -> u32 {
        ((u128::from((self.0)()) * u128::from(u64::from(most) + 1)) >> 64) as u32
    }

    /// True for half of the draws.
    pub(crate) fn coin(&mut self) -> bool {
        (self.0)() >> 63 == 1
    }
}

impl Crop {
    /// The region of an image of `size` (width, height) for a result of size `output`.
    pub(crate) fn region(&self, size: (u32, u32), output: (u32, u32), draws: &mut Draws<'_>) -> Region {
        match *self {
            Self::None => whole(size),
            Self::Center { fraction } => center(size, output, fraction.into()),
            Self::RandomResized { scale, ratio } => random(size, scale, ratio, draws),
        }
    }
}

fn whole((width, height): (u32, u32)) -> Region {
    Region { left: 0.0, top: 0.0, width: width.into(), height: height.into() }
}

fn center((width, height): (u32, u32), output: (u32, u32), fraction: f64) -> Region {
    let (width, height) = (f64::from(width), f64::from(height));
    let (out_width, out_height) = (f64::from(output.0), f64::from(output.1));
    let factor = (width / out_width).min(height / out_height) * fraction;
    let region = (out_width * factor, out_height * factor);
    Region {
        left: (width - region.0) / 2.0,
        top: (height - region.1) / 2.0,
        width: region.0,
        height: region.1,
    }
}

/// Draws an area and a ratio until a region of them fits. After the last attempt, the centred region whose ratio is the
/// nearest.
fn random(size: (u32, u32), scale: [f32; 2], ratio: [f32; 2], draws: &mut Draws<'_>) -> Region {
    let (width, height) = (f64::from(size.0), f64::from(size.1));
    // `libm` has the same results on every machine; the functions of the C library have not.
    let [log_least, log_most] = ratio.map(|ratio| libm::log(ratio.into()));
    for _ in 0..ATTEMPTS {
        let area = width * height * draws.between(scale[0].into(), scale[1].into());
        let ratio = libm::exp(draws.between(log_least, log_most));
        let region = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
        if (1.0..=width).contains(&region.0) && (1.0..=height).contains(&region.1) {
            let top = draws.whole(size.1 - region.1 as u32);
            let left = draws.whole(size.0 - region.0 as u32);
            return Region { left: left.into(), top: top.into(), width: region.0, height: region.1 };
        }
    }
    let nearest = (width / height).clamp(ratio[0].into(), ratio[1].into());
    let region = if width / height < nearest {
        (width, (width / nearest).round().clamp(1.0, height))
    } else {
        ((height * nearest).round().clamp(1.0, width), height)
    };
    Region {
        left: ((width - region.0) / 2.0).floor(),
        top: ((height - region.1) / 2.0).floor(),
        width: region.0,
        height: region.1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn generator(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed;
        move || {
            // The generator of Knuth's MMIX, mixed.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        }
    }

    proptest! {
        #[test]
        fn regions_lie_within_the_image(
            width in 1_u32..5_000, height in 1_u32..5_000, out_width in 1_u32..600, out_height in 1_u32..600,
            seed: u64, fraction in 0.01_f32..=1.0, scale in 0.001_f32..=1.0, ratio in 0.05_f32..=1.0,
        ) {
            let mut next = generator(seed);
            let mut draws = Draws(&mut next);
            let crops = [
                Crop::None,
                Crop::Center { fraction },
                Crop::RandomResized { scale: [scale, 1.0], ratio: [ratio, 1.0 / ratio] },
            ];
            for crop in crops {
                let Region { left, top, width: w, height: h } =
                    crop.region((width, height), (out_width, out_height), &mut draws);
                prop_assert!(left >= 0.0 && top >= 0.0 && w > 0.0 && h > 0.0, "{crop:?}");
                let slack = 1e-6 * f64::from(width.max(height));
                prop_assert!(left + w <= f64::from(width) + slack, "{crop:?}: {left} + {w} of {width}");
                prop_assert!(top + h <= f64::from(height) + slack, "{crop:?}: {top} + {h} of {height}");
                let region = Region { left, top, width: w, height: h };
                let window = region.window((width, height), (out_width, out_height));
                prop_assert!(window.width > 0 && window.left + window.width <= width, "{window:?}");
                prop_assert!(window.height > 0 && window.top + window.height <= height, "{window:?}");
            }
        }
    }

    #[test]
    fn random_regions_have_the_areas_and_ratios_that_are_wanted() {
        let mut next = generator(3);
        let mut draws = Draws(&mut next);
        let crop = Crop::RandomResized { scale: [0.25, 0.75], ratio: [0.5, 2.0] };
        let (mut areas, mut wide, mut lefts) = (0.0, 0, 0.0);
        const DRAWS: u32 = 4_000;
        for _ in 0..DRAWS {
            let Region { left, width, height, .. } = crop.region((1_000, 1_000), (1, 1), &mut draws);
            let (area, ratio) = (width * height / 1e6, width / height);
            assert!((0.248..0.752).contains(&area) && (0.498..2.01).contains(&ratio), "{area} {ratio}");
            areas += area;
            wide += u32::from(ratio > 1.0);
            lefts += left / (1_000.0 - width).max(1.0);
        }
        // Regions that do not fit are drawn again, so large ones are a little rarer.
        assert!((0.46..0.51).contains(&(areas / f64::from(DRAWS))), "{areas}");
        assert!((1_850..2_150).contains(&wide), "{wide}");
        assert!((0.48..0.52).contains(&(lefts / f64::from(DRAWS))), "{lefts}");
    }

    #[test]
    fn an_image_that_no_region_fits_has_a_centred_one() {
        let mut next = generator(5);
        let mut draws = Draws(&mut next);
        let crop = Crop::RandomResized { scale: [0.9, 1.0], ratio: [0.75, 4.0 / 3.0] };
        let region = crop.region((1_000, 10), (1, 1), &mut draws);
        assert_eq!(region, Region { left: 493.0, top: 0.0, width: 13.0, height: 10.0 });
        let region = crop.region((10, 1_000), (1, 1), &mut draws);
        assert_eq!(region, Region { left: 0.0, top: 493.0, width: 10.0, height: 13.0 });
    }

    #[test]
    fn a_centred_region_has_the_ratio_of_the_result() {
        let region = Crop::Center { fraction: 0.875 }.region((512, 256), (224, 224), &mut Draws(&mut || 0));
        assert_eq!(region, Region { left: 144.0, top: 16.0, width: 224.0, height: 224.0 });
    }
}
