//! The record to expect, so that one laid out like those before it is taken in a single pass.
//!
//! Writers put the same features in the same order into every record, one value each, perhaps with some
//! left out. So what was learned from records read the careful way is kept as a list of steps, one for each
//! feature in its order. Such an entry is, where `V` is the bytes of its value,
//!
//! ```text
//! 0a L | 0a n name 12 | F k F-2 0a V | value          packed numbers, and bytes
//! 0a L | 0a n name 12 | F k F-2 08   | value          an int64 that is not packed (a float: 0d)
//! ```
//!
//! and with lengths below 128 all bytes before the value follow from the name, the kind and `L`. A step holds
//! them for an empty value as words of eight bytes, the first and last of which grow by a fixed amount for
//! each byte of value: two additions and two comparisons (names of over six bytes take more) check tags, name
//! and all five lengths at once. The value itself is one load.
//!
//! An entry of the expected name that is not like this goes to its column the usual way. A name that is not
//! the expected one means that the expected one is absent, as long as it is that of a later step. Whatever
//! else there is (another order, a name twice, a new one, fields unknown) is not decided here: the record is
//! given back, the careful way reads it from its start, and the steps are learned anew.

use std::ops::Range;

use super::column::Column;
use super::names::Slot;
use super::wire::{self, VALUE_BYTES};

/// The last word of an entry's head, and bytes behind it that a step loads whatever the value's length.
const AROUND: usize = 8 + VALUE_BYTES;
/// So near a record's end it goes on in a copy with bytes behind it.
const TAIL: usize = 64;
/// Unexpected records in a row, from which on some are not tried at all.
const PATIENCE: u32 = 4;
/// The most records not tried, as a power of two.
const LONGEST_PAUSE: u32 = 8;
/// The largest length of one byte.
const MOST_LENGTH: u8 = 127;
/// Not in the list.
const NOWHERE: u32 = u32::MAX;

/// The features to expect, in order.
#[derive(Debug)]
pub(super) struct Expected {
    steps: Vec<Step>,
    /// For each name's number its step.
    places: Vec<u32>,
    /// Columns that no step fills, and of how many in all.
    left_out: Vec<usize>,
    columns: usize,
    tail: [u8; 2 * TAIL],
    /// Unexpected records in a row.
    failures: u32,
    /// Records not to be tried.
    pause: u32,
}

/// An entry that the careful way has met.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sighting<'a> {
    /// The name's number.
    pub(super) name: u32,
    pub(super) slot: Slot,
    /// See `Name::head`.
    pub(super) head: &'a [u8],
    /// The `Feature` message.
    pub(super) feature: &'a [u8],
}

#[derive(Debug)]
struct Step {
    name: u32,
    slot: Slot,
    head: Box<[u8]>,
    /// The first word of the entry, but for bytes behind its name.
    start: u64,
    start_mask: u64,
    shape: Shape,
}

/// How an entry with one value starts.
#[derive(Debug)]
struct Shape {
    layout: Layout,
    /// The entry's length if the value is empty.
    empty: u8,
    /// Where the last eight bytes before the value start.
    last_at: u8,
    /// The first and the last eight of them if the value is empty, and what a byte of value adds.
    first: u64,
    first_grows: u64,
    last: u64,
    last_grows: u64,
    /// Words of those between, and where they lie.
    middle: Vec<(usize, u64)>,
    /// Bytes that a value may have, and how many more.
    least: u8,
    span: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Bytes,
    Float,
    Int,
    /// None of these, or not known yet: nothing matches it.
    Unusual,
}

/// What a step finds.
enum Found {
    /// Its entry ends here.
    Taken(usize),
    /// Another entry.
    Absent,
    /// Something for the careful way.
    Unexpected,
}

impl Expected {
    pub(super) fn new() -> Self {
        Self {
            steps: Vec::new(),
            places: Vec::new(),
            left_out: Vec::new(),
            columns: 0,
            tail: [0; 2 * TAIL],
            failures: 0,
            pause: 0,
        }
    }

    /// Whether the next record should be tried, and learned from if that fails.
    #[inline]
    pub(super) fn is_worth_trying(&mut self) -> bool {
        let tried = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        tried
    }

    /// Appends a record to the columns. If it is not as expected they hold a part of it, to be truncated.
    #[inline]
    pub(super) fn take(&mut self, record: &[u8], columns: &mut [Column]) -> bool {
        if self.columns != columns.len() {
            self.cover(columns.len());
        }
        if self.walk(record, columns).is_some() {
            for &column in &self.left_out {
                columns[column].append_absent();
            }
            self.failures = 0;
            return true;
        }
        self.failures = (self.failures + 1).min(LONGEST_PAUSE);
        if self.failures >= PATIENCE {
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

    /// Learns from a record that the careful way has made a row of.
    pub(super) fn learn<'a>(&mut self, sightings: impl Iterator<Item = Sighting<'a>> + Clone) {
        if !self.merge(sightings.clone()) {
            self.steps.clear();
            self.places.clear();
            // Names that are here twice have their first place.
            self.merge(sightings);
        }
        self.cover(self.columns);
    }

    fn cover(&mut self, columns: usize) {
        let mut covered = vec![false; columns];
        for step in &self.steps {
            if let Slot::Column(column) = step.slot
                && let Some(covered) = covered.get_mut(column as usize)
            {
                *covered = true;
            }
        }
        self.left_out.clear();
        self.left_out.extend((0..columns).filter(|&column| !covered[column]));
        self.columns = columns;
    }

    /// Inserts new features where they are. False where the order is another one.
    fn merge<'a>(&mut self, sightings: impl Iterator<Item = Sighting<'a>>) -> bool {
        let mut next = 0;
        let mut in_order = true;
        for sighting in sightings {
            let name = sighting.name as usize;
            if self.places.len() <= name {
                self.places.resize(name + 1, NOWHERE);
            }
            match self.places[name] {
                NOWHERE => {
                    self.steps.insert(next, Step::new(&sighting));
                    for (place, step) in self.steps.iter().enumerate().skip(next) {
                        self.places[step.name as usize] = place as u32;
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

/// Takes entries that start within `range`, and says where it stands after them. The record ends at `end`,
/// the bytes perhaps behind it.
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
        let length = step.length_if_usual(bytes, at, end);
        let appended = length.and_then(|length| step.append_usual(bytes, at, length, columns));
        if let Some(next) = appended {
            at = next;
            continue;
        }
        match step.take_unusual(bytes, at, end, columns) {
            Found::Taken(next) => at = next,
            Found::Absent => {}
            Found::Unexpected => return None,
        }
    }
    Some(at)
}

impl Step {
    fn new(sighting: &Sighting<'_>) -> Self {
        let mut start = [0; 8];
        let mut mask = [0; 8];
        let name_bytes = sighting.head.len().min(6);
        start[0] = 0x0a;
        start[2..2 + name_bytes].copy_from_slice(&sighting.head[..name_bytes]);
        mask[0] = 0xff;
        mask[2..2 + name_bytes].fill(0xff);
        Self {
            name: sighting.name,
            slot: sighting.slot,
            head: sighting.head.into(),
            start: u64::from_le_bytes(start),
            start_mask: u64::from_le_bytes(mask),
            shape: Shape::of(sighting.head, sighting.feature).unwrap_or(Shape::UNUSUAL),
        }
    }

    /// How long the value is, if the entry is the usual one.
    #[inline(always)]
    fn length_if_usual(&self, bytes: &[u8], at: usize, end: usize) -> Option<u8> {
        let shape = &self.shape;
        let last_at = usize::from(shape.last_at);
        let entry = bytes.get(at..)?.get(..last_at + AROUND)?;
        let first = u64::from_le_bytes(*entry.first_chunk()?);
        let last = u64::from_le_bytes(*entry[last_at..].first_chunk()?);
        let length = ((first >> 8) as u8).wrapping_sub(shape.empty);
        let grown = u64::from(length);
        let is_usual = first == shape.first.wrapping_add(grown.wrapping_mul(shape.first_grows))
            && last == shape.last.wrapping_add(grown.wrapping_mul(shape.last_grows))
            && at + last_at + 8 + usize::from(length) <= end
            && length.wrapping_sub(shape.least) <= shape.span
            && (shape.middle.is_empty() || shape.middle_is(entry));
        is_usual.then_some(length)
    }

    /// Appends the value of a usual entry, and says where the next one starts.
    #[inline(always)]
    fn append_usual(&self, bytes: &[u8], at: usize, length: u8, columns: &mut [Column]) -> Option<usize> {
        let start = at + usize::from(self.shape.last_at) + 8;
        let next = start + usize::from(length);
        let Slot::Column(column) = self.slot else { return Some(next) };
        let column = columns.get_mut(column as usize)?;
        let value: &[u8; VALUE_BYTES] = bytes.get(start..)?.first_chunk()?;
        let appended = if self.shape.layout == Layout::Int {
            column.append_int(wire::whole_varint(value, length)? as i64)
        } else if self.shape.layout == Layout::Float {
            column.append_float(f32::from_le_bytes(*value.first_chunk()?))
        } else {
            column.append_bytes(value, bytes.get(start..next)?)
        };
        appended.then_some(next)
    }

    /// Another entry than the usual one, perhaps another step's.
    #[inline(never)]
    fn take_unusual(&mut self, bytes: &[u8], at: usize, end: usize, columns: &mut [Column]) -> Found {
        let found = self.find_unusual(bytes, at, end, columns);
        if let (Found::Absent, Slot::Column(column)) = (&found, self.slot) {
            match columns.get_mut(column as usize) {
                Some(column) => column.append_absent(),
                None => return Found::Unexpected,
            }
        }
        found
    }

    fn find_unusual(&mut self, bytes: &[u8], at: usize, end: usize, columns: &mut [Column]) -> Found {
        if let Some(start) = bytes.get(at..).and_then(|entry| entry.first_chunk()) {
            let start = u64::from_le_bytes(*start);
            // A length of one byte, and another name behind it.
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
        if self.shape.layout == Layout::Unusual
            && let Some(shape) = Shape::of(&self.head, feature)
        {
            self.shape = shape;
        }
        Found::Taken(end - rest.len())
    }
}

impl Shape {
    const UNUSUAL: Self = Self {
        layout: Layout::Unusual,
        empty: 0,
        last_at: 0,
        first: u64::MAX,
        first_grows: 0,
        last: 0,
        last_grows: 0,
        middle: Vec::new(),
        least: 0,
        span: 0,
    };

    /// The shape of entries like this one; `None` if it has not just one value, or is long.
    fn of(head: &[u8], feature: &[u8]) -> Option<Self> {
        let (&[tag, list_bytes, value_tag], value) = feature.split_first_chunk()?;
        let (layout, least, most, packed) = match (tag, value_tag) {
            (0x0a, 0x0a) => (Layout::Bytes, 0, usize::from(MOST_LENGTH), true),
            (0x12, 0x0a) => (Layout::Float, 4, 4, true),
            (0x12, 0x0d) => (Layout::Float, 4, 4, false),
            (0x1a, 0x0a) => (Layout::Int, 1, 10, true),
            (0x1a, 0x08) => (Layout::Int, 1, 10, false),
            _ => return None,
        };
        let value_bytes = value.len().checked_sub(usize::from(packed))?;
        if usize::from(list_bytes) != value.len() + 1 || packed && usize::from(value[0]) != value_bytes {
            return None;
        }
        let start = |value_bytes: u8| -> Option<Vec<u8>> {
            let value_head = &[value_tag, value_bytes][..1 + usize::from(packed)];
            let list = value_head.len() as u8 + value_bytes;
            let entry = u8::try_from(head.len() + 3 + usize::from(list)).ok()?;
            let lengths = [0x0a, entry];
            (entry <= MOST_LENGTH).then(|| [&lengths[..], head, &[list + 2, tag, list], value_head].concat())
        };
        let (empty, longer) = (start(0)?, start(1)?);
        let bytes = empty.len();
        let word = |bytes: &[u8], at| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let (first, last) = (word(&empty, 0)?, word(&empty, bytes - 8)?);
        // No lengths are among these: they lie in the first two bytes and the last five.
        let middles = (bytes.saturating_sub(16)).div_ceil(8);
        let middle = (0..middles).map(|number| (8 + 8 * number).min(bytes - 16).max(2));
        Some(Self {
            layout,
            empty: empty[1],
            last_at: bytes as u8 - 8,
            first,
            first_grows: word(&longer, 0)?.wrapping_sub(first),
            last,
            last_grows: word(&longer, bytes - 8)?.wrapping_sub(last),
            middle: middle.map(|at| Some((at, word(&empty, at)?))).collect::<Option<_>>()?,
            least,
            span: most.min(usize::from(MOST_LENGTH - empty[1])).checked_sub(usize::from(least))? as u8,
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
