//! The logarithm that scales numeric features: bit-identical on every machine, and vectorizable.
//!
//! The C library's logarithm differs between machines and is scalar. This is fdlibm's (Sun, 1993; FreeBSD
//! `e_log.c`), written without branches: `1 + x = 2^k m` with `m` in `[sqrt(1/2), sqrt(2))`, and `ln m`
//! from `s = (m - 1) / (m + 1)` and a polynomial in `s^2`. The rounding error of `1 + x` is added back as
//! a first-order term. The result is within one ulp of an f64, so all but a few in a billion are correctly
//! rounded when stored as f32.

const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// Coefficients of the powers of `s^2`, from the first on.
const POLYNOMIAL: [f64; 7] = [
    6.666_666_666_666_735e-1,
    3.999_999_999_940_942e-1,
    2.857_142_874_366_239e-1,
    2.222_219_843_214_978_4e-1,
    1.818_357_216_161_805e-1,
    1.531_383_769_920_937_3e-1,
    1.479_819_860_511_658_6e-1,
];

/// The bits of `sqrt(1/2)`.
const ROOT_OF_HALF: u64 = 0x3fe6_a09e_667f_3bcd;

/// 2^52: adding it to a smaller integer places that integer in the float's lowest bits.
const TWO_52: f64 = 4_503_599_627_370_496.0;

/// `sign(x) ln(1 + |x|)`. Non-finite input gives non-finite output.
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

    /// The difference to the C library, in units in the last place.
    fn distance(value: f64) -> u64 {
        let plain = value.abs().ln_1p().copysign(value);
        signed_log1p(value).to_bits().abs_diff(plain.to_bits())
    }

    proptest! {
        #[test]
        fn is_within_two_ulps_of_the_c_library(value in prop_oneof![
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
    fn results_are_bit_identical_everywhere() {
        let sum = (0..100_000_u64).fold(0_u64, |sum, nth| {
            let value = (nth * nth) as f64 / 7.0 - 1e6;
            sum.rotate_left(5) ^ signed_log1p(value).to_bits()
        });
        assert_eq!(sum, 15_650_593_399_987_572_580);
    }
}
