//! The logarithm that numbers are scaled by: the same bits on every machine, and many at a time.
//!
//! The C library's differs between machines and takes one at a time. This is fdlibm's (Sun, 1993;
//! FreeBSD `e_log.c`), written without a branch: `1 + x = 2^k m` with `m` from the root of 1/2 to that of
//! 2, and `ln m` by `s = (m - 1) / (m + 1)` and a polynomial in its square. What rounding `1 + x` lost is
//! added back as its first-order term. The result is within one unit in the last place of an f64, so that
//! of the f32 it is stored as all but a handful in a thousand million are the nearest.

const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// Of `s^2`, from the first power on.
const POLYNOMIAL: [f64; 7] = [
    6.666_666_666_666_735e-1,
    3.999_999_999_940_942e-1,
    2.857_142_874_366_239e-1,
    2.222_219_843_214_978_4e-1,
    1.818_357_216_161_805e-1,
    1.531_383_769_920_937_3e-1,
    1.479_819_860_511_658_6e-1,
];

/// The bits of the root of 1/2.
const ROOT_OF_HALF: u64 = 0x3fe6_a09e_667f_3bcd;

/// 2^52: added to a smaller whole number, a float's lowest bits are that number.
const TWO_52: f64 = 4_503_599_627_370_496.0;

/// `ln(1 + x)`, mirrored below 0. Of what is not finite it makes what is not finite.
#[inline(always)]
pub(crate) fn signed_log1p(value: f64) -> f64 {
    of_positive(value.abs()).copysign(value)
}

#[inline(always)]
fn of_positive(x: f64) -> f64 {
    let u = 1.0 + x;
    let lost = (x - (u - 1.0)) / u;
    let exponent = u.to_bits().wrapping_sub(ROOT_OF_HALF) >> 52;
    let mantissa = f64::from_bits(u.to_bits().wrapping_sub(exponent << 52));
    let k = f64::from_bits(exponent | TWO_52.to_bits()) - TWO_52;
    let f = mantissa - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let [p1, p2, p3, p4, p5, p6, p7] = POLYNOMIAL;
    let r = w * (p2 + w * (p4 + w * p6)) + z * (p1 + w * (p3 + w * (p5 + w * p7)));
    let half_square = 0.5 * f * f;
    k * LN2_HIGH - ((half_square - (s * (half_square + r) + (k * LN2_LOW + lost))) - f)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Units in the last place between this and the C library's.
    fn distance(value: f64) -> u64 {
        let plain = value.abs().ln_1p().copysign(value);
        signed_log1p(value).to_bits().abs_diff(plain.to_bits())
    }

    proptest! {
        #[test]
        fn is_within_two_units_of_the_c_library(value in prop_oneof![
            any::<f64>().prop_filter("finite", |value| value.is_finite()),
            any::<i32>().prop_map(f64::from),
            -2.0..2.0,
        ]) {
            prop_assert!(distance(value) <= 2, "{value}: {}", distance(value));
        }
    }

    #[test]
    fn extremes() {
        for value in [0.0, -0.0, 5e-324, -5e-324, 1e-17, f64::EPSILON, 1.0, f64::MAX, f64::MIN] {
            assert!(distance(value) <= 2, "{value}: {} away", distance(value));
        }
        assert_eq!(signed_log1p(0.0).to_bits(), 0);
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!signed_log1p(value).is_finite());
        }
    }

    #[test]
    fn these_bits_are_the_same_everywhere() {
        let sum = (0..100_000_u64).fold(0_u64, |sum, nth| {
            let value = (nth * nth) as f64 / 7.0 - 1e6;
            sum.rotate_left(5) ^ signed_log1p(value).to_bits()
        });
        assert_eq!(sum, 15_650_593_399_987_572_580);
    }
}
