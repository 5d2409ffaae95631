//! What a feature makes of a dictionary, worked out once a dictionary and not once a value.
//!
//! A Parquet column arrives as keys into its row group's dictionary, chunk after chunk of the same one. What
//! became of the dictionary's values, ids or scaled numbers, is kept for as long as the next chunk has the
//! same; then a row costs a look-up.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{AnyDictionaryArray, Array, ArrayRef};

use super::column::put_absent;

/// What became of the dictionary that a feature met last. Holds four bytes for each of its values, and the
/// dictionary.
#[derive(Debug, Default)]
pub(crate) struct Memo<T> {
    known: Option<(ArrayRef, Vec<T>)>,
}

impl<T: Copy> Memo<T> {
    /// What becomes of each element: `absent` for null ones, what `of_values` makes of the dictionary's values
    /// for others.
    pub(crate) fn look_up(
        &mut self,
        dictionary: &dyn AnyDictionaryArray,
        absent: T,
        mut spare: Vec<T>,
        of_values: impl FnOnce(&dyn Array) -> Option<Vec<T>>,
    ) -> Option<Vec<T>> {
        let values = dictionary.values();
        if !self.known.as_ref().is_some_and(|(known, _)| is_same(known, values)) {
            self.known = Some((values.clone(), of_values(values)?));
        }
        let (_, found) = self.known.as_ref()?;
        spare.clear();
        // The key of a null element may be beyond the values, of which there may be none.
        spare.extend(keys(dictionary).iter().map(|&key| found.get(key as usize).copied().unwrap_or(absent)));
        put_absent(dictionary.keys(), absent, &mut spare);
        Some(spare)
    }
}

fn keys(dictionary: &dyn AnyDictionaryArray) -> Cow<'_, [u32]> {
    match dictionary.keys().as_primitive_opt::<UInt32Type>() {
        Some(keys) => Cow::Borrowed(keys.values()),
        None if dictionary.values().is_empty() => Cow::Owned(vec![0; dictionary.len()]),
        // Fewer than 2^32 values: an array of more is not made of one row group.
        None => Cow::Owned(dictionary.normalized_keys().into_iter().map(|key| key as u32).collect()),
    }
}

/// Whether two arrays are the same memory. The one at hand is held, so that no other can have its place.
fn is_same(held: &ArrayRef, other: &ArrayRef) -> bool {
    Arc::ptr_eq(held, other) || (held.len() == other.len() && held.to_data().ptr_eq(&other.to_data()))
}
