//! Values of any column type as JSON: for `inspect`, and for output as JSON lines.
//!
//! Dates, times, durations and large decimals are text in the form of [`crate::written`]. A struct is an object, a map
//! with keys of text too; other maps are lists of pairs. A decimal that f64 holds with all its digits is a number.

use std::fmt::{self, Write};

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, BooleanArray, UInt64Array};
use arrow_schema::DataType;
use millstream_format::cells::Cells;
use millstream_format::type_name::TypeName;
use millstream_pipeline::transform::temporal;
use serde_json::{Map, Value};

use crate::written::as_written;

/// Decimals of at most this many digits are equal to the shortest decimal form of the nearest f64.
const EXACT_DIGITS: u8 = 15;

/// A column prepared for reading values as JSON.
pub(crate) enum JsonColumn {
    Cells(Cells),
    Flags(BooleanArray),
    /// Integers above `i64::MAX`.
    Unsigned(UInt64Array),
    /// Keys into the values.
    Dictionary(Vec<Option<usize>>, Box<JsonColumn>),
    /// Each row's elements: from an offset to the next. `None` if the row is absent.
    List(Rows, Box<JsonColumn>),
    /// Keys and values.
    Map(Rows, Box<JsonColumn>, Box<JsonColumn>),
    Object(Vec<bool>, Vec<(String, JsonColumn)>),
    /// A type without a JSON form: its name.
    Unsupported(String),
}

/// Rows that consist of elements.
pub(crate) struct Rows {
    /// `rows + 1` offsets.
    ends: Vec<usize>,
    is_present: Vec<bool>,
}

/// What is left of the bytes of texts and the number of elements that a value may show; the rest is cut.
pub(crate) struct Room {
    pub(crate) bytes: usize,
    pub(crate) elements: usize,
}

impl Room {
    /// Shows everything.
    pub(crate) fn unlimited() -> Self {
        Self { bytes: usize::MAX, elements: usize::MAX }
    }

    fn take_element(&mut self) -> bool {
        let fits = self.elements > 0;
        self.elements = self.elements.saturating_sub(1);
        fits
    }

    fn text(&mut self, text: &dyn fmt::Display) -> Value {
        let limited = Limited::of(self.bytes, format_args!("{text}"));
        self.bytes = self.bytes.saturating_sub(limited.len());
        limited.into()
    }
}

impl JsonColumn {
    pub(crate) fn of(array: &ArrayRef) -> Self {
        let of = |array: &ArrayRef| Box::new(Self::of(array));
        match array.data_type() {
            DataType::Boolean => return Self::Flags(array.as_boolean().clone()),
            DataType::UInt64 => return Self::Unsigned(array.as_primitive::<UInt64Type>().clone()),
            DataType::Dictionary(..) => {
                if let Some(dictionary) = array.as_any_dictionary_opt() {
                    // A dictionary without values, whose keys cannot be normalized, has only absent rows.
                    let is_empty = dictionary.values().is_empty();
                    let keys = if is_empty { vec![0; array.len()] } else { dictionary.normalized_keys() };
                    let keys = keys.into_iter().enumerate();
                    let keys = keys.map(|(row, key)| (!is_empty && array.is_valid(row)).then_some(key));
                    return Self::Dictionary(keys.collect(), of(dictionary.values()));
                }
            }
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                let ends = lists.value_offsets().iter().map(|&end| end as usize);
                return Self::List(Rows::of(array, ends), of(lists.values()));
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                let ends = lists.value_offsets().iter().map(|&end| end as usize);
                return Self::List(Rows::of(array, ends), of(lists.values()));
            }
            DataType::FixedSizeList(_, length) => {
                let lists = array.as_fixed_size_list();
                let length = usize::try_from(*length).unwrap_or(0);
                return Self::List(
                    Rows::of(array, (0..=array.len()).map(|row| row * length)),
                    of(lists.values()),
                );
            }
            DataType::Map(..) => {
                let maps = array.as_map();
                let ends = maps.value_offsets().iter().map(|&end| end as usize);
                return Self::Map(Rows::of(array, ends), of(maps.keys()), of(maps.values()));
            }
            DataType::Struct(fields) => {
                let columns = fields.iter().zip(array.as_struct().columns());
                let columns = columns.map(|(field, column)| (field.name().clone(), Self::of(column)));
                return Self::Object(is_present(array), columns.collect());
            }
            DataType::Decimal32(precision, _)
            | DataType::Decimal64(precision, _)
            | DataType::Decimal128(precision, _)
                if *precision <= EXACT_DIGITS =>
            {
                if let Some(Cells::Double(numbers)) =
                    temporal::as_numbers(array).and_then(|numbers| Cells::of(&numbers))
                {
                    return Self::Cells(Cells::Double(numbers));
                }
            }
            _ => {}
        }
        let cells = Cells::of(array).or_else(|| Cells::of(&as_written(array)?));
        cells.map_or_else(|| Self::Unsupported(TypeName(array.data_type()).to_string()), Self::Cells)
    }

    /// The value of a row. What does not fit into `room` is cut and ends with `...`.
    pub(crate) fn value(&self, row: usize, room: &mut Room) -> Value {
        match self {
            Self::Cells(cells) => scalar(cells, row, room),
            Self::Flags(flags) => {
                if flags.is_valid(row) {
                    flags.value(row).into()
                } else {
                    Value::Null
                }
            }
            Self::Unsigned(values) => {
                if values.is_valid(row) {
                    values.value(row).into()
                } else {
                    Value::Null
                }
            }
            Self::Dictionary(keys, values) => keys[row].map_or(Value::Null, |key| values.value(key, room)),
            Self::List(rows, values) => {
                let Some(range) = rows.range(row) else { return Value::Null };
                let mut elements = Vec::new();
                for at in range {
                    if !room.take_element() {
                        elements.push("...".into());
                        break;
                    }
                    elements.push(values.value(at, room));
                }
                Value::Array(elements)
            }
            Self::Map(rows, keys, values) => {
                let Some(range) = rows.range(row) else { return Value::Null };
                let pairs = range.map(|at| (at, room.take_element())).take_while(|&(_, fits)| fits);
                let pairs: Vec<_> = pairs.map(|(at, _)| at).collect();
                let pairs = pairs.into_iter().map(|at| (keys.value(at, room), values.value(at, room)));
                let pairs: Vec<_> = pairs.collect();
                if pairs.iter().all(|(key, _)| key.is_string()) {
                    let text = |key: Value| key.as_str().unwrap_or_default().to_owned();
                    return pairs.into_iter().map(|(key, value)| (text(key), value)).collect();
                }
                pairs.into_iter().map(|(key, value)| Value::Array(vec![key, value])).collect()
            }
            Self::Object(is_present, columns) => {
                if !is_present[row] {
                    return Value::Null;
                }
                let mut object = Map::new();
                for (name, column) in columns {
                    if !room.take_element() {
                        object.insert("...".to_owned(), Value::Null);
                        break;
                    }
                    object.insert(name.clone(), column.value(row, room));
                }
                Value::Object(object)
            }
            Self::Unsupported(name) => Value::String(format!("({name})")),
        }
    }
}

/// Whether the JSON form of a type holds all of its values. That of bytes does not: it is text with escapes.
pub(crate) fn has_json_form(data_type: &DataType) -> bool {
    match data_type {
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_)
        | DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::Union(..)
        | DataType::RunEndEncoded(..) => false,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_json_form(item.data_type()),
        DataType::Struct(fields) => fields.iter().all(|field| has_json_form(field.data_type())),
        DataType::Dictionary(_, values) => has_json_form(values),
        _ => true,
    }
}

impl Rows {
    fn of(array: &ArrayRef, ends: impl Iterator<Item = usize>) -> Self {
        Self { ends: ends.collect(), is_present: is_present(array) }
    }

    fn range(&self, row: usize) -> Option<std::ops::Range<usize>> {
        self.is_present[row].then(|| self.ends[row]..self.ends[row + 1])
    }
}

fn is_present(array: &ArrayRef) -> Vec<bool> {
    (0..array.len()).map(|row| array.is_valid(row)).collect()
}

fn scalar(cells: &Cells, row: usize, room: &mut Room) -> Value {
    if !cells.is_present(row) {
        return Value::Null;
    }
    match cells {
        Cells::Int(values) => values.value(row).into(),
        // The shortest digits that identify this f32, instead of those of the nearest f64.
        Cells::Float(values) => values.value(row).to_string().parse::<f64>().map_or(Value::Null, number),
        Cells::Double(values) => number(values.value(row)),
        Cells::Bytes(values) => match std::str::from_utf8(values.value(row)) {
            Ok(text) => room.text(&text),
            Err(_) => room.text(&values.value(row).escape_ascii()),
        },
        Cells::List(..) | Cells::Absent => Value::Null,
    }
}

/// A JSON number, or text for a non-finite value, which JSON cannot represent.
fn number(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number)
}

/// A text of at most some bytes.
pub(crate) struct Limited {
    text: String,
    left: usize,
    is_cut: bool,
}

impl Limited {
    /// Formats at most the first `bytes` of `arguments`; `...` marks a cut.
    pub(crate) fn of(bytes: usize, arguments: fmt::Arguments<'_>) -> String {
        let mut limited = Self { text: String::new(), left: bytes, is_cut: false };
        // An error ends formatting where the text is cut.
        let _ = limited.write_fmt(arguments);
        limited.text
    }
}

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.is_cut {
            return Err(fmt::Error);
        }
        if text.len() > self.left {
            self.text.push_str(&text[..text.floor_char_boundary(self.left)]);
            self.text.push_str("...");
            self.is_cut = true;
            return Err(fmt::Error);
        }
        self.left -= text.len();
        self.text.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow_array::builder::{
        FixedSizeListBuilder, Float32Builder, Int64Builder, MapBuilder, StringBuilder,
    };
    use arrow_array::types::Int32Type;
    use arrow_array::{
        Date32Array, Decimal128Array, DictionaryArray, DurationSecondArray, StructArray, Time32SecondArray,
        TimestampMicrosecondArray,
    };
    use arrow_schema::Field;
    use serde_json::json;

    use super::*;

    fn values(array: impl Array + 'static) -> Vec<Value> {
        let array: ArrayRef = Arc::new(array);
        let column = JsonColumn::of(&array);
        (0..array.len()).map(|row| column.value(row, &mut Room::unlimited())).collect()
    }

    #[test]
    fn scalars_are_written_as_people_write_them() {
        let decimals = |precision| {
            let values = Decimal128Array::from(vec![Some(125), None, Some(-5)]);
            values.with_precision_and_scale(precision, 2).unwrap()
        };
        assert_eq!(values(decimals(10)), [json!(1.25), Value::Null, json!(-0.05)]);
        assert_eq!(values(decimals(38)), [json!("1.25"), Value::Null, json!("-0.05")]);
        let moments = TimestampMicrosecondArray::from(vec![1_795_264_680_250_000]);
        assert_eq!(values(moments.clone()), [json!("2026-11-21T12:38:00.25")]);
        for zone in ["UTC", "+00:00", "Europe/Berlin"] {
            assert_eq!(
                values(moments.clone().with_timezone(zone)),
                [json!("2026-11-21T12:38:00.25Z")],
                "{zone}"
            );
        }
        assert_eq!(values(Date32Array::from(vec![20_778])), [json!("2026-11-21")]);
        assert_eq!(values(Time32SecondArray::from(vec![45_480])), [json!("12:38:00")]);
        assert_eq!(values(DurationSecondArray::from(vec![90])), [json!("PT1M30S")]);
        assert_eq!(values(BooleanArray::from(vec![true])), [json!(true)]);
        assert_eq!(values(UInt64Array::from(vec![u64::MAX])), [json!(u64::MAX)]);
    }

    #[test]
    fn nested_values_are_json() {
        let mut vectors = FixedSizeListBuilder::new(Float32Builder::new(), 2);
        vectors.values().append_slice(&[0.1, 2.0]);
        vectors.append(true);
        vectors.values().append_slice(&[0.0, 0.0]);
        vectors.append(false);
        assert_eq!(values(vectors.finish()), [json!([0.1, 2.0]), Value::Null]);

        let no_values = DictionaryArray::<Int32Type>::from_iter([None::<&str>, None]);
        assert_eq!(values(no_values), [Value::Null, Value::Null]);

        let mut counts = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
        counts.keys().append_value("a");
        counts.values().append_value(1);
        counts.append(true).unwrap();
        counts.append(false).unwrap();
        assert_eq!(values(counts.finish()), [json!({"a": 1}), Value::Null]);

        let day: ArrayRef = Arc::new(Date32Array::from(vec![Some(0), None]));
        let fields = vec![(Arc::new(Field::new("day", DataType::Date32, true)), day)];
        assert_eq!(values(StructArray::from(fields)), [json!({"day": "1970-01-01"}), json!({"day": null})]);
    }
}
