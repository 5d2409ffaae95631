//! The path for records whose features come in another order in each: decodes them without mispredicted branches.
//!
//! C++ and Go write the entries of a map in an order of their own for each record, and Java and Python leave out
//! features without a value, so that no order holds. A parser that branches on the name of each entry then spends most
//! of its time on mispredicted branches: about twenty cycles each, several per entry. This one makes two passes:
//!
//! 1. **Locate.** For each entry, a hash without collisions (see `perfect.rs`) proposes the step of its name. All
//!    bytes up to the value are compared with those that the step expects for a value of this length, word by word
//!    under masks, and the differences are merged with `|` rather than branched on. The value's place is stored with
//!    its step. The next entry follows from this one's length alone, so the processor starts on it before the hash is
//!    known.
//! 2. **Append.** The values are appended column by column, always in the same order. Branches on types therefore
//!    repeat from record to record.
//!
//! So what is unpredictable has no branches, and what branches is predictable. Only the presence of a feature that some
//! records lack remains, and lengths above 127 among shorter ones.
//!
//! **Steps.** A step is a name with what follows it, learned from records that the general path decoded. If all values
//! seen so far had one form (see `form.rs`), the step expects
//!
//! ```text
//! 0a n name 12 | F k F-2 0a V            with V = L - (n + 8), L the length of the entry
//! ```
//!
//! where the bytes `F`, `F-2` and `V` grow by one per byte of the value, and nothing else does. Otherwise (several
//! values, none, long ones) it expects `0a n name 12` only, and the second pass hands the rest to `Column::append`.
//!
//! **What is refused.** A record with an unknown name, a name that occurs twice, another form, fields in pieces, or
//! values of another type than their column's is refused whole, and the general path decodes it from its start. That
//! path alone decides what is an error, which occurrence of a name counts, and what there is to learn. Accepted
//! records give the same rows as there.
//!
//! **Cost.** With 40 features of one value and short names, checksums included, callgrind counts 199 instructions and
//! 0.5 mispredicted branches per feature in random order; 138 and 0.5 on the path for a constant order; 827 and 4.1 on
//! the general path. Names above eight letters add a word to the hash and sixteen bytes to compare, 26 instructions.
//!
//! **When.** The path of `expected.rs` is faster where the order is constant, and goes first. This one is used while
//! that one pauses after repeated failures, for up to 1024 records.

use std::ops::Range;

use super::Learned;
use super::column::Column;
use super::form::{Form, Layout, MAX_SHORT_LENGTH};
use super::names::Slot;
use super::perfect::{MAX_NAME, MAX_NAMES, PerfectHash, WINDOW};
use super::wire;

/// Bytes that may be read beyond the end of a record, which is therefore decoded in a padded copy.
const PADDING: usize = WINDOW + 16;
/// Longer records are left to the general path: with values this long, it is as fast.
const MAX_RECORD: usize = 1 << 16;
/// Consecutive failures after which only one record in `PAUSE` is tried.
const PATIENCE: u32 = 32;
const PAUSE: u32 = 16;
/// Names of up to this length, with the eight other bytes before the value, fit four blocks.
const LONG_NAME: usize = 56;
/// Blocks for the longest name.
const MOST_BLOCKS: usize = WINDOW / 16;
/// The step of no name, which matches no entry.
const NO_STEP: u32 = 0;

/// The known features.
#[derive(Debug)]
pub(super) struct Scattered {
    /// In the order in which they were learned, numbered from 1.
    steps: Vec<Step>,
    /// The step of each name id.
    step_of_name: Vec<u32>,
    /// What is derived from the steps; `None` if it must be derived first, or cannot be.
    tables: Option<Tables>,
    is_stale: bool,
    /// For each step, the location of its value in the current record.
    places: Vec<Place>,
    /// The current record, padded.
    padded: Vec<u8>,
    /// Consecutive failures.
    failures: u32,
    /// Records to skip before the next try.
    pause: u32,
}

/// A name, and the form of its values if all had the same.
#[derive(Debug)]
struct Step {
    slot: Slot,
    head: Box<[u8]>,
    form: Option<Form>,
}

#[derive(Debug)]
struct Tables {
    hash: PerfectHash,
    patterns: Patterns,
    /// For each column, its step, and how to append the value.
    fills: Vec<Fill>,
    /// Steps without a column whose entries are compared up to the name only.
    unread: Vec<u32>,
}

/// The pattern of each step, in as many blocks as the longest name needs.
#[derive(Debug)]
enum Patterns {
    /// For names that are hashed by one word.
    Short(Vec<Pattern<1>>),
    /// By two words.
    Medium(Vec<Pattern<2>>),
    /// By three words, none longer than [`LONG_NAME`].
    Long(Vec<Pattern<4>>),
    Longest(Vec<Pattern<MOST_BLOCKS>>),
}

/// What an entry looks like.
#[derive(Clone, Copy, Debug)]
struct Pattern<const BLOCKS: usize> {
    lengths: Lengths,
    blocks: [Block; BLOCKS],
}

/// Sixteen bytes of an entry.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Selects the bytes to compare.
    mask: [u64; 2],
    /// The bytes for an empty value.
    empty: [u64; 2],
    /// Selects the bytes that grow with the value.
    grows: [u64; 2],
}

/// The lengths of a step's entries.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    /// From the key to the value.
    head: u32,
    /// Minimum length of the value, and the number of allowed lengths from there.
    least: u32,
    count: u32,
}

/// A column's step, and the layout of its values.
#[derive(Clone, Copy, Debug)]
struct Fill {
    step: u32,
    layout: Layout,
}

/// The location of a value. Entries start after the record's first byte, so a start of 0 is absent.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    start: u32,
    length: u32,
}

impl Scattered {
    pub(super) fn new() -> Self {
        Self {
            steps: Vec::new(),
            step_of_name: Vec::new(),
            tables: None,
            is_stale: false,
            places: Vec::new(),
            padded: Vec::new(),
            failures: 0,
            pause: 0,
        }
    }

    /// Whether to try this path for the next record, and to learn from it if that fails.
    pub(super) fn should_try(&mut self) -> bool {
        let should_try = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        should_try
    }

    /// Appends a record to the columns. On failure they may hold part of it; the caller truncates them.
    #[inline(never)]
    pub(super) fn try_append(&mut self, record: &[u8], columns: &mut [Column]) -> bool {
        let known = self.tables.as_ref().map(|tables| tables.fills.len());
        if self.is_stale || known.is_some_and(|known| known != columns.len()) {
            self.derive(columns.len());
        }
        if self.locate(record).is_some() && self.append(columns).is_some() {
            self.failures = 0;
            return true;
        }
        self.failures += 1;
        if self.failures >= PATIENCE {
            (self.failures, self.pause) = (PATIENCE, PAUSE);
        }
        false
    }

    /// Whether the last try succeeded.
    #[cfg(test)]
    pub(super) fn succeeded(&self) -> bool {
        self.failures == 0
    }

    /// Learns from a record that the general path has decoded successfully.
    pub(super) fn learn<'a>(&mut self, features: impl Iterator<Item = Learned<'a>>) {
        for Learned { name, slot, head, feature } in features {
            if self.step_of_name.len() <= name as usize {
                self.step_of_name.resize(name as usize + 1, NO_STEP);
            }
            let form = Form::of(feature);
            let number = &mut self.step_of_name[name as usize];
            if *number != NO_STEP {
                let step = &mut self.steps[*number as usize - 1];
                if step.form.is_some() && step.form != form {
                    step.form = None;
                    self.is_stale = true;
                }
            } else if self.steps.len() < MAX_NAMES && (1..=MAX_NAME).contains(&usize::from(head[1])) {
                self.steps.push(Step { slot, head: head.into(), form });
                *number = self.steps.len() as u32;
                self.is_stale = true;
            }
        }
    }

    /// Derives the tables from the steps.
    fn derive(&mut self, columns: usize) {
        self.is_stale = false;
        self.tables = Tables::new(&self.steps, columns);
        self.places.clear();
        self.places.resize(self.steps.len() + 1, Place::default());
    }

    /// The first pass: stores the place of each value.
    fn locate(&mut self, record: &[u8]) -> Option<()> {
        let tables = self.tables.as_ref()?;
        let (&0x0a, mut features) = record.split_first()? else { return None };
        let length = wire::varint(&mut features).ok()?;
        if length != features.len() as u64 || record.len() > MAX_RECORD {
            return None;
        }
        if self.padded.len() < record.len() + PADDING {
            self.padded.resize(record.len() + PADDING, 0);
        }
        self.padded.get_mut(..record.len())?.copy_from_slice(record);
        self.places.fill(Place::default());
        let (start, end) = (record.len() - features.len(), record.len());
        let (hash, bytes, places) = (&tables.hash, &self.padded[..], &mut self.places[..]);
        match &tables.patterns {
            Patterns::Short(patterns) => locate::<1, 1>(hash, patterns, bytes, start..end, places),
            Patterns::Medium(patterns) => locate::<2, 2>(hash, patterns, bytes, start..end, places),
            Patterns::Long(patterns) => locate::<4, 3>(hash, patterns, bytes, start..end, places),
            Patterns::Longest(patterns) => {
                locate::<MOST_BLOCKS, 3>(hash, patterns, bytes, start..end, places)
            }
        }
    }

    /// The second pass: appends the values.
    fn append(&self, columns: &mut [Column]) -> Option<()> {
        let tables = self.tables.as_ref()?;
        let bytes = &self.padded[..];
        for (fill, column) in tables.fills.iter().zip(columns) {
            let Place { start, length } = *self.places.get(fill.step as usize)?;
            if start == 0 {
                column.append_absent();
            } else if fill.layout == Layout::Irregular {
                column.append(feature_at(bytes, Place { start, length })?).ok()?;
            } else {
                fill.layout.append(bytes, start as usize, length as u8, column)?;
            }
        }
        for &step in &tables.unread {
            let place = *self.places.get(step as usize)?;
            if place.start != 0 {
                feature_at(bytes, place)?;
            }
        }
        Some(())
    }
}

/// The `Feature` of an entry of which only the name was compared, if nothing follows it.
#[inline]
fn feature_at(bytes: &[u8], Place { start, length }: Place) -> Option<&[u8]> {
    let mut feature = bytes.get(start as usize..)?.get(..length as usize)?;
    let length = wire::varint(&mut feature).ok()?;
    (length == feature.len() as u64).then_some(feature)
}

impl Tables {
    fn new(steps: &[Step], columns: usize) -> Option<Self> {
        let names = steps.iter().map(|step| &step.head[2..step.head.len() - 1]);
        let longest = names.clone().map(<[u8]>::len).max()?;
        let hash = PerfectHash::new(names)?;
        let patterns = match (hash.words(), longest) {
            (1, _) => Patterns::Short(patterns_of(steps)),
            (2, _) => Patterns::Medium(patterns_of(steps)),
            (_, ..=LONG_NAME) => Patterns::Long(patterns_of(steps)),
            _ => Patterns::Longest(patterns_of(steps)),
        };
        let mut fills = vec![Fill { step: NO_STEP, layout: Layout::Irregular }; columns];
        let mut unread = Vec::new();
        for (step, number) in steps.iter().zip(1..) {
            let layout = step.form.map_or(Layout::Irregular, |form| form.layout);
            match step.slot {
                Slot::Column(column) => *fills.get_mut(column as usize)? = Fill { step: number, layout },
                Slot::Ignored if layout == Layout::Irregular => unread.push(number),
                Slot::Ignored => {}
            }
        }
        Some(Self { hash, patterns, fills, unread })
    }
}

/// The patterns of all steps, after one that matches no entry.
fn patterns_of<const BLOCKS: usize>(steps: &[Step]) -> Vec<Pattern<BLOCKS>> {
    let none = Pattern { lengths: Lengths::default(), blocks: [Block::default(); BLOCKS] };
    std::iter::once(none).chain(steps.iter().map(Pattern::of)).collect()
}

/// Stores the place of each value of the record whose entries are in `range`. `None` if an entry has an unknown name or
/// another form, or if a name occurs twice.
#[inline(never)]
fn locate<const BLOCKS: usize, const WORDS: usize>(
    hash: &PerfectHash,
    patterns: &[Pattern<BLOCKS>],
    bytes: &[u8],
    range: Range<usize>,
    places: &mut [Place],
) -> Option<()> {
    let (mut at, end) = (range.start, range.end);
    // The words of the difference are merged at the end.
    let (mut differs, mut wrong) = ([0; 2], 0);
    while at < end {
        let &[tag, short] = bytes.get(at..)?.first_chunk()?;
        let (key, length) =
            if short < 0x80 { (at + 2, usize::from(short)) } else { long_length(bytes, at + 1, end)? };
        let entry: &[u8; WINDOW] = bytes.get(key..)?.first_chunk()?;
        let step = hash.find::<WORDS>(entry);
        let (pattern, place) = (patterns.get(step)?, places.get_mut(step)?);
        let Lengths { head, least, count } = pattern.lengths;
        let value_bytes = (length as u32).wrapping_sub(head);
        add_difference(&mut differs, entry, &pattern.blocks, value_bytes as u8);
        wrong |= u32::from(value_bytes.wrapping_sub(least) >= count) | u32::from(tag ^ 0x0a) | place.start;
        *place = Place { start: key as u32 + head, length: value_bytes };
        at = key + length;
    }
    (differs == [0; 2] && wrong == 0 && at == end).then_some(())
}

/// The start of the key and the length of an entry whose length takes several bytes, the first of which is at `at`.
#[cold]
fn long_length(bytes: &[u8], at: usize, end: usize) -> Option<(usize, usize)> {
    let mut rest = bytes.get(at..end)?;
    let length = wire::varint(&mut rest).ok()?;
    (length <= rest.len() as u64).then_some((end - rest.len(), length as usize))
}

/// Sets bits of `differs` where an entry differs from the pattern for a value of this length.
#[inline(always)]
fn add_difference<const BLOCKS: usize>(
    differs: &mut [u64; 2],
    entry: &[u8; WINDOW],
    pattern: &[Block; BLOCKS],
    value_bytes: u8,
) {
    let grown = u64::from(value_bytes) * 0x0101_0101_0101_0101;
    for (block, bytes) in pattern.iter().zip(entry.as_chunks::<16>().0) {
        for (half, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            // The lengths of accepted values grow no byte beyond 127, so nothing is carried.
            let expected = block.empty[half].wrapping_add(grown & block.grows[half]);
            differs[half] |= (u64::from_le_bytes(*word) ^ expected) & block.mask[half];
        }
    }
}

impl<const BLOCKS: usize> Pattern<BLOCKS> {
    fn of(step: &Step) -> Self {
        let head = &*step.head;
        let (start, grown, least, count) = match step.form {
            Some(form) => {
                let [start, grown] =
                    [0, 1].map(|value_bytes| [head, &form.before_value(value_bytes)].concat());
                // `F` takes one byte. It counts the value and the bytes before it, except itself.
                let most = form.most.min(MAX_SHORT_LENGTH + 1 - form.before_value(0).len() as u8);
                (start, grown, u32::from(form.least), u32::from(most - form.least) + 1)
            }
            None => (head.to_vec(), head.to_vec(), 0, u32::MAX),
        };
        Self {
            lengths: Lengths { head: start.len() as u32, least, count },
            blocks: std::array::from_fn(|block| Block::of(&start, &grown, 16 * block)),
        }
    }
}

impl Block {
    /// The block at an offset of entries that start like this with an empty value, and like `grown` with a longer one.
    fn of(start: &[u8], grown: &[u8], at: usize) -> Self {
        let words = |byte: &dyn Fn(usize) -> Option<u8>| {
            [at, at + 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| byte(at + i).unwrap_or(0))))
        };
        Self {
            mask: words(&|at| start.get(at).map(|_| 0xff)),
            empty: words(&|at| start.get(at).copied()),
            grows: words(&|at| start.get(at).map(|byte| if *byte == grown[at] { 0 } else { 0xff })),
        }
    }
}
