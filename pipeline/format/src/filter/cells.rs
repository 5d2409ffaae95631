//! Single values of any column type, and their comparison with literals.

use std::cmp::Ordering;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal128Type, Decimal256Type, DecimalType, Float16Type, Float32Type, Float64Type,
    UInt64Type,
};
use arrow_array::{Array, GenericListArray, OffsetSizeTrait, PrimitiveArray};
use arrow_schema::DataType;

use super::calendar;
use crate::filter::Literal;
use crate::integers::{integers, per_second, ticks, whole_decimal, whole_decimal256};

/// A value of a column, or a literal converted for comparison.
#[derive(Clone, Debug)]
pub(crate) enum Cell<'a> {
    Bool(bool),
    /// Integers, and dates and times in their column's unit.
    Whole(i128),
    Number(f64),
    Bytes(&'a [u8]),
    Text(Box<str>),
}

/// A row with several values, and their number.
pub(crate) type Unusable = (usize, usize);

impl Cell<'_> {
    /// `None` if one is NaN or the kinds differ.
    pub(crate) fn compare(&self, other: &Cell<'_>) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Cell::Bool(b)) => Some(a.cmp(b)),
            (Self::Whole(a), Cell::Whole(b)) => Some(a.cmp(b)),
            (Self::Whole(a), Cell::Number(b)) => compare_exactly(*a, *b),
            (Self::Number(a), Cell::Whole(b)) => compare_exactly(*b, *a).map(Ordering::reverse),
            (Self::Number(a), Cell::Number(b)) => a.partial_cmp(b),
            (a, b) => Some(a.bytes()?.cmp(b.bytes()?)),
        }
    }

    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Text(text) => Some(text.as_bytes()),
            _ => None,
        }
    }
}

/// Compares an integer with a float, without rounding.
fn compare_exactly(whole: i128, number: f64) -> Option<Ordering> {
    const BEYOND: f64 = 1.7e38;
    if number.is_nan() {
        None
    } else if number.abs() >= BEYOND {
        Some(if number > 0.0 { Ordering::Less } else { Ordering::Greater })
    } else {
        let below = number.floor();
        let fraction = if number > below { Ordering::Less } else { Ordering::Equal };
        Some(whole.cmp(&(below as i128)).then(fraction))
    }
}

/// The type of a single value.
pub(super) fn element_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => element_type(item.data_type()),
        DataType::Dictionary(_, values) => values,
        other => other,
    }
}

/// Converts a literal to a column type; `None` if the two cannot be compared.
pub(super) fn bind(literal: &Literal, data_type: &DataType) -> Option<Cell<'static>> {
    use DataType::{
        Boolean, Date32, Decimal128, Decimal256, Float16, Float32, Float64, Null, Time32, Time64, Timestamp,
    };
    Some(match (literal, data_type) {
        // Never compared: all values of such a column are absent.
        (_, Null) => Cell::Bool(false),
        (Literal::Bool(value), Boolean) => Cell::Bool(*value),
        (Literal::Whole(value), Float32 | Float64 | Float16) => Cell::Whole((*value).into()),
        // Rounded to the column's type, so that `0.1` equals a stored 0.1.
        (Literal::Number(value), Float32) => Cell::Number(f64::from(*value as f32)),
        (Literal::Number(value), Float64 | Float16 | Decimal128(..) | Decimal256(..)) => Cell::Number(*value),
        (Literal::Whole(value), Decimal128(..) | Decimal256(..)) => Cell::Whole((*value).into()),
        (Literal::Whole(value), data_type) if data_type.is_integer() => Cell::Whole((*value).into()),
        (Literal::Number(value), data_type) if data_type.is_integer() => Cell::Number(*value),
        (Literal::Text(text), Date32) => Cell::Whole(calendar::days(text)?.into()),
        (Literal::Text(text), Timestamp(unit, _)) => {
            Cell::Whole(calendar::timestamp(text, per_second(*unit))?.into())
        }
        (Literal::Text(text), Time32(unit) | Time64(unit)) => {
            Cell::Whole(calendar::time(text, per_second(*unit))?.into())
        }
        (Literal::Text(text), data_type) if is_text(data_type) => Cell::Text(text.as_str().into()),
        _ => return None,
    })
}

/// Whether values are text or bytes.
pub(super) fn is_text(data_type: &DataType) -> bool {
    use DataType::{Binary, BinaryView, FixedSizeBinary, LargeBinary, LargeUtf8, Utf8, Utf8View};
    matches!(data_type, Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_))
}

/// Calls `each` with the value of every row, `None` if absent. Rows with several values are returned instead. For types
/// without literals, only presence is distinguished.
pub(super) fn each_cell(array: &dyn Array, each: impl FnMut(usize, Option<Cell<'_>>)) -> Vec<Unusable> {
    match array.data_type() {
        DataType::List(_) => each_of_list(array.as_list::<i32>(), each),
        DataType::LargeList(_) => each_of_list(array.as_list::<i64>(), each),
        _ => {
            each_single(array, each);
            Vec::new()
        }
    }
}

fn each_single(array: &dyn Array, mut each: impl FnMut(usize, Option<Cell<'_>>)) {
    use DataType as T;
    if let Some(values) = integers(array).or_else(|| ticks(array)) {
        return cells(array, each, |row| Cell::Whole(values.value(row).into()));
    }
    match array.data_type() {
        T::Boolean => cells(array, each, |row| Cell::Bool(array.as_boolean().value(row))),
        T::UInt64 => {
            let values = array.as_primitive::<UInt64Type>();
            cells(array, each, |row| Cell::Whole(values.value(row).into()));
        }
        T::Float16 => number::<Float16Type>(array, each, |value| value.to_f64()),
        T::Float32 => number::<Float32Type>(array, each, f64::from),
        T::Float64 => number::<Float64Type>(array, each, |value| value),
        T::Decimal128(..) => decimal::<Decimal128Type>(array, each, whole_decimal),
        T::Decimal256(..) => decimal::<Decimal256Type>(array, each, whole_decimal256),
        T::Utf8 => cells(array, each, |row| Cell::Bytes(array.as_string::<i32>().value(row).as_bytes())),
        T::LargeUtf8 => cells(array, each, |row| Cell::Bytes(array.as_string::<i64>().value(row).as_bytes())),
        T::Utf8View => cells(array, each, |row| Cell::Bytes(array.as_string_view().value(row).as_bytes())),
        T::Binary => cells(array, each, |row| Cell::Bytes(array.as_binary::<i32>().value(row))),
        T::LargeBinary => cells(array, each, |row| Cell::Bytes(array.as_binary::<i64>().value(row))),
        T::BinaryView => cells(array, each, |row| Cell::Bytes(array.as_binary_view().value(row))),
        T::FixedSizeBinary(_) => {
            cells(array, each, |row| Cell::Bytes(array.as_fixed_size_binary().value(row)));
        }
        T::Null => (0..array.len()).for_each(|row| each(row, None)),
        _ => cells(array, each, |_| Cell::Bool(false)),
    }
}

fn cells<'a>(
    array: &dyn Array,
    mut each: impl FnMut(usize, Option<Cell<'_>>),
    cell: impl Fn(usize) -> Cell<'a>,
) {
    for row in 0..array.len() {
        each(row, array.is_valid(row).then(|| cell(row)));
    }
}

fn number<P: ArrowPrimitiveType>(
    array: &dyn Array,
    each: impl FnMut(usize, Option<Cell<'_>>),
    float: impl Fn(P::Native) -> f64,
) {
    let values: &PrimitiveArray<P> = array.as_primitive();
    cells(array, each, |row| Cell::Number(float(values.value(row))));
}

/// Decimals are compared exactly if they are whole, and as the nearest f64 otherwise. So beyond 2^53 the order of cells is not always
/// that of the values; bounds of pages and row groups are not compared. `whole` converts an unscaled value with a scale.
fn decimal<P: DecimalType>(
    array: &dyn Array,
    each: impl FnMut(usize, Option<Cell<'_>>),
    whole: impl Fn(P::Native, i8) -> Option<i128>,
) {
    let values: &PrimitiveArray<P> = array.as_primitive();
    let text = |row| P::format_decimal(values.value(row), values.precision(), values.scale());
    cells(array, each, |row| match whole(values.value(row), values.scale()) {
        Some(whole) => Cell::Whole(whole),
        None => Cell::Number(text(row).parse().unwrap_or(f64::NAN)),
    });
}

fn each_of_list<O: OffsetSizeTrait>(
    lists: &GenericListArray<O>,
    mut each: impl FnMut(usize, Option<Cell<'_>>),
) -> Vec<Unusable> {
    let mut several = Vec::new();
    for row in 0..lists.len() {
        let values = lists.is_valid(row).then(|| lists.value(row));
        match values {
            Some(values) if values.len() == 1 => match values.as_any_dictionary_opt() {
                None => each_single(&values, |_, cell| each(row, cell)),
                Some(keys) if values.is_null(0) || keys.values().is_empty() => each(row, None),
                Some(keys) => {
                    let value = keys.values().slice(keys.normalized_keys()[0], 1);
                    each_single(&value, |_, cell| each(row, cell));
                }
            },
            Some(values) if values.len() > 1 => several.push((row, values.len())),
            _ => each(row, None),
        }
    }
    several
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow_array::types::UInt32Type;
    use arrow_array::{Decimal128Array, DictionaryArray, Int64Array, ListArray, UInt32Array};
    use arrow_buffer::OffsetBuffer;
    use arrow_schema::Field;

    use super::*;

    #[test]
    fn whole_decimals_are_compared_exactly_and_others_as_floats() {
        let order = |mantissas: Vec<i128>, scale, literal| {
            let decimals = Decimal128Array::from(mantissas).with_precision_and_scale(38, scale).unwrap();
            let literal = bind(&literal, decimals.data_type()).unwrap();
            let mut found = Vec::new();
            each_cell(&decimals, |_, cell| found.push(cell.unwrap().compare(&literal).unwrap() as i32));
            found
        };
        let large = 1_i64 << 53;
        let near: Vec<i128> = (0..3).map(|more| i128::from(large) + more).collect();
        assert_eq!(order(near.clone(), 0, Literal::Whole(large + 1)), [-1, 0, 1]);
        let scaled = near.iter().map(|value| value * 100).collect();
        assert_eq!(order(scaled, 2, Literal::Whole(large + 1)), [-1, 0, 1]);
        assert_eq!(order(vec![9, 10, 11], 2, Literal::Number(0.1)), [-1, 0, 1]);
        assert_eq!(order(vec![150, 200, 250], 2, Literal::Whole(2)), [-1, 0, 1]);
    }

    #[test]
    fn lists_of_dictionary_keys_are_compared_by_their_values() {
        let keys = UInt32Array::from(vec![Some(1), None, Some(0), Some(1)]);
        let values: DictionaryArray<UInt32Type> =
            DictionaryArray::new(keys, Arc::new(Int64Array::from(vec![7, 9])));
        let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        let offsets = OffsetBuffer::from_lengths([1, 1, 2, 0]);
        let lists = ListArray::new(item, offsets, Arc::new(values), None);
        let nine = bind(&Literal::Whole(9), element_type(lists.data_type())).unwrap();
        let mut rows = Vec::new();
        let several = each_cell(&lists, |row, cell| {
            rows.push((row, cell.map(|cell| cell.compare(&nine) == Some(Ordering::Equal))));
        });
        assert_eq!(rows, [(0, Some(true)), (1, None), (3, None)]);
        assert_eq!(several, [(2, 2)]);
    }
}
