//! The fast path: decodes a record laid out like the preceding ones in a single pass.
//!
//! Writers put the same features in the same order into every record, one value each, possibly omitting some.
//! The layout learned from records decoded on the general path is a list of steps, one per feature in order.
//! Of an entry with one value (see `form.rs`)
//!
//! ```text
//! 0a L | 0a n name 12 | F k F-2 0a V | value
//! ```
//!
//! with lengths below 128 the name, the kind and `L` determine all bytes before the value. A step stores them for
//! an empty value as words of eight bytes; the first and the last word grow by a constant per byte of value. Two
//! additions and two comparisons (more for names over six bytes) then check the tags, the name and all five lengths
//! together. The value itself is one load.
//!
//! An entry with the expected name but another form goes to its column through `Column::append`. If the name
//! is that of a later step, the expected feature is absent. Anything else (another order, a repeated name, a
//! new name, unknown fields) is not handled here: the general path decodes the record from its start, and
//! the steps are learned again.

use std::ops::Range;

use super::Learned;
use super::column::Column;
use super::form::{Form, Layout, MAX_SHORT_LENGTH};
use super::names::Slot;
use super::wire::{self, VALUE_BYTES};

/// Bytes of the last word before a value, and the bytes loaded after it regardless of the value's length.
const LOADED: usize = 8 + VALUE_BYTES;
/// The last bytes of a record are decoded in a padded copy, so that loads stay in bounds.
const TAIL: usize = 64;
/// Consecutive failures after which the fast path pauses.
const MAX_FAILURES: u32 = 4;
/// Binary logarithm of the longest pause, in records.
const MAX_PAUSE_LOG2: u32 = 10;
/// No step for a name.
const NO_STEP: u32 = u32::MAX;

/// The expected features, in order.
#[derive(Debug)]
pub(super) struct Expected {
    steps: Vec<Step>,
    /// The step of each name id.
    step_of_name: Vec<u32>,
    /// Columns without a step.
    unfilled: Vec<usize>,
    /// Number of columns that `unfilled` was computed for.
    columns: usize,
    tail: [u8; 2 * TAIL],
    /// Consecutive failures.
    failures: u32,
    /// Records to skip before the next try.
    pause: u32,
}

#[derive(Debug)]
struct Step {
    name: u32,
    slot: Slot,
    head: Box<[u8]>,
    /// The first word of the entry, masked to the tag and the start of the name.
    start: u64,
    start_mask: u64,
    shape: Shape,
}

/// The bytes before the value of a single-value entry.
#[derive(Debug)]
struct Shape {
    layout: Layout,
    /// Length of an entry with an empty value.
    empty: u8,
    /// Offset of the last eight bytes before the value.
    last_at: u8,
    /// The first and the last eight bytes for an empty value, and the increment per byte of value.
    first: u64,
    first_grows: u64,
    last: u64,
    last_grows: u64,
    /// The words in between, with their offsets.
    middle: Vec<(usize, u64)>,
    /// Minimum length of the value, and the difference to the maximum.
    min_length: u8,
    length_range: u8,
}

/// The result of a step.
enum Found {
    /// The entry was appended and ends at this offset.
    Appended(usize),
    /// The next entry has another name.
    Absent,
    /// The general path must decode the record.
    Unexpected,
}

impl Expected {
    pub(super) fn new() -> Self {
        Self {
            steps: Vec::new(),
            step_of_name: Vec::new(),
            unfilled: Vec::new(),
            columns: 0,
            tail: [0; 2 * TAIL],
            failures: 0,
            pause: 0,
        }
    }

    /// Whether to try the fast path for the next record, and to learn from it if that fails.
    #[inline]
    pub(super) fn should_try(&mut self) -> bool {
        let should_try = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        should_try
    }

    /// Appends a record to the columns. On failure they may hold part of it; the caller truncates them.
    #[inline]
    pub(super) fn try_append(&mut self, record: &[u8], columns: &mut [Column]) -> bool {
        if self.columns != columns.len() {
            self.find_unfilled(columns.len());
        }
        if self.walk(record, columns).is_some() {
            for &column in &self.unfilled {
                columns[column].append_absent();
            }
            self.failures = 0;
            return true;
        }
        self.failures = (self.failures + 1).min(MAX_PAUSE_LOG2);
        if self.failures >= MAX_FAILURES {
            self.pause = 1 << self.failures;
        }
        false
    }

    fn walk(&mut self, record: &[u8], columns: &mut [Column]) -> Option<()> {
        let (&0x0a, mut features) = record.split_first()? else { return None };
        let length = wire::varint(&mut features).ok()?;
        if length != features.len() as u64 {
            return None;
        }
        let mut steps = self.steps.iter_mut();
        let (mut at, end) = (record.len() - features.len(), record.len());
        let Some(last) = record.last_chunk::<TAIL>() else {
            at = walk(&mut steps, record, at..usize::MAX, end, columns)?;
            return (at == end).then_some(());
        };
        let tail = end - TAIL;
        at = walk(&mut steps, record, at..tail, end, columns)?;
        *self.tail.first_chunk_mut()? = *last;
        let in_tail = walk(&mut steps, &self.tail, at.checked_sub(tail)?..usize::MAX, TAIL, columns)?;
        (in_tail == TAIL).then_some(())
    }

    /// Learns from a record that the general path has decoded successfully.
    pub(super) fn learn<'a>(&mut self, features: impl Iterator<Item = Learned<'a>> + Clone) {
        if !self.merge(features.clone()) {
            self.steps.clear();
            self.step_of_name.clear();
            // A name that occurs twice keeps its first position.
            self.merge(features);
        }
        self.find_unfilled(self.columns);
    }

    /// Lists the columns without a step.
    fn find_unfilled(&mut self, columns: usize) {
        let mut covered = vec![false; columns];
        for step in &self.steps {
            if let Slot::Column(column) = step.slot
                && let Some(covered) = covered.get_mut(column as usize)
            {
                *covered = true;
            }
        }
        self.unfilled.clear();
        self.unfilled.extend((0..columns).filter(|&column| !covered[column]));
        self.columns = columns;
    }

    /// Inserts new features at their position. False if the order contradicts the steps.
    fn merge<'a>(&mut self, features: impl Iterator<Item = Learned<'a>>) -> bool {
        let mut next = 0;
        let mut in_order = true;
        for feature in features {
            let name = feature.name as usize;
            if self.step_of_name.len() <= name {
                self.step_of_name.resize(name + 1, NO_STEP);
            }
            match self.step_of_name[name] {
                NO_STEP => {
                    self.steps.insert(next, Step::new(&feature));
                    for (place, step) in self.steps.iter().enumerate().skip(next) {
                        self.step_of_name[step.name as usize] = place as u32;
                    }
                    next += 1;
                }
                place if place as usize >= next => next = place as usize + 1,
                _ => in_order = false,
            }
        }
        in_order
    }
}

/// Appends the entries that start within `range`; returns the offset after them. The record ends at `end`; `bytes`
/// may extend beyond it.
#[inline(always)]
fn walk(
    steps: &mut std::slice::IterMut<'_, Step>,
    bytes: &[u8],
    range: Range<usize>,
    end: usize,
    columns: &mut [Column],
) -> Option<usize> {
    let mut at = range.start;
    while at < range.end {
        let Some(step) = steps.next() else { break };
        let length = step.length_if_regular(bytes, at, end);
        let appended = length.and_then(|length| step.append_regular(bytes, at, length, columns));
        if let Some(next) = appended {
            at = next;
            continue;
        }
        match step.append_irregular(bytes, at, end, columns) {
            Found::Appended(next) => at = next,
            Found::Absent => {}
            Found::Unexpected => return None,
        }
    }
    Some(at)
}

impl Step {
    fn new(learned: &Learned<'_>) -> Self {
        let mut start = [0; 8];
        let mut mask = [0; 8];
        let name_bytes = learned.head.len().min(6);
        start[0] = 0x0a;
        start[2..2 + name_bytes].copy_from_slice(&learned.head[..name_bytes]);
        mask[0] = 0xff;
        mask[2..2 + name_bytes].fill(0xff);
        Self {
            name: learned.name,
            slot: learned.slot,
            head: learned.head.into(),
            start: u64::from_le_bytes(start),
            start_mask: u64::from_le_bytes(mask),
            shape: Shape::of(learned.head, learned.feature).unwrap_or(Shape::IRREGULAR),
        }
    }

    /// The length of the value, if the entry has the expected form.
    #[inline(always)]
    fn length_if_regular(&self, bytes: &[u8], at: usize, end: usize) -> Option<u8> {
        let shape = &self.shape;
        let last_at = usize::from(shape.last_at);
        let entry = bytes.get(at..)?.get(..last_at + LOADED)?;
        let first = u64::from_le_bytes(*entry.first_chunk()?);
        let last = u64::from_le_bytes(*entry[last_at..].first_chunk()?);
        let length = ((first >> 8) as u8).wrapping_sub(shape.empty);
        let grown = u64::from(length);
        let is_regular = first == shape.first.wrapping_add(grown.wrapping_mul(shape.first_grows))
            && last == shape.last.wrapping_add(grown.wrapping_mul(shape.last_grows))
            && at + last_at + 8 + usize::from(length) <= end
            && length.wrapping_sub(shape.min_length) <= shape.length_range
            && (shape.middle.is_empty() || shape.middle_is(entry));
        is_regular.then_some(length)
    }

    /// Appends the value of an entry of the expected form; returns the offset of the next entry.
    #[inline(always)]
    fn append_regular(&self, bytes: &[u8], at: usize, length: u8, columns: &mut [Column]) -> Option<usize> {
        let start = at + usize::from(self.shape.last_at) + 8;
        let next = start + usize::from(length);
        let Slot::Column(column) = self.slot else { return Some(next) };
        let column = columns.get_mut(column as usize)?;
        self.shape.layout.append(bytes, start, length, column)?;
        Some(next)
    }

    /// Handles an entry that does not have the expected form, possibly that of another step.
    #[inline(never)]
    fn append_irregular(&mut self, bytes: &[u8], at: usize, end: usize, columns: &mut [Column]) -> Found {
        let found = self.find_irregular(bytes, at, end, columns);
        if let (Found::Absent, Slot::Column(column)) = (&found, self.slot) {
            match columns.get_mut(column as usize) {
                Some(column) => column.append_absent(),
                None => return Found::Unexpected,
            }
        }
        found
    }

    fn find_irregular(&mut self, bytes: &[u8], at: usize, end: usize, columns: &mut [Column]) -> Found {
        if let Some(start) = bytes.get(at..).and_then(|entry| entry.first_chunk()) {
            let start = u64::from_le_bytes(*start);
            // A one-byte length followed by another name.
            if start & 0x8000 == 0 && (start ^ self.start) & self.start_mask != 0 {
                return Found::Absent;
            }
        }
        let Some(mut rest) = bytes.get(at..end) else { return Found::Unexpected };
        if rest.is_empty() {
            return Found::Absent;
        }
        let entry = match wire::tag(&mut rest) {
            Ok((1, wire::WireType::Delimited)) => wire::delimited(&mut rest),
            _ => return Found::Unexpected,
        };
        let Ok(entry) = entry else { return Found::Unexpected };
        let Some(mut feature) = entry.strip_prefix(&*self.head) else { return Found::Absent };
        if wire::varint(&mut feature).ok() != Some(feature.len() as u64) {
            return Found::Unexpected;
        }
        if let Slot::Column(column) = self.slot {
            let Some(column) = columns.get_mut(column as usize) else { return Found::Unexpected };
            if column.append(feature).is_err() {
                return Found::Unexpected;
            }
        }
        if self.shape.layout == Layout::Irregular
            && let Some(shape) = Shape::of(&self.head, feature)
        {
            self.shape = shape;
        }
        Found::Appended(end - rest.len())
    }
}

impl Shape {
    const IRREGULAR: Self = Self {
        layout: Layout::Irregular,
        empty: 0,
        last_at: 0,
        first: u64::MAX,
        first_grows: 0,
        last: 0,
        last_grows: 0,
        middle: Vec::new(),
        min_length: 0,
        length_range: 0,
    };

    /// The shape of entries like this one; `None` if it does not have exactly one value, or is too long.
    fn of(head: &[u8], feature: &[u8]) -> Option<Self> {
        let form = Form::of(feature)?;
        let start = |value_bytes: u8| -> Option<Vec<u8>> {
            let before = form.before_value(value_bytes);
            let entry = u8::try_from(head.len() + before.len() + usize::from(value_bytes)).ok()?;
            (entry <= MAX_SHORT_LENGTH).then(|| [&[0x0a, entry], head, &before].concat())
        };
        let (empty, longer) = (start(0)?, start(1)?);
        let bytes = empty.len();
        let word = |bytes: &[u8], at| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let (first, last) = (word(&empty, 0)?, word(&empty, bytes - 8)?);
        // These contain no lengths, which are in the first two bytes and the last five.
        let middles = (bytes.saturating_sub(16)).div_ceil(8);
        let middle = (0..middles).map(|number| (8 + 8 * number).min(bytes - 16).max(2));
        Some(Self {
            layout: form.layout,
            empty: empty[1],
            last_at: bytes as u8 - 8,
            first,
            first_grows: word(&longer, 0)?.wrapping_sub(first),
            last,
            last_grows: word(&longer, bytes - 8)?.wrapping_sub(last),
            middle: middle.map(|at| Some((at, word(&empty, at)?))).collect::<Option<_>>()?,
            min_length: form.least,
            length_range: form.most.min(MAX_SHORT_LENGTH - empty[1]).checked_sub(form.least)?,
        })
    }

    fn middle_is(&self, entry: &[u8]) -> bool {
        let is = |&(at, expected): &(usize, u64)| {
            let word = entry.get(at..).and_then(|word| word.first_chunk());
            word.is_some_and(|&word| u64::from_le_bytes(word) == expected)
        };
        self.middle.iter().all(is)
    }
}
