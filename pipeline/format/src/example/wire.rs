//! Reads the protobuf wire format.
//!
//! Each function advances a slice past the bytes it reads. Nothing is copied, and no input causes a panic.

/// Why bytes are not a protobuf message.
pub(super) type Malformed = &'static str;

/// Maximum nesting depth of groups (that of prost).
const MAX_DEPTH: u32 = 100;

/// The encoding of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint,
    Fixed64,
    Delimited,
    GroupStart,
    GroupEnd,
    Fixed32,
}

/// Reads a base-128 varint.
#[inline]
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    match **bytes {
        [first, ref rest @ ..] if first < 0x80 => {
            *bytes = rest;
            Ok(u64::from(first))
        }
        [first, second, ref rest @ ..] if second < 0x80 => {
            *bytes = rest;
            Ok(u64::from(first & 0x7f) | u64::from(second) << 7)
        }
        _ => long_varint(bytes),
    }
}

/// Reads a varint of three or more bytes, eight bytes at a time.
#[inline]
fn long_varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    if let Some(&word) = bytes.first_chunk() {
        let word = u64::from_le_bytes(word);
        let ends = !word & CONTINUATION;
        if ends != 0 {
            let length = ends.trailing_zeros() as usize / 8 + 1;
            // The bytes up to and including the first without a continuation bit.
            let value = septets(word & (ends ^ (ends - 1)));
            *bytes = &bytes[length..];
            return Ok(value);
        }
    }
    varint_by_bytes(bytes)
}

fn varint_by_bytes(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for (i, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            if i == 9 && byte > 1 {
                break;
            }
            *bytes = &bytes[i + 1..];
            return Ok(value);
        }
    }
    Err(if bytes.len() < 10 { "a number is truncated" } else { "a number has more than 64 bits" })
}

/// Bytes loaded at the start of a value, regardless of its length.
pub(super) const VALUE_BYTES: usize = 32;

/// The continuation bit of each byte of a varint.
const CONTINUATION: u64 = 0x8080_8080_8080_8080;

/// Packs the lower seven bits of each byte together.
#[inline(always)]
fn septets(word: u64) -> u64 {
    let word = word & 0x7f7f_7f7f_7f7f_7f7f;
    // Shift the upper byte of each pair down by one bit, by subtracting half of it.
    let word = word - ((word & 0x7f00_7f00_7f00_7f00) >> 1);
    let word = word & 0x0000_3fff_0000_3fff | (word & 0x3fff_0000_3fff_0000) >> 2;
    word & 0x0fff_ffff | (word & 0x0fff_ffff_0000_0000) >> 4
}

/// The varint in the first `length` bytes (1 to 10), if it occupies exactly those.
#[inline(always)]
pub(super) fn whole_varint(bytes: &[u8; VALUE_BYTES], length: u8) -> Option<u64> {
    let (word, rest) = bytes.split_first_chunk()?;
    let word = u64::from_le_bytes(*word);
    if length <= 8 {
        // The first byte without a continuation bit must be the last of the number.
        let number = u64::MAX.wrapping_shr(64 - 8 * u32::from(length));
        let ends = !word & CONTINUATION & number;
        return (ends == number ^ number >> 1).then(|| septets(word & number));
    }
    let [ninth, tenth, ..] = *rest else { return None };
    let (ended, high) = match length {
        9 => (ninth < 0x80, u64::from(ninth) << 56),
        _ => (ninth >= 0x80 && tenth <= 1, u64::from(ninth & 0x7f) << 56 | u64::from(tenth) << 63),
    };
    (ended && word & CONTINUATION == CONTINUATION).then(|| septets(word) | high)
}

/// Reads a field's number and wire type.
#[inline]
pub(super) fn tag(bytes: &mut &[u8]) -> Result<(u32, WireType), Malformed> {
    let key = u32::try_from(varint(bytes)?).map_err(|_| "a field number is too large")?;
    let wire_type = match key & 7 {
        0 => WireType::Varint,
        1 => WireType::Fixed64,
        2 => WireType::Delimited,
        3 => WireType::GroupStart,
        4 => WireType::GroupEnd,
        5 => WireType::Fixed32,
        _ => return Err("an unknown wire type"),
    };
    if key < 8 { Err("field number 0") } else { Ok((key >> 3, wire_type)) }
}

/// Reads a length and that many bytes.
#[inline]
pub(super) fn delimited<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = varint(bytes)?;
    if length > bytes.len() as u64 {
        return Err("a length exceeds its message");
    }
    let (value, rest) = bytes.split_at(length as usize);
    *bytes = rest;
    Ok(value)
}

/// Reads four bytes.
#[inline]
pub(super) fn fixed32(bytes: &mut &[u8]) -> Result<[u8; 4], Malformed> {
    let (value, rest) = bytes.split_first_chunk().ok_or("a value is truncated")?;
    *bytes = rest;
    Ok(*value)
}

/// The wire type of the next field with number 1 of a message, whose value follows. Skips other fields.
#[inline]
pub(super) fn next_value(message: &mut &[u8]) -> Result<Option<WireType>, Malformed> {
    while !message.is_empty() {
        match tag(message)? {
            (1, wire_type) => return Ok(Some(wire_type)),
            (number, wire_type) => skip(message, number, wire_type)?,
        }
    }
    Ok(None)
}

/// Checks that a message is a sequence of complete fields, so that it can be concatenated with another.
#[inline]
pub(super) fn check(mut message: &[u8]) -> Result<(), Malformed> {
    while !message.is_empty() {
        let (number, wire_type) = tag(&mut message)?;
        skip(&mut message, number, wire_type)?;
    }
    Ok(())
}

/// Skips the value of a field.
pub(super) fn skip(bytes: &mut &[u8], number: u32, wire_type: WireType) -> Result<(), Malformed> {
    skip_nested(bytes, number, wire_type, MAX_DEPTH)
}

fn skip_nested(bytes: &mut &[u8], number: u32, wire_type: WireType, depth: u32) -> Result<(), Malformed> {
    match wire_type {
        WireType::Varint => varint(bytes).map(drop),
        WireType::Fixed64 => {
            *bytes = bytes.get(8..).ok_or("a value is truncated")?;
            Ok(())
        }
        WireType::Delimited => delimited(bytes).map(drop),
        WireType::Fixed32 => fixed32(bytes).map(drop),
        WireType::GroupEnd => Err("a group end without a start"),
        WireType::GroupStart => {
            let depth = depth.checked_sub(1).ok_or("groups are nested too deeply")?;
            loop {
                match tag(bytes)? {
                    (end, WireType::GroupEnd) if end == number => return Ok(()),
                    (_, WireType::GroupEnd) => return Err("a group end does not match its start"),
                    (inner, wire_type) => skip_nested(bytes, inner, wire_type, depth)?,
                }
            }
        }
    }
}
