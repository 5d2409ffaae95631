//! Formats of numbers, and rounding to them: what a policy of mixed precision is made of.
//!
//! A matrix has a format ([`Device::matrix_of`](crate::Device::matrix_of)), and **what is written to a matrix is
//! rounded to its format once, to the nearest, ties to even**; sums and everything else inside an operation have at
//! least single precision. A product of matrices takes its factors in the format of its input: weights, and a
//! gradient by its output that has more digits, are rounded to it on their way in; and it takes a bias in the format of
//! its output, which is the only one that libraries of GPUs add while they multiply. Nothing else rounds. So what is
//! rounded where follows from the formats that a model gives to its matrices, and is the same on every device.
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
        let (digits, least_exponent, bound) = match self {
            Self::F32 => return x,
            Self::Bf16 => (8, -126, 2.0_f64.powi(128)),
            Self::F16 => (11, -14, 2.0_f64.powi(16)),
        };
        if x == 0.0 || !x.is_finite() {
            return x;
        }
        let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least_exponent);
        let unit = 2.0_f64.powi(exponent - (digits - 1));
        let rounded = (x / unit).round_ties_even() * unit;
        if rounded.abs() < bound { rounded } else { f64::INFINITY.copysign(x) }
    }
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
    const LEAST_NORMAL: f32 = 1.0 / (1 << 14) as f32;
    const LARGEST: f32 = 65504.0;
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
}
