//! Fingerprints of integers, by their decimal text, many at a time.
//!
//! The text is the one that `tf.as_string` writes and `tf.strings.to_hash_bucket_fast` hashes. Writing it
//! to memory digit by digit and reading it back as words costs several times the hash itself. Here it is
//! built in registers, with arithmetic on eight digits in parallel, and never stored. The code is
//! branch-free, so the compiler vectorizes the loop.
//!
//! Blocks of integers of up to 15 digits take this path; a block with a longer one falls back to text.

use super::column::resized;
use super::decimal::Decimal;
use super::simd;
use crate::fingerprint::{Modulus, fingerprint_of_words, fingerprint64};

/// Integers per block.
const BLOCK: usize = 16;

/// Smallest magnitude that falls back to text: with a sign it may exceed 16 bytes.
const TOO_LONG: u64 = 1_000_000_000_000_000;

/// Smallest magnitude of eight digits.
const EIGHT_DIGITS: u64 = 10_000_000;

/// 2^52: adding it to a smaller integer places that integer in the float's lowest bits.
const TWO_52: f64 = 4_503_599_627_370_496.0;

/// `"00000000"`
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// Each value's fingerprint, reduced. Reuses the buffer `spare`.
pub(crate) fn ids(values: &[i64], modulus: Modulus, spare: Vec<u32>) -> Vec<u32> {
    let mut ids = resized(spare, values.len());
    simd::run(
        #[inline(always)]
        || each(values, &mut ids, |fingerprint| modulus.reduce_in_halves(fingerprint)),
    );
    ids
}

/// Each value's fingerprint.
pub(crate) fn fingerprints(values: &[i64]) -> Vec<u64> {
    let mut fingerprints = vec![0; values.len()];
    simd::run(
        #[inline(always)]
        || each(values, &mut fingerprints, |fingerprint| fingerprint),
    );
    fingerprints
}

#[inline(always)]
fn each<T>(values: &[i64], out: &mut [T], finish: impl Fn(u64) -> T + Copy) {
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    let (outs, out_rest) = out.as_chunks_mut::<BLOCK>();
    for (block, out) in blocks.iter().zip(outs) {
        let (mut least, mut most) = (u64::MAX, 0);
        for value in block {
            least = least.min(value.unsigned_abs());
            most = most.max(value.unsigned_abs());
        }
        if most >= TOO_LONG {
            via_text(block, out, finish);
        } else if least >= EIGHT_DIGITS {
            for (out, &value) in out.iter_mut().zip(block) {
                *out = finish(fingerprint(value, true));
            }
        } else {
            for (out, &value) in out.iter_mut().zip(block) {
                *out = finish(fingerprint(value, false));
            }
        }
    }
    via_text(rest, out_rest, finish);
}

/// The reference: formats each value, then takes its fingerprint.
#[inline(always)]
fn via_text<T>(values: &[i64], out: &mut [T], finish: impl Fn(u64) -> T) {
    let mut decimal = Decimal::new();
    for (out, value) in out.iter_mut().zip(values) {
        *out = finish(fingerprint64(decimal.integer(value.unsigned_abs(), *value < 0)));
    }
}

/// The fingerprint of a value below [`TOO_LONG`]. `all_long` asserts that it is at least
/// [`EIGHT_DIGITS`].
#[inline(always)]
fn fingerprint(value: i64, all_long: bool) -> u64 {
    let (upper, lower) = split_eight_digits(value.unsigned_abs());
    let (high, low) = (eight_digits(upper), eight_digits(lower));
    // Leading zeros, in bits: each digit is a byte of 0 to 9, with the first digit lowest. The last digit
    // is kept even if it is 0.
    let high_zeros = high.trailing_zeros() & !7;
    let low_zeros = (low | 1 << 56).trailing_zeros() & !7;
    let (high, low) = (high | ZEROS, low | ZEROS);
    let is_short = upper == 0;
    let first = high.unbounded_shr(high_zeros) | low.unbounded_shl(64 - high_zeros);
    let first = if is_short { low >> low_zeros } else { first };
    let zeros = if is_short { 64 + low_zeros } else { high_zeros };
    let digits = 16 - u64::from(zeros / 8);
    let sign = (value as u64) >> 63;
    let first = if sign == 1 { first << 8 | u64::from(b'-') } else { first };
    let last = if digits >= 8 { low } else { first };
    fingerprint_of_words(first, last, digits + sign, all_long)
}

/// `(value / 10^8, value % 10^8)` for values below 2^52, in floating point: vector registers have no
/// integer division.
#[inline(always)]
fn split_eight_digits(value: u64) -> (u64, u64) {
    let float = f64::from_bits(value | TWO_52.to_bits()) - TWO_52;
    // Rounded to nearest, so it may be one too large.
    let quotient = (float * 1e-8 + TWO_52).to_bits() & ((1 << 52) - 1);
    let remainder = value.wrapping_sub(quotient.wrapping_mul(100_000_000));
    let over = remainder >> 63;
    (quotient.wrapping_sub(over), remainder.wrapping_add(over.wrapping_neg() & 100_000_000))
}

/// The eight digits of a value below 10^8, one per byte, the first digit lowest. Splits it into groups of
/// four digits, those into pairs, and those into digits, all groups of a size in parallel. The factors are
/// reciprocals, exact enough for these ranges.
#[inline(always)]
fn eight_digits(value: u64) -> u64 {
    let high_four = (value * 109_951_163) >> 40;
    let fours = (value << 32).wrapping_sub(high_four.wrapping_mul((10_000 << 32) - 1));
    let high_pairs = (fours.wrapping_mul(10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = (fours << 16).wrapping_sub(high_pairs.wrapping_mul((100 << 16) - 1));
    let tens = (pairs.wrapping_mul(103) >> 10) & 0x000f_000f_000f_000f;
    (pairs << 8).wrapping_sub(tens.wrapping_mul((10 << 8) - 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(values: &[i64]) {
        let mut plain = vec![0; values.len()];
        via_text(values, &mut plain, |fingerprint| fingerprint);
        assert_eq!(fingerprints(values), plain);
        for buckets in [1, 2, 97, 100_000, 1 << 20, u32::MAX - 1, u32::MAX] {
            let reduced: Vec<u32> = plain.iter().map(|&f| crate::fingerprint::reduce(f, buckets)).collect();
            assert_eq!(ids(values, Modulus::new(buckets), vec![7; 3]), reduced);
        }
    }

    /// Integers of every length, with equal probability.
    fn any_length() -> impl Strategy<Value = i64> {
        (any::<i64>(), 0..64).prop_map(|(value, shift)| value >> shift)
    }

    proptest! {
        #[test]
        fn matches_the_text_reference(values in proptest::collection::vec(any_length(), 0..70)) {
            check(&values);
        }
    }

    #[test]
    fn matches_the_text_reference_where_the_digit_count_changes() {
        let powers = (0..19).map(|exponent| 10_i64.pow(exponent));
        let edges: Vec<i64> = powers
            .flat_map(|power| (1..10).map(move |digit| power.saturating_mul(digit)))
            .flat_map(|edge| (-2..3).map(move |by| edge.saturating_add(by)))
            .flat_map(|edge| [edge, -edge])
            .chain([i64::MIN, i64::MAX])
            .collect();
        check(&edges);
        // One value per block, so that no other value selects the path.
        for edge in edges {
            check(&[edge; BLOCK]);
        }
    }

    #[test]
    fn matches_the_text_reference_around_multiples_of_ten_to_the_eighth() {
        let multiples = (0..10_000_000_i64).step_by(997).map(|nth| nth * 100_000_000);
        let values: Vec<i64> =
            multiples.flat_map(|multiple| [multiple - 1, multiple, multiple + 1]).collect();
        check(&values);
    }
}
