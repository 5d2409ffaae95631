//! Builds columns of a chosen type from the values of text formats.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, Date32Builder, Float32Builder, Float64Builder, Int64Builder, ListBuilder,
    NullBuilder, StringBuilder, TimestampMicrosecondBuilder, TimestampMillisecondBuilder,
    TimestampNanosecondBuilder, TimestampSecondBuilder, UInt64Builder, make_builder,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field, TimeUnit};
use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use serde_json::Value;

/// The layouts of timestamps besides RFC 3339, and of dates.
const MOMENTS: [&str; 4] =
    ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"];
const DATES: [&str; 2] = ["%Y-%m-%d", "%Y/%m/%d"];
/// The layout of numbers with a decimal comma.
const DECIMAL_COMMA: &str = ",";
/// Bytes of a value that an error shows.
const SHOWN_BYTES: usize = 200;

/// A value of a text format.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw<'a> {
    /// A field of CSV, which is not empty.
    Text(&'a [u8]),
    /// A value of JSON.
    Json(&'a Value),
}

impl Raw<'_> {
    /// The approximate size in memory.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Text(field) => field.len(),
            Self::Json(Value::String(text)) => text.len(),
            Self::Json(Value::Array(elements)) => {
                elements.iter().map(|element| Raw::Json(element).bytes()).sum()
            }
            Self::Json(_) => size_of::<f64>(),
        }
    }
}

/// How the values of a column are read, as `--type COLUMN=KIND` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    data_type: DataType,
    /// The layout of dates and timestamps, in the notation of strftime, or [`DECIMAL_COMMA`] of numbers.
    pattern: Option<String>,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, pattern) = match text.split_once(':') {
            Some((name, pattern)) => (name, Some(pattern.to_owned())),
            None => (text, None),
        };
        let data_type = match name {
            "text" => DataType::Utf8,
            "integer" => DataType::Int64,
            "number" => DataType::Float64,
            "float" => DataType::Float32,
            "boolean" => DataType::Boolean,
            "date" => DataType::Date32,
            "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            _ => {
                return Err(format!(
                    "unknown kind `{name}`: expected text, integer, number, float, boolean, date or timestamp"
                ));
            }
        };
        let has_layout = match data_type {
            DataType::Date32 | DataType::Timestamp(..) => true,
            DataType::Float32 | DataType::Float64 => pattern.as_deref() == Some(DECIMAL_COMMA),
            _ => false,
        };
        if pattern.is_some() && !has_layout {
            return Err(format!(
                "`{text}`: a layout is for date and timestamp, and `number:,` and `float:,` have a decimal comma"
            ));
        }
        Ok(Self { data_type, pattern })
    }
}

impl Kind {
    pub(crate) fn data_type(&self) -> &DataType {
        &self.data_type
    }
}

/// How a column is built.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// The layout of dates and timestamps, or [`DECIMAL_COMMA`].
    pub(crate) pattern: Option<String>,
    /// Separates the elements of a list in a text.
    pub(crate) separator: Option<String>,
}

impl Reading {
    pub(crate) fn new(kind: Option<&Kind>, separator: Option<&String>) -> Self {
        Self { pattern: kind.and_then(|kind| kind.pattern.clone()), separator: separator.cloned() }
    }

    /// Whether a value, or each element of a list, can be built as `data_type`.
    pub(crate) fn check(&self, data_type: &DataType, raw: Raw<'_>) -> Result<(), String> {
        match data_type {
            DataType::List(item) => self.elements(item.data_type(), raw, |_| Ok(())),
            single => self.elements(single, raw, |_| Ok(())),
        }
    }

    /// Passes the elements of a list to `each`.
    fn elements(
        &self,
        item: &DataType,
        raw: Raw<'_>,
        mut each: impl FnMut(Scalar<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        if let Raw::Json(Value::Array(elements)) = raw {
            return elements.iter().try_for_each(|element| each(self.scalar(item, Raw::Json(element))?));
        }
        let Some(separator) = &self.separator else { return each(self.scalar(item, raw)?) };
        let text = text_of(raw)?;
        let mut parts = text.split(separator.as_str()).map(str::trim).filter(|part| !part.is_empty());
        parts.try_for_each(|part| each(self.scalar(item, Raw::Text(part.as_bytes()))?))
    }

    fn scalar<'a>(&self, data_type: &DataType, raw: Raw<'a>) -> Result<Scalar<'a>, String> {
        if matches!(raw, Raw::Json(Value::Null)) {
            return Ok(Scalar::Absent);
        }
        if let (DataType::Utf8, Raw::Json(Value::Array(elements)), Some(separator)) =
            (data_type, raw, &self.separator)
        {
            let parts: Result<Vec<_>, _> =
                elements.iter().map(|element| text_of(Raw::Json(element))).collect();
            return Ok(Scalar::Text(parts?.join(separator.as_str()).into()));
        }
        let text = text_of(raw)?;
        let wrong = |expected: &str| {
            format!("`{}` is not {expected}", &text[..text.floor_char_boundary(SHOWN_BYTES)])
        };
        Ok(match data_type {
            DataType::Null => return Err(wrong("absent like all other values")),
            DataType::Int64 => {
                Scalar::Integer(text.parse().or_else(|_| whole(&text)).map_err(|()| wrong("an integer"))?)
            }
            DataType::UInt64 => Scalar::Unsigned(
                text.parse().or_else(|_| unsigned(&text)).map_err(|()| wrong("an integer of at least 0"))?,
            ),
            DataType::Float64 => Scalar::Number(self.number(&text).map_err(wrong)?),
            // Rounded once, to the nearest f32.
            DataType::Float32 => Scalar::Number(self.number::<f32>(&text).map_err(wrong)?.into()),
            DataType::Boolean => Scalar::Flag(flag(&text).ok_or_else(|| wrong("true or false"))?),
            DataType::Date32 => {
                let date = self.date(&text).ok_or_else(|| wrong(&self.expected("a date", "2026-11-21")))?;
                // Dates of chrono fit into 32 bits.
                Scalar::Integer(date.signed_duration_since(NaiveDate::default()).num_days())
            }
            DataType::Timestamp(unit, _) => {
                let ticks = self.moment(&text).and_then(|moment| ticks(moment, *unit));
                let wrong = || wrong(&self.expected("a timestamp", "2026-11-21T12:38:00Z"));
                Scalar::Integer(ticks.ok_or_else(wrong)?)
            }
            _ => Scalar::Text(text),
        })
    }

    /// A number, with a decimal comma if that is the layout. The error is what was expected.
    fn number<T: FromStr>(&self, text: &str) -> Result<T, &'static str> {
        if self.pattern.as_deref() == Some(DECIMAL_COMMA) {
            let plain = with_decimal_point(text).and_then(|text| text.parse().ok());
            return plain.ok_or("a number with a decimal comma, such as 1.234,5");
        }
        text.parse().map_err(|_| "a number")
    }

    fn expected(&self, kind: &str, example: &str) -> String {
        match &self.pattern {
            Some(pattern) => format!("{kind} in the layout {pattern}"),
            None => format!("{kind} such as {example}"),
        }
    }

    fn date(&self, text: &str) -> Option<NaiveDate> {
        match &self.pattern {
            Some(pattern) => NaiveDate::parse_from_str(text, pattern).ok(),
            None => DATES
                .iter()
                .find_map(|layout| NaiveDate::parse_from_str(text, layout).ok())
                .or_else(|| Some(self.moment(text)?.date_naive())),
        }
    }

    /// A timestamp without an offset is in UTC; an integer counts seconds since the Unix epoch.
    fn moment(&self, text: &str) -> Option<DateTime<Utc>> {
        let midnight = |date: NaiveDate| Some(date.and_hms_opt(0, 0, 0)?.and_utc());
        if let Some(pattern) = &self.pattern {
            if let Ok(moment) = DateTime::parse_from_str(text, pattern) {
                return Some(moment.to_utc());
            }
            return match NaiveDateTime::parse_from_str(text, pattern) {
                Ok(moment) => Some(moment.and_utc()),
                Err(_) => midnight(NaiveDate::parse_from_str(text, pattern).ok()?),
            };
        }
        if let Ok(moment) = DateTime::parse_from_rfc3339(text) {
            return Some(moment.to_utc());
        }
        if let Ok(seconds) = text.parse::<i64>() {
            return DateTime::from_timestamp(seconds, 0);
        }
        match MOMENTS.iter().find_map(|layout| NaiveDateTime::parse_from_str(text, layout).ok()) {
            Some(moment) => Some(moment.and_utc()),
            None => midnight(DATES.iter().find_map(|layout| NaiveDate::parse_from_str(text, layout).ok())?),
        }
    }
}

/// The time since the Unix epoch, rounded down; `None` if it does not fit.
fn ticks(moment: DateTime<Utc>, unit: TimeUnit) -> Option<i64> {
    match unit {
        TimeUnit::Second => Some(moment.timestamp()),
        TimeUnit::Millisecond => Some(moment.timestamp_millis()),
        TimeUnit::Microsecond => Some(moment.timestamp_micros()),
        TimeUnit::Nanosecond => moment.timestamp_nanos_opt(),
    }
}

enum Scalar<'a> {
    Absent,
    Integer(i64),
    Unsigned(u64),
    Number(f64),
    Flag(bool),
    Text(Cow<'a, str>),
}

fn text_of(raw: Raw<'_>) -> Result<Cow<'_, str>, String> {
    match raw {
        Raw::Text(bytes) => {
            std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| "is not UTF-8".to_owned())
        }
        Raw::Json(Value::String(text)) => Ok(Cow::Borrowed(text)),
        Raw::Json(value) => Ok(Cow::Owned(value.to_string())),
    }
}

/// `1.234,5` as `1234.5`: points separate groups of three digits. `None` for other points, which would change the value.
pub fn with_decimal_point(text: &str) -> Option<String> {
    let (whole, fraction) = text.split_once(',').map_or((text, None), |(whole, rest)| (whole, Some(rest)));
    let mut groups = whole.split('.').skip(1);
    let are_thousands =
        groups.all(|group| group.len() == 3 && group.bytes().all(|byte| byte.is_ascii_digit()));
    if !are_thousands || fraction.is_some_and(|fraction| fraction.contains('.')) {
        return None;
    }
    let whole = whole.replace('.', "");
    Some(fraction.map_or(whole.clone(), |fraction| format!("{whole}.{fraction}")))
}

/// An integer written as a float, such as `3.0`.
fn whole(text: &str) -> Result<i64, ()> {
    let number: f64 = text.parse().map_err(drop)?;
    let exact = number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0;
    if exact { Ok(number as i64) } else { Err(()) }
}

/// As [`whole`], for numbers of at least 0.
fn unsigned(text: &str) -> Result<u64, ()> {
    u64::try_from(whole(text)?).map_err(drop)
}

fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// Builds a column.
pub(crate) struct ColumnBuilder {
    data_type: DataType,
    reading: Reading,
    builder: Box<dyn ArrayBuilder>,
}

impl ColumnBuilder {
    /// A builder of a type that a [`Kind`] or an inferred type has, or a list of it.
    pub(crate) fn new(data_type: &DataType, reading: Reading) -> Self {
        Self { data_type: data_type.clone(), reading, builder: make_builder(data_type, 0) }
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.builder.len()
    }

    /// Appends a value, or an absent one.
    pub(crate) fn append(&mut self, raw: Option<Raw<'_>>) -> Result<(), String> {
        let Self { data_type, reading, builder } = self;
        let DataType::List(item) = data_type else {
            let scalar = raw.map_or(Ok(Scalar::Absent), |raw| reading.scalar(data_type, raw))?;
            return put(&mut **builder, data_type, scalar);
        };
        let lists = builder.as_any_mut().downcast_mut::<ListBuilder<Box<dyn ArrayBuilder>>>();
        let Some(lists) = lists else { return Err(unknown(data_type)) };
        if let Some(raw) = raw {
            let values = lists.values();
            reading.elements(item.data_type(), raw, |scalar| put(&mut **values, item.data_type(), scalar))?;
        }
        lists.append(raw.is_some());
        Ok(())
    }

    /// Returns the column, and starts a new one.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        let array = self.builder.finish();
        if array.data_type() == &self.data_type {
            return array;
        }
        // Builders of timestamps have no time zone.
        let data = array.to_data().into_builder().data_type(self.data_type.clone()).build();
        data.map_or(array, arrow_array::make_array)
    }
}

fn put(builder: &mut dyn ArrayBuilder, data_type: &DataType, scalar: Scalar<'_>) -> Result<(), String> {
    fn of<'a, B: ArrayBuilder>(
        builder: &'a mut dyn ArrayBuilder,
        data_type: &DataType,
    ) -> Result<&'a mut B, String> {
        builder.as_any_mut().downcast_mut::<B>().ok_or_else(|| unknown(data_type))
    }
    match data_type {
        DataType::Null => of::<NullBuilder>(builder, data_type)?.append_null(),
        DataType::Int64 => of::<Int64Builder>(builder, data_type)?.append_option(integer(&scalar)),
        DataType::Date32 => {
            let days = integer(&scalar).and_then(|days| i32::try_from(days).ok());
            of::<Date32Builder>(builder, data_type)?.append_option(days);
        }
        DataType::UInt64 => {
            let value = if let Scalar::Unsigned(value) = scalar { Some(value) } else { None };
            of::<UInt64Builder>(builder, data_type)?.append_option(value);
        }
        DataType::Timestamp(TimeUnit::Second, _) => {
            of::<TimestampSecondBuilder>(builder, data_type)?.append_option(integer(&scalar));
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            of::<TimestampMillisecondBuilder>(builder, data_type)?.append_option(integer(&scalar));
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            of::<TimestampMicrosecondBuilder>(builder, data_type)?.append_option(integer(&scalar));
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            of::<TimestampNanosecondBuilder>(builder, data_type)?.append_option(integer(&scalar));
        }
        DataType::Float64 => of::<Float64Builder>(builder, data_type)?.append_option(number(&scalar)),
        DataType::Float32 => {
            of::<Float32Builder>(builder, data_type)?
                .append_option(number(&scalar).map(|number| number as f32));
        }
        DataType::Boolean => {
            let flag = if let Scalar::Flag(flag) = scalar { Some(flag) } else { None };
            of::<BooleanBuilder>(builder, data_type)?.append_option(flag);
        }
        _ => {
            let text = if let Scalar::Text(text) = scalar { Some(text) } else { None };
            of::<StringBuilder>(builder, data_type)?.append_option(text);
        }
    }
    Ok(())
}

fn integer(scalar: &Scalar<'_>) -> Option<i64> {
    if let Scalar::Integer(value) = scalar { Some(*value) } else { None }
}

fn number(scalar: &Scalar<'_>) -> Option<f64> {
    if let Scalar::Number(value) = scalar { Some(*value) } else { None }
}

fn unknown(data_type: &DataType) -> String {
    format!("cannot build a column of {data_type}")
}

/// A list of values of this type.
pub(crate) fn list_of(value: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(value, true)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow_array::cast::AsArray;
    use arrow_array::types::{Date32Type, Float32Type, Float64Type, Int64Type, TimestampMicrosecondType};
    use serde_json::json;

    use super::*;

    fn built(kind: &str, texts: &[&str]) -> Result<ArrayRef, String> {
        let kind: Kind = kind.parse()?;
        let mut builder = ColumnBuilder::new(&kind.data_type, Reading::new(Some(&kind), None));
        texts.iter().try_for_each(|text| builder.append(Some(Raw::Text(text.as_bytes()))))?;
        Ok(builder.finish())
    }

    #[test]
    fn dates_and_timestamps_are_parsed() {
        let moments =
            ["2026-11-21T12:38:00Z", "2026-11-21T13:38:00+01:00", "2026-11-21 12:38:00", "1795264680"];
        let array = built("timestamp", &moments).unwrap();
        assert_eq!(array.data_type(), &DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())));
        assert_eq!(array.as_primitive::<TimestampMicrosecondType>().values(), &[1_795_264_680_000_000; 4]);
        let days = |kind, text| built(kind, &[text]).map(|days| days.as_primitive::<Date32Type>().value(0));
        assert_eq!(days("date", "2026-11-21"), Ok(20_778));
        assert_eq!(days("date", "2026-11-21T23:59:59Z"), Ok(20_778));
        assert_eq!(days("date:%d.%m.%Y", "21.11.2026"), Ok(20_778));
        let error = days("date:%d.%m.%Y", "2026-11-21").unwrap_err();
        assert_eq!(error, "`2026-11-21` is not a date in the layout %d.%m.%Y");
        assert_eq!(
            built("timestamp", &["soon"]).unwrap_err(),
            "`soon` is not a timestamp such as 2026-11-21T12:38:00Z"
        );
        assert!("day".parse::<Kind>().is_err() && "text:%Y".parse::<Kind>().is_err());
    }

    #[test]
    fn numbers_flags_and_lists_are_parsed() {
        assert_eq!(built("integer", &["-3", "4.0"]).unwrap().as_primitive::<Int64Type>().values(), &[-3, 4]);
        assert_eq!(built("integer", &["x"]).unwrap_err(), "`x` is not an integer");
        let numbers = built("number:,", &["52,35", "-1.234.567,5", "7", "1e3"]).unwrap();
        let numbers = numbers.as_primitive::<Float64Type>();
        assert_eq!(numbers.values(), &[52.35, -1_234_567.5, 7.0, 1000.0]);
        assert_eq!(built("float:,", &["0,1"]).unwrap().as_primitive::<Float32Type>().values(), &[0.1]);
        for text in ["12.5", "1,234.5", "1,2,3", "1.23,4", ","] {
            let wanted = format!("`{text}` is not a number with a decimal comma, such as 1.234,5");
            assert_eq!(built("number:,", &[text]).unwrap_err(), wanted);
        }
        assert!("integer:,".parse::<Kind>().is_err() && "number:.".parse::<Kind>().is_err());
        assert!(built("boolean", &["Yes", "0", "true"]).unwrap().as_boolean().value(0));
        let reading = Reading { pattern: None, separator: Some("|".to_owned()) };
        let mut builder = ColumnBuilder::new(&list_of(DataType::Int64), reading.clone());
        builder.append(Some(Raw::Text(b"1|2||3"))).unwrap();
        builder.append(None).unwrap();
        builder.append(Some(Raw::Json(&json!([4, null])))).unwrap();
        assert_eq!(builder.len(), 3);
        let lists = builder.finish();
        let lists = lists.as_list::<i32>();
        assert_eq!(lists.value(0).as_primitive::<Int64Type>().values(), &[1, 2, 3]);
        assert!(lists.is_null(1) && lists.value(2).is_null(1));
        let mut texts = ColumnBuilder::new(&DataType::Utf8, reading);
        texts.append(Some(Raw::Json(&json!(["a", "b"])))).unwrap();
        assert_eq!(texts.finish().as_string::<i32>().value(0), "a|b");
    }
}
