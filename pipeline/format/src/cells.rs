//! Arrow columns narrowed to the types that `tf.train.Example`, CSV and JSON support.

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, Float32Array, Float64Array, Int64Array};
use arrow_schema::DataType;

use crate::integers::integers;

/// The values of a column.
pub enum Cells {
    /// Integers, and booleans as 0 and 1.
    Int(Int64Array),
    /// 32-bit floats.
    Float(Float32Array),
    /// 64-bit floats.
    Double(Float64Array),
    /// Text and bytes.
    Bytes(BinaryArray),
    /// The values of all rows, the offsets of each row in them (`rows + 1`), and which rows are present.
    List(Box<Cells>, Vec<usize>, BooleanArray),
    /// A column of absent values only.
    Absent,
}

impl Cells {
    /// Narrows a column; `None` for an unsupported type, an unsigned integer above `i64::MAX`, or texts of 2 GiB in all,
    /// whose offsets do not fit.
    pub fn of(array: &ArrayRef) -> Option<Self> {
        if let Some(integers) = integers(array) {
            return Some(Self::Int(integers));
        }
        Some(match array.data_type() {
            DataType::Null => Self::Absent,
            DataType::UInt64 => {
                let whole = |value: u64| i64::try_from(value);
                Self::Int(array.as_primitive::<UInt64Type>().try_unary(whole).ok()?)
            }
            DataType::Boolean => Self::Int(array.as_boolean().iter().map(|bit| bit.map(i64::from)).collect()),
            DataType::Float32 => Self::Float(array.as_primitive().clone()),
            DataType::Float64 => Self::Double(array.as_primitive().clone()),
            DataType::Binary => Self::Bytes(array.as_binary::<i32>().clone()),
            DataType::LargeBinary => Self::Bytes(binary(array.as_binary::<i64>().iter())?),
            DataType::BinaryView => Self::Bytes(binary(array.as_binary_view().iter())?),
            DataType::Utf8 => Self::Bytes(array.as_string::<i32>().clone().into()),
            DataType::LargeUtf8 => {
                Self::Bytes(binary(array.as_string::<i64>().iter().map(|text| text.map(str::as_bytes)))?)
            }
            DataType::Utf8View => {
                Self::Bytes(binary(array.as_string_view().iter().map(|text| text.map(str::as_bytes)))?)
            }
            DataType::Dictionary(..) => return Self::of_dictionary(array),
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                let ends = lists.value_offsets().iter().map(|&end| end as usize).collect();
                Self::List(Box::new(Self::of(lists.values())?), ends, present(array))
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                let ends = lists.value_offsets().iter().map(|&end| end as usize).collect();
                Self::List(Box::new(Self::of(lists.values())?), ends, present(array))
            }
            _ => return None,
        })
    }

    fn of_dictionary(array: &ArrayRef) -> Option<Self> {
        let dictionary = array.as_any_dictionary_opt()?;
        if dictionary.values().is_empty() {
            return Some(Self::Absent);
        }
        let Self::Bytes(values) = Self::of(dictionary.values())? else { return None };
        let keys = dictionary.normalized_keys();
        let bytes = keys
            .iter()
            .enumerate()
            .map(|(row, &key)| (array.is_valid(row) && values.is_valid(key)).then(|| values.value(key)));
        binary(bytes).map(Self::Bytes)
    }

    /// Whether a row is present. An empty list is present.
    pub fn is_present(&self, row: usize) -> bool {
        match self {
            Self::Int(values) => values.is_valid(row),
            Self::Float(values) => values.is_valid(row),
            Self::Double(values) => values.is_valid(row),
            Self::Bytes(values) => values.is_valid(row),
            Self::List(_, _, present) => present.value(row),
            Self::Absent => false,
        }
    }
}

/// The values with 32-bit offsets; `None` if they do not fit.
fn binary<'a>(values: impl Iterator<Item = Option<&'a [u8]>> + Clone) -> Option<BinaryArray> {
    let bytes = values.clone().flatten().fold(0_usize, |sum, value| sum.saturating_add(value.len()));
    i32::try_from(bytes).ok()?;
    Some(values.collect())
}

fn present(array: &ArrayRef) -> BooleanArray {
    (0..array.len()).map(|row| Some(array.is_valid(row))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::DictionaryArray;
    use arrow_array::types::Int32Type;

    use super::*;

    #[test]
    fn a_dictionary_without_values_has_only_absent_rows() {
        let array: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::from_iter([None::<&str>, None]));
        assert!(Cells::of(&array).is_some_and(|cells| !cells.is_present(1)));
    }

    #[test]
    fn texts_beyond_the_offsets_are_not_narrowed() {
        let long = vec![0; 1 << 20];
        assert!(binary(std::iter::repeat_n(Some(&long[..]), 2048)).is_none());
        assert!(binary(std::iter::repeat_n(Some(&long[..]), 2)).is_some_and(|values| values.len() == 2));
    }
}
