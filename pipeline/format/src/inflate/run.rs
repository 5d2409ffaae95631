//! The inner loop: decodes symbols and copies matches while eight bytes of input are left and the output has room.

use super::huffman::{Codes, DISTANCE_BITS, END, Fault, LITERAL, LITERAL_BITS, SECOND, SPECIAL};
use super::{COPY_BYTES, NO_CODE, OUTPUT_BYTES, TOO_FAR, WINDOW_BYTES};

/// The position in the input and in the output.
pub(super) struct Place {
    pub(super) bits: u64,
    pub(super) held: u32,
    /// Bytes consumed from the piece.
    pub(super) taken: usize,
    pub(super) written: usize,
}

/// The bit buffer of the loop; between two refills it holds at least one symbol.
struct Bits<'a> {
    piece: &'a [u8],
    taken: usize,
    bits: u64,
    /// The number of held bits is in the lowest six bits, so that a whole entry can be subtracted.
    held: u32,
}

impl Bits<'_> {
    /// Refills whole bytes to at least 56 bits. Bits above the count are loaded again next time. Returns false if fewer
    /// than eight bytes of the piece are left.
    #[inline(always)]
    fn refill(&mut self) -> bool {
        let Some(word) = self.piece.get(self.taken..).and_then(|rest| rest.first_chunk()) else {
            return false;
        };
        let held = self.held & 63;
        self.bits |= u64::from_le_bytes(*word) << held;
        self.taken += (63 - held as usize) >> 3;
        self.held = held | 56;
        true
    }

    /// Consumes the number of bits given by an entry.
    #[inline(always)]
    fn take(&mut self, entry: u32) {
        self.bits = self.bits.wrapping_shr(entry);
        self.held = self.held.wrapping_sub(entry);
    }

    /// The entry in the second-level table that `entry` refers to; does not consume its bits.
    #[inline(always)]
    fn go_on(&mut self, entry: u32, table: &[u32]) -> u32 {
        self.take(entry);
        let index = (entry >> 16) as usize + (self.bits & low(entry >> 8 & 0xf)) as usize;
        table.get(index).copied().unwrap_or(SPECIAL)
    }

    /// Consumes the entry's length or distance: its base value plus its extra bits.
    #[inline(always)]
    fn value(&mut self, entry: u32) -> usize {
        let whole = self.bits & low(entry);
        self.take(entry);
        (entry >> 16) as usize + whole.wrapping_shr(entry >> 8 & 0xf) as usize
    }
}

/// A mask of as many low bits as the lowest six bits of `bits` specify.
#[inline(always)]
pub(super) fn low(bits: u32) -> u64 {
    !u64::MAX.wrapping_shl(bits)
}

/// Decodes symbols until the block ends (returns true), the piece is almost consumed, or the output is full. Output
/// before damage is kept.
#[inline(never)]
pub(super) fn run(
    codes: &Codes,
    piece: &[u8],
    output: &mut [u8],
    floor: usize,
    place: &mut Place,
) -> Result<bool, Fault> {
    let mut input = Bits { piece, taken: 0, bits: place.bits, held: place.held };
    let mut written = place.written;
    let mut ended = Ok(false);
    let literal_of = |bits: u64| codes.literals[(bits & low(LITERAL_BITS)) as usize];
    while written < WINDOW_BYTES + OUTPUT_BYTES && input.refill() {
        let mut entry = literal_of(input.bits);
        if entry & LITERAL != 0 {
            // Three codes of the first-level table have at most 33 bits; the rest suffices to find another entry.
            let Some(room) = output.get_mut(written..).and_then(|room| room.first_chunk_mut::<3>()) else {
                break;
            };
            room[0] = (entry >> 16) as u8;
            input.take(entry);
            entry = literal_of(input.bits);
            written += 1;
            if entry & LITERAL != 0 {
                room[1] = (entry >> 16) as u8;
                input.take(entry);
                entry = literal_of(input.bits);
                written += 1;
                if entry & LITERAL != 0 {
                    room[2] = (entry >> 16) as u8;
                    input.take(entry);
                    written += 1;
                    continue;
                }
            }
            if !input.refill() {
                break;
            }
        }
        if entry & SPECIAL != 0 {
            if entry & SECOND == SECOND {
                entry = input.go_on(entry, &codes.literals);
            }
            if entry & LITERAL != 0 {
                let Some(room) = output.get_mut(written) else { break };
                *room = (entry >> 16) as u8;
                input.take(entry);
                written += 1;
                continue;
            }
            if entry & SPECIAL != 0 {
                if entry & END == END {
                    input.take(entry);
                    ended = Ok(true);
                } else {
                    ended = Err(NO_CODE);
                }
                break;
            }
        }
        let count = input.value(entry);
        let mut entry = codes.distances[(input.bits & low(DISTANCE_BITS)) as usize];
        if entry & SPECIAL != 0 {
            if entry & SECOND == SECOND {
                entry = input.go_on(entry, &codes.distances);
            }
            if entry & SPECIAL != 0 {
                ended = Err(NO_CODE);
                break;
            }
        }
        let back = input.value(entry);
        if back > written - floor {
            ended = Err(TOO_FAR);
            break;
        }
        repeat(output, written, back, count);
        written += count;
    }
    let held = input.held & 63;
    *place = Place { bits: input.bits & low(held), held, taken: input.taken, written };
    ended
}

/// Appends `count` bytes, copied from `back` bytes before. There must be room for a whole number of copies.
#[inline(always)]
pub(super) fn repeat(output: &mut [u8], written: usize, back: usize, count: usize) {
    let from = written - back;
    if back >= COPY_BYTES {
        let mut done = 0;
        while done < count {
            output.copy_within(from + done..from + done + COPY_BYTES, written + done);
            done += COPY_BYTES;
        }
    } else if back == 1 {
        let byte = output[from];
        output[written..written + count].fill(byte);
    } else {
        for at in 0..count {
            output[written + at] = output[from + at];
        }
    }
}
