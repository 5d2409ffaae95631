//! Fingerprints of short texts, many at a time.
//!
//! Ids and codes mostly have at most 16 bytes, and their fingerprint depends on two 8-byte words. The words
//! of a block of texts are loaded first, ignoring where each text ends; bytes past its end are then
//! cleared, and the fingerprints are computed in parallel in vector registers. If a block contains a longer
//! text, its ids are recomputed one at a time.

use arrow_array::OffsetSizeTrait;

use super::column::resized;
use super::simd;
use crate::fingerprint::{Modulus, fingerprint_of_words, fingerprint64};

/// Texts per block.
const BLOCK: usize = 16;

/// Bytes per word.
const WORD: usize = 8;

/// The words of a block's texts; see [`fingerprint_of_words`].
struct Words {
    first: [u64; BLOCK],
    last: [u64; BLOCK],
    lengths: [u64; BLOCK],
}

/// Each text's fingerprint, reduced. Text `i` is `bytes[offsets[i]..offsets[i + 1]]`. Reuses the buffer
/// `spare`.
pub(crate) fn ids<O: OffsetSizeTrait>(
    offsets: &[O],
    bytes: &[u8],
    modulus: Modulus,
    spare: Vec<u32>,
) -> Vec<u32> {
    let mut ids = resized(spare, offsets.len().saturating_sub(1));
    simd::run(
        #[inline(always)]
        || each(offsets, bytes, &mut ids, modulus),
    );
    ids
}

#[inline(always)]
fn each<O: OffsetSizeTrait>(offsets: &[O], bytes: &[u8], ids: &mut [u32], modulus: Modulus) {
    let mut at = 0;
    if bytes.len() >= WORD {
        let mut words = Words { first: [0; BLOCK], last: [0; BLOCK], lengths: [0; BLOCK] };
        let empty = modulus.reduce(fingerprint64(b""));
        for ids in ids.as_chunks_mut::<BLOCK>().0 {
            let offsets = &offsets[at..][..BLOCK + 1];
            let (least, most) = words.load(offsets, bytes);
            let all_long = least >= WORD as u64;
            if all_long {
                words.reduce(ids, modulus, true);
            } else {
                words.reduce(ids, modulus, false);
            }
            if most > 2 * WORD as u64 {
                scalar_ids(offsets, bytes, ids, modulus);
            } else if least == 0 {
                words.set_empty(ids, empty);
            }
            at += BLOCK;
        }
    }
    scalar_ids(&offsets[at..], bytes, &mut ids[at..], modulus);
}

/// The scalar reference.
#[inline(always)]
fn scalar_ids<O: OffsetSizeTrait>(offsets: &[O], bytes: &[u8], ids: &mut [u32], modulus: Modulus) {
    for (id, ends) in ids.iter_mut().zip(offsets.windows(2)) {
        *id = modulus.reduce(fingerprint64(&bytes[ends[0].as_usize()..ends[1].as_usize()]));
    }
}

impl Words {
    /// Loads a block of texts. Returns the lengths of the shortest and the longest.
    #[inline(always)]
    fn load<O: OffsetSizeTrait>(&mut self, offsets: &[O], bytes: &[u8]) -> (u64, u64) {
        let (mut least, mut most) = (u64::MAX, 0);
        let furthest = bytes.len() - WORD;
        for i in 0..BLOCK {
            let (start, end) = (offsets[i].as_usize(), offsets[i + 1].as_usize());
            let length = (end - start) as u64;
            let from = start.min(furthest);
            self.first[i] = word(bytes, from).unbounded_shr((start - from) as u32 * 8);
            self.last[i] = word(bytes, end.saturating_sub(WORD));
            self.lengths[i] = length;
            (least, most) = (least.min(length), most.max(length));
        }
        (least, most)
    }

    /// Sets the id of empty texts, which include absent ones.
    #[inline(always)]
    fn set_empty(&self, ids: &mut [u32; BLOCK], empty: u32) {
        for (id, &length) in ids.iter_mut().zip(&self.lengths) {
            *id = if length == 0 { empty } else { *id };
        }
    }

    /// The ids of texts of 1 to 16 bytes. `all_long` asserts that all have at least 8. Other lengths get an
    /// arbitrary id.
    #[inline(always)]
    fn reduce(&self, ids: &mut [u32; BLOCK], modulus: Modulus, all_long: bool) {
        for (i, id) in ids.iter_mut().enumerate() {
            let length = self.lengths[i];
            let beyond = u64::MAX.unbounded_shl(length.min(8) as u32 * 8);
            let first = self.first[i] & !beyond;
            let last = if length >= WORD as u64 { self.last[i] } else { first };
            *id = modulus.reduce_in_halves(fingerprint_of_words(first, last, length, all_long));
        }
    }
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + WORD].try_into().expect("a slice of 8 bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(texts: &[Vec<u8>], before: &[u8], after: &[u8], buckets: u32) {
        let bytes = [before, &texts.concat(), after].concat();
        let ends = texts.iter().scan(before.len(), |end, text| {
            *end += text.len();
            Some(*end as i32)
        });
        let offsets: Vec<i32> = std::iter::once(before.len() as i32).chain(ends).collect();
        let plain: Vec<u32> = texts.iter().map(|text| crate::fingerprint::bucket(text, buckets)).collect();
        assert_eq!(ids(&offsets, &bytes, Modulus::new(buckets), vec![7; 3]), plain);
    }

    proptest! {
        #[test]
        fn matches_the_scalar_reference(
            lengths in prop_oneof![Just(0..=16), Just(8..=8), Just(8..=16), Just(1..=3), Just(0..=70)],
            seed in proptest::collection::vec(any::<[u8; 70]>(), 0..70),
            picks in proptest::collection::vec(any::<proptest::sample::Index>(), 70),
            before in proptest::collection::vec(any::<u8>(), 0..12),
            after in proptest::collection::vec(any::<u8>(), 0..12),
            buckets in 1..=u32::MAX,
        ) {
            let least = *lengths.start();
            let span = lengths.end() - least + 1;
            let texts: Vec<Vec<u8>> = seed
                .iter()
                .zip(&picks)
                .map(|(bytes, pick)| bytes[..least + pick.index(span)].to_vec())
                .collect();
            check(&texts, &before, &after, buckets);
        }
    }

    #[test]
    fn never_reads_past_the_end_of_the_buffer() {
        for length in 0..20 {
            check(&vec![vec![b'7'; length]; BLOCK], &[], &[], 1000);
        }
    }
}
