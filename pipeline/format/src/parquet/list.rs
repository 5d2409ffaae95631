//! Decodes a list column of a row group: any number of values per row.
//!
//! Each entry of a page has a *repetition level*, 0 if it starts a row and 1 if it continues one, and a *definition
//! level*, from which follows whether the list is absent, empty, or has a value there, present or absent. Rows may
//! continue on the next page. Like flat columns, lists keep their dictionary.
//!
//! Own decoder because only it can stop between two rows when a batch has become large: the `parquet` crate reads as
//! many rows as asked for, and a row may have any number of values.
//!
//! Source: the Parquet format's `README.md` (Nested Encoding) and `LogicalTypes.md` (Lists).

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, ListArray};
use arrow_buffer::bit_chunk_iterator::BitChunks;
use arrow_buffer::{BooleanBufferBuilder, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::Field;
use parquet::errors::ParquetError;

use super::leaf::{Body, Content, DataPage, Leaf, Scratch, ended_early};
use super::meter::{Meter, Reserved};
use super::values::Values;

/// Entries whose levels are unpacked at a time.
const ENTRIES: usize = 2048;

/// Entries whose levels are compared together.
const STRIDE: usize = 16;

/// The length from which a run of equal levels is not unpacked.
const LONG_RUN: usize = 256;

/// The most elements for which memory is allocated before they are read.
const MOST_PLANNED: usize = 1 << 18;

/// Reads one list column of one row group.
pub(super) struct ListColumn {
    leaf: Leaf,
    page: DataPage,
    /// The definition level of an entry with an element, present or absent.
    element: u32,
    /// The mean number of elements of a row.
    mean: usize,
    /// The bytes after which a batch ends, with the row.
    batch_bytes: usize,
    meter: Arc<Meter>,
    /// Levels that have been unpacked; those before `next` have been used.
    repetitions: Vec<u32>,
    definitions: Vec<u32>,
    next: usize,
    /// Working memory.
    keys: Vec<u32>,
    scratch: Scratch,
}

/// What follows in a column.
enum Following {
    /// Entries whose levels are unpacked, at least one.
    Entries,
    /// So many values that continue a row.
    Values(usize),
    /// The end.
    Nothing,
}

/// A batch under construction.
struct Lists {
    /// The index of each row's first element.
    starts: Vec<i32>,
    /// Whether each row has a list.
    present: BooleanBufferBuilder,
    /// Whether each element has a value.
    element_present: BooleanBufferBuilder,
    /// The values of the elements that have one.
    content: Content,
    /// The memory of a row that exceeds a batch.
    reserved: Option<Reserved>,
}

impl ListColumn {
    /// Reads `leaf`, in which entries of definition level `element` and more have an element, and rows have `mean` of them, in
    /// batches of about `batch_bytes` bytes. Longer rows use memory of `meter`.
    pub(super) fn new(leaf: Leaf, element: u32, mean: usize, batch_bytes: usize, meter: &Arc<Meter>) -> Self {
        Self {
            leaf,
            page: DataPage::empty(),
            element,
            mean,
            batch_bytes,
            meter: Arc::clone(meter),
            repetitions: Vec::new(),
            definitions: Vec::new(),
            next: 0,
            keys: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// Reads the next rows, at least one and at most `most`.
    pub(super) fn read(&mut self, most: usize) -> Result<ArrayRef, ParquetError> {
        let mut following = self.advance()?;
        match following {
            Following::Nothing => return Err(ended_early()),
            Following::Entries if self.repetitions[self.next] == 0 => {}
            Following::Entries | Following::Values(_) => {
                return Err(ParquetError::General("the column starts within a row".to_owned()));
            }
        }
        // Somewhat more than usual, so that vectors rarely grow, which copies them. The footer may exaggerate.
        let usual = self.mean.saturating_add(self.mean / 8 + 1).saturating_mul(most);
        let capacity = usual.min(self.batch_bytes / size_of::<u64>()).min(MOST_PLANNED);
        let mut lists = Lists {
            starts: Vec::with_capacity(most + 1),
            present: BooleanBufferBuilder::new(most),
            element_present: BooleanBufferBuilder::new(capacity),
            content: self.leaf.content_for(&self.page.body, capacity),
            reserved: None,
        };
        let mut most = most;
        loop {
            match following {
                Following::Nothing => break,
                Following::Values(count) => {
                    lists.element_present.append_n(count, true);
                    self.append(&mut lists, count)?;
                }
                Following::Entries => {
                    let is_full = || {
                        lists.starts.len() == most || !self.leaf.can_append(&lists.content, &self.page.body)
                    };
                    if self.repetitions[self.next] == 0 && is_full() {
                        break;
                    }
                    self.read_entries(&mut lists, most)?;
                }
            }
            if lists.bytes() >= self.batch_bytes {
                most = lists.starts.len();
                self.reserve(&mut lists)?;
            }
            following = self.advance()?;
        }
        self.finish(lists)
    }

    /// Skips the next `rows` rows.
    pub(super) fn skip(&mut self, rows: usize) -> Result<(), ParquetError> {
        let mut started = 0;
        loop {
            let present = match self.advance()? {
                Following::Nothing => break,
                Following::Values(count) => count,
                Following::Entries => {
                    let end = self.end_of_rows(rows, &mut started);
                    if end == self.next {
                        return Ok(());
                    }
                    let definitions = &self.definitions[self.next..end];
                    self.next = end;
                    definitions.iter().filter(|&&level| level == self.leaf.definition()).count()
                }
            };
            self.leaf.skip_values(&mut self.page.body, present, &mut self.scratch)?;
        }
        if started < rows { Err(ended_early()) } else { Ok(()) }
    }

    /// Looks at what follows. Unpacks levels if all have been used, up to a long run of values that continue a row, as a long
    /// list has: that is one run of each level.
    fn advance(&mut self) -> Result<Following, ParquetError> {
        if self.next < self.repetitions.len() {
            return Ok(Following::Entries);
        }
        if self.page.entries == 0 {
            // Frees the page before the next one is decompressed.
            self.page = DataPage::empty();
            match self.leaf.next_page()? {
                None => return Ok(Following::Nothing),
                Some(page) => self.page = page,
            }
        }
        let most = self.page.entries.min(ENTRIES);
        let (Some(repetitions), Some(definitions)) = (&mut self.page.repetitions, &mut self.page.definitions)
        else {
            return Err(ParquetError::General("a page of a list has no levels".to_owned()));
        };
        self.repetitions.clear();
        self.definitions.clear();
        self.next = 0;
        let mut count = 0;
        while count < most {
            let (left, level) = repetitions.run()?;
            if left >= LONG_RUN && level.is_some_and(|level| level > 0) {
                if count > 0 {
                    break;
                }
                let (present, level) = definitions.run()?;
                if present >= LONG_RUN && level == Some(self.leaf.definition()) {
                    let values = left.min(present).min(most);
                    repetitions.skip_repeated(values);
                    definitions.skip_repeated(values);
                    self.page.entries -= values;
                    return Ok(Following::Values(values));
                }
            }
            let taken = left.min(most - count);
            repetitions.take(taken, &mut self.repetitions)?;
            count += taken;
        }
        definitions.take(count, &mut self.definitions)?;
        self.page.entries -= count;
        Ok(Following::Entries)
    }

    /// The end of the unpacked entries that belong to the first `rows` rows, of which `started` have started so far.
    fn end_of_rows(&self, rows: usize, started: &mut usize) -> usize {
        for (entry, &level) in self.repetitions.iter().enumerate().skip(self.next) {
            if level == 0 {
                if *started == rows {
                    return entry;
                }
                *started += 1;
            }
        }
        self.repetitions.len()
    }

    /// Appends unpacked entries to `lists`, up to the start of the row after `most` rows.
    fn read_entries(&mut self, lists: &mut Lists, most: usize) -> Result<(), ParquetError> {
        let present_level = self.leaf.definition();
        let mut elements = lists.element_present.len();
        let mut present = 0;
        let mut entry = self.next;
        // Where a list may continue with values alone, as most of a long one does.
        let mut may_run = true;
        while let (Some(&repetition), Some(&definition)) =
            (self.repetitions.get(entry), self.definitions.get(entry))
        {
            if may_run {
                let run = self.values_within_row(entry);
                lists.element_present.append_n(run, true);
                (elements, present, entry) = (elements + run, present + run, entry + run);
                may_run = false;
                continue;
            }
            if repetition == 0 {
                if lists.starts.len() == most {
                    break;
                }
                may_run = true;
                let start = i32::try_from(elements);
                lists.starts.push(start.map_err(|_| too_many())?);
                lists.present.append(definition + 1 >= self.element);
            }
            if definition >= self.element {
                let is_present = definition == present_level;
                lists.element_present.append(is_present);
                elements += 1;
                present += usize::from(is_present);
                may_run |= !is_present;
            }
            entry += 1;
        }
        self.next = entry;
        self.append(lists, present)
    }

    /// Appends the next `count` values of the page to `lists`.
    fn append(&mut self, lists: &mut Lists, count: usize) -> Result<(), ParquetError> {
        if !self.leaf.can_append(&lists.content, &self.page.body) {
            return self.append_expanded(lists, count);
        }
        self.leaf.append(&mut lists.content, count, &mut self.page.body, &mut self.scratch)
    }

    /// The number of entries from `start` on that continue a row with a value, rounded down to a multiple of [`STRIDE`].
    fn values_within_row(&self, start: usize) -> usize {
        let present_level = self.leaf.definition();
        let repetitions = self.repetitions[start..].as_chunks::<STRIDE>().0;
        let definitions = self.definitions[start..].as_chunks::<STRIDE>().0;
        let are_values = |(repetitions, definitions): &(&[u32; STRIDE], &[u32; STRIDE])| {
            // Without an early exit, so that the levels are compared in vectors.
            let starts = repetitions.iter().fold(false, |any, &level| any | (level == 0));
            let absent = definitions.iter().fold(false, |any, &level| any | (level != present_level));
            !(starts | absent)
        };
        repetitions.iter().zip(definitions).take_while(are_values).count() * STRIDE
    }

    /// Appends the next `count` values of the page to `lists`, where the encoding of the column changes within a row:
    /// all as values, without the dictionary.
    fn append_expanded(&mut self, lists: &mut Lists, count: usize) -> Result<(), ParquetError> {
        let mut values = match std::mem::replace(&mut lists.content, Content::Keys(Vec::new())) {
            Content::Values(values) => values,
            Content::Keys(keys) => self.expand(None, &keys)?,
        };
        match &mut self.page.body {
            Body::Plain(input) => values.take_plain(count, input)?,
            Body::Keys(stream) => {
                let mut keys = std::mem::take(&mut self.keys);
                keys.clear();
                stream.take(count, &mut keys)?;
                values = self.expand(Some(values), &keys)?;
                self.keys = keys;
            }
        }
        lists.content = Content::Values(values);
        Ok(())
    }

    /// Appends the values of `keys` to `values`, or to none, if there is memory for them.
    fn expand(&self, values: Option<Values>, keys: &[u32]) -> Result<Values, ParquetError> {
        let bytes = self.leaf.expanded_bytes(keys)?;
        let _room = self.meter.reserve(bytes, || self.row())?;
        self.leaf.expand(values, keys)
    }

    /// Reserves the memory by which `lists` exceeds a batch.
    fn reserve(&self, lists: &mut Lists) -> Result<(), ParquetError> {
        let bytes = (lists.bytes() - self.batch_bytes) as u64;
        lists.reserved = None;
        lists.reserved = Some(self.meter.reserve(bytes, || self.row())?);
        Ok(())
    }

    /// What exceeds a batch, for messages.
    fn row(&self) -> String {
        format!("a row of column `{}`", self.leaf.column())
    }

    fn finish(&self, lists: Lists) -> Result<ArrayRef, ParquetError> {
        let Lists { mut starts, mut present, mut element_present, mut content, reserved: _ } = lists;
        let elements = element_present.len();
        starts.push(i32::try_from(elements).map_err(|_| too_many())?);
        let mut nulls = None;
        if content.len() < elements {
            content.spread(0, &BitChunks::new(element_present.as_slice(), 0, elements));
            nulls = Some(NullBuffer::new(element_present.finish()));
        }
        let elements = self.leaf.array(content, nulls)?;
        let item = Arc::new(Field::new_list_field(elements.data_type().clone(), true));
        let nulls = Some(NullBuffer::new(present.finish())).filter(|nulls| nulls.null_count() > 0);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(starts));
        Ok(Arc::new(ListArray::try_new(item, offsets, elements, nulls)?))
    }
}

impl Lists {
    /// The bytes of the batch.
    fn bytes(&self) -> usize {
        let elements = self.element_present.len();
        self.content.bytes(elements) + elements / 8 + size_of_val(&self.starts[..])
    }
}

fn too_many() -> ParquetError {
    ParquetError::General("a batch of lists has more than 2^31 elements".to_owned())
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
