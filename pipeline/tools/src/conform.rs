//! Converts columns to a type that holds the values of several files.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, ListArray, StringArray, new_null_array};
use arrow_schema::DataType;

/// Converts an array to the common type; `None` if that type cannot hold its values.
pub(crate) fn conform(array: &ArrayRef, wanted: &DataType) -> Option<ArrayRef> {
    match (array.data_type(), wanted) {
        (found, wanted) if found == wanted => Some(array.clone()),
        (DataType::Null, wanted) => Some(new_null_array(wanted, array.len())),
        (DataType::Binary, DataType::Utf8) => {
            Some(Arc::new(StringArray::try_from_binary(array.as_binary::<i32>().clone()).ok()?))
        }
        (DataType::Utf8, DataType::Binary) => {
            Some(Arc::new(BinaryArray::from(array.as_string::<i32>().clone())))
        }
        (DataType::List(_), DataType::List(item)) => {
            let lists = array.as_list::<i32>();
            let values = conform(lists.values(), item.data_type())?;
            let nulls = lists.nulls().cloned();
            Some(Arc::new(ListArray::try_new(item.clone(), lists.offsets().clone(), values, nulls).ok()?))
        }
        _ => None,
    }
}
