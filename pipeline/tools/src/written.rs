//! Columns as people write their values, for the formats that have no such types: dates, times and timestamps (ISO 8601
//! and RFC 3339), durations and intervals (ISO 8601), and all digits of decimals.

use std::fmt::Write;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType, Int64Type,
    IntervalDayTimeType, IntervalMonthDayNanoType, IntervalYearMonthType,
};
use arrow_array::{Array, ArrayRef, BinaryArray, Int64Array};
use arrow_schema::{DataType, IntervalUnit, TimeUnit};
use millstream_format::integers::per_second;
use millstream_pipeline::transform::temporal;

/// The column as text, half floats as floats, and bytes of a fixed length as bytes; `None` for other types.
pub(crate) fn as_written(array: &dyn Array) -> Option<ArrayRef> {
    match array.data_type() {
        DataType::Duration(unit) => {
            let per_second = per_second(*unit);
            let text = |value: &i64| {
                let mut text = if *value < 0 { "-PT" } else { "PT" }.to_owned();
                write_clock(&mut text, value.unsigned_abs(), per_second.unsigned_abs());
                text
            };
            Some(texts(durations(array, *unit).iter().map(|value| value.as_ref().map(text))))
        }
        DataType::Interval(unit) => Some(intervals(array, *unit)),
        DataType::FixedSizeBinary(_) => {
            Some(Arc::new(array.as_fixed_size_binary().iter().collect::<BinaryArray>()))
        }
        _ => temporal::as_texts(array),
    }
}

/// The ticks of a column of durations.
pub(crate) fn durations(array: &dyn Array, unit: TimeUnit) -> Int64Array {
    match unit {
        TimeUnit::Second => array.as_primitive::<DurationSecondType>().reinterpret_cast::<Int64Type>(),
        TimeUnit::Millisecond => array.as_primitive::<DurationMillisecondType>().reinterpret_cast(),
        TimeUnit::Microsecond => array.as_primitive::<DurationMicrosecondType>().reinterpret_cast(),
        TimeUnit::Nanosecond => array.as_primitive::<DurationNanosecondType>().reinterpret_cast(),
    }
}

fn intervals(array: &dyn Array, unit: IntervalUnit) -> ArrayRef {
    match unit {
        IntervalUnit::YearMonth => {
            let months = array.as_primitive::<IntervalYearMonthType>();
            texts(months.iter().map(|months| months.map(|months| format!("P{months}M"))))
        }
        IntervalUnit::DayTime => {
            let intervals = array.as_primitive::<IntervalDayTimeType>();
            texts(intervals.iter().map(|interval| {
                interval.map(|parts| format!("P{}DT{}S", parts.days, f64::from(parts.milliseconds) / 1000.0))
            }))
        }
        IntervalUnit::MonthDayNano => {
            let intervals = array.as_primitive::<IntervalMonthDayNanoType>();
            texts(intervals.iter().map(|interval| {
                interval.map(|parts| {
                    let seconds = parts.nanoseconds as f64 / 1e9;
                    format!("P{}M{}DT{seconds}S", parts.months, parts.days)
                })
            }))
        }
    }
}

/// Writes `1H2M3.5S`.
fn write_clock(text: &mut String, ticks: u64, per_second: u64) {
    let (seconds, fraction) = (ticks / per_second, ticks % per_second);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    // Writing to a string cannot fail.
    let _ = (hours > 0).then(|| write!(text, "{hours}H"));
    let _ = (minutes > 0).then(|| write!(text, "{minutes}M"));
    if fraction > 0 {
        let places = per_second.ilog10() as usize;
        let digits = format!("{fraction:0places$}");
        let _ = write!(text, "{seconds}.{}S", digits.trim_end_matches('0'));
    } else if seconds > 0 || (hours, minutes) == (0, 0) {
        let _ = write!(text, "{seconds}S");
    }
}

fn texts(values: impl Iterator<Item = Option<String>>) -> ArrayRef {
    let mut builder = StringBuilder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow_array::{DurationMillisecondArray, DurationSecondArray, IntervalYearMonthArray};

    use super::*;

    #[test]
    fn durations_and_intervals() {
        let read = |array: &dyn Array| {
            let texts = as_written(array).unwrap();
            texts.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect::<Vec<_>>()
        };
        let some = |text: &str| Some(text.to_owned());
        let seconds = DurationSecondArray::from(vec![Some(0), Some(3600), Some(93_784), None]);
        assert_eq!(read(&seconds), [some("PT0S"), some("PT1H"), some("PT26H3M4S"), None]);
        let milliseconds = DurationMillisecondArray::from(vec![-90_250, i64::MIN]);
        assert_eq!(read(&milliseconds)[0], some("-PT1M30.25S"));
        assert_eq!(read(&IntervalYearMonthArray::from(vec![14])), [some("P14M")]);
    }
}
