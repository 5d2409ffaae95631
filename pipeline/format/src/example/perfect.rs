//! A hash of names without collisions, for names that are known in advance.
//!
//! An entry's name is hashed by at most three words of eight bytes and its length, so the cost does not depend on the
//! length and there is no loop:
//!
//! ```text
//! name                  f e a t u r e _ 1 7 _ n o r m a l i z e d
//! first eight bytes     ^^^^^^^^^^^^^^^
//! from the pivot                    ^^^^^^^^^^^^^^^
//! last eight bytes                                ^^^^^^^^^^^^^^^
//! ```
//!
//! Names of up to eight letters are one word, zero-padded. Up to sixteen, the first and the last eight letters are all.
//! Longer ones may agree in both, as `feature_1_normalized` and `feature_2_normalized` do; then a third word is added,
//! at a pivot chosen such that all names differ.
//!
//! Multipliers are tried until the upper bits of the product differ as well. For `n` names and a table of `t` entries
//! about one in `e^(n^2 / 2t)` suits. The table has at least `4n` entries and doubles as long as none of a few does.
//!
//! The hash only proposes a name, possibly for bytes that are no name at all: the caller compares.

/// Bytes of an entry, from its key, that [`PerfectHash::find`] may read: `0a n name` with up to 127 letters, and the
/// bytes before the value.
pub(super) const WINDOW: usize = 144;
/// The longest name.
pub(super) const MAX_NAME: usize = 127;
/// Names of up to this length are one word.
pub(super) const SHORT_NAME: usize = 8;
/// Names of up to this length are two words if those distinguish them.
pub(super) const MEDIUM_NAME: usize = 24;
/// Maximum number of names. The search for a multiplier takes exponentially long for more.
pub(super) const MAX_NAMES: usize = 1024;

/// Binary logarithm of the largest table.
const MAX_BITS: u32 = 16;
/// Multipliers tried per size of the table, except the largest.
const TRIES: u64 = 64;
/// Multipliers tried for the largest table. About one in 3,000 suits 1024 names.
const LAST_TRIES: u64 = 50_000;

/// Maps the names to numbers from 1 in their order, and all other bytes to any number up to theirs or 0.
#[derive(Debug)]
pub(super) struct PerfectHash {
    multiplier: u64,
    shift: u32,
    /// Number of words.
    words: usize,
    pivot: usize,
    table: Vec<u16>,
}

impl PerfectHash {
    /// A hash of these names, each of 1 to [`MAX_NAME`] bytes; at most [`MAX_NAMES`], all different. `None` if no three
    /// words distinguish them, or in the rare case that no multiplier was found.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let entries: Vec<[u8; WINDOW]> = names.map(entry_of).collect();
        let longest = entries.iter().map(|entry| usize::from(entry[1])).max().unwrap_or(0);
        let (words, pivot, mixed) = if longest <= SHORT_NAME {
            (1, 0, mix_all::<1>(&entries, 0)?)
        } else if longest <= MEDIUM_NAME
            && let Some(mixed) = mix_all::<2>(&entries, 0)
        {
            (2, 0, mixed)
        } else {
            (0..MAX_NAME).step_by(4).find_map(|pivot| Some((3, pivot, mix_all::<3>(&entries, pivot)?)))?
        };
        let least_bits = (4 * mixed.len() + 1).next_power_of_two().trailing_zeros().min(MAX_BITS);
        let mut multiplier = 0x9e37_79b9_7f4a_7c15_u64;
        for bits in least_bits..=MAX_BITS {
            let shift = 64 - bits;
            for _ in 0..if bits == MAX_BITS { LAST_TRIES } else { TRIES } {
                if let Some(table) = table_of(&mixed, multiplier, shift) {
                    return Some(Self { multiplier, shift, words, pivot, table });
                }
                multiplier =
                    multiplier.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x2545_f491_4f6c_dd1e) | 1;
            }
        }
        None
    }

    /// The number of words that [`PerfectHash::find`] must use: 1 if all names are short; 2 only if none is longer than
    /// [`MEDIUM_NAME`]; or 3.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// The number of the entry's name if it is one of the names, else any. `entry` starts with `0a n name`.
    #[inline(always)]
    pub(super) fn find<const WORDS: usize>(&self, entry: &[u8; WINDOW]) -> usize {
        let slot = mix::<WORDS>(entry, self.pivot).wrapping_mul(self.multiplier) >> self.shift;
        self.table.get(slot as usize).map_or(0, |&number| usize::from(number))
    }
}

/// The start of an entry with this name.
fn entry_of(name: &[u8]) -> [u8; WINDOW] {
    let mut entry = [0; WINDOW];
    let kept = name.len().min(MAX_NAME);
    entry[0] = 0x0a;
    entry[1] = kept as u8;
    entry[2..2 + kept].copy_from_slice(&name[..kept]);
    entry
}

/// The words of all names; `None` if two are equal.
fn mix_all<const WORDS: usize>(entries: &[[u8; WINDOW]], pivot: usize) -> Option<Vec<u64>> {
    let mixed: Vec<u64> = entries.iter().map(|entry| mix::<WORDS>(entry, pivot)).collect();
    let mut sorted = mixed.clone();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1]).then_some(mixed)
}

/// A table with the number of each name at its slot; `None` if two have the same.
fn table_of(mixed: &[u64], multiplier: u64, shift: u32) -> Option<Vec<u16>> {
    let mut taken = vec![0u64; 1 << (MAX_BITS - 6)];
    for mixed in mixed {
        let slot = (mixed.wrapping_mul(multiplier) >> shift) as usize;
        let (word, bit) = (&mut taken[slot / 64], 1 << (slot % 64));
        if *word & bit != 0 {
            return None;
        }
        *word |= bit;
    }
    let mut table = vec![0; 1 << (64 - shift)];
    for (mixed, number) in mixed.iter().zip(1..) {
        table[(mixed.wrapping_mul(multiplier) >> shift) as usize] = number;
    }
    Some(table)
}

/// Combines the words of a name.
#[inline(always)]
fn mix<const WORDS: usize>(entry: &[u8; WINDOW], pivot: usize) -> u64 {
    // Bytes beyond the longest name make any number, and no index is out of bounds.
    let length = usize::from(entry[1]) % (MAX_NAME + 1);
    let mask = u64::MAX.wrapping_shr(64 - 8 * length.min(SHORT_NAME) as u32);
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| entry[2 + at + byte])) & mask;
    let first = word(0);
    if WORDS == 1 {
        return first ^ length as u64;
    }
    let last_at = length.max(SHORT_NAME) - SHORT_NAME;
    let two = first ^ word(last_at).rotate_left(23) ^ (length as u64) << 3;
    if WORDS == 2 { two } else { two ^ word(pivot.min(last_at)).rotate_left(41) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[String]) -> Option<Vec<usize>> {
        let hash = PerfectHash::new(names.iter().map(String::as_bytes))?;
        let find = |name: &String| {
            let entry = entry_of(name.as_bytes());
            match hash.words() {
                1 => hash.find::<1>(&entry),
                2 => hash.find::<2>(&entry),
                _ => hash.find::<3>(&entry),
            }
        };
        Some(names.iter().map(find).collect())
    }

    #[test]
    fn each_name_has_its_number() {
        let sets: [Vec<String>; 7] = [
            (1..=40).map(|number| format!("c{number}")).collect(),
            (1..=40).map(|number| format!("i{number}_of_click")).collect(),
            (1..=40).map(|number| format!("feature_{number}_normalized")).collect(),
            (1..=MAX_NAMES).map(|number| format!("user_history_{number:04}_of_the_last_days")).collect(),
            (1..=MAX_NAME).map(|length| "a".repeat(length)).collect(),
            (1..=9).map(|number| "x".repeat(119) + &number.to_string() + "yyyyyyy").collect(),
            vec![],
        ];
        for names in sets {
            assert_eq!(found(&names), Some((1..=names.len()).collect()), "{:?}", names.first());
        }
    }

    #[test]
    fn names_that_differ_in_more_than_three_words_have_no_hash() {
        let name = |a: u8, b: u8| format!("{0}{a}{0}{b}{0}", "z".repeat(16));
        let names: Vec<String> = (0..4).map(|bits| name(bits & 1, bits >> 1)).collect();
        assert_eq!(found(&names), None);
    }
}
