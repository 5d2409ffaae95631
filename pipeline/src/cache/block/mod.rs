//! The encoding of a block of rows in a cache file.
//!
//! ```text
//! offset  0   rows         u32, at least 1
//!         4   truncated    u32, rows whose values of a multi-valued feature were truncated, per feature
//!         8   values       u32 for each ragged column: total number of values
//!             weighted     u32 for each ragged column with weights: its index, ascending
//!             widths       u8 for each column
//!             columns      concatenated
//! ```
//!
//! All numbers are little-endian. The columns are: each label, the row weight if present, each dense column, each id
//! column, for each ragged column the lengths and then the values, and last the weights of ragged columns that
//! have any. The width of a column depends on its largest value in the block:
//!
//! | width | bytes | |
//! |---|---|---|
//! | 0 | 4 | one word, shared by all rows |
//! | 1, 2, 3 | width per row | integers |
//! | 4 | 4 per row | words: an id, or the bits of an `f32` |
//!
//! Labels, weights and dense values are narrowed if all values of a column are exactly integers from 0 to 2^24 - 1,
//! otherwise stored unchanged: the encoding is lossless.
//!
//! Fixed widths instead of bit packing: the compiler vectorizes the branch-free decoding loop, which is faster than a
//! disk, and packing would save at most an eighth.

mod decode;
mod encode;

use crate::chunk::Chunk;

pub(crate) use decode::Block;
pub(crate) use encode::{Encoded, decoded_bytes, encode, rows_within};

/// Maximum decoded size of a block. A larger row forms a separate block.
pub(crate) const BLOCK_BYTES: usize = 512 << 10;

const HEAD_BYTES: usize = 8;
const SAME: u8 = 0;
const WORDS: u8 = 4;

/// The number of columns of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Labels after the first.
    pub(crate) more_labels: u32,
    pub(crate) weighted: bool,
    pub(crate) dense: u32,
    pub(crate) ids: u32,
    pub(crate) ragged: u32,
    /// Number of ragged columns with weights.
    pub(crate) weighted_ragged: u32,
}

impl Shape {
    /// The shape of a non-empty chunk.
    pub(crate) fn of(chunk: &Chunk) -> Self {
        let columns = |values: usize| (values / chunk.rows().max(1)) as u32;
        Self {
            more_labels: chunk.labels.len().saturating_sub(1) as u32,
            weighted: chunk.weights.is_some(),
            dense: columns(chunk.dense.len()),
            ids: columns(chunk.ids.len()),
            ragged: chunk.ragged.len() as u32,
            weighted_ragged: weights_of(chunk).count() as u32,
        }
    }

    /// Whether `chunk` has these columns, and no typed columns, which blocks cannot hold.
    pub(crate) fn fits(&self, chunk: &Chunk) -> bool {
        let rows = chunk.rows();
        chunk.columns.is_empty()
            && chunk.labels.len() == 1 + self.more_labels as usize
            && chunk.weights.is_some() == self.weighted
            && chunk.labels.iter().chain(&chunk.weights).all(|scalars| scalars.len() == rows)
            && chunk.dense.len() == rows * self.dense as usize
            && chunk.ids.len() == rows * self.ids as usize
            && chunk.ragged.len() == self.ragged as usize
            && chunk.ragged.iter().all(|column| column.offsets.len() == rows + 1)
            && weights_of(chunk).count() == self.weighted_ragged as usize
            && weights_of(chunk).all(|(column, weights)| weights.len() == chunk.ragged[column].values.len())
    }

    /// Decoded size of a row without the values of its ragged columns.
    pub(crate) fn row_bytes(&self) -> u64 {
        4 * (self.fixed_columns() + u64::from(self.ragged))
    }

    fn fixed_columns(&self) -> u64 {
        let Self { more_labels, weighted, dense, ids, .. } = *self;
        1 + u64::from(more_labels) + u64::from(weighted) + u64::from(dense) + u64::from(ids)
    }
}

/// The weights of each ragged column that has any, with its index.
fn weights_of(chunk: &Chunk) -> impl Iterator<Item = (usize, &[f32])> {
    let columns = chunk.ragged.iter().enumerate();
    columns.filter_map(|(number, column)| Some((number, column.weights.as_deref()?)))
}

/// Encoded size of a column with `count` values.
fn column_bytes(width: u8, count: usize) -> usize {
    if width == SAME { 4 } else { usize::from(width) * count }
}
