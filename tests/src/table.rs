//! Small click data sets, valid or corrupted, as Parquet or TFRecord.

// Test support: a panic fails the test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::tfrecord::{self, Value};
use crate::tiny_job::draw;

const ROW_GROUP: usize = 1_000;

/// Columns of equal length.
#[derive(Clone)]
pub struct Table {
    columns: Vec<(&'static str, ArrayRef)>,
}

impl Table {
    /// Rows of `x` (a number from 0 to 10), `color` (one of 20) and `clicked` (0 or 1, more likely with larger `x` and
    /// color).
    pub fn clicks(rows: usize, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
        let mut draw = |below| draw(&mut state, below);
        let rows: Vec<(u64, f64)> = (0..rows).map(|_| (draw(20), draw(1000) as f64 / 100.0)).collect();
        let labels = rows.iter().map(|&(color, x)| i64::from(color as f64 + x + draw(10) as f64 > 19.0));
        let labels = Int64Array::from_iter_values(labels);
        let numbers = Float64Array::from_iter_values(rows.iter().map(|&(_, x)| x));
        let colors = StringArray::from_iter_values(rows.iter().map(|(color, _)| format!("color {color}")));
        let columns: Vec<(&'static str, ArrayRef)> =
            vec![("x", Arc::new(numbers)), ("color", Arc::new(colors)), ("clicked", Arc::new(labels))];
        Self { columns }
    }

    /// A table of the given columns.
    pub fn of(columns: Vec<(&'static str, ArrayRef)>) -> Self {
        Self { columns }
    }

    /// The table with column `name` replaced.
    ///
    /// # Panics
    /// If there is no such column.
    #[must_use]
    pub fn with(mut self, name: &str, column: impl Array + 'static) -> Self {
        let place = self.columns.iter_mut().find(|(known, _)| *known == name);
        place.unwrap().1 = Arc::new(column);
        self
    }

    /// The table without the column `name`.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.columns.retain(|(known, _)| *known != name);
        self
    }

    /// The values of `x`.
    pub fn x(&self) -> Vec<Option<f64>> {
        self.columns[0].1.as_primitive::<Float64Type>().iter().collect()
    }

    /// The labels.
    pub fn clicked(&self) -> Int64Array {
        self.columns[2].1.as_primitive().clone()
    }

    /// The rows in reverse order.
    ///
    /// # Panics
    /// If a column was replaced by one of another type.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let [x, color, clicked] = [0, 1, 2].map(|column| &self.columns[column].1);
        let x: Float64Array = x.as_primitive::<Float64Type>().iter().rev().collect();
        let color: StringArray = color.as_string::<i32>().iter().rev().collect();
        let clicked: Int64Array = clicked.as_primitive::<Int64Type>().iter().rev().collect();
        self.clone().with("x", x).with("color", color).with("clicked", clicked)
    }

    /// Writes a Parquet file.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write_parquet(&self, path: &Path) {
        let batch = RecordBatch::try_from_iter(self.columns.iter().cloned()).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(ROW_GROUP)).build();
        let file = fs::File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    /// Writes a TFRecord file of tf.train.Example.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write_tfrecord(&self, path: &Path) {
        let rows = self.columns[0].1.len();
        let records = (0..rows).map(|row| {
            let values = self.columns.iter().map(|(name, column)| (*name, value(column, row)));
            tfrecord::example(values)
        });
        fs::write(path, tfrecord::file(records)).unwrap();
    }
}

fn value(column: &ArrayRef, row: usize) -> Value {
    if let Some(lists) = column.as_list_opt::<i32>() {
        let list = lists.value(row);
        return match list.as_primitive_opt::<Float64Type>() {
            Some(numbers) => Value::Floats(numbers.values().iter().map(|&number| number as f32).collect()),
            None => Value::Texts(list.as_string::<i32>().iter().flatten().map(str::to_owned).collect()),
        };
    }
    if let Some(numbers) = column.as_primitive_opt::<Float64Type>() {
        return Value::Float(numbers.value(row) as f32);
    }
    if let Some(numbers) = column.as_primitive_opt::<Int64Type>() {
        return Value::Int(numbers.value(row));
    }
    Value::Bytes(column.as_string::<i32>().value(row).to_owned())
}
