//! Hashed features: a value's fingerprint modulo the number of buckets.
//!
//! Ids agree with `tf.strings.to_hash_bucket_fast` of the text, or of `tf.as_string` of an integer. Absent
//! values get the id after the last bucket.

use arrow_array::cast::AsArray;
use arrow_array::types::ByteArrayType;
use arrow_array::{Array, GenericByteArray};
use arrow_buffer::ArrowNativeType;
use arrow_schema::DataType;
use millstream_format::integers::integers;

use super::column::{Missing, fill_nulls, texts};
use super::{integer, text};
use crate::fingerprint::{Modulus, fingerprint64};

/// The hash buckets of a feature.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hashed {
    buckets: u32,
    modulus: Modulus,
}

impl Hashed {
    /// # Panics
    /// If `buckets` is 0.
    pub(crate) fn new(buckets: u32) -> Self {
        Self { buckets, modulus: Modulus::new(buckets) }
    }

    /// The buckets plus one id for missing.
    pub(crate) fn cardinality(self) -> usize {
        self.buckets as usize + 1
    }

    /// Each element's id; `None` when the column's type is unsupported.
    pub(crate) fn codes(self, leaf: &dyn Array, missing: &Missing, spare: Vec<u32>) -> Option<Vec<u32>> {
        let Some(mut codes) = self.codes_at_once(leaf, missing, spare) else {
            return texts(leaf, missing, self.buckets, |text| self.modulus.reduce(fingerprint64(text)));
        };
        fill_nulls(leaf, self.buckets, &mut codes);
        Some(codes)
    }

    /// The ids, computed by vectorized loops; null elements get arbitrary ids. `None` when the values must
    /// be checked one at a time.
    fn codes_at_once(self, leaf: &dyn Array, missing: &Missing, spare: Vec<u32>) -> Option<Vec<u32>> {
        if !missing.has_numbers()
            && let Some(values) = integers(leaf)
        {
            return Some(integer::ids(values.values(), self.modulus, spare));
        }
        Some(match leaf.data_type() {
            DataType::Utf8 => self.texts(leaf.as_string::<i32>(), missing, spare),
            DataType::LargeUtf8 => self.texts(leaf.as_string::<i64>(), missing, spare),
            DataType::Binary => self.texts(leaf.as_binary::<i32>(), missing, spare),
            DataType::LargeBinary => self.texts(leaf.as_binary::<i64>(), missing, spare),
            _ => return None,
        })
    }

    fn texts<T: ByteArrayType>(
        self,
        texts: &GenericByteArray<T>,
        missing: &Missing,
        spare: Vec<u32>,
    ) -> Vec<u32> {
        let (offsets, bytes) = (texts.value_offsets(), texts.value_data());
        let mut codes = text::ids(offsets, bytes, self.modulus, spare);
        if missing.has_texts() {
            for (code, ends) in codes.iter_mut().zip(offsets.windows(2)) {
                if missing.has_text(&bytes[ends[0].as_usize()..ends[1].as_usize()]) {
                    *code = self.buckets;
                }
            }
        }
        codes
    }
}
