//! Columns of the data that accompany the scores of its rows.
//!
//! Rows travel to the worker as ids and numbers, and only scores come back. The columns to keep therefore wait here,
//! beside the ring: a reader adds the rows of a chunk before it hands the chunk over, and the receiver of scores takes
//! as many rows as scores arrive. Splits are read in parallel but scored in order, so rows wait by split. The ring
//! bounds how far reading is ahead of scoring, and thereby how many rows wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BooleanArray, GenericListArray, Int32Array, OffsetSizeTrait, RecordBatch,
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use arrow_select::filter::filter_record_batch;
use arrow_select::take::take;
use millstream_format::RawChunk;
use parking_lot::Mutex;

use crate::error::Error;

/// The kept columns of rows whose scores have not arrived.
#[derive(Debug, Default)]
pub struct KeptRows {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The first split that has not been taken completely.
    next: u32,
    splits: BTreeMap<u32, KeptSplit>,
}

#[derive(Debug, Default)]
struct KeptSplit {
    batches: VecDeque<RecordBatch>,
    /// Whether all its rows have been added.
    is_complete: bool,
}

/// The columns to keep of each chunk, and where to.
#[derive(Clone, Debug)]
pub struct KeptColumns {
    /// The receiver.
    pub rows: Arc<KeptRows>,
    /// Positions in the chunk, and names.
    pub columns: Vec<(usize, String)>,
    /// Whether all columns are lists because a row of this format may have several values. A column in which no row of
    /// a chunk has several becomes one of single values.
    pub are_lists: bool,
}

impl KeptRows {
    /// Removes the next `rows` rows in the order of the data. Their scores must have arrived.
    ///
    /// # Errors
    /// There are fewer rows than scores: a bug, not bad input.
    pub fn take(&self, mut rows: usize) -> Result<Vec<RecordBatch>, Error> {
        let mut waiting = self.waiting.lock();
        let Waiting { next, splits } = &mut *waiting;
        let mut taken = Vec::new();
        while rows > 0 {
            let missing = || Error::Invalid(format!("{rows} scores belong to no row"));
            let split = splits.get_mut(next).ok_or_else(missing)?;
            match split.batches.pop_front() {
                Some(batch) if batch.num_rows() > rows => {
                    split.batches.push_front(batch.slice(rows, batch.num_rows() - rows));
                    taken.push(batch.slice(0, rows));
                    rows = 0;
                }
                Some(batch) => {
                    rows -= batch.num_rows();
                    taken.push(batch);
                }
                None if split.is_complete => {
                    splits.remove(next);
                    *next += 1;
                }
                None => return Err(missing()),
            }
        }
        Ok(taken)
    }
}

impl KeptColumns {
    /// Adds the `usable` rows of a chunk of split `split`, or all.
    ///
    /// # Errors
    /// A column cannot be decoded.
    pub fn add(&self, split: u32, chunk: &RawChunk, usable: Option<&[bool]>) -> Result<(), Error> {
        let rows = self.select(chunk.columns(), usable);
        let rows = rows.map_err(|error| Error::Invalid(format!("{}: {error}", chunk.path())))?;
        if rows.num_rows() > 0 {
            self.rows.waiting.lock().splits.entry(split).or_default().batches.push_back(rows);
        }
        Ok(())
    }

    /// Marks the end of a split.
    pub fn end(&self, split: u32) {
        self.rows.waiting.lock().splits.entry(split).or_default().is_complete = true;
    }

    fn select(&self, chunk: &RecordBatch, usable: Option<&[bool]>) -> Result<RecordBatch, ArrowError> {
        let places: Vec<usize> = self.columns.iter().map(|(place, _)| *place).collect();
        let mut rows = chunk.project(&places)?;
        if let Some(usable) = usable {
            rows = filter_record_batch(&rows, &BooleanArray::from(usable.to_vec()))?;
        }
        let single = |array: ArrayRef| if self.are_lists { single_values(array) } else { Ok(array) };
        let arrays = rows.columns().iter().map(|array| plain(array).and_then(single));
        let arrays: Vec<ArrayRef> = arrays.collect::<Result<_, _>>()?;
        let schema = rows.schema();
        let fields = schema.fields().iter().zip(&arrays).zip(&self.columns);
        let fields = fields.map(|((field, array), (_, name))| {
            let metadata = field.metadata().clone();
            Field::new(name, array.data_type().clone(), true).with_metadata(metadata)
        });
        RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), arrays)
    }
}

/// The array without dictionaries, which would accompany every few rows whole.
fn plain(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match array.data_type() {
        DataType::Dictionary(..) => match array.as_any_dictionary_opt() {
            Some(dictionary) => take(dictionary.values(), dictionary.keys(), None),
            None => Ok(Arc::clone(array)),
        },
        DataType::List(item) if is_dictionary(item) => plain_lists(array.as_list::<i32>()),
        DataType::LargeList(item) if is_dictionary(item) => plain_lists(array.as_list::<i64>()),
        _ => Ok(Arc::clone(array)),
    }
}

fn is_dictionary(item: &Field) -> bool {
    matches!(item.data_type(), DataType::Dictionary(..))
}

fn plain_lists<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> Result<ArrayRef, ArrowError> {
    let values = plain(lists.values())?;
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
    Ok(Arc::new(GenericListArray::try_new(item, offsets, values, nulls)?))
}

/// The values of lists, if no list has several.
fn single_values(array: ArrayRef) -> Result<ArrayRef, ArrowError> {
    let Some(lists) = array.as_list_opt::<i32>() else { return Ok(array) };
    if (0..lists.len()).any(|row| lists.is_valid(row) && lists.value_length(row) > 1) {
        return Ok(array);
    }
    let has_value = |row| lists.is_valid(row) && lists.value_length(row) == 1;
    let places = (0..lists.len()).map(|row| has_value(row).then(|| lists.value_offsets()[row]));
    take(lists.values(), &places.collect::<Int32Array>(), None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow_array::types::{Int32Type, Int64Type};
    use arrow_array::{DictionaryArray, Int64Array, ListArray};

    use super::*;

    fn chunk(first: i64, rows: i64) -> RawChunk {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
        let names: ArrayRef = Arc::new((0..rows).map(|_| Some("a")).collect::<DictionaryArray<Int32Type>>());
        let columns = RecordBatch::try_from_iter([("n", numbers), ("name", names)]).unwrap();
        RawChunk::new("f".into(), columns, 0)
    }

    fn numbers(batches: &[RecordBatch]) -> Vec<i64> {
        let values = |batch: &RecordBatch| batch["n"].as_primitive::<Int64Type>().values().to_vec();
        batches.iter().flat_map(values).collect()
    }

    #[test]
    fn lists_of_at_most_one_value_become_single_values() {
        let lists = |values: Vec<Option<Vec<Option<i64>>>>| -> ArrayRef {
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(values))
        };
        let ones = lists(vec![Some(vec![Some(1)]), None, Some(vec![]), Some(vec![Some(4)])]);
        let single = single_values(ones).unwrap();
        let single: Vec<_> = single.as_primitive::<Int64Type>().iter().collect();
        assert_eq!(single, [Some(1), None, None, Some(4)]);
        let several = lists(vec![Some(vec![Some(1)]), Some(vec![Some(2), Some(3)])]);
        assert_eq!(&single_values(several.clone()).unwrap(), &several);
    }

    #[test]
    fn rows_are_taken_in_the_order_of_splits_whichever_is_read_first() {
        let columns = vec![(1, "name".to_owned()), (0, "n".to_owned())];
        let kept = KeptColumns { rows: Arc::default(), columns, are_lists: false };
        kept.add(1, &chunk(10, 3), None).unwrap();
        kept.end(1);
        kept.add(0, &chunk(0, 4), Some(&[true, false, true, true])).unwrap();
        let first = kept.rows.take(2).unwrap();
        assert_eq!(numbers(&first), [0, 2]);
        assert_eq!(first[0].schema().field(0).data_type(), &DataType::Utf8);
        kept.end(0);
        kept.end(2);
        kept.add(3, &chunk(20, 1), None).unwrap();
        assert_eq!(numbers(&kept.rows.take(5).unwrap()), [3, 10, 11, 12, 20]);
        assert!(kept.rows.take(1).is_err());
    }
}
