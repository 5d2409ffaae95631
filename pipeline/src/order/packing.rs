//! Packs documents into sequences of one length.
//!
//! Language models read sequences of tokens of one length, and documents have any. The documents of a window, in
//! the order of its permutation, become sequences:
//!
//! * **Best fit**, decreasing: a document that is longer than a sequence is cut into pieces that fill sequences, and a
//!   rest. Rests and shorter documents, by descending length, each go into the sequence with the least space that
//!   suffices, or begin one. No document is cut that fits into a sequence (Ding et al., "Fewer Truncations Improve
//!   Language Modeling", 2024).
//! * **Concatenation**: documents follow each other and are cut where a sequence is full.
//!
//! The sequences of a window are then permuted too. Nothing is carried from one window to the next, so a window of
//! sequences is identified by its first document, as every window is, and a position need not know tokens.
//!
//! Invariants: each token of a window is in exactly one sequence; the pieces of a document are in its order; the result
//! is a function of the lengths and the random numbers of the window alone.

use std::cmp::Reverse;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// How documents are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// Best fit, decreasing.
    BestFit,
    /// Concatenation.
    Concatenate,
}

/// Consecutive tokens of a document, in one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The place of the document in the window.
    pub(crate) document: u32,
    /// Its first token.
    pub(crate) start: u32,
    /// The number of its tokens, at least 1.
    pub(crate) length: u32,
}

/// The sequences of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedPieces {
    /// The pieces of all sequences. Those of a sequence are adjacent, in their order in it.
    pub(crate) pieces: Vec<Piece>,
    /// The pieces of each sequence.
    pub(crate) sequences: Vec<Range<u32>>,
}

/// Memory per document, in bytes: its rest, also while it is sorted and gathered, and the sequence of that, with its place
/// among the open ones.
pub(crate) const DOCUMENT_BYTES: u64 =
    (3 * size_of::<Piece>() + size_of::<Range<u32>>() + 4 * size_of::<u32>()) as u64;

/// Memory per piece that fills a sequence, in vectors that grow.
pub(crate) const FULL_BYTES: u64 = 2 * (size_of::<Piece>() + size_of::<Range<u32>>()) as u64;

/// Working memory to pack a window into sequences of at most `most` tokens: the open sequences by their space.
pub(crate) fn working_bytes(most: u32) -> u64 {
    (u64::from(most) + 1) * size_of::<u32>() as u64 * 33 / 32
}

impl Packing {
    /// Packs documents of these `lengths` into sequences of at most `most` tokens, which must be at least 1.
    pub(crate) fn pack(self, lengths: impl Iterator<Item = u32>, most: u32) -> PackedPieces {
        let mut packed = PackedPieces::default();
        match self {
            Self::BestFit => packed.best_fit(lengths, most),
            Self::Concatenate => packed.concatenate(lengths, most),
        }
        packed
    }
}

impl PackedPieces {
    fn concatenate(&mut self, lengths: impl Iterator<Item = u32>, most: u32) {
        let mut space = most;
        for (document, document_length) in (0..).zip(lengths) {
            let mut start = 0;
            while start < document_length {
                let length = space.min(document_length - start);
                self.pieces.push(Piece { document, start, length });
                (start, space) = (start + length, space - length);
                if space == 0 {
                    self.end_sequence();
                    space = most;
                }
            }
        }
        if space < most {
            self.end_sequence();
        }
    }

    fn best_fit(&mut self, lengths: impl Iterator<Item = u32>, most: u32) {
        let mut rests: Vec<Piece> = Vec::with_capacity(lengths.size_hint().0);
        for (document, length) in (0..).zip(lengths) {
            let rest = length % most;
            for start in (0..length - rest).step_by(most as usize) {
                self.pieces.push(Piece { document, start, length: most });
                self.end_sequence();
            }
            if rest > 0 {
                rests.push(Piece { document, start: length - rest, length: rest });
            }
        }
        // A stable sort: of equal lengths, the first of the window's permutation goes first.
        rests.sort_by_key(|piece| Reverse(piece.length));
        let mut open = OpenSequences::new(most);
        let sequence_of: Vec<u32> = rests.iter().map(|piece| open.place(piece.length)).collect();
        // Pieces are gathered by sequence.
        let first = self.pieces.len() as u32;
        let mut ends = vec![0_u32; open.count() + 1];
        sequence_of.iter().for_each(|&sequence| ends[sequence as usize + 1] += 1);
        let mut end = first;
        for count in &mut ends {
            end += *count;
            *count = end;
        }
        self.sequences.extend(ends.windows(2).map(|ends| ends[0]..ends[1]));
        self.pieces.resize(end as usize, Piece { document: 0, start: 0, length: 0 });
        for (piece, sequence) in rests.into_iter().zip(sequence_of) {
            let next = &mut ends[sequence as usize];
            self.pieces[*next as usize] = piece;
            *next += 1;
        }
    }

    /// Ends a sequence, of the pieces since the last one.
    fn end_sequence(&mut self) {
        let first = self.sequences.last().map_or(0, |last| last.end);
        self.sequences.push(first..self.pieces.len() as u32);
    }
}

/// Sequences that have space left. Finding the one with the least space that suffices takes a time that does not depend
/// on their number.
struct OpenSequences {
    /// By space, the sequence that came to have it last.
    last: Vec<u32>,
    /// By sequence, the one that came to have the same space before it.
    earlier: Vec<u32>,
    /// A bit for each space that a sequence has. A bit of each further level stands for 64 bits of the level before.
    levels: Vec<Vec<u64>>,
}

/// No sequence.
const NONE: u32 = u32::MAX;

impl OpenSequences {
    /// No sequences; each that begins has space for `most` tokens.
    fn new(most: u32) -> Self {
        let spaces = most as usize + 1;
        let mut levels = Vec::new();
        let mut bits = spaces;
        loop {
            bits = bits.div_ceil(64);
            levels.push(vec![0; bits]);
            if bits == 1 {
                break;
            }
        }
        Self { last: vec![NONE; spaces], earlier: Vec::new(), levels }
    }

    /// The number of sequences.
    fn count(&self) -> usize {
        self.earlier.len()
    }

    /// Places `length` tokens; returns the number of their sequence.
    fn place(&mut self, length: u32) -> u32 {
        let (sequence, space) = match self.least_space(length as usize) {
            Some(space) => (self.take(space), space),
            None => {
                self.earlier.push(NONE);
                (self.earlier.len() as u32 - 1, self.last.len() - 1)
            }
        };
        let left = space - length as usize;
        if left > 0 {
            self.put(sequence, left);
        }
        sequence
    }

    /// The least space of a sequence of at least `least`.
    fn least_space(&self, least: usize) -> Option<usize> {
        let mut place = least;
        // Up to a level that has a bit at or after the place, and down to the first of its bits.
        for (level, words) in self.levels.iter().enumerate() {
            let following = words.get(place / 64)? & (u64::MAX << (place % 64));
            if following == 0 {
                place = place / 64 + 1;
                continue;
            }
            let first = place / 64 * 64 + following.trailing_zeros() as usize;
            let lower = self.levels[..level].iter().rev();
            return Some(lower.fold(first, |word, words| word * 64 + words[word].trailing_zeros() as usize));
        }
        None
    }

    fn put(&mut self, sequence: u32, space: usize) {
        self.earlier[sequence as usize] = std::mem::replace(&mut self.last[space], sequence);
        let mut place = space;
        for words in &mut self.levels {
            words[place / 64] |= 1 << (place % 64);
            place /= 64;
        }
    }

    /// Removes the last sequence with this space.
    fn take(&mut self, space: usize) -> u32 {
        let sequence = self.last[space];
        self.last[space] = self.earlier[sequence as usize];
        if self.last[space] == NONE {
            let mut place = space;
            for words in &mut self.levels {
                words[place / 64] &= !(1 << (place % 64));
                if words[place / 64] != 0 {
                    break;
                }
                place /= 64;
            }
        }
        sequence
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The pieces of each sequence.
    fn sequences(packed: &PackedPieces) -> Vec<&[Piece]> {
        let of = |range: &Range<u32>| &packed.pieces[range.start as usize..range.end as usize];
        packed.sequences.iter().map(of).collect()
    }

    /// Best fit, decreasing, by looking at all sequences for each piece. Of sequences with the same space, it takes the
    /// one that came to have it last.
    fn plain_best_fit(lengths: &[u32], most: u32) -> Vec<Vec<Piece>> {
        let mut whole = Vec::new();
        let mut rests = Vec::new();
        for (document, &length) in (0..).zip(lengths) {
            let mut start = 0;
            while length - start >= most {
                whole.push(vec![Piece { document, start, length: most }]);
                start += most;
            }
            if length > start {
                rests.push(Piece { document, start, length: length - start });
            }
        }
        rests.sort_by_key(|piece| Reverse(piece.length));
        // The space of each, the time of its last change, and its pieces.
        let mut open: Vec<(u32, usize, Vec<Piece>)> = Vec::new();
        for (time, piece) in rests.into_iter().enumerate() {
            let fitting = open.iter_mut().filter(|(space, ..)| *space >= piece.length);
            match fitting.min_by_key(|(space, changed, _)| (*space, Reverse(*changed))) {
                Some((space, changed, pieces)) => {
                    (*space, *changed) = (*space - piece.length, time);
                    pieces.push(piece);
                }
                None => open.push((most - piece.length, time, vec![piece])),
            }
        }
        whole.into_iter().chain(open.into_iter().map(|(.., pieces)| pieces)).collect()
    }

    proptest! {
        #[test]
        fn best_fit_equals_a_search_of_all_sequences(
            (most, lengths) in prop_oneof![1_u32..9, 60..70_u32, 4000..5000_u32].prop_flat_map(|most| {
                (Just(most), prop::collection::vec(prop_oneof![0..=3 * most, 0..=most, 0..=most / 4], 0..300))
            }),
        ) {
            let packed = Packing::BestFit.pack(lengths.iter().copied(), most);
            let found = sequences(&packed);
            let expected = plain_best_fit(&lengths, most);
            prop_assert_eq!(found, expected.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }

        #[test]
        fn each_token_is_in_one_sequence(
            most in 1_u32..40, lengths in prop::collection::vec(0_u32..100, 0..60), best_fit in any::<bool>(),
        ) {
            let packing = if best_fit { Packing::BestFit } else { Packing::Concatenate };
            let packed = packing.pack(lengths.iter().copied(), most);
            let mut next = vec![0; lengths.len()];
            let sequences = sequences(&packed);
            for (number, pieces) in sequences.iter().enumerate() {
                let tokens: u32 = pieces.iter().map(|piece| piece.length).sum();
                prop_assert!((1..=most).contains(&tokens));
                prop_assert!(best_fit || tokens == most || number == sequences.len() - 1);
                prop_assert!(pieces.iter().all(|piece| piece.length > 0));
            }
            let mut pieces: Vec<&Piece> = sequences.into_iter().flatten().collect();
            if !best_fit {
                prop_assert!(pieces.is_sorted_by_key(|piece| (piece.document, piece.start)));
            }
            pieces.sort_by_key(|piece| (piece.document, piece.start));
            for piece in &pieces {
                let next = &mut next[piece.document as usize];
                prop_assert_eq!(piece.start, *next);
                *next += piece.length;
            }
            prop_assert_eq!(&next, &lengths);
            let cut = pieces.iter().filter(|piece| piece.start > 0);
            prop_assert!(!best_fit || cut.into_iter().all(|piece| lengths[piece.document as usize] > most));
        }
    }

    #[test]
    fn best_fit_leaves_little_padding() {
        // Lognormal lengths with a median of 545 would need a generator of normals; products of uniform ones are as
        // skewed.
        let mut random = crate::order::random::Random::keyed(crate::order::random::Domain::Window, &[1]);
        let mut lengths = Vec::new();
        for _ in 0..4096 {
            lengths.push((random.below(2000) * random.below(1000) / 1000 + 1) as u32);
        }
        let packed = Packing::BestFit.pack(lengths.iter().copied(), 2048);
        let (tokens, room) = (lengths.iter().sum::<u32>(), packed.sequences.len() as u32 * 2048);
        assert!(f64::from(room - tokens) / f64::from(room) < 0.002, "{tokens} tokens of {room}");
    }
}
