//! Converts the elements of a column to values of a type.
//!
//! Integers are converted exactly; a number that the type does not have is unusable. Floats are rounded to nearest, so a
//! number beyond the largest one becomes infinite; NaN and infinity stay as they are.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array, PrimitiveArray};
use arrow_schema::DataType;
use millstream_batch::{Dtype, float16};
use millstream_format::integers::{whole_decimal, whole_decimal256};

use super::Values;
use crate::transform::column::{Missing, Number, bytes, flag, numbers, round_to_column_type};
use crate::transform::temporal;

/// Why an element has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Null, or one of the configured missing values.
    Absent,
    /// Not a value of the type.
    NotOfType,
}

/// A type of values of `N` bytes: how it represents a number, if it does.
trait Target<const N: usize> {
    /// Whether it has whole numbers alone.
    const IS_WHOLE: bool;

    fn integer(value: i64) -> Option<[u8; N]>;
    fn unsigned(value: u64) -> Option<[u8; N]>;
    fn real(value: f64) -> Option<[u8; N]>;
}

/// Booleans: 0 and 1.
struct Flag;
/// Integers of `N` bytes.
struct Whole<const SIGNED: bool>;
/// Binary32.
struct Single;
/// Binary64.
struct Double;
/// Floats of 16 bits with so many bits of mantissa.
struct Bits16<const MANTISSA: u32>;

impl Target<1> for Flag {
    const IS_WHOLE: bool = true;

    #[inline]
    fn integer(value: i64) -> Option<[u8; 1]> {
        matches!(value, 0 | 1).then_some([value as u8])
    }

    #[inline]
    fn unsigned(value: u64) -> Option<[u8; 1]> {
        (value <= 1).then_some([value as u8])
    }

    #[inline]
    fn real(value: f64) -> Option<[u8; 1]> {
        (value == 0.0 || value == 1.0).then_some([value as u8])
    }
}

/// The smallest and the largest integer of `bytes` bytes.
const fn range(bytes: usize, signed: bool) -> (i128, i128) {
    let bits = 8 * bytes as u32;
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

impl<const N: usize, const SIGNED: bool> Target<N> for Whole<SIGNED> {
    const IS_WHOLE: bool = true;

    #[inline]
    fn integer(value: i64) -> Option<[u8; N]> {
        let (least, most) = range(N, SIGNED);
        let wide = i128::from(value);
        (least <= wide && wide <= most).then(|| low_bytes(value as u64))
    }

    #[inline]
    fn unsigned(value: u64) -> Option<[u8; N]> {
        (i128::from(value) <= range(N, SIGNED).1).then(|| low_bytes(value))
    }

    #[inline]
    fn real(value: f64) -> Option<[u8; N]> {
        // Both bounds are exact as floats: powers of two, and 0.
        let (least, most) = range(N, SIGNED);
        let fits = value >= least as f64 && value < (most + 1) as f64 && value.fract() == 0.0;
        fits.then(|| low_bytes(if SIGNED { value as i64 as u64 } else { value as u64 }))
    }
}

/// The lowest `N` bytes of `value`, in native byte order.
#[inline]
fn low_bytes<const N: usize>(value: u64) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&value.to_le_bytes()[..N]);
    if cfg!(target_endian = "big") {
        bytes.reverse();
    }
    bytes
}

impl Target<4> for Single {
    const IS_WHOLE: bool = false;

    #[inline]
    fn integer(value: i64) -> Option<[u8; 4]> {
        Some((value as f32).to_ne_bytes())
    }

    #[inline]
    fn unsigned(value: u64) -> Option<[u8; 4]> {
        Some((value as f32).to_ne_bytes())
    }

    #[inline]
    fn real(value: f64) -> Option<[u8; 4]> {
        Some((value as f32).to_ne_bytes())
    }
}

impl Target<8> for Double {
    const IS_WHOLE: bool = false;

    #[inline]
    fn integer(value: i64) -> Option<[u8; 8]> {
        Some((value as f64).to_ne_bytes())
    }

    #[inline]
    fn unsigned(value: u64) -> Option<[u8; 8]> {
        Some((value as f64).to_ne_bytes())
    }

    #[inline]
    fn real(value: f64) -> Option<[u8; 8]> {
        Some(value.to_ne_bytes())
    }
}

impl<const MANTISSA: u32> Target<2> for Bits16<MANTISSA> {
    const IS_WHOLE: bool = false;

    #[inline]
    fn integer(value: i64) -> Option<[u8; 2]> {
        let magnitude = float16::rounded_to_odd(value.unsigned_abs());
        Self::real(if value < 0 { -magnitude } else { magnitude })
    }

    #[inline]
    fn unsigned(value: u64) -> Option<[u8; 2]> {
        Self::real(float16::rounded_to_odd(value))
    }

    #[inline]
    fn real(value: f64) -> Option<[u8; 2]> {
        Some(float16::of_f64::<MANTISSA>(value).to_ne_bytes())
    }
}

/// A description of the values of a type, for error messages.
pub(crate) fn values_of(dtype: Dtype) -> String {
    let signed = match dtype {
        Dtype::Bool => return "a boolean, 0 or 1".to_owned(),
        Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32 | Dtype::Float64 => return "a number".to_owned(),
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => true,
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => false,
    };
    let (least, most) = range(dtype.bytes(), signed);
    format!("a whole number from {least} to {most}")
}

/// The elements of `leaf` as values of `dtype`. `None` if it holds neither numbers nor text.
pub(super) fn values(dtype: Dtype, leaf: &dyn Array, missing: &Missing) -> Option<Values> {
    if let Some(values) = stored(dtype, leaf, missing) {
        return Some(values);
    }
    match dtype {
        Dtype::Bool => read::<Flag, 1>(leaf, missing),
        Dtype::Uint8 => read::<Whole<false>, 1>(leaf, missing),
        Dtype::Int8 => read::<Whole<true>, 1>(leaf, missing),
        Dtype::Uint16 => read::<Whole<false>, 2>(leaf, missing),
        Dtype::Int16 => read::<Whole<true>, 2>(leaf, missing),
        Dtype::Uint32 => read::<Whole<false>, 4>(leaf, missing),
        Dtype::Int32 => read::<Whole<true>, 4>(leaf, missing),
        Dtype::Uint64 => read::<Whole<false>, 8>(leaf, missing),
        Dtype::Int64 => read::<Whole<true>, 8>(leaf, missing),
        Dtype::Float16 => read::<Bits16<10>, 2>(leaf, missing),
        Dtype::Bfloat16 => read::<Bits16<7>, 2>(leaf, missing),
        Dtype::Float32 => read::<Single, 4>(leaf, missing),
        Dtype::Float64 => read::<Double, 8>(leaf, missing),
    }
}

/// The bytes of `number` as a value of `dtype`, which must have it.
pub(super) fn bytes_of(dtype: Dtype, number: f64) -> Option<Vec<u8>> {
    let number = PrimitiveArray::<Float64Type>::from(vec![number]);
    let Values { bytes, unusable } = values(dtype, &number, &Missing::default())?;
    unusable.is_empty().then(|| bytes.to_vec())
}

/// The elements of a column that is stored in the type already: its bytes, which are not copied.
fn stored(dtype: Dtype, leaf: &dyn Array, missing: &Missing) -> Option<Values> {
    let is_same = match dtype {
        Dtype::Bool | Dtype::Bfloat16 => false,
        Dtype::Uint8 => *leaf.data_type() == DataType::UInt8,
        Dtype::Int8 => *leaf.data_type() == DataType::Int8,
        Dtype::Uint16 => *leaf.data_type() == DataType::UInt16,
        Dtype::Int16 => *leaf.data_type() == DataType::Int16,
        Dtype::Uint32 => *leaf.data_type() == DataType::UInt32,
        Dtype::Int32 => *leaf.data_type() == DataType::Int32,
        Dtype::Uint64 => *leaf.data_type() == DataType::UInt64,
        Dtype::Int64 => *leaf.data_type() == DataType::Int64,
        Dtype::Float16 => *leaf.data_type() == DataType::Float16,
        Dtype::Float32 => *leaf.data_type() == DataType::Float32,
        Dtype::Float64 => *leaf.data_type() == DataType::Float64,
    };
    if !is_same {
        return None;
    }
    let (data, size) = (leaf.to_data(), dtype.bytes());
    let bytes = data.buffers()[0].slice_with_length(data.offset() * size, leaf.len() * size);
    let mut unusable = Vec::new();
    if leaf.null_count() > 0 || missing.has_numbers() {
        let absent = numbers(leaf, missing, |number| number == Number::Absent)?;
        let absent = absent.iter().enumerate().filter(|(_, absent)| **absent);
        unusable.extend(absent.map(|(element, _)| (element, Unusable::Absent)));
    }
    Some(Values { bytes, unusable })
}

fn read<T: Target<N>, const N: usize>(leaf: &dyn Array, missing: &Missing) -> Option<Values> {
    Some(match leaf.data_type() {
        DataType::Null => {
            let unusable = (0..leaf.len()).map(|element| (element, Unusable::Absent));
            Values { bytes: vec![0; leaf.len() * N].into(), unusable: unusable.collect() }
        }
        DataType::Boolean => {
            let flags = leaf.as_boolean();
            collect(
                leaf.len(),
                (0..leaf.len()).map(|at| match flags.is_null(at) {
                    true => Err(Unusable::Absent),
                    false => T::integer(flags.value(at).into()).ok_or(Unusable::NotOfType),
                }),
            )
        }
        DataType::Int8 => integers::<Int8Type, T, N>(leaf, missing),
        DataType::Int16 => integers::<Int16Type, T, N>(leaf, missing),
        DataType::Int32 => integers::<Int32Type, T, N>(leaf, missing),
        DataType::Int64 => integers::<Int64Type, T, N>(leaf, missing),
        DataType::UInt8 => integers::<UInt8Type, T, N>(leaf, missing),
        DataType::UInt16 => integers::<UInt16Type, T, N>(leaf, missing),
        DataType::UInt32 => integers::<UInt32Type, T, N>(leaf, missing),
        DataType::UInt64 => {
            let values = leaf.as_primitive::<UInt64Type>();
            each(values, |value| missing.has_integer(value.into()), T::unsigned)
        }
        DataType::Float32 => reals::<Float32Type, T, N>(leaf, missing),
        DataType::Float64 => reals::<Float64Type, T, N>(leaf, missing),
        DataType::Decimal32(..) if T::IS_WHOLE => {
            whole_decimals::<Decimal32Type, T, N>(leaf, missing, |value, scale| {
                whole_decimal(value.into(), scale)
            })
        }
        DataType::Decimal64(..) if T::IS_WHOLE => {
            whole_decimals::<Decimal64Type, T, N>(leaf, missing, |value, scale| {
                whole_decimal(value.into(), scale)
            })
        }
        DataType::Decimal128(..) if T::IS_WHOLE => {
            whole_decimals::<Decimal128Type, T, N>(leaf, missing, whole_decimal)
        }
        DataType::Decimal256(..) if T::IS_WHOLE => {
            whole_decimals::<Decimal256Type, T, N>(leaf, missing, whole_decimal256)
        }
        _ => match temporal::as_numbers(leaf) {
            Some(converted) => return read::<T, N>(&converted, missing),
            None => {
                let parsed = bytes(leaf, missing, Err(Unusable::Absent), |text| {
                    parse::<T, N>(text).ok_or(Unusable::NotOfType)
                })?;
                collect(leaf.len(), parsed.into_iter())
            }
        },
    })
}

fn integers<P, T: Target<N>, const N: usize>(leaf: &dyn Array, missing: &Missing) -> Values
where
    P: ArrowPrimitiveType<Native: Into<i64>>,
{
    let is_missing = |value: P::Native| missing.has_integer(i128::from(value.into()));
    each(leaf.as_primitive::<P>(), is_missing, |value| T::integer(value.into()))
}

fn reals<P, T: Target<N>, const N: usize>(leaf: &dyn Array, missing: &Missing) -> Values
where
    P: ArrowPrimitiveType<Native: Into<f64>>,
{
    let same = |listed| round_to_column_type(leaf.data_type(), listed);
    let is_missing = |value: P::Native| missing.has_float(value.into(), same);
    each(leaf.as_primitive::<P>(), is_missing, |value| T::real(value.into()))
}

/// Decimals as whole numbers, exactly: floats do not have all of them. `whole` converts an unscaled value with a scale.
fn whole_decimals<P, T: Target<N>, const N: usize>(
    leaf: &dyn Array,
    missing: &Missing,
    whole: impl Fn(P::Native, i8) -> Option<i128>,
) -> Values
where
    P: DecimalType,
{
    let array = leaf.as_primitive::<P>();
    let whole = |value| whole(value, array.scale());
    let nearest = |value| P::format_decimal(value, array.precision(), array.scale()).parse();
    let is_missing = |value| match whole(value) {
        Some(whole) if whole.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS => missing.has_integer(whole),
        // Listed numbers beyond that are floats.
        _ => {
            missing.has_numbers()
                && nearest(value).is_ok_and(|value| missing.has_float(value, |listed| listed))
        }
    };
    each(array, is_missing, |value| {
        let whole = whole(value)?;
        match i64::try_from(whole) {
            Ok(signed) => T::integer(signed),
            Err(_) => T::unsigned(u64::try_from(whole).ok()?),
        }
    })
}

/// Converts the elements of a numeric column.
#[inline]
fn each<P: ArrowPrimitiveType, const N: usize>(
    array: &PrimitiveArray<P>,
    is_missing: impl Fn(P::Native) -> bool,
    value_of: impl Fn(P::Native) -> Option<[u8; N]>,
) -> Values {
    let convert = |value| match is_missing(value) {
        true => Err(Unusable::Absent),
        false => value_of(value).ok_or(Unusable::NotOfType),
    };
    let values = array.values().iter().copied();
    match array.nulls() {
        None => collect(array.len(), values.map(convert)),
        Some(nulls) => {
            let convert = |(value, present)| if present { convert(value) } else { Err(Unusable::Absent) };
            collect(array.len(), values.zip(nulls.iter()).map(convert))
        }
    }
}

#[inline]
fn collect<const N: usize>(count: usize, values: impl Iterator<Item = Result<[u8; N], Unusable>>) -> Values {
    let (mut bytes, mut unusable) = (vec![0; count * N], Vec::new());
    for (element, (out, value)) in bytes.as_chunks_mut::<N>().0.iter_mut().zip(values).enumerate() {
        match value {
            Ok(value) => *out = value,
            Err(why) => unusable.push((element, why)),
        }
    }
    Values { bytes: bytes.into(), unusable }
}

/// Text that is a number, or a boolean. Integers are exact; other numbers are read as `f64`.
fn parse<T: Target<N>, const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let text = text.trim_ascii();
    if let Some(flag) = flag(text) {
        return T::integer(flag.into());
    }
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(value) = text.parse() {
        return T::integer(value);
    }
    if let Ok(value) = text.parse() {
        return T::unsigned(value);
    }
    T::real(text.parse().ok()?)
}
