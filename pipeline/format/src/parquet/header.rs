//! Decodes the header of a page.
//!
//! Source: the Parquet format's `parquet.thrift`, `PageHeader`, in Thrift's compact protocol.

use parquet::basic::Encoding;

use super::thrift::{Input, wire};

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
    /// Decodes the header at the start of `bytes`; also returns its length.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, usize), String> {
        let mut input = Input::new(bytes);
        let (mut kind, mut sizes, mut checksum) = (None, [None; 2], None);
        // The fields of the structure that describes the page, by their numbers.
        let mut fields = [None; 9];
        let mut last = 0;
        while let Some((id, wire)) = input.field(last)? {
            last = id;
            match (id, wire) {
                (1, wire::I32) => kind = Some(input.integer()?),
                (2, wire::I32) => sizes[0] = usize::try_from(input.integer()?).ok(),
                (3, wire::I32) => sizes[1] = usize::try_from(input.integer()?).ok(),
                (4, wire::I32) => checksum = Some(input.integer()? as u32),
                (5 | 7 | 8, wire::STRUCT) => describe(&mut input, &mut fields)?,
                (_, wire) => input.skip(wire)?,
            }
        }
        let [Some(uncompressed), Some(compressed)] = sizes else {
            return Err("a page states no size".to_owned());
        };
        let kind = kind.and_then(|kind| Kind::of(kind, &fields));
        let kind = kind.ok_or("the header of a page lacks a field, or has an unknown one")?;
        let length = bytes.len() - input.remaining();
        Ok((Self { kind, compressed, uncompressed, checksum }, length))
    }
}

/// Reads the numbers and booleans of a structure into `fields`, by their numbers.
fn describe(input: &mut Input<'_>, fields: &mut [Option<i64>; 9]) -> Result<(), String> {
    let mut last = 0;
    while let Some((id, wire)) = input.field(last)? {
        last = id;
        let value = match wire {
            wire::TRUE => Some(1),
            wire::FALSE => Some(0),
            wire::I32 => Some(input.integer()?),
            wire => {
                input.skip(wire)?;
                None
            }
        };
        if let Some(field) = usize::try_from(id).ok().and_then(|id| fields.get_mut(id)) {
            *field = value;
        }
    }
    Ok(())
}

impl Kind {
    /// The kind of page of this number, with these fields.
    fn of(number: i64, fields: &[Option<i64>; 9]) -> Option<Self> {
        let count = |field: usize| u32::try_from(fields[field]?).ok();
        let encoding_at = |field: usize| encoding(fields[field]?);
        Some(match number {
            0 => Self::Data {
                values: count(1)?,
                encoding: encoding_at(2)?,
                definition_encoding: encoding_at(3)?,
                repetition_encoding: encoding_at(4)?,
            },
            1 => Self::Index,
            2 => Self::Dictionary {
                values: count(1)?,
                encoding: encoding_at(2)?,
                is_sorted: fields[3] == Some(1),
            },
            3 => Self::DataV2 {
                values: count(1)?,
                nulls: count(2)?,
                rows: count(3)?,
                encoding: encoding_at(4)?,
                definition_bytes: count(5)? as usize,
                repetition_bytes: count(6)? as usize,
                is_compressed: fields[7] != Some(0),
            },
            _ => return None,
        })
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
