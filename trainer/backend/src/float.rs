//! Number formats and rounding: the basis of mixed precision.
//!
//! A matrix has a format ([`Device::matrix_of`](crate::Device::matrix_of)). **Every value written to a matrix is
//! rounded to its format once, to nearest, ties to even**; sums and all other intermediate values of an operation
//! have at least fp32 precision. A matrix product takes its factors in the format of its input: weights, and an
//! output gradient of higher precision, are rounded to it first. The bias is rounded to the format of the output,
//! the only one in which GPU libraries can fuse a bias. Nothing else rounds. So the formats that a model gives to
//! its matrices determine where values are rounded, and it is the same on every device.
//!
//! The weights of a table have a format, too ([`TableShape::float`](crate::TableShape)). Values written to them
//! from outside are rounded to nearest. Weights updated by a step are rounded **stochastically** to one of the two
//! adjacent numbers, with probabilities that make the expected value exact ([`Float::round_drawn`]). A step that is
//! small compared with the spacing of numbers would be lost again and again when rounded to nearest; stochastic
//! rounding takes it on average. Gupta et al., "Deep Learning with Limited Numerical Precision", 2015, section 4.1;
//! for tables, Zhang et al., "Training with Low-precision Embedding Tables", 2018. No finite number becomes
//! infinite in a table: it saturates at the largest.
//!
//! Host backends store the numbers of every format as their own scalar type; the values are those that a GPU's
//! memory would hold.

/// A binary floating-point format, with the code that CUDA kernels know it by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE single precision: 24-bit significand. On [`Reference`](crate::Reference) it stands for double
    /// precision.
    #[default]
    F32 = 0,
    /// The upper half of fp32: 8-bit significand and the same range.
    Bf16 = 1,
    /// IEEE half precision: 11-bit significand, subnormal below 2^-14, infinity from 65520 on.
    F16 = 2,
}

impl Float {
    /// The nearest number of this format, ties to even; infinity beyond the largest. NaN stays NaN.
    #[inline(always)]
    pub fn round(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::Bf16 => to_bf16(x),
            Self::F16 => to_f16(x),
        }
    }

    /// As [`Float::round`], but finite numbers stay finite: they saturate at the largest.
    #[inline(always)]
    pub fn round_finite(self, x: f32) -> f32 {
        let rounded = self.round(x);
        if x.is_finite() { rounded.clamp(-self.largest(), self.largest()) } else { rounded }
    }

    /// Stochastic rounding: one of the two numbers of this format adjacent to `x`. Let `f` be the distance of `x`
    /// from the one closer to 0, as a fraction of the spacing, in units of `2^-32`, rounded down. The result is the
    /// one farther from 0 if `word + f >= 2^32`, where `word` is uniformly distributed.
    ///
    /// So the mean over all words is `x`, up to `2^-32` of the spacing. Numbers of this format, infinity and NaN
    /// are unchanged; finite numbers stay finite, as with [`Float::round_finite`].
    #[inline(always)]
    pub fn round_drawn(self, x: f32, word: u32) -> f32 {
        let size = x.to_bits() & 0x7fff_ffff;
        let magnitude = match self {
            Self::F32 => return x,
            Self::Bf16 => f32::from_bits((size >> 16).wrapping_add(carry(size << 16, word)) << 16),
            Self::F16 => {
                let normal = f32::from_bits((size >> 13).wrapping_add(carry(size << 19, word)) << 13);
                // Below 2^-14: fixed point in units of 2^-24, with as many fraction bits as a word has.
                let digits = u64::from(size & 0x007f_ffff | 0x0080_0000) << 32;
                let fixed = digits >> 126_u32.wrapping_sub(size >> 23).min(63);
                let units = (fixed >> 32) as u32 + carry(fixed as u32, word);
                if size < LEAST_NORMAL_F16 { units as f32 * UNIT_F16 } else { normal }
            }
        };
        let finite = magnitude.min(self.largest());
        if x.is_finite() { finite.copysign(x) } else { x }
    }

    /// The largest finite number.
    const fn largest(self) -> f32 {
        match self {
            Self::F32 => f32::MAX,
            Self::Bf16 => f32::from_bits(0x7f7f_0000),
            Self::F16 => 65504.0,
        }
    }

    /// The 16-bit encoding of the nearest number of this format, which must have 16 bits.
    pub(crate) fn encode(self, x: f32) -> u16 {
        let x = self.round(x);
        let (sign, size) = ((x.to_bits() >> 16) as u16 & 0x8000, x.abs());
        match self {
            Self::F32 => panic!("a 16-bit format"),
            Self::Bf16 => (x.to_bits() >> 16) as u16,
            Self::F16 if x.is_nan() => sign | 0x7e00,
            Self::F16 => sign | ((size * F16_BELOW_F32).to_bits() >> 13).min(0x7c00) as u16,
        }
    }

    /// Decodes 16 bits.
    #[inline(always)]
    pub(crate) fn decode(self, bits: u16) -> f32 {
        match self {
            Self::F32 => panic!("a 16-bit format"),
            Self::Bf16 => f32::from_bits(u32::from(bits) << 16),
            Self::F16 => {
                let (sign, size) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff) << 13);
                let finite = f32::from_bits(size) / F16_BELOW_F32;
                let kept = if size < 0x0f80_0000 { finite.to_bits() } else { size | 0x7f80_0000 };
                f32::from_bits(kept | sign)
            }
        }
    }

    /// Rounds each number.
    #[inline(always)]
    pub(crate) fn round_all(self, numbers: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::Bf16 => numbers.iter_mut().for_each(|x| *x = to_bf16(*x)),
            Self::F16 => numbers.iter_mut().for_each(|x| *x = to_f16(*x)),
        }
    }

    /// [`Float::round`] by definition, directly from fp64.
    pub(crate) fn round_f64(self, x: f64) -> f64 {
        let Some(unit) = self.unit(x) else { return x };
        let rounded = (x / unit).round_ties_even() * unit;
        if rounded.abs() <= self.largest().into() { rounded } else { f64::INFINITY.copysign(x) }
    }

    /// [`Float::round_finite`] by definition, from fp64.
    pub(crate) fn round_finite_f64(self, x: f64) -> f64 {
        let (rounded, largest) = (self.round_f64(x), f64::from(self.largest()));
        if x.is_finite() && self != Self::F32 { rounded.clamp(-largest, largest) } else { rounded }
    }

    /// [`Float::round_drawn`] by definition, from fp64.
    pub(crate) fn round_drawn_f64(self, x: f64, word: u32) -> f64 {
        let Some(unit) = self.unit(x) else { return x };
        let (units, all_words) = (x.abs() / unit, 2.0_f64.powi(32));
        let rest = (units.fract() * all_words).floor();
        let drawn = units.floor() + if rest + f64::from(word) >= all_words { 1.0 } else { 0.0 };
        (drawn * unit).min(self.largest().into()).copysign(x)
    }

    /// The spacing of this format's numbers at the magnitude of `x`; `None` if `x` needs no rounding.
    fn unit(self, x: f64) -> Option<f64> {
        let (digits, least_exponent) = match self {
            Self::F32 => return None,
            Self::Bf16 => (8, -126),
            Self::F16 => (11, -14),
        };
        if x == 0.0 || !x.is_finite() {
            return None;
        }
        let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least_exponent);
        Some(2.0_f64.powi(exponent - (digits - 1)))
    }
}

/// The bits of 2^-14, the least normal fp16 number.
const LEAST_NORMAL_F16: u32 = 0x3880_0000;
/// The least positive fp16 number.
const UNIT_F16: f32 = 1.0 / (1 << 24) as f32;
/// 2^-112: fp16's exponent bias is 15, fp32's is 127.
const F16_BELOW_F32: f32 = f32::from_bits(15 << 23);

/// The carry of the sum of two words.
#[inline(always)]
fn carry(rest: u32, word: u32) -> u32 {
    u32::from(word > !rest)
}

/// The lower half decides the rounding; on a tie, the last remaining bit does. A carry propagates into the
/// exponent, up to infinity.
#[inline(always)]
fn to_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // A NaN may have its payload in the lower half only.
    let kept = if x.is_nan() { bits | 0x0040_0000 } else { rounded };
    f32::from_bits(kept & 0xffff_0000)
}

/// As [`to_bf16`] for normal numbers. Below them, numbers are multiples of 2^-24, which is the fp32 spacing between
/// 1/2 and 1: adding one half rounds to it.
#[inline(always)]
fn to_f16(x: f32) -> f32 {
    const LEAST_NORMAL: f32 = f32::from_bits(LEAST_NORMAL_F16);
    const LARGEST: f32 = Float::F16.largest();
    let bits = x.to_bits();
    let size = f32::from_bits(bits & 0x7fff_ffff);
    let rounded = f32::from_bits((bits & 0x7fff_ffff).wrapping_add(0xfff + (bits >> 13 & 1)) & 0xffff_e000);
    let normal = if rounded > LARGEST { f32::INFINITY } else { rounded };
    let finite = if size < LEAST_NORMAL { (size + 0.5) - 0.5 } else { normal };
    let magnitude = if x.is_nan() { x.abs() } else { finite };
    magnitude.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every non-negative number of a 16-bit format in order, including infinity, by decoding all of them.
    fn numbers(float: Float) -> Vec<f64> {
        let (fraction_bits, bias) = if float == Float::Bf16 { (7, 127) } else { (10, 15) };
        let infinity = ((1_u32 << (15 - fraction_bits)) - 1) << fraction_bits;
        let decode = |code: u32| {
            let (exponent, fraction) = (code >> fraction_bits, code & ((1 << fraction_bits) - 1));
            let fraction = f64::from(fraction) / f64::from(1 << fraction_bits);
            match exponent {
                0 => fraction * 2.0_f64.powi(1 - bias),
                _ => (1.0 + fraction) * 2.0_f64.powi(exponent as i32 - bias),
            }
        };
        (0..=infinity).map(decode).collect()
    }

    /// Checks both implementations of rounding, for both signs.
    fn check(float: Float, x: f64, expected: f64) {
        let expected = if expected == *numbers_bound(float) { f64::INFINITY } else { expected };
        for sign in [1.0, -1.0] {
            let (x, expected) = (sign * x, sign * expected);
            assert_eq!(float.round_f64(x).to_bits(), expected.to_bits(), "{float:?} of {x}");
            assert_eq!(f64::from(float.round(x as f32)).to_bits(), expected.to_bits(), "{float:?} of {x}");
        }
    }

    /// The value after the largest number, where infinity's encoding would be.
    fn numbers_bound(float: Float) -> &'static f64 {
        if float == Float::Bf16 { &340_282_366_920_938_463_463_374_607_431_768_211_456.0 } else { &65536.0 }
    }

    #[test]
    fn every_number_stays_and_what_lies_between_goes_to_the_nearest() {
        for float in [Float::Bf16, Float::F16] {
            let numbers = numbers(float);
            assert_eq!(numbers.len(), if float == Float::Bf16 { 0x7f81 } else { 0x7c01 });
            for (code, pair) in numbers.windows(2).enumerate() {
                let (low, high) = (pair[0], pair[1]);
                let middle = f64::midpoint(low, high);
                let even = if code % 2 == 0 { low } else { high };
                check(float, low, low);
                check(float, middle, even);
                // The adjacent fp32 numbers, and numbers farther from the midpoint.
                let (below, above) = ((middle as f32).next_down(), (middle as f32).next_up());
                check(float, f64::from(below), low);
                check(float, f64::from(above), high);
                for share in [0.1, 0.3, 0.7, 0.9] {
                    let x = f64::from((low + share * (high - low)) as f32);
                    let expected = if x < middle {
                        low
                    } else if x > middle {
                        high
                    } else {
                        even
                    };
                    check(float, x, expected);
                }
            }
        }
    }

    #[test]
    fn extremes_keep_their_kind() {
        for float in [Float::F32, Float::Bf16, Float::F16] {
            for x in [f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0] {
                assert_eq!(float.round(x).to_bits(), x.to_bits());
                assert_eq!(float.round_f64(f64::from(x)).to_bits(), f64::from(x).to_bits());
            }
            for bits in [0x7f80_0001, 0x7fc0_0000, 0xff80_0001, 0x7fff_ffff_u32] {
                assert!(float.round(f32::from_bits(bits)).is_nan(), "{float:?} {bits:x}");
            }
            assert!(float.round_f64(f64::NAN).is_nan());
            let tiny = f32::from_bits(1);
            assert_eq!(float.round(tiny), if float == Float::F32 { tiny } else { 0.0 });
        }
        assert_eq!(Float::F16.round(f32::MAX), f32::INFINITY);
        assert_eq!(Float::F16.round(65519.996), 65504.0);
        assert_eq!(Float::F16.round(-65520.0), f32::NEG_INFINITY);
        assert_eq!(Float::Bf16.round(f32::MAX), f32::INFINITY);
    }

    /// Checks both implementations of stochastic rounding, for both signs.
    fn drawn(float: Float, x: f32, word: u32) -> f32 {
        let found = float.round_drawn(x, word);
        let by_definition = float.round_drawn_f64(f64::from(x), word);
        assert_eq!(f64::from(found).to_bits(), by_definition.to_bits(), "{float:?} of {x:e} by {word:#x}");
        assert_eq!(float.round_drawn(-x, word).to_bits(), (-found).to_bits(), "{float:?} of {:e}", -x);
        found
    }

    #[test]
    fn what_is_drawn_is_a_neighbour_by_the_distance() {
        for float in [Float::Bf16, Float::F16] {
            let mut numbers: Vec<f32> = numbers(float).into_iter().map(|x| x as f32).collect();
            numbers.pop();
            for pair in numbers.windows(2) {
                let (low, high) = (pair[0], pair[1]);
                for word in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
                    assert_eq!(drawn(float, low, word).to_bits(), low.to_bits(), "{float:?} keeps {low:e}");
                }
                for share in [0.0, 0.125, 0.3, 0.5, 0.8, 1.0] {
                    let between = (f64::from(low) + share * (f64::from(high) - f64::from(low))) as f32;
                    for x in [between, between.next_up().min(high), between.next_down().max(low)] {
                        // The fraction of words that round up equals the relative distance from the lower number.
                        let rest = (f64::from(x) - f64::from(low)) / (f64::from(high) - f64::from(low));
                        let first = 2.0_f64.powi(32) - (rest * 2.0_f64.powi(32)).floor();
                        let x_is_high = x == high;
                        for word in [first - 1.0, first, 0.0, f64::from(u32::MAX)] {
                            let Some(word) = (word < 2.0_f64.powi(32)).then_some(word as u32) else {
                                continue;
                            };
                            let goes_up = x_is_high || f64::from(word) >= first;
                            let expected = if goes_up { high } else { low };
                            let found = drawn(float, x, word);
                            assert_eq!(
                                found.to_bits(),
                                expected.to_bits(),
                                "{float:?} of {x:e} by {word:#x}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// Evenly spaced words, and random words.
    #[test]
    fn the_mean_of_what_is_drawn_is_the_number() {
        const WORDS: u32 = 1 << 16;
        let mut seen = 0;
        let numbers = [1.003_f32, -0.049_371, 3.1e-5, 2.9e-6, -7.7e-8, 1.3e-9, 517.3, 0.015_625 + 1e-7];
        for (float, x) in [Float::Bf16, Float::F16].into_iter().flat_map(|f| numbers.map(|x| (f, x))) {
            let unit = float.unit(x.into()).expect("a number that may need rounding");
            let mean = |word_of: &dyn Fn(u32) -> u32| {
                let sum: f64 = (0..WORDS).map(|number| f64::from(drawn(float, x, word_of(number)))).sum();
                sum / f64::from(WORDS)
            };
            let evenly = mean(&|number| number << 16 | 0x8000);
            assert!(
                (evenly - f64::from(x)).abs() <= unit / f64::from(WORDS),
                "{float:?}: {evenly:e}, not {x:e}"
            );
            let by_chance = mean(&|number| crate::philox::philox(7, [[number], [0], [0], [0]])[0][0]);
            // At most four standard deviations of the mean of that many coin flips.
            assert!((by_chance - f64::from(x)).abs() <= unit * 4.0 * 0.5 / 256.0, "{float:?}: {by_chance:e}");
            seen += usize::from(by_chance != f64::from(float.round(x)));
        }
        assert!(seen > 12);
    }

    /// The same change of a thousandth of a unit, ten thousand times.
    #[test]
    fn small_steps_are_taken_in_the_mean_and_lost_by_rounding_to_the_nearest() {
        for (float, start) in [(Float::Bf16, 1.0_f32), (Float::F16, 1.0), (Float::F16, 1e-5)] {
            let unit = float.unit(start.into()).expect("a number that may need rounding") as f32;
            let start = float.round(start);
            let step = unit / 1000.0;
            let (mut drawn, mut nearest) = (start, start);
            for number in 0..10_000 {
                let [[word], ..] = crate::philox::philox(3, [[number], [0], [0], [0]]);
                drawn = float.round_drawn(drawn + step, word);
                nearest = float.round(nearest + step);
            }
            assert_eq!(nearest, start, "{float:?}");
            // The expected value is ten units; the tolerance is the deviation of ten thousand draws with
            // probability 1/1000.
            let moved = (drawn - start) / unit;
            assert!((moved - 10.0).abs() < 10.0, "{float:?} from {start:e}: {moved} units");
            assert!(moved > 3.0, "{float:?} from {start:e}: {moved} units");
        }
    }

    #[test]
    fn what_is_finite_stays_so() {
        for (float, largest) in [(Float::Bf16, f32::from_bits(0x7f7f_0000)), (Float::F16, 65504.0)] {
            for x in [largest, largest.next_up(), largest * 1.003_f32.min(f32::MAX / largest), f32::MAX] {
                for word in [0, 0x8000_0000, u32::MAX] {
                    assert_eq!(drawn(float, x, word), largest, "{float:?} of {x:e}");
                }
                assert_eq!((float.round_finite(x), float.round_finite(-x)), (largest, -largest));
                assert_eq!(float.round_finite_f64(-f64::from(x)), -f64::from(largest));
            }
            for x in [f32::INFINITY, 0.0] {
                let (found, finite) = (drawn(float, x, u32::MAX), float.round_finite(x));
                assert_eq!((found.to_bits(), finite.to_bits()), (x.to_bits(), x.to_bits()));
            }
            for bits in [0x7f80_0001, 0x7fc0_0000, 0xff80_0001_u32] {
                let x = f32::from_bits(bits);
                assert!(float.round_drawn(x, u32::MAX).is_nan() && float.round_finite(x).is_nan());
                assert!(
                    float.round_drawn_f64(f64::NAN, 1).is_nan() && float.round_finite_f64(f64::NAN).is_nan()
                );
            }
        }
        assert_eq!(Float::F32.round_drawn(0.1, 5), 0.1);
        assert_eq!((Float::F32.round_finite_f64(1e300), Float::F32.round_drawn_f64(0.1, 5)), (1e300, 0.1));
    }

    /// Below the least fp16 number there is still a probability of rounding up; for fp32 subnormals it is 0.
    #[test]
    fn tiny_numbers_of_half_precision_are_drawn_by_their_share() {
        let least = 2.0_f32.powi(-24);
        for exponent in [25, 32, 40, 56] {
            let x = 2.0_f32.powi(-exponent);
            let first = (1_u64 << 32) - (1 << (56 - exponent));
            assert_eq!(drawn(Float::F16, x, first as u32), least, "2^-{exponent}");
            assert_eq!(drawn(Float::F16, x, (first - 1) as u32), 0.0, "2^-{exponent}");
        }
        for x in [2.0_f32.powi(-57), f32::MIN_POSITIVE, f32::from_bits(1)] {
            assert_eq!(drawn(Float::F16, x, u32::MAX), 0.0, "{x:e}");
        }
    }

    #[test]
    fn every_16_bit_value_round_trips() {
        for float in [Float::Bf16, Float::F16] {
            let numbers = numbers(float);
            for (code, &number) in numbers.iter().enumerate() {
                let number = if code + 1 == numbers.len() { f32::INFINITY } else { number as f32 };
                for (bits, x) in [(code as u16, number), (code as u16 | 0x8000, -number)] {
                    assert_eq!(float.decode(bits).to_bits(), x.to_bits(), "{float:?} {bits:#x}");
                    assert_eq!(float.encode(x), bits, "{float:?} of {x:e}");
                }
            }
            for nan in numbers.len() as u16..0x8000 {
                assert!(float.decode(nan).is_nan() && float.decode(float.encode(float.decode(nan))).is_nan());
            }
        }
    }
}
