//! Columns of whole numbers of any width, widened to one type: integers, and the ticks of dates and times.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType, Int32Array, Int64Array};
use arrow_buffer::i256;
use arrow_schema::{DataType, TimeUnit};

/// A column of integers; `None` for other types, and for unsigned integers of 64 bits.
pub fn integers(array: &dyn Array) -> Option<Int64Array> {
    fn widened<P: ArrowPrimitiveType<Native: Into<i64>>>(array: &dyn Array) -> Int64Array {
        array.as_primitive::<P>().unary(Into::into)
    }
    Some(match array.data_type() {
        DataType::Int8 => widened::<Int8Type>(array),
        DataType::Int16 => widened::<Int16Type>(array),
        DataType::Int32 => widened::<Int32Type>(array),
        DataType::Int64 => array.as_primitive().clone(),
        DataType::UInt8 => widened::<UInt8Type>(array),
        DataType::UInt16 => widened::<UInt16Type>(array),
        DataType::UInt32 => widened::<UInt32Type>(array),
        _ => return None,
    })
}

/// A column of dates or times, in the unit of its type; `None` for other types.
pub fn ticks(array: &dyn Array) -> Option<Int64Array> {
    let data = |as_integers| array.to_data().into_builder().data_type(as_integers).build().ok();
    match array.data_type() {
        DataType::Date32 | DataType::Time32(_) => {
            Some(Int32Array::from(data(DataType::Int32)?).unary(i64::from))
        }
        DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) => {
            Some(data(DataType::Int64)?.into())
        }
        _ => None,
    }
}

/// The decimal `mantissa / 10^scale`, if it is a whole number in the range of `i128`.
pub fn whole_decimal(mantissa: i128, scale: i8) -> Option<i128> {
    if mantissa == 0 {
        return Some(0);
    }
    // No other multiple of a power beyond the range is within it.
    let power = 10_i128.checked_pow(scale.unsigned_abs().into())?;
    if scale < 0 { mantissa.checked_mul(power) } else { (mantissa % power == 0).then(|| mantissa / power) }
}

/// [`whole_decimal`] of an unscaled value of 256 bits.
pub fn whole_decimal256(mantissa: i256, scale: i8) -> Option<i128> {
    if mantissa == i256::ZERO {
        return Some(0);
    }
    let power = i256::from_i128(10).checked_pow(scale.unsigned_abs().into())?;
    if scale < 0 {
        return mantissa.checked_mul(power)?.to_i128();
    }
    if mantissa.checked_rem(power)? == i256::ZERO { mantissa.checked_div(power)?.to_i128() } else { None }
}

/// The ticks of a second.
pub fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn whole_decimals_are_found_at_any_scale() {
        for (mantissa, scale, expected) in [
            (0, 38, Some(0)),
            (1, 39, None),
            (700, 2, Some(7)),
            (-700, 2, Some(-7)),
            (705, 2, None),
            (7, -2, Some(700)),
            (i128::MAX, 0, Some(i128::MAX)),
            (i128::MAX, -1, None),
        ] {
            assert_eq!(whole_decimal(mantissa, scale), expected, "{mantissa}, {scale}");
            assert_eq!(whole_decimal256(i256::from_i128(mantissa), scale), expected, "{mantissa}, {scale}");
        }
        // Unscaled values beyond 128 bits.
        for (number, scale) in [(2, 38_i8), (-2, 38), (i64::MAX, 38), ((1 << 53) + 1, 38), (1, 76)] {
            let power = i256::from_i128(10).checked_pow(scale as u32).unwrap();
            let mantissa = i256::from_i128(number.into()).checked_mul(power).unwrap();
            assert_eq!(whole_decimal256(mantissa, scale), Some(number.into()), "{number}, {scale}");
            assert_eq!(whole_decimal256(mantissa.checked_add(i256::ONE).unwrap(), scale), None);
        }
    }
}
