//! `e^x` as a plain formula, which vectorizes, unlike the library call.
//!
//! `x = n ln 2 + r` with `|r|` at most half of `ln 2`, by Cody and Waite's two-part reduction; then the polynomial
//! of degree 5 of Moshier's Cephes library (`expf`). The error is below 2 units in the last place.

/// 1.5 * 2^23: added to a small number, leaves its nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;
/// `ln 2` as a part with so few bits that its product with `n` is exact, and the remainder.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// Coefficients from the highest power of `r` down to its square.
const POLYNOMIAL: [f32; 6] = [1.987_569_2e-4, 1.398_2e-3, 8.333_452e-3, 4.166_58e-2, 1.666_666_5e-1, 0.5];
/// Below it `e^x` is barely a normal number; the result is 0.
const LEAST: f32 = -87.0;

/// `e^x` for `x <= 0`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let polynomial = POLYNOMIAL[1..].iter().fold(POLYNOMIAL[0], |sum, term| sum * r + term);
    // The low bits of `rounded` are n; shifted to the exponent, they give 2^n.
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    let value = (polynomial * (r * r) + r + 1.0) * power;
    if x < LEAST { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn it_is_the_librarys() {
        for step in 0..=870_000 {
            let x = -(step as f32) / 10_000.0;
            let (found, expected) = (f64::from(exp(x)), f64::from(x).exp());
            assert!(
                (found - expected).abs() <= 2.0_f64.powi(-22) * expected,
                "e^{x} is {expected}, not {found}"
            );
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!([exp(-87.5), exp(-1e30), exp(f32::NEG_INFINITY)], [0.0; 3]);
        assert!(exp(f32::NAN).is_nan());
    }
}
