//! Feature names: the column of each, and the prediction of the next one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::wire;

/// Maximum number of stored names. Further names are ignored, which bounds memory for data with ever new
/// names.
const MAX_NAMES: usize = 4096;
/// Maximum length of a stored name, unless the job names it. Longer names are ignored, like further ones.
const MAX_NAME_BYTES: usize = 1024;

/// The use of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Column(u32),
    Ignored,
}

#[derive(Debug)]
struct Name {
    /// The bytes of a regular entry up to the length of its value: the key's tag, its length, the key, the
    /// value's tag.
    head: Box<[u8]>,
    /// The name that followed this one last time.
    next: Option<u32>,
    slot: Slot,
    seen: bool,
}

/// All seen or projected names, each with the predicted next one.
#[derive(Debug)]
pub(super) struct Names {
    names: Vec<Name>,
    index: HashMap<Box<str>, u32, BuildHasherDefault<NameHasher>>,
    /// The predicted first name of a record.
    first: Option<u32>,
    /// The last name seen in the current record.
    last: Option<u32>,
    ignores_others: bool,
}

impl Names {
    pub(super) fn new() -> Self {
        Self { names: Vec::new(), index: HashMap::default(), first: None, last: None, ignores_others: false }
    }

    /// Maps a name to a column.
    pub(super) fn project(&mut self, name: &str, column: usize) {
        self.insert(name, Slot::Column(column as u32), false);
    }

    /// Ignores unknown names from now on, instead of adding a column for each.
    pub(super) fn ignore_others(&mut self) {
        self.ignores_others = true;
    }

    /// Names of seen features.
    pub(super) fn seen(&self) -> impl Iterator<Item = &str> {
        self.index.iter().filter(|&(_, &id)| self.names[id as usize].seen).map(|(name, _)| &**name)
    }

    /// Whether a feature of this name was seen.
    pub(super) fn was_seen(&self, name: &str) -> bool {
        self.index.get(name).is_some_and(|&id| self.names[id as usize].seen)
    }

    /// Starts a new record.
    #[inline]
    pub(super) fn restart(&mut self) {
        self.last = None;
    }

    /// The name and value of a regular entry with the predicted name.
    #[inline]
    pub(super) fn predict<'a>(&mut self, entry: &'a [u8]) -> Option<(u32, Slot, &'a [u8])> {
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

    /// Looks a name up and predicts it at this position from now on. A new name gets column `columns`. The id is
    /// absent if the name is not stored.
    pub(super) fn look_up(&mut self, name: &str, columns: usize) -> (Option<u32>, Slot) {
        let id = match self.index.get(name) {
            Some(&id) => id,
            None if self.names.len() >= MAX_NAMES || name.len() > MAX_NAME_BYTES => {
                return (None, Slot::Ignored);
            }
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

    /// The use of a name, and its [`Name::head`].
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

/// FNV-1a over words: names are short and come from trusted data.
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
