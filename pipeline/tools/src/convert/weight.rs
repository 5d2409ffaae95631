//! The size of rows: bytes of their values, counted row by row so that sums do not depend on how rows are
//! grouped into chunks.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch};
use arrow_schema::DataType;

/// The assumed size of a value whose length is not known without decoding.
const UNKNOWN_BYTES: usize = 16;

/// The size of the first `rows` rows in bytes.
pub(super) fn of_rows(batch: &RecordBatch, rows: usize) -> usize {
    batch.columns().iter().map(|column| of_range(column, 0, rows)).sum()
}

/// The number of leading rows, at most `most`, whose total size is at most `bytes`.
pub(super) fn rows_within(batch: &RecordBatch, most: usize, bytes: usize) -> usize {
    if of_rows(batch, most) <= bytes {
        return most;
    }
    // Binary search: the size grows with the number of rows.
    let (mut fits, mut too_many) = (0, most);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if of_rows(batch, middle) <= bytes { fits = middle } else { too_many = middle }
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

fn spanned<O: OffsetSizeTrait>(offsets: &[O], from: usize, to: usize) -> usize {
    (offsets[to] - offsets[from]).as_usize()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow_array::builder::{FixedSizeListBuilder, Float32Builder, MapBuilder, StringBuilder};
    use arrow_array::{FixedSizeBinaryArray, StringArray, StructArray};
    use arrow_schema::Field;

    use super::*;

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
}
