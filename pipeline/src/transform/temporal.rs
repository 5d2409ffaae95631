//! Converts dates, times, decimals and half floats, which Parquet files may hold, to the numbers and texts that
//! features are computed from.
//!
//! | type | as a number | as text |
//! |---|---|---|
//! | date | days since 1970-01-01 | `2026-11-21` |
//! | timestamp | seconds since then, in UTC | `2026-11-21T12:38:00`, with any fraction, and `Z` if in UTC |
//! | time of day | seconds since midnight | `12:38:00`, with any fraction |
//! | decimal | the nearest f64 | all digits, without trailing zeros of the fraction |
//! | half float | its value | as any float |
//!
//! Integral values have the same text in every type, so a decimal of 2.00 is `2`.

use std::fmt::Write;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
    Float16Type, Float64Type,
};
use arrow_array::{Array, ArrayRef, Float32Array, Float64Array, Int64Array, PrimitiveArray};
use arrow_schema::DataType;
use millstream_format::integers::{per_second, ticks};

const SECONDS_PER_DAY: i64 = 86_400;
const MILLISECONDS_PER_DAY: i64 = 1000 * SECONDS_PER_DAY;

/// Integers below 2^53 and powers of ten up to 10^22 are exact in f64, so their quotient is rounded only once.
const EXACT: f64 = 9_007_199_254_740_992.0;
const EXACT_POWER: i8 = 22;

/// The meaning of the ticks of a column of dates or times.
#[derive(Clone, Copy)]
enum Ticks {
    Date { per_day: i64 },
    Time { per_second: i64 },
    Timestamp { per_second: i64, is_utc: bool },
}

impl Ticks {
    /// The ticks of a column, and their meaning; `None` for other types.
    fn of(leaf: &dyn Array) -> Option<(Int64Array, Self)> {
        let meaning = match leaf.data_type() {
            DataType::Date32 => Self::Date { per_day: 1 },
            DataType::Date64 => Self::Date { per_day: MILLISECONDS_PER_DAY },
            DataType::Time32(unit) | DataType::Time64(unit) => Self::Time { per_second: per_second(*unit) },
            DataType::Timestamp(unit, zone) => {
                Self::Timestamp { per_second: per_second(*unit), is_utc: zone.is_some() }
            }
            _ => return None,
        };
        Some((ticks(leaf)?, meaning))
    }

    /// The ticks of 1 in a column read as numbers.
    fn per_number(self) -> i64 {
        match self {
            Self::Date { per_day } => per_day,
            Self::Time { per_second } | Self::Timestamp { per_second, .. } => per_second,
        }
    }

    fn write(self, text: &mut String, value: i64) {
        match self {
            Self::Date { per_day } => write_date(text, value.div_euclid(per_day)),
            Self::Time { per_second } => write_time(text, value, per_second),
            Self::Timestamp { per_second, is_utc } => {
                write_date(text, value.div_euclid(per_second * SECONDS_PER_DAY));
                text.push('T');
                write_time(text, value.rem_euclid(per_second * SECONDS_PER_DAY), per_second);
                if is_utc {
                    text.push('Z');
                }
            }
        }
    }
}

/// The column's numbers as floats; `None` for other types.
pub fn as_numbers(leaf: &dyn Array) -> Option<ArrayRef> {
    if let Some((values, ticks)) = Ticks::of(leaf) {
        let per_number = ticks.per_number() as f64;
        return Some(Arc::new(values.unary::<_, Float64Type>(|value| value as f64 / per_number)));
    }
    Some(match leaf.data_type() {
        DataType::Float16 => halves(leaf),
        DataType::Decimal32(..) => decimals::<Decimal32Type>(leaf, |value| value.into()),
        DataType::Decimal64(..) => decimals::<Decimal64Type>(leaf, |value| value as f64),
        DataType::Decimal128(..) => decimals::<Decimal128Type>(leaf, |value| value as f64),
        DataType::Decimal256(..) => decimals::<Decimal256Type>(leaf, |_| EXACT),
        _ => return None,
    })
}

/// The column's texts; `None` for other types.
pub fn as_texts(leaf: &dyn Array) -> Option<ArrayRef> {
    if let Some((values, ticks)) = Ticks::of(leaf) {
        return Some(texts(&values, |text, value| ticks.write(text, value)));
    }
    Some(match leaf.data_type() {
        DataType::Float16 => halves(leaf),
        DataType::Decimal32(..) => decimal_texts::<Decimal32Type>(leaf),
        DataType::Decimal64(..) => decimal_texts::<Decimal64Type>(leaf),
        DataType::Decimal128(..) => decimal_texts::<Decimal128Type>(leaf),
        DataType::Decimal256(..) => decimal_texts::<Decimal256Type>(leaf),
        _ => return None,
    })
}

fn halves(leaf: &dyn Array) -> ArrayRef {
    let halves = leaf.as_primitive::<Float16Type>();
    Arc::new(halves.iter().map(|half| half.map(|half| half.to_f32())).collect::<Float32Array>())
}

/// `mantissa` returns a decimal's unscaled value, or a number of at least [`EXACT`] if it is not exact.
fn decimals<P: DecimalType>(leaf: &dyn Array, mantissa: impl Fn(P::Native) -> f64) -> ArrayRef {
    let array = leaf.as_primitive::<P>();
    let (precision, scale) = (array.precision(), array.scale());
    let number = |value| {
        let mantissa = mantissa(value);
        if mantissa.abs() < EXACT && (0..=EXACT_POWER).contains(&scale) {
            return mantissa / 10_f64.powi(scale.into());
        }
        // The text of a decimal always parses; NaN would be reported as a bad value.
        P::format_decimal(value, precision, scale).parse().unwrap_or(f64::NAN)
    };
    Arc::new(array.iter().map(|value| value.map(number)).collect::<Float64Array>())
}

fn texts<P: ArrowPrimitiveType>(
    array: &PrimitiveArray<P>,
    write: impl Fn(&mut String, P::Native),
) -> ArrayRef {
    let mut builder = StringBuilder::with_capacity(array.len(), 0);
    let mut text = String::new();
    for value in array {
        text.clear();
        if let Some(value) = value {
            write(&mut text, value);
        }
        builder.append_option(value.map(|_| &text));
    }
    Arc::new(builder.finish())
}

fn decimal_texts<P: DecimalType>(leaf: &dyn Array) -> ArrayRef {
    let array = leaf.as_primitive::<P>();
    let (precision, scale) = (array.precision(), array.scale());
    texts(array, |text, value| {
        text.push_str(&P::format_decimal(value, precision, scale));
        if text.contains('.') {
            text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
        }
    })
}

/// Writes a date. Years from 0 to 9999 have four digits, others a sign, as in ISO 8601.
fn write_date(text: &mut String, days: i64) {
    let (year, month, day) = civil(days);
    // Writing to a string cannot fail.
    let _ = match year {
        0..=9999 => write!(text, "{year:04}-{month:02}-{day:02}"),
        _ => write!(text, "{year:+05}-{month:02}-{day:02}"),
    };
}

fn write_time(text: &mut String, value: i64, per_second: i64) {
    let (seconds, fraction) = (value.div_euclid(per_second), value.rem_euclid(per_second));
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    // Writing to a string cannot fail.
    let _ = write!(text, "{hour:02}:{minute:02}:{second:02}");
    if fraction > 0 {
        let places = per_second.ilog10() as usize;
        let _ = write!(text, ".{fraction:0places$}");
        text.truncate(text.trim_end_matches('0').len());
    }
}

/// Year, month and day of the proleptic Gregorian calendar (Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms"). Years start in March internally, so that the leap day is the last of a year; an era is 400 years.
/// The chrono crate does not suffice: its years end at 262,143, those of a `Date32` at 5,881,580.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow_array::{
        Date32Array, Date64Array, Decimal128Array, Time32SecondArray, Time64NanosecondArray,
        TimestampMicrosecondArray, TimestampSecondArray,
    };

    use super::*;

    /// Each element as a number and as text.
    fn read(column: impl Array + 'static) -> Vec<Option<(f64, String)>> {
        let numbers = as_numbers(&column).unwrap();
        let texts = as_texts(&column).unwrap();
        let numbers = numbers.as_primitive::<Float64Type>();
        let texts = texts.as_string::<i32>();
        numbers.iter().zip(texts).map(|(number, text)| number.zip(text.map(str::to_owned))).collect()
    }

    fn some(number: f64, text: &str) -> Option<(f64, String)> {
        Some((number, text.to_owned()))
    }

    #[test]
    fn dates() {
        // From Python: (datetime.date(...) - datetime.date(1970, 1, 1)).days
        let days = [Some(0), Some(-1), Some(20_778), Some(-719_162), Some(2_932_896), Some(11_016), None];
        let expected = [
            some(0.0, "1970-01-01"),
            some(-1.0, "1969-12-31"),
            some(20_778.0, "2026-11-21"),
            some(-719_162.0, "0001-01-01"),
            some(2_932_896.0, "9999-12-31"),
            some(11_016.0, "2000-02-29"),
            None,
        ];
        assert_eq!(read(Date32Array::from(days.to_vec())), expected);
        assert_eq!(read(Date64Array::from(vec![-1])), [some(-1.0 / 86_400_000.0, "1969-12-31")]);
        let year = |days| read(Date32Array::from(vec![days]))[0].clone().unwrap().1;
        assert_eq!(year(2_932_897), "+10000-01-01");
        assert_eq!(year(-719_529), "-0001-12-31");
        assert!(year(i32::MIN).starts_with('-') && year(i32::MAX).starts_with('+'));
    }

    #[test]
    fn consecutive_days_have_consecutive_dates() {
        let length = |year: i64, month: i64| match month {
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let mut today = civil(-800_000);
        for days in -799_999..800_000 {
            let (year, month, day) = today;
            today = match (day == length(year, month), month) {
                (true, 12) => (year + 1, 1, 1),
                (true, _) => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
            assert_eq!(civil(days), today);
        }
    }

    #[test]
    fn timestamps_and_times() {
        let utc = TimestampMicrosecondArray::from(vec![Some(1_795_264_680_250_000), Some(-1), None]);
        let expected = [
            some(1_795_264_680.25, "2026-11-21T12:38:00.25Z"),
            some(-1e-6, "1969-12-31T23:59:59.999999Z"),
            None,
        ];
        assert_eq!(read(utc.with_timezone("UTC")), expected);
        assert_eq!(read(TimestampSecondArray::from(vec![0])), [some(0.0, "1970-01-01T00:00:00")]);
        for extreme in [i64::MIN, i64::MAX] {
            assert!(read(TimestampSecondArray::from(vec![extreme]))[0].is_some());
        }
        assert_eq!(read(Time32SecondArray::from(vec![45_480])), [some(45_480.0, "12:38:00")]);
        assert_eq!(read(Time64NanosecondArray::from(vec![1])), [some(1e-9, "00:00:00.000000001")]);
    }

    #[test]
    fn decimals_are_exact() {
        let decimals = |values: Vec<i128>, precision, scale| {
            read(Decimal128Array::from(values).with_precision_and_scale(precision, scale).unwrap())
        };
        let expected =
            [some(12.3, "12.3"), some(2.0, "2"), some(-0.05, "-0.05"), some(0.0, "0"), some(100.0, "100")];
        assert_eq!(decimals(vec![1230, 200, -5, 0, 10_000], 9, 2), expected);
        // 2^53 + 1 tenths is not exact in f64: dividing the rounded 2^53 would give the next lower result.
        let digits = 9_007_199_254_740_993;
        assert_eq!(decimals(vec![digits], 38, 1), [some(900_719_925_474_099.3, "900719925474099.3")]);
        assert_eq!(decimals(vec![7], 5, -2), [some(700.0, "700")]);
    }
}
