//! The size of rows: bytes of their values, counted row by row so that sums do not depend on how rows are
//! grouped into chunks.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch};
use arrow_schema::DataType;

use crate::output::Form;

/// The assumed size of a value whose length is not known without decoding.
const UNKNOWN_BYTES: usize = 16;
/// The bytes of brackets or quotes and a separator, or of a word such as `false` and a separator, in JSON.
const JSON_FRAME_BYTES: usize = 6;
/// The bytes of quotes and a colon in JSON.
const JSON_NAME_BYTES: usize = 3;

/// The size of the first `rows` rows in bytes, with columns in these forms.
pub(super) fn of_rows(batch: &RecordBatch, rows: usize, forms: &[Form]) -> usize {
    let columns = batch.columns().iter().zip(forms);
    let of_column = |(column, form): (&ArrayRef, &Form)| match form {
        Form::Once => of_range(column, 0, rows),
        Form::Times(times) => of_range(column, 0, rows).saturating_mul(*times),
        Form::Json => as_json(column, 0, rows),
    };
    columns.map(of_column).sum()
}

/// The number of leading rows, at most `most`, whose total size is at most `bytes`.
pub(super) fn rows_within(batch: &RecordBatch, most: usize, bytes: usize, forms: &[Form]) -> usize {
    if of_rows(batch, most, forms) <= bytes {
        return most;
    }
    // Binary search: the size grows with the number of rows.
    let (mut fits, mut too_many) = (0, most);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if of_rows(batch, middle, forms) <= bytes { fits = middle } else { too_many = middle }
    }
    fits
}

fn of_range(array: &ArrayRef, from: usize, to: usize) -> usize {
    let rows = to - from;
    match array.data_type() {
        DataType::Null => 0,
        DataType::Boolean => rows,
        DataType::Utf8 => 4 * rows + spanned(array.as_string::<i32>().value_offsets(), from, to),
        DataType::Binary => 4 * rows + spanned(array.as_binary::<i32>().value_offsets(), from, to),
        DataType::LargeUtf8 => 8 * rows + spanned(array.as_string::<i64>().value_offsets(), from, to),
        DataType::LargeBinary => 8 * rows + spanned(array.as_binary::<i64>().value_offsets(), from, to),
        DataType::Utf8View => {
            16 * rows
                + array.as_string_view().lengths().skip(from).take(rows).map(|n| n as usize).sum::<usize>()
        }
        DataType::BinaryView => {
            16 * rows
                + array.as_binary_view().lengths().skip(from).take(rows).map(|n| n as usize).sum::<usize>()
        }
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            let ends = lists.value_offsets();
            4 * rows + of_range(lists.values(), ends[from] as usize, ends[to] as usize)
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            let ends = lists.value_offsets();
            8 * rows + of_range(lists.values(), ends[from] as usize, ends[to] as usize)
        }
        DataType::FixedSizeList(_, length) => {
            let length = usize::try_from(*length).unwrap_or(0);
            of_range(array.as_fixed_size_list().values(), from * length, to * length)
        }
        DataType::Map(..) => {
            let maps = array.as_map();
            let (from, to) = (maps.value_offsets()[from] as usize, maps.value_offsets()[to] as usize);
            4 * rows + of_range(maps.keys(), from, to) + of_range(maps.values(), from, to)
        }
        DataType::Struct(_) => {
            array.as_struct().columns().iter().map(|column| of_range(column, from, to)).sum()
        }
        DataType::FixedSizeBinary(length) => rows * usize::try_from(*length).unwrap_or(0),
        DataType::Dictionary(_, values) => rows * values.primitive_width().unwrap_or(UNKNOWN_BYTES),
        other => rows * other.primitive_width().unwrap_or(UNKNOWN_BYTES),
    }
}

/// The length of values as JSON text with separators, at most; of dictionaries an estimate, as in [`of_range`].
fn as_json(array: &ArrayRef, from: usize, to: usize) -> usize {
    let rows = to - from;
    let text = match array.data_type() {
        DataType::Null | DataType::Boolean => 0,
        DataType::Utf8 => {
            let texts = array.as_string::<i32>();
            let ends = texts.value_offsets();
            escaped(&texts.value_data()[ends[from] as usize..ends[to] as usize])
        }
        DataType::LargeUtf8 => {
            let texts = array.as_string::<i64>();
            let ends = texts.value_offsets();
            escaped(&texts.value_data()[ends[from] as usize..ends[to] as usize])
        }
        DataType::Utf8View => {
            let texts = array.as_string_view();
            (from..to).map(|row| escaped(texts.value(row).as_bytes())).sum()
        }
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            let ends = lists.value_offsets();
            as_json(lists.values(), ends[from] as usize, ends[to] as usize)
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            let ends = lists.value_offsets();
            as_json(lists.values(), ends[from] as usize, ends[to] as usize)
        }
        DataType::FixedSizeList(_, length) => {
            let length = usize::try_from(*length).unwrap_or(0);
            as_json(array.as_fixed_size_list().values(), from * length, to * length)
        }
        DataType::Map(..) => {
            let maps = array.as_map();
            let (from, to) = (maps.value_offsets()[from] as usize, maps.value_offsets()[to] as usize);
            as_json(maps.keys(), from, to) + as_json(maps.values(), from, to)
        }
        DataType::Struct(fields) => {
            let name = |name: &str| escaped(name.as_bytes()) + JSON_NAME_BYTES;
            let names: usize = fields.iter().map(|field| name(field.name())).sum();
            let columns = array.as_struct().columns();
            rows * names + columns.iter().map(|column| as_json(column, from, to)).sum::<usize>()
        }
        // At most three digits a byte, besides sign, point and exponent.
        other => match other.primitive_width() {
            Some(width) => rows * 3 * (width + 1),
            None => of_range(array, from, to),
        },
    };
    rows * JSON_FRAME_BYTES + text
}

/// The length of a text in JSON, without quotes.
fn escaped(text: &[u8]) -> usize {
    let length = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.iter().map(length).sum()
}

fn spanned<O: OffsetSizeTrait>(offsets: &[O], from: usize, to: usize) -> usize {
    (offsets[to] - offsets[from]).as_usize()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow_array::builder::{
        FixedSizeListBuilder, Float32Builder, Int8Builder, MapBuilder, StringBuilder,
    };
    use arrow_array::types::Int8Type;
    use arrow_array::{
        BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float32Array, Float64Array,
        Int8Array, Int64Array, LargeStringArray, ListArray, NullArray, StringArray, StringViewArray,
        StructArray, TimestampNanosecondArray, UInt64Array,
    };
    use arrow_schema::Field;

    use super::*;
    use crate::values::{JsonColumn, Room};

    #[test]
    fn nested_values_and_vectors_are_counted() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(1000); 3]));
        let structs = StructArray::from(vec![(Arc::new(Field::new("text", DataType::Utf8, true)), texts)]);
        let mut vectors = FixedSizeListBuilder::new(Float32Builder::new(), 250);
        let mut maps = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        for _ in 0..3 {
            vectors.values().append_slice(&[0.5; 250]);
            vectors.append(true);
            maps.keys().append_value("key");
            maps.values().append_value("x".repeat(1000));
            maps.append(true).unwrap();
        }
        let bytes = FixedSizeBinaryArray::try_from_iter([[7_u8; 1000]; 3].iter()).unwrap();
        let arrays: [ArrayRef; 4] =
            [Arc::new(structs), Arc::new(vectors.finish()), Arc::new(maps.finish()), Arc::new(bytes)];
        for array in arrays {
            let whole = of_range(&array, 0, 3);
            assert!((3000..3100).contains(&whole), "{}: {whole}", array.data_type());
            assert_eq!(of_range(&array, 0, 1) + of_range(&array, 1, 3), whole);
            assert_eq!(of_range(&array.slice(1, 2), 1, 2), whole / 3);
        }
    }

    #[test]
    fn values_are_at_most_as_long_in_json_as_they_count() {
        let texts = ["", "a\"b\\\n\t\r", "\u{1}\u{1f}\u{8}\u{c}\u{7f}", "zwölf"].map(Some);
        let texts = || texts.into_iter().chain([None]);
        let bytes = [i8::MIN, -1, 0, 100, i8::MAX].map(Some);
        let lists = [Some(bytes.to_vec()), None, Some(vec![]), Some(vec![None; 9]), Some(bytes.to_vec())];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int8Type, _, _>(lists));
        let mut maps = MapBuilder::new(None, Int8Builder::new(), StringBuilder::new());
        let mut vectors = FixedSizeListBuilder::new(Float32Builder::new(), 2);
        for row in 0..5 {
            maps.keys().append_value(-100);
            maps.values().append_option((row != 1).then_some("\u{1}"));
            maps.append(row != 3).unwrap();
            vectors.values().append_slice(&[f32::MIN, -f32::MIN_POSITIVE]);
            vectors.append(row != 2);
        }
        let field =
            |name: &str, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
        let structs = StructArray::from(vec![
            (field("a \"name\"", &lists), lists.clone()),
            (field("b", &lists), lists.clone()),
        ]);
        let decimals = Decimal128Array::from(vec![10_i128.pow(38) - 1, 1 - 10_i128.pow(38), 0, 1, -1]);
        let moments = [i64::MIN, -1, 0, 1_795_264_680_250_000_001, i64::MAX];
        let arrays: [ArrayRef; 16] = [
            Arc::new(StringArray::from_iter(texts())),
            Arc::new(LargeStringArray::from_iter(texts())),
            Arc::new(StringViewArray::from_iter(texts())),
            Arc::new(Int8Array::from(bytes.to_vec())),
            Arc::new(Int64Array::from(vec![i64::MIN; 5])),
            Arc::new(UInt64Array::from(vec![u64::MAX; 5])),
            Arc::new(Float32Array::from(vec![f32::MIN, -f32::MIN_POSITIVE, f32::NAN, -1.0e-5, 1e16])),
            Arc::new(Float64Array::from(vec![f64::MIN, -f64::MIN_POSITIVE, f64::INFINITY, -0.1, 1e16])),
            Arc::new(BooleanArray::from(vec![Some(false), None, Some(true), None, Some(false)])),
            Arc::new(NullArray::new(5)),
            Arc::new(Date32Array::from(vec![Some(i32::MIN), Some(-1), Some(0), None, Some(i32::MAX)])),
            Arc::new(TimestampNanosecondArray::from(moments.to_vec()).with_timezone("UTC")),
            Arc::new(decimals.with_precision_and_scale(38, 37).unwrap()),
            Arc::new(structs),
            Arc::new(maps.finish()),
            Arc::new(vectors.finish()),
        ];
        for array in arrays.iter().chain([&lists]) {
            let column = JsonColumn::of(array);
            let lengths = (0..5).map(|row| column.value(row, &mut Room::unlimited()).to_string().len() + 1);
            for (row, length) in lengths.enumerate() {
                let counted = as_json(array, row, row + 1);
                assert!(length <= counted, "{}, row {row}: {length} > {counted}", array.data_type());
                assert_eq!(as_json(&array.slice(row, 1), 0, 1), counted);
            }
            assert_eq!((0..5).map(|row| as_json(array, row, row + 1)).sum::<usize>(), as_json(array, 0, 5));
        }
    }
}
