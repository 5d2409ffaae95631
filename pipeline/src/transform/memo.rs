//! Caches the conversion of a dictionary, so that it is done once per dictionary and not once per value.
//!
//! A Parquet column arrives as keys into its row group's dictionary, and consecutive chunks share it. The
//! converted dictionary (ids or scaled numbers) is kept while the next chunk uses the same one; each row
//! then costs one look-up.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{AnyDictionaryArray, Array, ArrayRef};

use super::column::fill_nulls;

/// The conversion of the last dictionary seen. Holds the dictionary and four bytes per value of it.
#[derive(Debug, Default)]
pub(crate) struct Memo<T> {
    cached: Option<(ArrayRef, Vec<T>)>,
}

impl<T: Copy> Memo<T> {
    /// The converted elements: `absent` for nulls, otherwise the result of `of_values`, which converts the
    /// dictionary's values.
    pub(crate) fn look_up(
        &mut self,
        dictionary: &dyn AnyDictionaryArray,
        absent: T,
        mut spare: Vec<T>,
        of_values: impl FnOnce(&dyn Array) -> Option<Vec<T>>,
    ) -> Option<Vec<T>> {
        let values = dictionary.values();
        if !self.cached.as_ref().is_some_and(|(cached, _)| is_same(cached, values)) {
            self.cached = Some((values.clone(), of_values(values)?));
        }
        let (_, found) = self.cached.as_ref()?;
        spare.clear();
        // The key of a null element may be out of range; the dictionary may even be empty.
        spare.extend(keys(dictionary).iter().map(|&key| found.get(key as usize).copied().unwrap_or(absent)));
        fill_nulls(dictionary.keys(), absent, &mut spare);
        Some(spare)
    }
}

fn keys(dictionary: &dyn AnyDictionaryArray) -> Cow<'_, [u32]> {
    match dictionary.keys().as_primitive_opt::<UInt32Type>() {
        Some(keys) => Cow::Borrowed(keys.values()),
        None if dictionary.values().is_empty() => Cow::Owned(vec![0; dictionary.len()]),
        // Fewer than 2^32 values: a row group has no more rows.
        None => Cow::Owned(dictionary.normalized_keys().into_iter().map(|key| key as u32).collect()),
    }
}

/// Whether two arrays share their memory. Comparing addresses is sound because `held` stays allocated.
fn is_same(held: &ArrayRef, other: &ArrayRef) -> bool {
    Arc::ptr_eq(held, other) || (held.len() == other.len() && held.to_data().ptr_eq(&other.to_data()))
}
