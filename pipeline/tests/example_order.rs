//! Decodes records whose features come in the orders of several writers (`golden/order.py`).

#![allow(clippy::unwrap_used)]

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use millstream_format::example::ExampleColumns;
use millstream_format::tfrecord::RecordReader;
use millstream_format::{ProjectedColumn, Projection};

const ROWS: i64 = 100;
const COLUMNS: i64 = 12;
/// The column of zero to three values.
const LISTS: i64 = 9;
/// Passes over each file, so that most records are decoded after their layout has been learned.
const PASSES: usize = 5;

#[test]
fn records_of_every_writer_decode_to_the_same_rows() {
    let column = |column: i64| ProjectedColumn {
        name: format!("{}_{column}", "nn".repeat(column as usize)),
        multi: column == LISTS,
    };
    let projection = Projection { columns: (0..COLUMNS).map(column).collect(), ..Projection::default() };
    for name in ["cpp", "python", "java", "random"] {
        let path = format!("{}/tests/golden/order/{name}.tfrecord", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).unwrap();
        let mut columns = ExampleColumns::new(&projection);
        for pass in 0..PASSES {
            let mut reader = RecordReader::new(&bytes[..]);
            while let Some(record) = reader.next_record().unwrap() {
                columns.push(record.data).unwrap();
            }
            let chunk = columns.finish();
            assert_eq!(chunk.num_rows(), ROWS as usize);
            for row in 0..ROWS {
                for column in 0..COLUMNS {
                    assert_eq!(
                        found(&chunk, row, column),
                        written(row, column),
                        "{name}, {pass}, {row}, {column}"
                    );
                }
            }
        }
    }
}

/// The values of a row as text.
fn written(row: i64, column: i64) -> Vec<String> {
    let count = if (row * 7 + column * 5) % 10 < 3 {
        0
    } else if column == LISTS {
        row % 4
    } else {
        1
    };
    let value = |at: i64| (row + at) * 1_000_003 % (1 << 20) - column;
    (0..count)
        .map(|at| if column % 3 == 1 { (value(at) as f32 / 4.0).to_string() } else { value(at).to_string() })
        .collect()
}

fn found(chunk: &RecordBatch, row: i64, column: i64) -> Vec<String> {
    let (array, row) = (chunk.column(column as usize), row as usize);
    if array.is_null(row) {
        return Vec::new();
    }
    match column % 3 {
        _ if column == LISTS => {
            let values = array.as_list::<i32>().value(row);
            values.as_primitive::<Int64Type>().values().iter().map(i64::to_string).collect()
        }
        0 => vec![array.as_primitive::<Int64Type>().value(row).to_string()],
        1 => vec![array.as_primitive::<Float32Type>().value(row).to_string()],
        _ => vec![String::from_utf8(array.as_binary::<i32>().value(row).to_vec()).unwrap()],
    }
}
