//! Writes a record of another format as a `tf.train.Example`.
//!
//! Values are written where they stay, so that an image is copied once from the file's buffer into the record.

use std::io;

use super::encode::{field_bytes, open, put_varint, varint_bytes};
use crate::record::{MAX_RECORD_BYTES, too_long};

/// The room for the tag and the length of `Features`: a length below 2^35.
const HEAD_BYTES: usize = 6;

/// A record under construction. Its buffers are reused.
///
/// A short text can need a long record: in JSON, the names of objects precede those of all their members. A feature that
/// would exceed the limit is dropped, and [`FeatureWriter::finish`] fails.
pub(crate) struct FeatureWriter {
    /// [`HEAD_BYTES`] unused bytes, then the entries of `Features`.
    bytes: Vec<u8>,
    most_bytes: u64,
    is_too_long: bool,
}

/// The values of a list.
#[derive(Default)]
pub(crate) struct ByteList {
    bytes: Vec<u8>,
    /// The end of each value.
    ends: Vec<usize>,
}

impl FeatureWriter {
    /// A writer of records of at most this length.
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self { bytes: Vec::new(), most_bytes, is_too_long: false }
    }

    /// Starts a record.
    pub(crate) fn start(&mut self) {
        self.bytes.clear();
        self.bytes.resize(HEAD_BYTES, 0);
        self.is_too_long = false;
    }

    /// The place before the next feature, for [`FeatureWriter::truncate`].
    pub(crate) fn place(&self) -> usize {
        self.bytes.len()
    }

    /// Removes the features behind a place.
    pub(crate) fn truncate(&mut self, place: usize) {
        self.bytes.truncate(place);
    }

    /// Begins a feature with one value of `length` bytes, which the caller appends to the returned bytes. `None` if the
    /// record is too long with it.
    pub(crate) fn begin(&mut self, name: &str, length: usize) -> Option<&mut Vec<u8>> {
        self.begin_list(name, 1, field_bytes(length))?;
        open(&mut self.bytes, 1, length);
        Some(&mut self.bytes)
    }

    /// Writes a feature with one value.
    pub(crate) fn value(&mut self, name: &str, value: &[u8]) {
        if let Some(bytes) = self.begin(name, value.len()) {
            bytes.extend_from_slice(value);
        }
    }

    /// Writes a feature with any number of byte strings.
    pub(crate) fn list(&mut self, name: &str, list: &ByteList) {
        let bytes = list.iter().map(|value| field_bytes(value.len())).sum();
        if self.begin_list(name, 1, bytes).is_some() {
            for value in list.iter() {
                open(&mut self.bytes, 1, value.len());
                self.bytes.extend_from_slice(value);
            }
        }
    }

    /// Writes a feature with any number of integers.
    pub(crate) fn integers(&mut self, name: &str, values: impl Iterator<Item = i64> + Clone) {
        let packed = values.clone().map(|value| varint_bytes(value as u64)).sum();
        if self.begin_list(name, 3, field_bytes(packed)).is_some() {
            open(&mut self.bytes, 1, packed);
            values.for_each(|value| put_varint(&mut self.bytes, value as u64));
        }
    }

    /// Writes a feature with any number of floats.
    pub(crate) fn floats(&mut self, name: &str, values: impl ExactSizeIterator<Item = f32>) {
        let packed = 4 * values.len();
        if self.begin_list(name, 2, field_bytes(packed)).is_some() {
            open(&mut self.bytes, 1, packed);
            values.for_each(|value| self.bytes.extend_from_slice(&value.to_le_bytes()));
        }
    }

    /// Writes a feature without a value.
    pub(crate) fn absent(&mut self, name: &str) {
        self.begin_feature(name, 0);
    }

    /// Ends the record and returns it.
    ///
    /// # Errors
    /// It is too long.
    pub(crate) fn finish(&mut self) -> io::Result<&[u8]> {
        if self.is_too_long {
            return Err(too_long(format!("more than {}", self.most_bytes), self.most_bytes));
        }
        let features = self.bytes.len() - HEAD_BYTES;
        let mut head = Vec::with_capacity(HEAD_BYTES);
        open(&mut head, 1, features);
        let start = HEAD_BYTES - head.len();
        self.bytes[start..HEAD_BYTES].copy_from_slice(&head);
        Ok(&self.bytes[start..])
    }

    /// Begins a feature whose list, in field `kind` of `Feature`, has this encoded length.
    fn begin_list(&mut self, name: &str, kind: u8, list: usize) -> Option<()> {
        self.begin_feature(name, field_bytes(list))?;
        open(&mut self.bytes, kind, list);
        Some(())
    }

    /// Begins an entry whose `Feature` has this encoded length.
    fn begin_feature(&mut self, name: &str, feature: usize) -> Option<()> {
        let entry = field_bytes(name.len()) + field_bytes(feature);
        let length = self.bytes.len().saturating_add(field_bytes(entry)) as u64;
        // The length of `Features` has at most five bytes.
        if length > self.most_bytes.min(MAX_RECORD_BYTES) {
            self.is_too_long = true;
            return None;
        }
        open(&mut self.bytes, 1, entry);
        open(&mut self.bytes, 1, name.len());
        self.bytes.extend_from_slice(name.as_bytes());
        open(&mut self.bytes, 2, feature);
        Some(())
    }
}

impl ByteList {
    /// Removes all values.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Adds a value.
    pub(crate) fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}
