//! Statistics of columns, for `inspect --stats`: range, mean and distribution of numbers, distinct count, frequent
//! values, and the value that makes a column text.

mod drift;
mod sketch;

use std::fmt::Write;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use millstream_format::cells::Cells;
use millstream_format::csv::Inferred;
use millstream_pipeline::transform::temporal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::typed::Raw;
use crate::written::as_written;

pub use drift::{Drift, drift};
pub use sketch::Sketch;

use sketch::{Distinct, Frequent, Hashed, Numbers};

/// Frequent values to report, and bins of a histogram.
const TOP_VALUES: usize = 10;
const BINS: usize = 20;
/// Bytes of a reported text.
const SHOWN_BYTES: usize = 100;

/// Statistics of a column's present values. The elements of lists count as values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnSummary {
    /// The number of values.
    pub values: u64,
    /// The number of distinct values.
    pub distinct: u64,
    /// Whether `distinct` is exact; otherwise it has a standard error of 0.8 %.
    pub distinct_is_exact: bool,
    /// The most frequent values, if any is frequent.
    pub top: Vec<TopValue>,
    /// The maximum by which their counts are too low.
    pub top_undercount: u64,
    /// Statistics of numbers, dates and times.
    pub numbers: Option<NumberSummary>,
    /// The value that makes a column of numbers text.
    pub text_because: Option<TextReason>,
}

/// The distribution of a column's values, to compare with that of another version of the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Of numbers, dates or times.
    Numbers(Sketch),
    /// Of other values: their counts by a few bits of their hash.
    Values(Vec<u64>),
}

/// A value and its number of occurrences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopValue {
    /// The value.
    pub value: Value,
    /// The number of occurrences.
    pub count: u64,
}

/// Statistics of finite numbers. Dates count days, and timestamps seconds, since 1970; times of day seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberSummary {
    /// The smallest value.
    pub min: Value,
    /// The largest value.
    pub max: Value,
    /// The mean.
    pub mean: f64,
    /// The population standard deviation.
    pub deviation: f64,
    /// The median, within 0.4 %.
    pub median: f64,
    /// Infinities and values that are not numbers.
    pub non_finite: u64,
    /// Counts in intervals of equal width from the minimum to the maximum.
    pub histogram: Vec<u64>,
}

/// The reason that a column of mostly numbers is text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextReason {
    /// The first value that is not a number.
    pub value: String,
    /// Its line, from 1.
    pub line: u64,
    /// Values that are not numbers.
    pub texts: u64,
    /// Values that are numbers.
    pub numbers: u64,
}

/// Statistics under construction.
#[derive(Clone, Default)]
pub(crate) struct ColumnStatistics {
    values: u64,
    distinct: Distinct,
    frequent: Frequent,
    hashed: Hashed,
    numbers: Numbers,
    /// Values that are not numbers.
    texts: u64,
    /// The first text, with its line.
    first_text: Option<(String, u64)>,
    /// The texts of the extremes of dates and times.
    extremes: Option<[(f64, String); 2]>,
    buffer: String,
}

impl ColumnStatistics {
    /// Adds the values of a column of Arrow.
    pub(crate) fn add_array(&mut self, array: &ArrayRef) {
        match array.data_type() {
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                let ends = lists.value_offsets();
                let (first, last) = (ends[0] as usize, ends[lists.len()] as usize);
                return self.add_array(&lists.values().slice(first, last - first));
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                let ends = lists.value_offsets();
                let (first, last) = (ends[0] as usize, ends[lists.len()] as usize);
                return self.add_array(&lists.values().slice(first, last - first));
            }
            DataType::FixedSizeList(..) => {
                let lists = array.as_fixed_size_list();
                return (0..lists.len())
                    .filter(|&row| lists.is_valid(row))
                    .for_each(|row| self.add_array(&lists.value(row)));
            }
            DataType::Boolean => {
                let flags = array.as_boolean().iter().flatten();
                return flags.for_each(|flag| self.add_text(if flag { b"true" } else { b"false" }));
            }
            DataType::UInt64 => {
                let integers = array.as_primitive::<UInt64Type>().iter().flatten();
                return integers.for_each(|integer| self.add_shown(integer as f64, integer));
            }
            DataType::Float16 => {
                if let Some(numbers) = temporal::as_numbers(array) {
                    return self.add_array(&numbers);
                }
            }
            _ => {}
        }
        if let Some(cells) = Cells::of(array) {
            return self.add_cells(&cells, array.len());
        }
        let (numbers, texts) =
            (temporal::as_numbers(array), as_written(array).and_then(|texts| Cells::of(&texts)));
        let numbers = numbers.and_then(|numbers| Cells::of(&numbers));
        for row in (0..array.len()).filter(|&row| array.is_valid(row)) {
            match (&numbers, &texts) {
                (Some(Cells::Double(numbers)), Some(Cells::Bytes(texts))) => {
                    self.add_number(numbers.value(row), texts.value(row));
                    if array.data_type().is_temporal() {
                        self.add_extreme(numbers.value(row), texts.value(row));
                    }
                }
                (_, Some(Cells::Bytes(texts))) => self.add_text(texts.value(row)),
                // Values of structs and maps are only counted.
                _ => self.values += 1,
            }
        }
    }

    fn add_cells(&mut self, cells: &Cells, rows: usize) {
        for row in (0..rows).filter(|&row| cells.is_present(row)) {
            match cells {
                Cells::Int(values) => self.add_shown(values.value(row) as f64, values.value(row)),
                Cells::Float(values) => self.add_shown(f64::from(values.value(row)), values.value(row)),
                Cells::Double(values) => self.add_shown(values.value(row), values.value(row)),
                Cells::Bytes(values) => self.add_text(values.value(row)),
                Cells::List(..) | Cells::Absent => {}
            }
        }
    }

    /// Adds a value of CSV or JSON, which is in line `line`.
    pub(crate) fn add_raw(&mut self, raw: Raw<'_>, line: u64) {
        match raw {
            Raw::Text(field) => {
                if Inferred::of(field) == Inferred::Text {
                    self.add_first_text(field, line);
                    return self.add_text(field);
                }
                let number = std::str::from_utf8(field).ok().and_then(|text| text.parse().ok());
                self.add_number(number.unwrap_or(f64::NAN), field);
            }
            Raw::Json(Value::Array(elements)) => {
                elements.iter().for_each(|element| self.add_raw(Raw::Json(element), line));
            }
            Raw::Json(Value::Number(number)) => self.add_shown(number.as_f64().unwrap_or(f64::NAN), number),
            Raw::Json(Value::String(text)) => {
                self.add_first_text(text.as_bytes(), line);
                self.add_text(text.as_bytes());
            }
            Raw::Json(Value::Null) => {}
            Raw::Json(other) => self.add_text(other.to_string().as_bytes()),
        }
    }

    fn add_first_text(&mut self, text: &[u8], line: u64) {
        let shown = |text: &[u8]| String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES)]).into_owned();
        self.first_text.get_or_insert_with(|| (shown(text), line));
    }

    fn add_shown(&mut self, number: f64, shown: impl std::fmt::Display) {
        let mut text = std::mem::take(&mut self.buffer);
        text.clear();
        // Writing to a string cannot fail.
        let _ = write!(text, "{shown}");
        self.add_number(number, text.as_bytes());
        self.buffer = text;
    }

    fn add_number(&mut self, number: f64, text: &[u8]) {
        self.numbers.add(number);
        self.add_value(text);
    }

    fn add_text(&mut self, text: &[u8]) {
        self.texts += 1;
        self.add_value(text);
    }

    fn add_value(&mut self, text: &[u8]) {
        self.values += 1;
        self.distinct.add(text);
        self.hashed.add(text);
        self.frequent.add(text, 1);
    }

    fn add_extreme(&mut self, number: f64, text: &[u8]) {
        let shown = || (number, String::from_utf8_lossy(text).into_owned());
        let [least, most] = self.extremes.get_or_insert_with(|| [shown(), shown()]);
        if number < least.0 {
            *least = shown();
        }
        if number > most.0 {
            *most = shown();
        }
    }

    /// Adds the statistics of later values.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.values += other.values;
        self.texts += other.texts;
        self.distinct.merge(&other.distinct);
        self.frequent.merge(&other.frequent);
        self.hashed.merge(&other.hashed);
        self.numbers.merge(&other.numbers);
        if self.first_text.is_none() {
            self.first_text.clone_from(&other.first_text);
        }
        for (number, text) in other.extremes.iter().flatten() {
            self.add_extreme(*number, text.as_bytes());
        }
    }

    /// The statistics of a column.
    pub(crate) fn summary(&self) -> ColumnSummary {
        let is_number = self.texts == 0 && self.numbers.count > 0;
        let value = |text: &[u8]| {
            let text = String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES)]).into_owned();
            let number = is_number.then(|| serde_json::from_str::<serde_json::Number>(&text).ok()).flatten();
            number.map_or(Value::String(text), Value::Number)
        };
        let top = self.frequent.top(TOP_VALUES).into_iter();
        // A value that occurs once is not frequent.
        let top = top.filter(|&(_, count)| count > 1 || self.values <= TOP_VALUES as u64);
        let text_because =
            self.first_text.as_ref().filter(|_| self.numbers.count > 0).map(|(value, line)| TextReason {
                value: value.clone(),
                line: *line,
                texts: self.texts,
                numbers: self.numbers.count,
            });
        ColumnSummary {
            values: self.values,
            distinct: self.distinct.count().min(self.values),
            distinct_is_exact: self.distinct.is_exact(),
            top: top.map(|(text, count)| TopValue { value: value(text), count }).collect(),
            top_undercount: self.frequent.undercount(),
            numbers: is_number.then(|| self.number_summary()),
            text_because,
        }
    }

    /// The distribution of a column.
    pub(crate) fn distribution(&self) -> Distribution {
        if self.texts == 0 && self.numbers.count > 0 {
            Distribution::Numbers(self.numbers.sketch())
        } else {
            Distribution::Values(self.hashed.counts().to_vec())
        }
    }

    fn number_summary(&self) -> NumberSummary {
        let numbers = &self.numbers;
        let [min, max] = match &self.extremes {
            Some([(_, least), (_, most)]) => [Value::from(least.as_str()), Value::from(most.as_str())],
            None => [Value::from(numbers.minimum), Value::from(numbers.maximum)],
        };
        NumberSummary {
            min,
            max,
            mean: numbers.mean,
            deviation: numbers.deviation(),
            median: numbers.quantile(0.5),
            non_finite: numbers.non_finite,
            histogram: numbers.histogram(BINS),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow_array::{Decimal128Array, StringArray, TimestampSecondArray, UInt64Array};
    use serde_json::json;

    use super::*;

    fn summary(array: impl Array + 'static) -> ColumnSummary {
        let mut statistics = ColumnStatistics::default();
        statistics.add_array(&(Arc::new(array) as ArrayRef));
        statistics.summary()
    }

    #[test]
    fn extremes_have_the_form_of_the_type() {
        let extremes =
            |summary: ColumnSummary| summary.numbers.map(|numbers| (numbers.min, numbers.max)).unwrap();
        let decimals = Decimal128Array::from(vec![125, -5]).with_precision_and_scale(10, 2).unwrap();
        assert_eq!(extremes(summary(decimals)), (json!(-0.05), json!(1.25)));
        let moments = TimestampSecondArray::from(vec![Some(86_400), None, Some(0)]);
        assert_eq!(extremes(summary(moments)), (json!("1970-01-01T00:00:00"), json!("1970-01-02T00:00:00")));
        assert_eq!(
            extremes(summary(UInt64Array::from(vec![1 << 63, 2]))),
            (json!(2.0), json!((1_u64 << 63) as f64))
        );
        let texts = summary(StringArray::from(vec!["a", "b", "a"]));
        assert_eq!((texts.numbers, texts.text_because, texts.distinct), (None, None, 2));
        assert_eq!(texts.top[0], TopValue { value: json!("a"), count: 2 });
    }
}
