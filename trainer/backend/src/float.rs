//! Formats of numbers, and rounding to them: what a policy of mixed precision is made of.
//!
//! A matrix has a format ([`Device::matrix_of`](crate::Device::matrix_of)), and **what is written to a matrix is
//! rounded to its format once, to the nearest, ties to even**; sums and everything else inside an operation have at
//! least single precision. A product of matrices takes its factors in the format of its input: weights, and a
//! gradient by its output that has more digits, are rounded to it on their way in; and it takes a bias in the format of
//! its output, which is the only one that libraries of GPUs add while they multiply. Nothing else rounds. So what is
//! rounded where follows from the formats that a model gives to its matrices, and is the same on every device.
//!
//! The weights of a table have a format, too ([`TableShape::float`](crate::TableShape)). What is written to them from
//! outside is rounded to the nearest. A step's weight is rounded **at random** to one of the two numbers next to it, each
//! with the probability that makes the mean that weight ([`Float::round_drawn`]): a step that is small beside the distance
//! of two numbers is lost when it is rounded to the nearest, again and again, and here is taken in the mean. Gupta et al.,
//! "Deep Learning with Limited Numerical Precision", 2015, section 4.1; of tables, Zhang et al., "Training with Low-precision
//! Embedding Tables", 2018. No finite number becomes infinite on its way into a table: beyond the largest, it is the largest.
//!
//! Backends on the host keep the numbers of every format in memory as their own scalars: they hold what a GPU's
//! memory would hold, number by number.

/// A format of binary floating-point numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE single precision: 24 digits. On [`Reference`](crate::Reference) double precision, which it stands for.
    #[default]
    F32,
    /// The upper half of single precision: 8 digits and the same range.
    Bf16,
    /// IEEE half precision: 11 digits, subnormal numbers below 2^-14, infinity from 65520 on.
    F16,
}

impl Float {
    /// The nearest number of this format, ties to even; infinity where that is beyond the largest. NaN stays NaN.
    #[inline(always)]
    pub fn round(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::Bf16 => to_bf16(x),
            Self::F16 => to_f16(x),
        }
    }

    /// The same, but what is finite stays so: beyond the largest number, that is taken.
    #[inline(always)]
    pub fn round_finite(self, x: f32) -> f32 {
        let rounded = self.round(x);
        if x.is_finite() { rounded.clamp(-self.largest(), self.largest()) } else { rounded }
    }

    /// One of the two numbers of this format next to `x`: the one that is farther from 0 where `word`, evenly drawn from
    /// all, and the part of a unit that `x` is beyond the other, in `2^-32` of it, rounded down, add up to `2^32`.
    ///
    /// So the mean over all words is `x`, but for what is below `2^-32` of a unit. A number of this format stays, and
    /// so do infinity and NaN; what is finite stays so, as of [`Float::round_finite`].
    #[inline(always)]
    pub fn round_drawn(self, x: f32, word: u32) -> f32 {
        let size = x.to_bits() & 0x7fff_ffff;
        let magnitude = match self {
            Self::F32 => return x,
            Self::Bf16 => f32::from_bits((size >> 16).wrapping_add(carry(size << 16, word)) << 16),
            Self::F16 => {
                let normal = f32::from_bits((size >> 13).wrapping_add(carry(size << 19, word)) << 13);
                // Below 2^-14 in units of 2^-24, and as many bits behind the point as a word has.
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

    /// The 16 bits of a number of this format, which is one of 16 bits; of another number those of the nearest.
    pub(crate) fn encode(self, x: f32) -> u16 {
        let x = self.round(x);
        let (sign, size) = ((x.to_bits() >> 16) as u16 & 0x8000, x.abs());
        match self {
            Self::F32 => panic!("a format of 16 bits"),
            Self::Bf16 => (x.to_bits() >> 16) as u16,
            Self::F16 if x.is_nan() => sign | 0x7e00,
            Self::F16 => sign | ((size * F16_BELOW_F32).to_bits() >> 13).min(0x7c00) as u16,
        }
    }

    /// The number of 16 bits.
    #[inline(always)]
    pub(crate) fn decode(self, bits: u16) -> f32 {
        match self {
            Self::F32 => panic!("a format of 16 bits"),
            Self::Bf16 => f32::from_bits(u32::from(bits) << 16),
            Self::F16 => {
                let (sign, size) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff) << 13);
                let finite = f32::from_bits(size) / F16_BELOW_F32;
                let kept = if size < 0x0f80_0000 { finite.to_bits() } else { size | 0x7f80_0000 };
                f32::from_bits(kept | sign)
            }
        }
    }

    /// The same of each number.
    #[inline(always)]
    pub(crate) fn round_all(self, numbers: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::Bf16 => numbers.iter_mut().for_each(|x| *x = to_bf16(*x)),
            Self::F16 => numbers.iter_mut().for_each(|x| *x = to_f16(*x)),
        }
    }

    /// [`Float::round`] by its definition, from double precision at once.
    pub(crate) fn round_f64(self, x: f64) -> f64 {
        let Some(unit) = self.unit(x) else { return x };
        let rounded = (x / unit).round_ties_even() * unit;
        if rounded.abs() <= self.largest().into() { rounded } else { f64::INFINITY.copysign(x) }
    }

    /// [`Float::round_finite`], likewise.
    pub(crate) fn round_finite_f64(self, x: f64) -> f64 {
        let (rounded, largest) = (self.round_f64(x), f64::from(self.largest()));
        if x.is_finite() && self != Self::F32 { rounded.clamp(-largest, largest) } else { rounded }
    }

    /// [`Float::round_drawn`], likewise.
    pub(crate) fn round_drawn_f64(self, x: f64, word: u32) -> f64 {
        let Some(unit) = self.unit(x) else { return x };
        let (units, all_words) = (x.abs() / unit, 2.0_f64.powi(32));
        let rest = (units.fract() * all_words).floor();
        let drawn = units.floor() + if rest + f64::from(word) >= all_words { 1.0 } else { 0.0 };
        (drawn * unit).min(self.largest().into()).copysign(x)
    }

    /// What numbers of the size of `x` are multiples of; none where `x` needs no rounding.
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

/// The bits of 2^-14, the least normal number of half precision.
const LEAST_NORMAL_F16: u32 = 0x3880_0000;
/// The least number of half precision.
const UNIT_F16: f32 = 1.0 / (1 << 24) as f32;
/// Half precision's exponents count from 15, and single precision's from 127.
const F16_BELOW_F32: f32 = f32::from_bits(15 << 23);

/// What is carried when two words are added.
#[inline(always)]
fn carry(rest: u32, word: u32) -> u32 {
    u32::from(word > !rest)
}

/// The lower half's weight decides, and where it is a half, the last digit that stays. A carry goes on into the
/// exponent, up to infinity.
#[inline(always)]
fn to_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // A NaN may have its digits in the lower half only.
    let kept = if x.is_nan() { bits | 0x0040_0000 } else { rounded };
    f32::from_bits(kept & 0xffff_0000)
}

/// As [`to_bf16`] in the range of normal numbers. Below, numbers are multiples of 2^-24, which is the unit of single
/// precision between 1/2 and 1: adding a half rounds to it.
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

    /// Every number of a format of 16 bits that is not negative, in order, with infinity; by decoding them all.
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

    /// Both ways of rounding, of both signs.
    fn check(float: Float, x: f64, expected: f64) {
        let expected = if expected == *numbers_bound(float) { f64::INFINITY } else { expected };
        for sign in [1.0, -1.0] {
            let (x, expected) = (sign * x, sign * expected);
            assert_eq!(float.round_f64(x).to_bits(), expected.to_bits(), "{float:?} of {x}");
            assert_eq!(f64::from(float.round(x as f32)).to_bits(), expected.to_bits(), "{float:?} of {x}");
        }
    }

    /// What infinity's code decodes to: the number after the largest.
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
                // Single precision's own neighbours, and what lies farther from the middle.
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

    /// Both ways of drawing, of both signs.
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
                        // As many words of all as the share of the way from the one to the other.
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

    /// Words spread evenly, and words as they are drawn.
    #[test]
    fn the_mean_of_what_is_drawn_is_the_number() {
        const WORDS: u32 = 1 << 16;
        let mut seen = 0;
        let numbers = [1.003_f32, -0.049_371, 3.1e-5, 2.9e-6, -7.7e-8, 1.3e-9, 517.3, 0.015_625 + 1e-7];
        for (float, x) in [Float::Bf16, Float::F16].into_iter().flat_map(|f| numbers.map(|x| (f, x))) {
            let unit = float.unit(x.into()).expect("a number that has digits");
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
            // Four deviations of the mean of as many coins, at most.
            assert!((by_chance - f64::from(x)).abs() <= unit * 4.0 * 0.5 / 256.0, "{float:?}: {by_chance:e}");
            seen += usize::from(by_chance != f64::from(float.round(x)));
        }
        assert!(seen > 12);
    }

    /// The same change of a thousandth of a unit, ten thousand times.
    #[test]
    fn small_steps_are_taken_in_the_mean_and_lost_by_rounding_to_the_nearest() {
        for (float, start) in [(Float::Bf16, 1.0_f32), (Float::F16, 1.0), (Float::F16, 1e-5)] {
            let unit = float.unit(start.into()).expect("a number that has digits") as f32;
            let start = float.round(start);
            let step = unit / 1000.0;
            let (mut drawn, mut nearest) = (start, start);
            for number in 0..10_000 {
                let [[word], ..] = crate::philox::philox(3, [[number], [0], [0], [0]]);
                drawn = float.round_drawn(drawn + step, word);
                nearest = float.round(nearest + step);
            }
            assert_eq!(nearest, start, "{float:?}");
            // Ten units, and the deviation of as many chances of a thousandth.
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

    /// Below the least number, of which there is a chance: single precision's own subnormals have none.
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
    fn all_of_16_bits_are_told_by_their_numbers() {
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
