//! Sums numbers in the encoding DELTA_BINARY_PACKED, without storing them.
//!
//! ```text
//! numbers    <- varint: values per block, varint: miniblocks per block, varint: count, zigzag: first, blocks
//! block      <- zigzag: least difference, one width per miniblock, miniblocks
//! miniblock  <- differences from the least one, packed in `width` bits each, lowest bits first
//! ```
//!
//! Source: the Parquet format's `Encodings.md`.

use parquet::errors::ParquetError;

/// The sum of the numbers at the start of `bytes`, none of which is negative.
///
/// # Errors
/// The numbers are damaged.
pub(super) fn sum(bytes: &[u8]) -> Result<u64, ParquetError> {
    let damaged = || ParquetError::General("a page of differences is damaged".to_owned());
    sum_of(bytes).ok_or_else(damaged)
}

fn sum_of(mut input: &[u8]) -> Option<u64> {
    let block = usize::try_from(unsigned(&mut input)?).ok()?;
    let miniblocks = usize::try_from(unsigned(&mut input)?).ok()?;
    let mut left = unsigned(&mut input)?;
    let mut value = signed(&mut input)?;
    if left == 0 {
        return Some(0);
    }
    let values = block.checked_div(miniblocks)?;
    let mut sum = u64::try_from(value).ok()?;
    left -= 1;
    while left > 0 {
        let least = signed(&mut input)?;
        let (widths, rest) = input.split_at_checked(miniblocks)?;
        input = rest;
        for &width in widths {
            if left == 0 {
                break;
            }
            let width = usize::from(width);
            if width > 64 {
                return None;
            }
            let (packed, rest) = input.split_at_checked(values.checked_mul(width)?.div_ceil(8))?;
            input = rest;
            let taken = left.min(values as u64);
            for place in 0..taken as usize {
                let difference = bits(packed, place * width, width);
                value = value.wrapping_add(least).wrapping_add(difference as i64);
                sum = sum.checked_add(u64::try_from(value).ok()?)?;
            }
            left -= taken;
        }
        if values == 0 {
            return None;
        }
    }
    Some(sum)
}

/// The `width` bits of `packed` from bit `start`.
fn bits(packed: &[u8], start: usize, width: usize) -> u64 {
    let mut value = 0;
    for bit in 0..width {
        let at = start + bit;
        value |= u64::from(packed[at / 8] >> (at % 8) & 1) << bit;
    }
    value
}

fn unsigned(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *input.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn signed(input: &mut &[u8]) -> Option<i64> {
    let value = unsigned(input)?;
    Some((value >> 1) as i64 ^ -((value & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the example in the format's specification, and others of widths that end within a byte.
    #[test]
    fn sums_are_those_of_the_numbers() {
        // 7, 5, 3, 1, 2, 3, 4, 5: block of 128 in 4 miniblocks, 8 values, first 7; least difference -2, width 2.
        let example = [128, 1, 4, 8, 14, 3, 2, 0, 0, 0, 0xc0, 0x3f, 0, 0, 0, 0, 0, 0];
        assert_eq!(sum_of(&example), Some(30));
        // 1, 2, 3, 4, 5: all differences are equal, so they take no bits.
        assert_eq!(sum_of(&[128, 1, 4, 5, 2, 2, 0, 0, 0, 0]), Some(15));
        assert_eq!(sum_of(&[128, 1, 4, 0, 0]), Some(0));
        assert_eq!(sum_of(&[128, 1, 4, 1, 20]), Some(10));
    }

    #[test]
    fn damage_is_an_error() {
        let cases: [&[u8]; 5] = [
            &[],
            // No miniblocks, no values in them, a negative number, missing widths.
            &[128, 1, 0, 5, 2, 2],
            &[0, 4, 5, 2, 2, 0, 0, 0, 0],
            &[128, 1, 4, 2, 2, 5, 0, 0, 0, 0],
            &[128, 1, 4, 5, 2, 2, 0],
        ];
        for case in cases {
            assert_eq!(sum_of(case), None, "{case:?}");
        }
    }
}
