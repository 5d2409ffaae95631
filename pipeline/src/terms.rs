//! An interner for byte strings: numbers terms in insertion order. Vocabularies look terms up in it, and the
//! analysis counts terms with it.
//!
//! Open addressing over [`fingerprint64`](crate::fingerprint::fingerprint64), with all strings in one arena:
//! a look-up reads one slot and one run of bytes and allocates nothing. The caller passes the fingerprint,
//! which it needs for out-of-vocabulary buckets anyway.
//!
//! hashbrown's table does not replace this one: it needs 4 % more instructions for a look-up and 8 to 20 % more
//! for an insertion, and the analysis prunes by the memory use of this table, which thus determines its results.

/// Interned byte strings.
#[derive(Clone, Debug, Default)]
pub(crate) struct TermTable {
    /// The length is a power of two and at least twice the number of terms; 0 when the table is empty.
    slots: Vec<Slot>,
    /// Term `i` is `bytes[ends[i - 1]..ends[i]]`.
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    fingerprint: u64,
    /// The term's number, or [`VACANT`].
    term: u32,
}

const VACANT: u32 = u32::MAX;

impl TermTable {
    /// The number of terms.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The approximate memory use in bytes, for comparison with a limit.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.ends.len() * size_of::<usize>() + self.slots.len() * size_of::<Slot>()
    }

    /// The term numbered `term`.
    ///
    /// # Panics
    /// If there is no such term.
    pub(crate) fn term(&self, term: u32) -> &[u8] {
        let index = term as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    /// The number of `term`, whose fingerprint is `fingerprint`.
    #[inline]
    pub(crate) fn find(&self, fingerprint: u64, term: &[u8]) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let slot = &self.slots[self.position(fingerprint, term)];
        (slot.term != VACANT).then_some(slot.term)
    }

    /// The number of `term`, added if it is new.
    #[inline]
    pub(crate) fn intern(&mut self, fingerprint: u64, term: &[u8]) -> u32 {
        if self.slots.len() < (self.ends.len() + 1) * 2 {
            self.grow();
        }
        let position = self.position(fingerprint, term);
        let found = self.slots[position].term;
        if found != VACANT {
            return found;
        }
        let number = u32::try_from(self.ends.len()).expect("2^32 terms do not fit in memory");
        self.slots[position] = Slot { fingerprint, term: number };
        self.bytes.extend_from_slice(term);
        self.ends.push(self.bytes.len());
        number
    }

    /// The slot that holds `term`, or else the vacant slot to insert it in.
    #[inline]
    fn position(&self, fingerprint: u64, term: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut position = fingerprint as usize & mask;
        loop {
            let slot = &self.slots[position];
            if slot.term == VACANT || (slot.fingerprint == fingerprint && self.term(slot.term) == term) {
                return position;
            }
            position = (position + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(16);
        let vacant = Slot { fingerprint: 0, term: VACANT };
        let old = std::mem::replace(&mut self.slots, vec![vacant; size]);
        for slot in old.into_iter().filter(|slot| slot.term != VACANT) {
            let mut position = slot.fingerprint as usize & (size - 1);
            while self.slots[position].term != VACANT {
                position = (position + 1) & (size - 1);
            }
            self.slots[position] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::fingerprint::fingerprint64;

    proptest! {
        #[test]
        fn matches_a_plain_list(terms in proptest::collection::vec("[a-c]{0,4}", 0..200)) {
            let mut table = TermTable::default();
            let mut plain: Vec<String> = Vec::new();
            for term in &terms {
                let fingerprint = fingerprint64(term.as_bytes());
                let before = plain.iter().position(|held| held == term);
                prop_assert_eq!(table.find(fingerprint, term.as_bytes()).map(|n| n as usize), before);
                let number = table.intern(fingerprint, term.as_bytes()) as usize;
                if before.is_none() {
                    plain.push(term.clone());
                }
                prop_assert_eq!(&plain[number], term);
                prop_assert_eq!(table.term(number as u32), term.as_bytes());
            }
            prop_assert_eq!(table.len(), plain.len());
        }
    }

    #[test]
    fn equal_fingerprints_are_distinguished_by_bytes() {
        let mut table = TermTable::default();
        assert_eq!(table.intern(7, b"one"), 0);
        assert_eq!(table.intern(7, b"two"), 1);
        assert_eq!(table.find(7, b"one"), Some(0));
        assert_eq!(table.find(7, b"two"), Some(1));
        assert_eq!(table.find(7, b"three"), None);
    }
}
