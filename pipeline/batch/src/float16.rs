//! Floats of 16 bits: binary16 and bfloat16.

/// The bits of `value` as a float of 16 bits with `MANTISSA` bits of mantissa, rounded to nearest, ties to even: 10 for
/// binary16, 7 for bfloat16. Values beyond the largest finite one become infinite, as in IEEE 754. NaN keeps its sign and
/// the upper bits of its payload.
///
/// Unlike a conversion by way of `f32`, it rounds once.
pub fn of_f64<const MANTISSA: u32>(value: f64) -> u16 {
    const SOURCE_MANTISSA: u32 = f64::MANTISSA_DIGITS - 1;
    const SOURCE_BIAS: i64 = 1023;
    let bias = (1_i64 << (14 - MANTISSA)) - 1;
    let infinity = (1_u64 << 15) - (1 << MANTISSA);
    let narrowing = SOURCE_MANTISSA - MANTISSA;
    let sign = value.to_bits() >> 48 & 1 << 15;
    let magnitude = value.abs().to_bits();
    let exponent = (magnitude >> SOURCE_MANTISSA) as i64 - SOURCE_BIAS + bias;
    let bits = if value.is_nan() {
        let payload = magnitude >> narrowing & ((1 << MANTISSA) - 1);
        infinity | 1 << (MANTISSA - 1) | payload
    } else if exponent >= 1 {
        // A carry out of the mantissa increments the exponent, as it should.
        let rebiased = magnitude - (((SOURCE_BIAS - bias) as u64) << SOURCE_MANTISSA);
        rounded(rebiased, narrowing).min(infinity)
    } else {
        let significand = magnitude & ((1 << SOURCE_MANTISSA) - 1) | 1 << SOURCE_MANTISSA;
        let shift = i64::from(narrowing) + 1 - exponent;
        // Less than half of the smallest value is 0.
        if shift > i64::from(f64::MANTISSA_DIGITS) { 0 } else { rounded(significand, shift as u32) }
    };
    (sign | bits) as u16
}

/// `bits` without the lowest `shift` ones, rounded to nearest, ties to even.
fn rounded(bits: u64, shift: u32) -> u64 {
    (bits + (1 << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift
}

/// `magnitude` as an `f64` that rounds to fewer bits as `magnitude` does: the lowest bit is set if any bit is lost.
pub fn rounded_to_odd(magnitude: u64) -> f64 {
    if magnitude < 1 << f64::MANTISSA_DIGITS {
        return magnitude as f64;
    }
    const LOST: u32 = u64::BITS - f64::MANTISSA_DIGITS;
    let sticky = u64::from(magnitude & ((1 << LOST) - 1) != 0);
    (magnitude >> LOST | sticky) as f64 * f64::from(1_u32 << LOST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The value of these bits, from the definition of the format.
    fn value<const MANTISSA: u32>(bits: u16) -> f64 {
        let bias = (1_i32 << (14 - MANTISSA)) - 1;
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let exponent = i32::from(bits >> MANTISSA) & ((1 << (15 - MANTISSA)) - 1);
        let fraction = f64::from(bits & ((1 << MANTISSA) - 1)) / f64::from(1 << MANTISSA);
        sign * match exponent {
            0 => fraction * 2f64.powi(1 - bias),
            all if all == 2 * bias + 1 => {
                if fraction == 0.0 {
                    f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
        }
    }

    /// Every value converts to itself, and what lies between two neighbours to the nearer one, or the even one of both.
    fn check<const MANTISSA: u32>() {
        let to = of_f64::<MANTISSA>;
        let infinity = (1_u16 << 15) - (1 << MANTISSA);
        for bits in 0..=u16::MAX {
            let held = value::<MANTISSA>(bits);
            if held.is_nan() {
                assert!(value::<MANTISSA>(to(held)).is_nan(), "{bits:04x}");
                continue;
            }
            assert_eq!(to(held), bits);
            if bits & !(1 << 15) >= infinity {
                continue;
            }
            let largest = value::<MANTISSA>(infinity - 1);
            let step = largest - value::<MANTISSA>(infinity - 2);
            let next = value::<MANTISSA>(bits + 1);
            let next = if next.is_infinite() { (largest + step).copysign(next) } else { next };
            let middle = (held + next) / 2.0;
            assert_eq!(to(middle), if bits & 1 == 0 { bits } else { bits + 1 }, "a tie after {bits:04x}");
            let towards = |end: f64| {
                f64::from_bits(if middle.abs() < end.abs() {
                    middle.to_bits() + 1
                } else {
                    middle.to_bits() - 1
                })
            };
            assert_eq!((to(towards(held)), to(towards(next))), (bits, bits + 1), "around {middle}");
        }
        let smallest = value::<MANTISSA>(1);
        for tiny in [f64::MIN_POSITIVE, f64::from_bits(1), smallest / 4.0, 0.0] {
            assert_eq!((to(tiny), to(-tiny)), (0, 1 << 15));
        }
        assert_eq!((to(f64::MAX), to(f64::NEG_INFINITY)), (infinity, infinity | 1 << 15));
        let nan = f64::from_bits(f64::INFINITY.to_bits() | 1);
        assert!(value::<MANTISSA>(to(nan)).is_nan());
    }

    #[test]
    fn all_values_of_binary16_and_bfloat16_round_to_nearest_even() {
        check::<10>();
        check::<7>();
        assert_eq!((value::<10>(0x7bff), value::<10>(1)), (65504.0, 2f64.powi(-24)));
        assert_eq!(value::<7>(0x7f7f), f64::from(f32::from_bits(0x7f7f_0000)));
    }

    #[test]
    fn integers_beside_a_tie_round_to_the_nearer_value() {
        // Of 64 bits, an f32 keeps 24, and an f64 53.
        for even in [0, 1] {
            for low in [0, 1, 1 << 9, 1 << 10, 1 << 11] {
                let tie = 1 << 63 | even << 40 | 1 << 39;
                for magnitude in [tie + low, tie - low] {
                    assert_eq!(rounded_to_odd(magnitude) as f32, magnitude as f32, "{magnitude:x}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn integers_round_once(magnitude: u64, shift in 0_u32..64) {
            let magnitude = magnitude >> shift;
            let [narrow, exact] = [rounded_to_odd(magnitude) as f32, magnitude as f32];
            prop_assert_eq!(narrow, exact);
        }
    }
}
