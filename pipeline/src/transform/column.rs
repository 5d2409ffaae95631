//! Reads Arrow columns of any supported type as numbers or as text.
//!
//! The type is dispatched once per column, to a loop that the compiler specializes for it. A list column
//! is its flattened elements plus each row's range of them, so features process elements and need not
//! know whether the column held lists.

use std::borrow::Cow;
use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Float64Type, UInt64Type};
use arrow_array::{Array, ArrayAccessor, ArrayRef, GenericListArray, OffsetSizeTrait, PrimitiveArray};
use arrow_schema::DataType;
use millstream_format::integers::integers;

use super::decimal::Decimal;
use super::{simd, temporal};

/// The contents accepted in numeric columns, for error messages.
pub(crate) const NUMBERS: &str = "numbers, dates, times, or text that is numbers";
/// The contents accepted in text columns, for error messages.
pub(crate) const TEXTS: &str = "text, bytes, numbers, dates or times";

/// A value of a column read as numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// Null, or one of the configured missing values.
    Absent,
    /// Text that does not parse as a number.
    Unreadable,
    /// May be NaN or infinite.
    Value(f64),
}

/// The configured values that mean "missing", besides null.
#[derive(Clone, Debug, Default)]
pub(crate) struct Missing {
    texts: Vec<Vec<u8>>,
    integers: Vec<i128>,
    floats: Vec<f64>,
}

/// A column's flattened elements, and the row that each belongs to.
pub(crate) struct Elements {
    /// All elements, in row order.
    pub(crate) leaf: ArrayRef,
    /// The range of each row when the column holds lists; otherwise element `i` belongs to row `i`.
    lists: Option<Vec<Range<usize>>>,
}

/// A row's content for a feature that requires exactly one value.
pub(crate) enum Single {
    /// An empty list.
    Absent,
    /// The index of the element.
    One(usize),
    /// The length of a longer list.
    Several(usize),
}

impl Missing {
    /// Text is compared without surrounding ASCII whitespace; numbers are compared by value.
    pub(crate) fn new(values: &[String]) -> Self {
        let trimmed = || values.iter().map(|value| value.trim_ascii());
        let floats: Vec<f64> = trimmed().filter_map(|value| value.parse().ok()).collect();
        let whole = |value: &f64| value.fract() == 0.0 && value.abs() <= 2f64.powi(53);
        Self {
            texts: trimmed().map(|value| value.as_bytes().to_vec()).collect(),
            integers: trimmed()
                .filter_map(|value| value.parse().ok())
                // Exact: integral and at most 2^53.
                .chain(floats.iter().filter(|value| whole(value)).map(|&value| value as i128))
                .collect(),
            floats,
        }
    }

    /// Whether any missing value applies to numeric columns.
    pub(crate) fn has_numbers(&self) -> bool {
        !self.integers.is_empty() || !self.floats.is_empty()
    }

    /// Whether any missing value applies to text columns.
    pub(crate) fn has_texts(&self) -> bool {
        !self.texts.is_empty()
    }

    #[inline]
    pub(crate) fn has_text(&self, text: &[u8]) -> bool {
        !self.texts.is_empty() && self.texts.iter().any(|missing| missing == text.trim_ascii())
    }

    #[inline]
    pub(crate) fn has_integer(&self, value: i128) -> bool {
        !self.integers.is_empty() && self.integers.contains(&value)
    }

    /// `same` converts a listed number to the column's precision.
    #[inline]
    pub(crate) fn has_float(&self, value: f64, same: impl Fn(f64) -> f64) -> bool {
        self.floats.iter().any(|&missing| same(missing) == value || (missing.is_nan() && value.is_nan()))
    }
}

impl Elements {
    /// The elements, with numeric dictionaries decoded: reading values is cheaper than looking each up.
    pub(crate) fn of(column: &ArrayRef) -> Self {
        let Self { leaf, lists } = Self::with_dictionary(column);
        Self { leaf: without_numeric_dictionary(leaf), lists }
    }

    /// The elements as stored, still dictionary-encoded where the column is.
    pub(crate) fn with_dictionary(column: &ArrayRef) -> Self {
        if let Some(lists) = column.as_list_opt::<i32>() {
            Self::of_lists(lists)
        } else if let Some(lists) = column.as_list_opt::<i64>() {
            Self::of_lists(lists)
        } else {
            Self { leaf: column.clone(), lists: None }
        }
    }

    fn of_lists<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> Self {
        let offsets = lists.value_offsets();
        let start = offsets[0].as_usize();
        let end = offsets[lists.len()].as_usize();
        let ranges = (0..lists.len()).map(|row| match lists.is_null(row) {
            true => 0..0,
            false => offsets[row].as_usize() - start..offsets[row + 1].as_usize() - start,
        });
        Self { leaf: lists.values().slice(start, end - start), lists: Some(ranges.collect()) }
    }

    /// Whether the column holds lists; otherwise element `i` belongs to row `i`.
    pub(crate) fn are_lists(&self) -> bool {
        self.lists.is_some()
    }

    /// The range of elements that belong to `row`.
    #[inline]
    pub(crate) fn of_row(&self, row: usize) -> Range<usize> {
        self.lists.as_ref().map_or(row..row + 1, |lists| lists[row].clone())
    }

    /// The row of `element`.
    pub(crate) fn row_of(&self, element: usize) -> Option<usize> {
        match &self.lists {
            None => Some(element),
            Some(lists) => lists.iter().position(|list| list.contains(&element)),
        }
    }

    /// The element of `row`, for a feature that requires exactly one.
    #[inline]
    pub(crate) fn single(&self, row: usize) -> Single {
        let Some(lists) = &self.lists else { return Single::One(row) };
        match lists[row].len() {
            0 => Single::Absent,
            1 => Single::One(lists[row].start),
            several => Single::Several(several),
        }
    }
}

/// `value` as a column of this type stores it: values compared with an f32 column are rounded to f32, as
/// in TensorFlow.
pub(crate) fn round_to_column_type(data_type: &DataType, value: f64) -> f64 {
    if *data_type == DataType::Float32 { f64::from(value as f32) } else { value }
}

/// Reads every element as a number and maps it with `read`. `None` when the type holds neither numbers
/// nor text.
pub(crate) fn numbers<T: Copy>(
    leaf: &dyn Array,
    missing: &Missing,
    read: impl Fn(Number) -> T,
) -> Option<Vec<T>> {
    let whole = |value: f64, exact: i128| {
        read(if missing.has_integer(exact) { Number::Absent } else { Number::Value(value) })
    };
    if let Some(values) = integers(leaf) {
        return Some(each(&values, read(Number::Absent), |value| whole(value as f64, value.into())));
    }
    Some(match leaf.data_type() {
        DataType::Null => vec![read(Number::Absent); leaf.len()],
        DataType::Boolean => {
            let flags = leaf.as_boolean();
            let number =
                |at: Option<usize>| at.map_or(Number::Absent, |at| Number::Value(flags.value(at).into()));
            present(flags).map(|at| read(number(at))).collect()
        }
        DataType::UInt64 => each(leaf.as_primitive::<UInt64Type>(), read(Number::Absent), |value| {
            whole(value as f64, value.into())
        }),
        DataType::Float32 => real::<Float32Type, T>(leaf, missing, read),
        DataType::Float64 => real::<Float64Type, T>(leaf, missing, read),
        _ => match temporal::as_numbers(leaf) {
            Some(converted) => return numbers(&converted, missing, read),
            None => return bytes(leaf, missing, read(Number::Absent), |text| read(parse(text))),
        },
    })
}

/// The elements of a numeric column for which no missing values are configured. Null elements have
/// arbitrary values.
pub(crate) fn floats<'a>(leaf: &'a dyn Array, missing: &Missing) -> Option<Cow<'a, [f64]>> {
    if missing.has_numbers() {
        return None;
    }
    match leaf.data_type() {
        DataType::Float32 => {
            Some(leaf.as_primitive::<Float32Type>().values().iter().copied().map(f64::from).collect())
        }
        DataType::Float64 => Some(Cow::Borrowed(leaf.as_primitive::<Float64Type>().values())),
        _ => {
            let integers = integers(leaf)?;
            Some(simd::run(
                #[inline(always)]
                || integers.values().iter().map(|&value| value as f64).collect(),
            ))
        }
    }
}

/// `length` unspecified values, in the reused buffer `spare`.
pub(crate) fn resized<T: Copy + Default>(mut spare: Vec<T>, length: usize) -> Vec<T> {
    spare.resize(length, T::default());
    spare
}

/// Sets null elements to `absent`.
pub(crate) fn fill_nulls<T: Copy>(leaf: &dyn Array, absent: T, values: &mut [T]) {
    if let Some(nulls) = leaf.nulls().filter(|nulls| nulls.null_count() > 0) {
        for null in (!nulls.inner()).set_indices() {
            values[null] = absent;
        }
    }
}

/// Reads every element as text and maps it with `read`; absent elements become `absent`. `None` when the
/// type holds neither numbers nor text.
///
/// Numbers are read as decimal text: integers as `tf.as_string` writes them, floats in the shortest form
/// that parses back to the same value (`1.5`, `2`), booleans as `true` and `false`.
pub(crate) fn texts<T: Copy>(
    leaf: &dyn Array,
    missing: &Missing,
    absent: T,
    mut read: impl FnMut(&[u8]) -> T,
) -> Option<Vec<T>> {
    let mut decimal = Decimal::new();
    if let Some(values) = integers(leaf) {
        return Some(each(&values, absent, |value| match missing.has_integer(value.into()) {
            true => absent,
            false => read(decimal.integer(value.unsigned_abs(), value < 0)),
        }));
    }
    Some(match leaf.data_type() {
        DataType::Null => vec![absent; leaf.len()],
        DataType::UInt64 => each(leaf.as_primitive::<UInt64Type>(), absent, |value| {
            if missing.has_integer(value.into()) { absent } else { read(decimal.integer(value, false)) }
        }),
        DataType::Float32 => each(leaf.as_primitive::<Float32Type>(), absent, |value| {
            let listed = missing.has_float(value.into(), |missing| f64::from(missing as f32));
            if listed { absent } else { read(decimal.float(value)) }
        }),
        DataType::Float64 => each(leaf.as_primitive::<Float64Type>(), absent, |value| {
            if missing.has_float(value, |missing| missing) { absent } else { read(decimal.float(value)) }
        }),
        DataType::Boolean => {
            let flags = leaf.as_boolean();
            let text = |at| if flags.value(at) { &b"true"[..] } else { b"false" };
            present(flags).map(|at| at.map_or(absent, |at| read(text(at)))).collect()
        }
        _ => match temporal::as_texts(leaf) {
            Some(converted) => return texts(&converted, missing, absent, read),
            None => return bytes(leaf, missing, absent, read),
        },
    })
}

/// `element` formatted for an error message.
pub(crate) fn display_element(leaf: &dyn Array, element: usize) -> String {
    const MAX_CHARS: usize = 40;
    let mut shown = String::from("nothing");
    let one = leaf.slice(element, 1);
    let _: Option<Vec<()>> = texts(&one, &Missing::default(), (), |text| {
        let text = String::from_utf8_lossy(text);
        let cut: String = text.chars().take(MAX_CHARS).collect();
        shown = if cut.len() < text.len() { format!("`{cut}`...") } else { format!("`{cut}`") };
    });
    shown
}

/// The index of each element, `None` for null elements.
fn present(array: &dyn Array) -> impl Iterator<Item = Option<usize>> + '_ {
    (0..array.len()).map(|at| (!array.is_null(at)).then_some(at))
}

/// Maps the non-null values of a numeric column.
fn each<P: ArrowPrimitiveType, T: Copy>(
    array: &PrimitiveArray<P>,
    absent: T,
    mut read: impl FnMut(P::Native) -> T,
) -> Vec<T> {
    match array.nulls() {
        None => array.values().iter().map(|&value| read(value)).collect(),
        Some(nulls) => {
            let values = array.values().iter().zip(nulls.iter());
            values.map(|(&value, present)| if present { read(value) } else { absent }).collect()
        }
    }
}

fn real<P: ArrowPrimitiveType<Native: Into<f64>>, T: Copy>(
    leaf: &dyn Array,
    missing: &Missing,
    read: impl Fn(Number) -> T,
) -> Vec<T> {
    each(leaf.as_primitive::<P>(), read(Number::Absent), |value| {
        let value = value.into();
        let listed = missing.has_float(value, |listed| round_to_column_type(leaf.data_type(), listed));
        read(if listed { Number::Absent } else { Number::Value(value) })
    })
}

fn parse(text: &[u8]) -> Number {
    let text = text.trim_ascii();
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.or_else(|| flag(text).map(f64::from)).map_or(Number::Unreadable, Number::Value)
}

/// The number of a text that is a boolean, as JSON writes it.
pub(crate) fn flag(text: &[u8]) -> Option<u8> {
    match text {
        b"true" => Some(1),
        b"false" => Some(0),
        _ => None,
    }
}

/// Decodes a dictionary of primitive values; leaves other arrays unchanged.
fn without_numeric_dictionary(leaf: ArrayRef) -> ArrayRef {
    let numeric = leaf.as_any_dictionary_opt().filter(|found| found.values().data_type().is_primitive());
    // Keys are in range: the array's constructor checked them.
    numeric
        .and_then(|found| arrow_select::take::take(found.values(), found.keys(), None).ok())
        .unwrap_or(leaf)
}

/// Maps the elements of a text or binary column, dictionary-encoded or not.
pub(crate) fn bytes<T: Copy>(
    leaf: &dyn Array,
    missing: &Missing,
    absent: T,
    read: impl FnMut(&[u8]) -> T,
) -> Option<Vec<T>> {
    let Some(dictionary) = leaf.as_any_dictionary_opt() else {
        return bytes_at(leaf, present(leaf), missing, absent, read);
    };
    if dictionary.values().is_empty() {
        return Some(vec![absent; dictionary.len()]);
    }
    let keys = dictionary.normalized_keys();
    let values = dictionary.values();
    let positions =
        present(dictionary.keys()).map(|at| at.map(|at| keys[at]).filter(|&key| !values.is_null(key)));
    bytes_at(values, positions, missing, absent, read)
}

/// Maps the elements at `positions`.
fn bytes_at<T: Copy>(
    leaf: &dyn Array,
    positions: impl Iterator<Item = Option<usize>>,
    missing: &Missing,
    absent: T,
    read: impl FnMut(&[u8]) -> T,
) -> Option<Vec<T>> {
    Some(match leaf.data_type() {
        DataType::Utf8 => map_at(leaf.as_string::<i32>(), positions, missing, absent, read),
        DataType::LargeUtf8 => map_at(leaf.as_string::<i64>(), positions, missing, absent, read),
        DataType::Utf8View => map_at(leaf.as_string_view(), positions, missing, absent, read),
        DataType::Binary => map_at(leaf.as_binary::<i32>(), positions, missing, absent, read),
        DataType::LargeBinary => map_at(leaf.as_binary::<i64>(), positions, missing, absent, read),
        DataType::BinaryView => map_at(leaf.as_binary_view(), positions, missing, absent, read),
        DataType::FixedSizeBinary(_) => map_at(leaf.as_fixed_size_binary(), positions, missing, absent, read),
        _ => return None,
    })
}

fn map_at<A, T: Copy>(
    array: A,
    positions: impl Iterator<Item = Option<usize>>,
    missing: &Missing,
    absent: T,
    mut read: impl FnMut(&[u8]) -> T,
) -> Vec<T>
where
    A: ArrayAccessor,
    A::Item: AsRef<[u8]>,
{
    positions
        .map(|position| {
            let Some(position) = position else { return absent };
            let value = array.value(position);
            if missing.has_text(value.as_ref()) { absent } else { read(value.as_ref()) }
        })
        .collect()
}
