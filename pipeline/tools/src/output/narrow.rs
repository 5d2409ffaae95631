//! Columns in the types that CSV and `tf.train.Example` have.
//!
//! | type | CSV | Example |
//! |---|---|---|
//! | date | `2026-11-21` | int64: days since 1970-01-01 |
//! | timestamp | RFC 3339, with `Z` if it has a time zone | int64: microseconds since 1970-01-01 |
//! | time of day | `12:38:00.25` | int64: microseconds since midnight |
//! | duration | ISO 8601: `PT1M30S` | int64: microseconds |
//! | decimal | all digits | float; int64 if it has no fraction |
//! | half float | a number | float |
//! | bytes of a fixed length | the bytes | bytes |
//! | vector | not possible | a list |

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, LargeListArray, ListArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, TimeUnit};
use millstream_format::integers::{per_second, ticks};
use millstream_format::parquet::{Shape, shape};
use millstream_pipeline::transform::temporal;

use super::{OutputFormat, mds};
use crate::written::{as_written, durations};

const MICROSECONDS_PER_SECOND: i64 = 1_000_000;
const MILLISECONDS_PER_DAY: i64 = 86_400_000;
/// Decimals of at most this many digits fit into 64 bits.
const INTEGER_DIGITS: u8 = 18;

/// Whether a format can represent columns of this type.
pub(super) fn supports(format: OutputFormat, data_type: &DataType) -> bool {
    match (format, data_type) {
        (OutputFormat::Mds, _) => mds::supports(data_type),
        // `SampleLayout` checks the columns of WebDataset, whose names matter too.
        (OutputFormat::Parquet | OutputFormat::JsonLines | OutputFormat::WebDataset, _) => true,
        (
            OutputFormat::TfRecord,
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _),
        ) => is_single(item.data_type()),
        _ => is_single(data_type),
    }
}

/// Whether a row has at most one value, with a form as text.
pub(super) fn is_single(data_type: &DataType) -> bool {
    use DataType::{
        Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256, Duration, FixedSizeBinary, Float16,
        Interval, Time32, Time64, Timestamp,
    };
    let is_written = matches!(
        data_type,
        Date32
            | Date64
            | Decimal32(..)
            | Decimal64(..)
            | Decimal128(..)
            | Decimal256(..)
            | Duration(_)
            | FixedSizeBinary(_)
            | Float16
            | Interval(_)
            | Time32(_)
            | Time64(_)
            | Timestamp(..)
    );
    is_written || shape(data_type) == Some(Shape::Single)
}

/// A column in the types that [`millstream_format::cells::Cells`] reads; `None` if a value does not fit.
pub(super) fn narrowed(format: OutputFormat, array: &ArrayRef) -> Option<ArrayRef> {
    if format != OutputFormat::TfRecord {
        return Some(as_written(array).unwrap_or_else(|| array.clone()));
    }
    match array.data_type() {
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            let (item, values) = narrowed_elements(lists.values())?;
            let nulls = lists.nulls().cloned();
            Some(Arc::new(ListArray::try_new(item, lists.offsets().clone(), values, nulls).ok()?))
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            let (item, values) = narrowed_elements(lists.values())?;
            let nulls = lists.nulls().cloned();
            Some(Arc::new(LargeListArray::try_new(item, lists.offsets().clone(), values, nulls).ok()?))
        }
        DataType::FixedSizeList(_, length) => {
            let lists = array.as_fixed_size_list();
            let (item, values) = narrowed_elements(lists.values())?;
            let lengths = std::iter::repeat_n(usize::try_from(*length).ok()?, lists.len());
            let nulls = lists.nulls().cloned();
            Some(Arc::new(ListArray::try_new(item, OffsetBuffer::from_lengths(lengths), values, nulls).ok()?))
        }
        _ => example_value(array),
    }
}

fn narrowed_elements(values: &ArrayRef) -> Option<(Arc<Field>, ArrayRef)> {
    let values = example_value(values)?;
    Some((Arc::new(Field::new_list_field(values.data_type().clone(), true)), values))
}

fn example_value(array: &ArrayRef) -> Option<ArrayRef> {
    use DataType::{
        Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256, Duration, Float16, Time32, Time64,
        Timestamp,
    };
    match array.data_type() {
        Date32 => Some(Arc::new(ticks(array)?)),
        Date64 => Some(Arc::new(
            ticks(array)?.unary::<_, Int64Type>(|value| value.div_euclid(MILLISECONDS_PER_DAY)),
        )),
        Time32(unit) | Time64(unit) | Timestamp(unit, _) => microseconds(&ticks(array)?, *unit),
        Duration(unit) => microseconds(&durations(array, *unit), *unit),
        Decimal32(precision, 0) | Decimal64(precision, 0) | Decimal128(precision, 0)
            if *precision <= INTEGER_DIGITS =>
        {
            let texts = temporal::as_texts(array)?;
            let integers = texts.as_string::<i32>().iter().map(|text| text?.parse().ok());
            Some(Arc::new(integers.collect::<Int64Array>()))
        }
        Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => temporal::as_numbers(array),
        Float16 => temporal::as_numbers(array),
        _ => Some(as_written(array).unwrap_or_else(|| array.clone())),
    }
}

fn microseconds(ticks: &Int64Array, unit: TimeUnit) -> Option<ArrayRef> {
    let per_second = per_second(unit);
    let microseconds: Int64Array = if per_second > MICROSECONDS_PER_SECOND {
        ticks.unary(|value| value.div_euclid(per_second / MICROSECONDS_PER_SECOND))
    } else {
        let factor = MICROSECONDS_PER_SECOND / per_second;
        let fits = ticks.iter().flatten().all(|value| value.checked_mul(factor).is_some());
        fits.then(|| ticks.unary::<_, Int64Type>(|value| value.wrapping_mul(factor)))?
    };
    Some(Arc::new(microseconds))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow_array::builder::{FixedSizeListBuilder, Float32Builder};
    use arrow_array::types::Float64Type;
    use arrow_array::{
        Date32Array, Decimal128Array, Time32MillisecondArray, TimestampNanosecondArray, TimestampSecondArray,
    };

    use super::*;

    #[test]
    fn examples_hold_integers_and_floats() {
        let integers = |array: ArrayRef| {
            let narrowed = narrowed(OutputFormat::TfRecord, &array)?;
            Some(narrowed.as_primitive::<Int64Type>().values().to_vec())
        };
        assert_eq!(integers(Arc::new(Date32Array::from(vec![20_778]))), Some(vec![20_778]));
        assert_eq!(integers(Arc::new(TimestampNanosecondArray::from(vec![-1, 1_999]))), Some(vec![-1, 1]));
        assert_eq!(integers(Arc::new(TimestampSecondArray::from(vec![7]))), Some(vec![7_000_000]));
        assert_eq!(integers(Arc::new(TimestampSecondArray::from(vec![i64::MAX]))), None);
        assert_eq!(integers(Arc::new(Time32MillisecondArray::from(vec![5]))), Some(vec![5000]));
        let decimals = |scale| {
            let values = Decimal128Array::from(vec![125]);
            Arc::new(values.with_precision_and_scale(10, scale).unwrap()) as ArrayRef
        };
        assert_eq!(integers(decimals(0)), Some(vec![125]));
        let floats = narrowed(OutputFormat::TfRecord, &decimals(2)).unwrap();
        assert_eq!(floats.as_primitive::<Float64Type>().values(), &[1.25]);

        let mut vectors = FixedSizeListBuilder::new(Float32Builder::new(), 2);
        vectors.values().append_slice(&[0.5, 2.0]);
        vectors.append(true);
        let vectors: ArrayRef = Arc::new(vectors.finish());
        let lists = narrowed(OutputFormat::TfRecord, &vectors).unwrap();
        assert_eq!(lists.as_list::<i32>().value_length(0), 2);
        assert!(
            supports(OutputFormat::TfRecord, vectors.data_type())
                && !supports(OutputFormat::Csv, vectors.data_type())
        );
    }
}
