//! Names of column types for people: `decimal(10, 2)`, `list of text`, instead of Arrow's debug output.

use std::fmt::{self, Display, Formatter};

use arrow_schema::{DataType, IntervalUnit, TimeUnit};

/// Displays a column type in plain words.
///
/// ```
/// use arrow_schema::{DataType, TimeUnit};
/// use millstream_format::type_name::TypeName;
///
/// let moment = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
/// assert_eq!(TypeName(&moment).to_string(), "timestamp (microseconds, UTC)");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TypeName<'a>(pub &'a DataType);

impl Display for TypeName<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        use DataType::{
            Binary, BinaryView, Boolean, Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256,
            Dictionary, Duration, FixedSizeBinary, FixedSizeList, Float16, Float32, Float64, Int8, Int16,
            Int32, Int64, Interval, LargeBinary, LargeList, LargeListView, LargeUtf8, List, ListView, Map,
            Null, RunEndEncoded, Struct, Time32, Time64, Timestamp, UInt8, UInt16, UInt32, UInt64, Union,
            Utf8, Utf8View,
        };
        match self.0 {
            Null => out.write_str("no values"),
            Boolean => out.write_str("boolean"),
            Int8 => out.write_str("8-bit integer"),
            Int16 => out.write_str("16-bit integer"),
            Int32 => out.write_str("32-bit integer"),
            Int64 => out.write_str("64-bit integer"),
            UInt8 => out.write_str("unsigned 8-bit integer"),
            UInt16 => out.write_str("unsigned 16-bit integer"),
            UInt32 => out.write_str("unsigned 32-bit integer"),
            UInt64 => out.write_str("unsigned 64-bit integer"),
            Float16 => out.write_str("16-bit float"),
            Float32 => out.write_str("32-bit float"),
            Float64 => out.write_str("64-bit float"),
            Utf8 | LargeUtf8 | Utf8View => out.write_str("text"),
            Binary | LargeBinary | BinaryView => out.write_str("bytes"),
            FixedSizeBinary(length) => write!(out, "{length} bytes"),
            Date32 | Date64 => out.write_str("date"),
            Time32(unit) | Time64(unit) => write!(out, "time of day ({})", plural(*unit)),
            Timestamp(unit, None) => write!(out, "timestamp ({})", plural(*unit)),
            Timestamp(unit, Some(zone)) => write!(out, "timestamp ({}, {zone})", plural(*unit)),
            Duration(unit) => write!(out, "duration ({})", plural(*unit)),
            Interval(IntervalUnit::YearMonth) => out.write_str("interval (months)"),
            Interval(IntervalUnit::DayTime) => out.write_str("interval (days, milliseconds)"),
            Interval(IntervalUnit::MonthDayNano) => out.write_str("interval (months, days, nanoseconds)"),
            Decimal32(precision, scale)
            | Decimal64(precision, scale)
            | Decimal128(precision, scale)
            | Decimal256(precision, scale) => write!(out, "decimal({precision}, {scale})"),
            List(item) | LargeList(item) | ListView(item) | LargeListView(item) => {
                write!(out, "list of {}", TypeName(item.data_type()))
            }
            FixedSizeList(item, length) => {
                write!(out, "{length}-element list of {}", TypeName(item.data_type()))
            }
            Struct(fields) => {
                named(out, "struct", fields.iter().map(|field| (field.name(), field.data_type())))
            }
            Union(fields, _) => {
                named(out, "union", fields.iter().map(|(_, field)| (field.name(), field.data_type())))
            }
            Map(entries, _) => match entries.data_type() {
                Struct(pair) if pair.len() == 2 => {
                    let [key, value] = [0, 1].map(|place| TypeName(pair[place].data_type()));
                    write!(out, "map from {key} to {value}")
                }
                _ => out.write_str("map"),
            },
            Dictionary(_, values) => TypeName(values).fmt(out),
            RunEndEncoded(_, values) => TypeName(values.data_type()).fmt(out),
        }
    }
}

fn named<'a>(
    out: &mut Formatter<'_>,
    kind: &str,
    fields: impl Iterator<Item = (&'a String, &'a DataType)>,
) -> fmt::Result {
    write!(out, "{kind} {{")?;
    for (place, (name, data_type)) in fields.enumerate() {
        let gap = if place == 0 { "" } else { ", " };
        write!(out, "{gap}{name}: {}", TypeName(data_type))?;
    }
    out.write_str("}")
}

fn plural(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "seconds",
        TimeUnit::Millisecond => "milliseconds",
        TimeUnit::Microsecond => "microseconds",
        TimeUnit::Nanosecond => "nanoseconds",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::{Field, Fields};

    use super::*;

    #[test]
    fn types_have_plain_names() {
        let field = |name: &str, data_type| Arc::new(Field::new(name, data_type, true));
        let pair = Fields::from(vec![field("a", DataType::Utf8), field("b", DataType::Float32)]);
        let entries = field("entries", DataType::Struct(pair.clone()));
        let cases = [
            (DataType::Int64, "64-bit integer"),
            (DataType::LargeUtf8, "text"),
            (DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)), "text"),
            (DataType::Timestamp(TimeUnit::Millisecond, None), "timestamp (milliseconds)"),
            (
                DataType::Timestamp(TimeUnit::Nanosecond, Some("+02:00".into())),
                "timestamp (nanoseconds, +02:00)",
            ),
            (DataType::Time32(TimeUnit::Second), "time of day (seconds)"),
            (DataType::Decimal128(10, 2), "decimal(10, 2)"),
            (DataType::FixedSizeBinary(16), "16 bytes"),
            (
                DataType::List(field("item", DataType::Struct(pair))),
                "list of struct {a: text, b: 32-bit float}",
            ),
            (DataType::FixedSizeList(field("item", DataType::Float32), 4), "4-element list of 32-bit float"),
            (DataType::Map(entries, false), "map from text to 32-bit float"),
        ];
        for (data_type, name) in cases {
            assert_eq!(TypeName(&data_type).to_string(), name);
        }
    }
}
