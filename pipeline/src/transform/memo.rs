//! Ids of dictionaries, worked out once a dictionary and not once a value.
//!
//! A Parquet column of text arrives as keys into its row group's dictionary, chunk after chunk of the same
//! one. The ids of its values are kept for as long as the next chunk has the same dictionary; then a
//! row costs a look-up.

use arrow_array::{AnyDictionaryArray, Array, ArrayRef};

use super::column::put_absent;

/// The ids of the dictionary that a feature met last. Holds four bytes for each of its values, and the
/// dictionary.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    known: Option<(ArrayRef, Vec<u32>)>,
}

impl Memo {
    /// Each element's id: `absent` for null ones, `of_values` of the dictionary's values for others.
    pub(crate) fn codes(
        &mut self,
        dictionary: &dyn AnyDictionaryArray,
        absent: u32,
        mut spare: Vec<u32>,
        of_values: impl FnOnce(&dyn Array) -> Option<Vec<u32>>,
    ) -> Option<Vec<u32>> {
        let values = dictionary.values();
        if !self.known.as_ref().is_some_and(|(known, _)| is_same(known, values)) {
            self.known = Some((values.clone(), of_values(values)?));
        }
        let (_, codes) = self.known.as_ref()?;
        if codes.is_empty() {
            return Some(vec![absent; dictionary.len()]);
        }
        spare.clear();
        spare.extend(dictionary.normalized_keys().into_iter().map(|key| codes[key]));
        put_absent(dictionary.keys(), absent, &mut spare);
        Some(spare)
    }
}

/// Whether two arrays are the same memory. The one at hand is held, so that no other can have its place.
fn is_same(held: &ArrayRef, other: &ArrayRef) -> bool {
    held.len() == other.len() && held.to_data().ptr_eq(&other.to_data())
}
