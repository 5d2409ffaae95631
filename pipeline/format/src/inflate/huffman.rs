//! Lookup tables for deflate's prefix codes: the next bits of the stream index a table, and the entry describes the
//! symbol.
//!
//! The first-level table decodes codes of up to 11 bits (lengths and literals) or 9 bits (distances) with one lookup.
//! Longer codes are rare and continue in a second-level table, stored after the first (as in zlib's inftrees.c). An
//! entry has 32 bits:
//!
//! ```text
//! literal          1 | 0     | the byte, at 16    | bits of the code, at 8  | the same
//! length, distance 0 | its base value, at 16      | bits of the code, at 8  | bits of code and extra bits
//! end of block     0 | END
//! second table     0 | its offset, at 16          | bits of its index, at 8 | SECOND and bits consumed so far
//! no such code     0 | NONE
//! ```
//!
//! Source: RFC 1951.

/// Index bits of the first-level table for literals and lengths.
pub(super) const LITERAL_BITS: u32 = 11;
/// Index bits of the first-level table for distances.
pub(super) const DISTANCE_BITS: u32 = 9;
/// Enough entries for any code (zlib's `enough.c` for 288 symbols, rounded up).
const LITERAL_ENTRIES: usize = 2400;
/// The same for 32 symbols.
const DISTANCE_ENTRIES: usize = 608;
/// The maximum length of a code in bits.
const MOST_BITS: usize = 15;

/// The entry is a literal byte.
pub(super) const LITERAL: u32 = 1 << 31;
/// The entry is neither a literal nor a length or distance.
pub(super) const SPECIAL: u32 = 1 << 15;
/// The end of the block.
pub(super) const END: u32 = SPECIAL | 1 << 14;
/// The code continues in a second-level table.
pub(super) const SECOND: u32 = SPECIAL | 1 << 13;

/// A description of damage.
pub(super) type Fault = &'static str;

/// The codes of a block.
pub(super) struct Codes {
    pub(super) literals: [u32; LITERAL_ENTRIES],
    pub(super) distances: [u32; DISTANCE_ENTRIES],
}

const LENGTH_BASES: [u16; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195,
    227, 258,
];
const LENGTH_EXTRAS: [u8; 29] =
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const DISTANCE_BASES: [u16; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073,
    4097, 6145, 8193, 12289, 16385, 24577,
];

impl Codes {
    pub(super) fn new() -> Self {
        Self { literals: [SPECIAL; LITERAL_ENTRIES], distances: [SPECIAL; DISTANCE_ENTRIES] }
    }

    /// Sets the fixed codes, for a block that does not define its own.
    pub(super) fn set_fixed(&mut self) -> Result<(), Fault> {
        let mut lengths = [8; 288];
        lengths[144..256].fill(9);
        lengths[256..280].fill(7);
        self.set(&lengths, &[5; 32])
    }

    /// Sets the codes with these lengths by symbol; 0 means that the symbol does not occur.
    pub(super) fn set(&mut self, literals: &[u8], distances: &[u8]) -> Result<(), Fault> {
        if literals.get(256).is_none_or(|&length| length == 0) {
            return Err("a block has no end-of-block code");
        }
        build(&mut self.literals, LITERAL_BITS, literals, |symbol| match symbol {
            0..256 => LITERAL | (symbol as u32) << 16,
            256 => END,
            _ => match LENGTH_BASES.get(symbol - 257) {
                Some(&base) => u32::from(base) << 16 | u32::from(LENGTH_EXTRAS[symbol - 257]),
                None => SPECIAL,
            },
        })?;
        build(&mut self.distances, DISTANCE_BITS, distances, |symbol| match DISTANCE_BASES.get(symbol) {
            Some(&base) => u32::from(base) << 16 | (symbol as u32 / 2).saturating_sub(1),
            None => SPECIAL,
        })
    }
}

/// The table of the code in which the lengths of the other codes are encoded. Its codes have up to 7 bits. For each
/// value of the next 7 bits, an entry holds the symbol at bit 3 and the code length in the lower bits; 0 if there is no
/// code.
pub(super) fn lengths_code(lengths: &[u8; 19]) -> Result<[u8; 128], Fault> {
    let mut table = [SPECIAL; 128];
    build(&mut table, 7, lengths, |symbol| (symbol as u32) << 16)?;
    // Here, a single code of one bit is invalid.
    if lengths.iter().filter(|&&length| length > 0).count() == 1 {
        return Err("a block's codes are incomplete");
    }
    Ok(table.map(|entry| if entry == SPECIAL { 0 } else { (entry >> 13) as u8 | (entry & 7) as u8 }))
}

/// Fills a table; `first_bits` index its first level. `entry` returns a symbol's entry, with its extra bits in the
/// lowest byte.
fn build(
    table: &mut [u32],
    first_bits: u32,
    lengths: &[u8],
    entry: impl Fn(usize) -> u32,
) -> Result<(), Fault> {
    let mut left = [0usize; MOST_BITS + 1];
    for &length in lengths {
        left[usize::from(length)] += 1;
    }
    left[0] = 0;
    let most = left.iter().rposition(|&count| count > 0).unwrap_or(0);
    check_complete(&left, most)?;

    // Symbols sorted by code length: the canonical order.
    let mut places = [0usize; MOST_BITS + 2];
    for length in 1..=MOST_BITS {
        places[length + 1] = places[length] + left[length];
    }
    let used = places[MOST_BITS + 1];
    let mut sorted = [0u16; 288];
    for (symbol, &length) in lengths.iter().enumerate().filter(|&(_, &length)| length > 0) {
        sorted[places[usize::from(length)]] = symbol as u16;
        places[usize::from(length)] += 1;
    }

    let first_entries = 1usize << first_bits;
    table[..first_entries].fill(SPECIAL);
    let mut second = Second { prefix: usize::MAX, start: first_entries, bits: 0 };
    let (mut code, mut code_bits) = (0u32, 0u32);
    for &symbol in &sorted[..used] {
        let bits = u32::from(lengths[usize::from(symbol)]);
        code <<= bits - code_bits;
        code_bits = bits;
        // A stream stores the first bit of a code in the lowest position.
        let reversed = (code.reverse_bits() >> (32 - bits)) as usize;
        let entry = entry(usize::from(symbol));
        if bits <= first_bits {
            let entry = of_bits(entry, bits);
            table[..first_entries].iter_mut().skip(reversed).step_by(1 << bits).for_each(|at| *at = entry);
        } else {
            let prefix = reversed & (first_entries - 1);
            if prefix != second.prefix {
                second = second.next(prefix, bits - first_bits, first_bits, &left, most);
                table[prefix] = SECOND | (second.start as u32) << 16 | second.bits << 8 | first_bits;
                let entries = table.get_mut(second.start..second.start + (1 << second.bits));
                entries.ok_or("a block has too many codes")?.fill(SPECIAL);
            }
            let bits = bits - first_bits;
            let entry = of_bits(entry, bits);
            let entries = &mut table[second.start..second.start + (1 << second.bits)];
            entries.iter_mut().skip(reversed >> first_bits).step_by(1 << bits).for_each(|at| *at = entry);
        }
        left[code_bits as usize] -= 1;
        code += 1;
    }
    Ok(())
}

/// A symbol's entry for a code with `bits` bits in this table.
fn of_bits(entry: u32, bits: u32) -> u32 {
    if entry & SPECIAL == 0 { entry + bits + (bits << 8) } else { entry + bits }
}

/// A second-level table under construction, for the codes that start with `prefix`.
struct Second {
    prefix: usize,
    start: usize,
    bits: u32,
}

impl Second {
    /// The next second-level table, after this one: wide enough for the longest remaining code with the prefix.
    fn next(self, prefix: usize, least: u32, first_bits: u32, left: &[usize], most: usize) -> Self {
        let start = self.start + if self.bits > 0 { 1 << self.bits } else { 0 };
        let mut bits = least;
        let mut room = 1i64 << bits;
        while ((bits + first_bits) as usize) < most {
            room -= left[(bits + first_bits) as usize] as i64;
            if room <= 0 {
                break;
            }
            bits += 1;
            room <<= 1;
        }
        Self { prefix, start, bits }
    }
}

/// Checks that every bit sequence has a meaning, except if there is a single code of one bit or no code.
fn check_complete(counts: &[usize; MOST_BITS + 1], most: usize) -> Result<(), Fault> {
    let mut room = 1i64;
    for &count in &counts[1..] {
        room = (room << 1) - count as i64;
        if room < 0 {
            return Err("a block's codes are oversubscribed");
        }
    }
    if room > 0 && most > 1 { Err("a block's codes are incomplete") } else { Ok(()) }
}
