//! Decodes the header of a page.
//!
//! Source: the Parquet format's `parquet.thrift`, `PageHeader`, in Thrift's compact protocol.

use parquet::basic::Encoding;

/// The nesting of structures within a header, all of which are known to be shallow.
const MAX_DEPTH: u32 = 8;

/// The header of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Bytes of the body as stored.
    pub(super) compressed: usize,
    /// Bytes of the body when decompressed.
    pub(super) uncompressed: usize,
    /// The CRC-32 of the stored body.
    pub(super) checksum: Option<u32>,
}

/// What a page contains.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Data {
        values: u32,
        encoding: Encoding,
        definition_encoding: Encoding,
        repetition_encoding: Encoding,
    },
    DataV2 {
        values: u32,
        encoding: Encoding,
        rows: u32,
        nulls: u32,
        repetition_bytes: usize,
        definition_bytes: usize,
        is_compressed: bool,
    },
    Dictionary {
        values: u32,
        encoding: Encoding,
        is_sorted: bool,
    },
    /// Not part of the column's data.
    Index,
}

impl Header {
    /// Decodes the header at the start of `bytes`; also returns its length. `None` if it is damaged.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut input = Compact { rest: bytes };
        let (mut kind, mut sizes, mut checksum) = (None, [None; 2], None);
        // The fields of the structure that describes the page, by their numbers.
        let mut fields = [None; 9];
        input.fields(&mut |input, field, value| {
            match field {
                1 => kind = Some(input.integer(value)?),
                2 | 3 => sizes[field - 2] = Some(usize::try_from(input.integer(value)?).ok()?),
                4 => checksum = Some(input.integer(value)? as u32),
                5 | 7 | 8 if value == STRUCT => input.fields(&mut |input, field, value| {
                    match (field, value) {
                        (1.., TRUE | FALSE | BYTE | I16 | I32 | I64) if field < fields.len() => {
                            fields[field] = Some(input.integer(value)?);
                        }
                        _ => input.skip(value, MAX_DEPTH)?,
                    }
                    Some(())
                })?,
                _ => input.skip(value, MAX_DEPTH)?,
            }
            Some(())
        })?;
        let number = |field: usize| u32::try_from(fields[field]?).ok();
        let encoding_at = |field: usize| encoding(fields[field]?);
        let kind = match kind? {
            0 => Kind::Data {
                values: number(1)?,
                encoding: encoding_at(2)?,
                definition_encoding: encoding_at(3)?,
                repetition_encoding: encoding_at(4)?,
            },
            1 => Kind::Index,
            2 => Kind::Dictionary {
                values: number(1)?,
                encoding: encoding_at(2)?,
                is_sorted: fields[3] == Some(1),
            },
            3 => Kind::DataV2 {
                values: number(1)?,
                nulls: number(2)?,
                rows: number(3)?,
                encoding: encoding_at(4)?,
                definition_bytes: number(5)? as usize,
                repetition_bytes: number(6)? as usize,
                is_compressed: fields[7] != Some(0),
            },
            _ => return None,
        };
        let [Some(uncompressed), Some(compressed)] = sizes else { return None };
        let length = bytes.len() - input.rest.len();
        Some((Self { kind, compressed, uncompressed, checksum }, length))
    }
}

#[expect(deprecated, reason = "old files contain BIT_PACKED levels")]
fn encoding(number: i64) -> Option<Encoding> {
    Some(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return None,
    })
}

/// The types of Thrift's compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// Input in Thrift's compact protocol. `None` results mean that it is damaged.
struct Compact<'a> {
    rest: &'a [u8],
}

impl Compact<'_> {
    /// Passes the number and type of each field of a structure to `each`, which must consume the field's value.
    fn fields(&mut self, each: &mut dyn FnMut(&mut Self, usize, u8) -> Option<()>) -> Option<()> {
        let mut number = 0_i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            number = match head >> 4 {
                0 => self.signed()?,
                step => number + i64::from(step),
            };
            each(self, usize::try_from(number).ok()?, head & 0x0f)?;
        }
    }

    /// A boolean or integer field.
    fn integer(&mut self, value: u8) -> Option<i64> {
        match value {
            TRUE => Some(1),
            FALSE => Some(0),
            BYTE => Some(i64::from(self.byte()? as i8)),
            I16 | I32 | I64 => self.signed(),
            _ => None,
        }
    }

    /// Skips a field; structures and lists in it may nest to `depth`.
    fn skip(&mut self, value: u8, depth: u32) -> Option<()> {
        let deeper = depth.checked_sub(1)?;
        match value {
            TRUE | FALSE => Some(()),
            BYTE => self.skip_bytes(1),
            I16 | I32 | I64 => self.unsigned().map(|_| ()),
            DOUBLE => self.skip_bytes(8),
            BINARY => {
                let length = self.unsigned()?;
                self.skip_bytes(usize::try_from(length).ok()?)
            }
            LIST | SET => {
                let head = self.byte()?;
                let length = if head >> 4 == 15 { self.unsigned()? } else { u64::from(head >> 4) };
                self.skip_elements(length, &[head & 0x0f], deeper)
            }
            MAP => match self.unsigned()? {
                0 => Some(()),
                length => {
                    let types = self.byte()?;
                    self.skip_elements(length, &[types >> 4, types & 0x0f], deeper)
                }
            },
            STRUCT => self.fields(&mut |input, _, value| input.skip(value, deeper)),
            _ => None,
        }
    }

    /// Skips `count` times one element of each of `types`. Every element has at least one byte.
    fn skip_elements(&mut self, count: u64, types: &[u8], depth: u32) -> Option<()> {
        if count > self.rest.len() as u64 {
            return None;
        }
        for _ in 0..count {
            for &value in types {
                match value {
                    TRUE | FALSE => self.skip_bytes(1)?,
                    value => self.skip(value, depth)?,
                }
            }
        }
        Some(())
    }

    fn skip_bytes(&mut self, count: usize) -> Option<()> {
        self.rest = self.rest.get(count..)?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A number in zigzag encoding.
    fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}
