//! Columns of whole numbers of any width, widened to one type: integers, and the ticks of dates and times.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType, Int32Array, Int64Array};
use arrow_schema::{DataType, TimeUnit};

/// A column of integers; `None` for other types, and for unsigned integers of 64 bits.
pub fn integers(array: &dyn Array) -> Option<Int64Array> {
    fn widened<P: ArrowPrimitiveType<Native: Into<i64>>>(array: &dyn Array) -> Int64Array {
        array.as_primitive::<P>().unary(Into::into)
    }
    Some(match array.data_type() {
        DataType::Int8 => widened::<Int8Type>(array),
        DataType::Int16 => widened::<Int16Type>(array),
        DataType::Int32 => widened::<Int32Type>(array),
        DataType::Int64 => array.as_primitive().clone(),
        DataType::UInt8 => widened::<UInt8Type>(array),
        DataType::UInt16 => widened::<UInt16Type>(array),
        DataType::UInt32 => widened::<UInt32Type>(array),
        _ => return None,
    })
}

/// A column of dates or times, in the unit of its type; `None` for other types.
pub fn ticks(array: &dyn Array) -> Option<Int64Array> {
    let data = |as_integers| array.to_data().into_builder().data_type(as_integers).build().ok();
    match array.data_type() {
        DataType::Date32 | DataType::Time32(_) => {
            Some(Int32Array::from(data(DataType::Int32)?).unary(i64::from))
        }
        DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) => {
            Some(data(DataType::Int64)?.into())
        }
        _ => None,
    }
}

/// The ticks of a second.
pub fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}
