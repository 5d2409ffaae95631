//! Decodes a flat column of a row group: one value per row, or none.
//!
//! Writers produce these by default, and unpacking keys takes nearly all the time of reading them. The `parquet` crate
//! decodes columns that [`leaf`](super::leaf) does not support, and is the reference for the tests.
//!
//! Own decoder because the `parquet` crate expands dictionaries. **Dictionaries are kept**: a batch from
//! dictionary-encoded pages is an array of keys over the chunk's dictionary, the same `Arc` for all batches of the row
//! group. So the result of a feature for a value (a hash, a lookup, a logarithm) can be computed once per dictionary
//! value instead of once per row. Writers abandon a dictionary that grows too large in the middle of a column chunk: a batch
//! ends there, and later ones are arrays of values. Readers that take numbers as they are get values from the start
//! ([`Projection::numbers_as_values`](crate::Projection)).

use arrow_array::ArrayRef;
use arrow_buffer::bit_chunk_iterator::{BitChunks, UnalignedBitChunk};
use arrow_buffer::{BooleanBufferBuilder, NullBuffer};
use parquet::errors::ParquetError;

use super::leaf::{Content, DataPage, Leaf, Scratch, ended_early};

/// Reads one flat column of one row group.
pub(super) struct FlatColumn {
    leaf: Leaf,
    page: DataPage,
    /// The bytes after which a batch ends.
    batch_bytes: usize,
    /// Working memory.
    levels: Vec<u32>,
    scratch: Scratch,
}

/// A batch under construction.
struct Batch {
    content: Content,
    /// Whether each row has a value.
    present: BooleanBufferBuilder,
}

impl FlatColumn {
    /// Reads `leaf` in batches of about `batch_bytes` bytes, or a page, if that is more.
    pub(super) fn new(leaf: Leaf, batch_bytes: usize) -> Self {
        Self { leaf, page: DataPage::empty(), batch_bytes, levels: Vec::new(), scratch: Scratch::default() }
    }

    /// Reads the next rows, at least one and at most `most`.
    pub(super) fn read(&mut self, most: usize) -> Result<ArrayRef, ParquetError> {
        self.ready()?;
        let content = self.leaf.content_for(&self.page.body, most);
        let mut batch = Batch { content, present: BooleanBufferBuilder::new(most) };
        let mut left = most;
        loop {
            let taken = self.page.entries.min(left);
            self.read_page(taken, &mut batch)?;
            left -= taken;
            if left == 0 || batch.content.bytes(most - left) >= self.batch_bytes {
                break;
            }
            self.ready()?;
            if !self.leaf.can_append(&batch.content, &self.page.body) {
                break;
            }
        }
        let Batch { content, mut present } = batch;
        let nulls = Some(NullBuffer::new(present.finish())).filter(|nulls| nulls.null_count() > 0);
        self.leaf.array(content, nulls)
    }

    /// Skips the next `rows` rows; skips whole pages without decoding them.
    pub(super) fn skip(&mut self, mut rows: usize) -> Result<(), ParquetError> {
        while rows > 0 {
            if self.page.entries == 0
                && let Some(next) = self.leaf.peek()?
                && let Some(held) = next.num_rows.or(next.num_levels).filter(|&held| held <= rows)
            {
                self.leaf.skip_page()?;
                rows -= held;
                continue;
            }
            self.ready()?;
            let taken = self.page.entries.min(rows);
            self.skip_page(taken)?;
            rows -= taken;
        }
        Ok(())
    }

    /// Loads the next page if this one has no rows left.
    fn ready(&mut self) -> Result<(), ParquetError> {
        if self.page.entries == 0 {
            // Frees the page before the next one is decompressed.
            self.page = DataPage::empty();
            self.page = self.leaf.next_page()?.ok_or_else(ended_early)?;
        }
        Ok(())
    }

    /// Appends the next `rows` rows of the page to `batch`.
    fn read_page(&mut self, rows: usize, batch: &mut Batch) -> Result<(), ParquetError> {
        let Self { leaf, page, levels, scratch, .. } = self;
        let Batch { content, present } = batch;
        page.entries -= rows;
        let Some(definitions) = &mut page.definitions else {
            present.append_n(rows, true);
            return leaf.append(content, rows, &mut page.body, scratch);
        };
        let before = content.len();
        if leaf.definition() == 1 {
            definitions.take_bits(rows, present)?;
        } else {
            levels.clear();
            definitions.take(rows, levels)?;
            levels.iter().for_each(|&level| present.append(level == leaf.definition()));
        }
        let present_rows = UnalignedBitChunk::new(present.as_slice(), before, rows).count_ones();
        if present_rows == 0 {
            content.extend_absent(rows);
            return Ok(());
        }
        if present_rows == rows {
            return leaf.append(content, rows, &mut page.body, scratch);
        }
        let present = BitChunks::new(present.as_slice(), before, rows);
        leaf.append_spread(content, present_rows, &present, &mut page.body, scratch)
    }

    fn skip_page(&mut self, rows: usize) -> Result<(), ParquetError> {
        let mut present_rows = rows;
        self.page.entries -= rows;
        if let Some(definitions) = &mut self.page.definitions {
            self.levels.clear();
            definitions.take(rows, &mut self.levels)?;
            present_rows = self.levels.iter().filter(|&&level| level == self.leaf.definition()).count();
        }
        self.leaf.skip_values(&mut self.page.body, present_rows, &mut self.scratch)
    }
}

#[cfg(test)]
#[path = "flat_tests.rs"]
mod tests;
