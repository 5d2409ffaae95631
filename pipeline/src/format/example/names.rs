//! Names of features: which column each fills, and which one to expect next.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::wire;

/// Names remembered. Beyond it unknown ones are looked up each time, so that data with ever new names
/// does not fill the memory.
const MAX_NAMES: usize = 4096;

/// What a feature is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Column(u32),
    Ignored,
}

#[derive(Debug)]
struct Name {
    /// How an entry of this name starts up to the length of its value, if it is laid out as usual:
    /// the key's tag, its length, the key, the value's tag.
    head: Box<[u8]>,
    /// The name that followed this one the last time.
    next: Option<u32>,
    slot: Slot,
    seen: bool,
}

/// Names met or wanted, each with the one to expect behind it.
#[derive(Debug)]
pub(super) struct Names {
    names: Vec<Name>,
    index: HashMap<Box<str>, u32, BuildHasherDefault<NameHasher>>,
    /// The name to expect at a record's start.
    first: Option<u32>,
    /// The name last met in this record.
    last: Option<u32>,
    ignores_others: bool,
}

impl Names {
    pub(super) fn new() -> Self {
        Self { names: Vec::new(), index: HashMap::default(), first: None, last: None, ignores_others: false }
    }

    /// Wants a name as a column.
    pub(super) fn want(&mut self, name: &str, column: usize) {
        self.insert(name, Slot::Column(column as u32), false);
    }

    /// From now on unknown names are ignored; else each becomes a column.
    pub(super) fn ignore_others(&mut self) {
        self.ignores_others = true;
    }

    /// Names of features met.
    pub(super) fn seen(&self) -> impl Iterator<Item = &str> {
        self.index.iter().filter(|&(_, &id)| self.names[id as usize].seen).map(|(name, _)| &**name)
    }

    /// Whether a feature of this name was met.
    pub(super) fn is_met(&self, name: &str) -> bool {
        self.index.get(name).is_some_and(|&id| self.names[id as usize].seen)
    }

    /// A new record starts.
    #[inline]
    pub(super) fn restart(&mut self) {
        self.last = None;
    }

    /// The value of an entry that is the expected one and laid out as usual.
    #[inline]
    pub(super) fn guess<'a>(&mut self, entry: &'a [u8]) -> Option<(u32, Slot, &'a [u8])> {
        let expected = match self.last {
            Some(last) => self.names[last as usize].next?,
            None => self.first?,
        };
        let name = &self.names[expected as usize];
        let mut value = entry.strip_prefix(&*name.head)?;
        let length = wire::varint(&mut value).ok()?;
        if length != value.len() as u64 {
            return None;
        }
        self.last = Some(expected);
        Some((expected, name.slot, value))
    }

    /// Looks a name up, and expects it here from now on. `columns` is the column that a new name gets.
    /// The number is absent where it is not remembered.
    pub(super) fn look_up(&mut self, name: &str, columns: usize) -> (Option<u32>, Slot) {
        let id = match self.index.get(name) {
            Some(&id) => id,
            None if self.names.len() >= MAX_NAMES => return (None, Slot::Ignored),
            None if self.ignores_others => self.insert(name, Slot::Ignored, true),
            None => self.insert(name, Slot::Column(columns as u32), true),
        };
        match self.last {
            Some(last) => self.names[last as usize].next = Some(id),
            None => self.first = Some(id),
        }
        self.last = Some(id);
        let name = &mut self.names[id as usize];
        name.seen = true;
        (Some(id), name.slot)
    }

    /// What a name is for, and its [`Name::head`].
    pub(super) fn get(&self, id: u32) -> (Slot, &[u8]) {
        let name = &self.names[id as usize];
        (name.slot, &name.head)
    }

    fn insert(&mut self, name: &str, slot: Slot, seen: bool) -> u32 {
        let id = self.names.len() as u32;
        self.names.push(Name { head: head(name.as_bytes()), next: None, slot, seen });
        self.index.insert(name.into(), id);
        id
    }
}

/// See [`Name::head`].
fn head(name: &[u8]) -> Box<[u8]> {
    let mut head = vec![0x0a];
    let mut length = name.len();
    while length >= 0x80 {
        head.push(length as u8 | 0x80);
        length >>= 7;
    }
    head.push(length as u8);
    head.extend_from_slice(name);
    head.push(0x12);
    head.into()
}

/// FNV-1a over words: names are short and come from the person's own data.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            self.0 = (self.0 ^ u64::from_le_bytes(padded)).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        }
    }

    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
    }
}
