//! The bytes of an update about a piece, for a transport between hosts. Little-endian:
//!
//! ```text
//!   0  u8   version, 1
//!   1  u8   kind: 0 window, 1 end, 2 failed
//!   2  u8   stream of the pass: 0 train, 1 eval
//!   3  u8   flags: 1 a text follows, 2 the window ends its split, 4 a row is marked
//!   4  u32  epoch
//!   8  u32  lane
//!  12  u64  number of the piece
//!  20  u64  records skipped; not if failed
//!  28  u32  rows                                   \
//!  32  u32  split in which the next window starts   | windows only
//!  36  u64  row at which it starts                  |
//!  44  u32  first marked row, if one is             /
//!  ..       with a text: UTF-8 to the end of the message
//! ```
//!
//! The transport delimits messages; one has at most [`MAX_ENCODED_BYTES`] bytes. A text is the error of a record or
//! of the lane: the sender cuts it to [`MAX_TEXT_BYTES`]. A window without an error has 44 or 48 bytes.
//!
//! Whatever the bytes, decoding does not panic and allocates no more than their text. Counts are limited, so that
//! counting on from a decoded update never overflows.

use millstream_batch::Stream;

use super::{PieceKey, PieceUpdate};
use crate::order::{Pass, WindowExtent};

/// The maximum length of the text of an update, in bytes.
pub const MAX_TEXT_BYTES: usize = 4096;

/// The maximum length of an encoded update, in bytes.
pub const MAX_ENCODED_BYTES: usize = 48 + MAX_TEXT_BYTES;

const VERSION: u8 = 1;

/// Limit of decoded counts.
const MAX_COUNT: u64 = u64::MAX / 4;

mod kind {
    pub(super) const WINDOW: u8 = 0;
    pub(super) const END: u8 = 1;
    pub(super) const FAILED: u8 = 2;
}

mod flag {
    pub(super) const HAS_TEXT: u8 = 1;
    pub(super) const ENDS_SPLIT: u8 = 2;
    pub(super) const IS_MARKED: u8 = 4;
}

/// Why bytes are not an encoded update.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeUpdateError {
    /// A version that this program does not know.
    #[error(
        "an update of version {0} is not supported (expected {VERSION}): the hosts run different programs"
    )]
    Version(u8),
    /// Bytes are missing, or follow the end.
    #[error("an update has a wrong length: {0} bytes")]
    Length(usize),
    /// An invalid field.
    #[error("an update has an invalid {field}: {value}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The text is not UTF-8.
    #[error("an update has a text that is not UTF-8")]
    Text,
}

impl PieceUpdate {
    /// Encodes this update about piece `key` into `bytes`, replacing their contents. A text above [`MAX_TEXT_BYTES`] is
    /// cut off.
    pub fn encode(&self, key: PieceKey, bytes: &mut Vec<u8>) {
        let (kind, text) = match self {
            Self::Window(_, text) => (kind::WINDOW, text.as_deref()),
            Self::End(_, text) => (kind::END, text.as_deref()),
            Self::Failed(text) => (kind::FAILED, Some(text.as_str())),
        };
        let (ends_split, is_marked) = match self {
            Self::Window(extent, _) => (extent.ends_split, extent.first_marked.is_some()),
            Self::End(..) | Self::Failed(_) => (false, false),
        };
        let flags =
            [(text.is_some(), flag::HAS_TEXT), (ends_split, flag::ENDS_SPLIT), (is_marked, flag::IS_MARKED)];
        let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag)).sum();
        let PieceKey { pass, lane, number } = key;
        bytes.clear();
        bytes.extend([VERSION, kind, pass.stream as u8, flags]);
        bytes.extend(pass.epoch.to_le_bytes());
        bytes.extend(lane.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        match self {
            Self::Window(extent, _) => encode_extent(extent, bytes),
            Self::End(skipped, _) => bytes.extend(skipped.to_le_bytes()),
            Self::Failed(_) => {}
        }
        bytes.extend(text.map(cut).unwrap_or_default().as_bytes());
    }

    /// Decodes an update and the piece that it is about.
    ///
    /// # Errors
    /// When `bytes` were not written by [`PieceUpdate::encode`].
    pub fn decode(bytes: &[u8]) -> Result<(PieceKey, Self), DecodeUpdateError> {
        let mut fields = Fields { rest: bytes, length: bytes.len() };
        let [version, kind, stream, flags] = fields.bytes()?;
        if version != VERSION {
            return Err(DecodeUpdateError::Version(version));
        }
        let stream = match stream {
            0 => Stream::Train,
            1 => Stream::Eval,
            other => return Err(invalid("stream", other)),
        };
        let possible = match kind {
            kind::WINDOW => flag::HAS_TEXT | flag::ENDS_SPLIT | flag::IS_MARKED,
            kind::END | kind::FAILED => flag::HAS_TEXT,
            other => return Err(invalid("kind", other)),
        };
        if flags & !possible != 0 {
            return Err(invalid("flags", flags));
        }
        let pass = Pass { stream, epoch: fields.u32()? };
        let key = PieceKey { pass, lane: fields.u32()?, number: fields.count("number")? };
        let update = match kind {
            kind::WINDOW => Self::Window(fields.extent(flags)?, fields.text(flags)?),
            kind::END => Self::End(fields.count("skipped")?, fields.text(flags)?),
            _ => Self::Failed(fields.text(flags)?.ok_or(invalid("flags", flags))?),
        };
        Ok((key, update))
    }
}

fn encode_extent(extent: &WindowExtent, bytes: &mut Vec<u8>) {
    let WindowExtent { rows, split, row, ends_split: _, skipped, first_marked } = *extent;
    bytes.extend(skipped.to_le_bytes());
    bytes.extend(rows.to_le_bytes());
    bytes.extend(split.to_le_bytes());
    bytes.extend(row.to_le_bytes());
    bytes.extend(first_marked.into_iter().flat_map(u32::to_le_bytes));
}

/// The start of `text` that fits in an update.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

fn invalid(field: &'static str, value: impl Into<u64>) -> DecodeUpdateError {
    DecodeUpdateError::Field { field, value: value.into() }
}

/// Reads fields one after another.
struct Fields<'a> {
    rest: &'a [u8],
    /// Of the whole update.
    length: usize,
}

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], DecodeUpdateError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(DecodeUpdateError::Length(self.length))?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeUpdateError> {
        self.bytes().map(u32::from_le_bytes)
    }

    /// A number of at most [`MAX_COUNT`].
    fn count(&mut self, field: &'static str) -> Result<u64, DecodeUpdateError> {
        let count = self.bytes().map(u64::from_le_bytes)?;
        if count > MAX_COUNT { Err(invalid(field, count)) } else { Ok(count) }
    }

    fn extent(&mut self, flags: u8) -> Result<WindowExtent, DecodeUpdateError> {
        let (skipped, rows, split, row) =
            (self.count("skipped")?, self.u32()?, self.u32()?, self.count("row")?);
        // The mark of an ended lane in a position.
        if split == u32::MAX {
            return Err(invalid("split", split));
        }
        let first_marked = (flags & flag::IS_MARKED != 0).then(|| self.u32()).transpose()?;
        if let Some(marked) = first_marked.filter(|&marked| marked >= rows) {
            return Err(invalid("first marked row", marked));
        }
        let ends_split = flags & flag::ENDS_SPLIT != 0;
        Ok(WindowExtent { rows, split, row, ends_split, skipped, first_marked })
    }

    /// The text, which is the rest, if there is one.
    fn text(&mut self, flags: u8) -> Result<Option<String>, DecodeUpdateError> {
        let has_text = flags & flag::HAS_TEXT != 0;
        let bytes = std::mem::take(&mut self.rest);
        if bytes.len() > if has_text { MAX_TEXT_BYTES } else { 0 } {
            return Err(DecodeUpdateError::Length(self.length));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| DecodeUpdateError::Text)?;
        Ok(has_text.then(|| text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn count() -> impl Strategy<Value = u64> {
        prop_oneof![0..100_u64, 0..=MAX_COUNT, Just(MAX_COUNT)]
    }

    fn text() -> impl Strategy<Value = String> {
        // About as long as possible, with the limit at any byte of a character.
        let long = (0..9_usize).prop_map(|before| "x".repeat(before) + &"é→".repeat(MAX_TEXT_BYTES / 5));
        prop_oneof![4 => ".{0,40}", 1 => long]
    }

    fn extent() -> impl Strategy<Value = WindowExtent> {
        let numbers = (any::<u32>(), 0..u32::MAX, count(), count());
        (numbers, any::<bool>(), prop::option::of(any::<u32>())).prop_map(
            |((rows, split, row, skipped), ends_split, marked)| WindowExtent {
                rows,
                split,
                row,
                ends_split,
                skipped,
                first_marked: marked.filter(|_| rows > 0).map(|marked| marked % rows.max(1)),
            },
        )
    }

    fn update() -> impl Strategy<Value = PieceUpdate> {
        prop_oneof![
            (extent(), prop::option::of(text())).prop_map(|(extent, text)| PieceUpdate::Window(extent, text)),
            (count(), prop::option::of(text())).prop_map(|(skipped, text)| PieceUpdate::End(skipped, text)),
            text().prop_map(PieceUpdate::Failed),
        ]
    }

    prop_compose! {
        fn key()(eval: bool, epoch: u32, lane: u32, number in count()) -> PieceKey {
            let stream = if eval { Stream::Eval } else { Stream::Train };
            PieceKey { pass: Pass { stream, epoch }, lane, number }
        }
    }

    /// The update as received: with a text of at most [`MAX_TEXT_BYTES`].
    fn received(update: &PieceUpdate) -> PieceUpdate {
        let cut = |text: &String| cut(text).to_owned();
        match update {
            PieceUpdate::Window(extent, text) => PieceUpdate::Window(*extent, text.as_ref().map(cut)),
            PieceUpdate::End(skipped, text) => PieceUpdate::End(*skipped, text.as_ref().map(cut)),
            PieceUpdate::Failed(text) => PieceUpdate::Failed(cut(text)),
        }
    }

    fn encoded(key: PieceKey, update: &PieceUpdate) -> Vec<u8> {
        let mut bytes = vec![7; 3];
        update.encode(key, &mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn updates_round_trip(key in key(), update in update()) {
            let bytes = encoded(key, &update);
            prop_assert!(bytes.len() <= MAX_ENCODED_BYTES);
            prop_assert_eq!(PieceUpdate::decode(&bytes), Ok((key, received(&update))));
        }

        /// Bytes have one meaning: whatever decodes is what that update encodes to.
        #[test]
        fn any_bytes_are_an_update_or_an_error(
            key in key(), update in update(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            length in any::<prop::sample::Index>(), cuts: bool, more in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let mut bytes = encoded(key, &update);
            for (at, byte) in changes {
                let at = at.index(bytes.len().min(50));
                bytes[at] = byte;
            }
            if cuts {
                bytes.truncate(length.index(bytes.len()));
            }
            bytes.extend(more);
            if let Ok((key, update)) = PieceUpdate::decode(&bytes) {
                prop_assert_eq!(encoded(key, &update), bytes);
            }
        }

        #[test]
        fn random_bytes_are_an_update_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some([version, kind, stream, flags]) = bytes.first_chunk_mut() {
                (*version, *kind, *stream, *flags) = (VERSION, *kind % 4, *stream % 3, *flags % 8);
            }
            if let Ok((key, update)) = PieceUpdate::decode(&bytes) {
                prop_assert_eq!(encoded(key, &update), bytes);
            }
        }
    }

    #[test]
    fn each_field_has_its_place() {
        let key = PieceKey { pass: Pass { stream: Stream::Eval, epoch: 2 }, lane: 3, number: 4 };
        let extent =
            WindowExtent { rows: 6, split: 7, row: 8, ends_split: true, skipped: 5, first_marked: Some(1) };
        let numbers = |numbers: &[(u64, usize)]| -> Vec<u8> {
            numbers.iter().flat_map(|(number, bytes)| number.to_le_bytes()[..*bytes].to_vec()).collect()
        };
        let head = [(2, 4), (3, 4), (4, 8)];
        let window = [&head[..], &[(5, 8), (6, 4), (7, 4), (8, 8), (1, 4)]].concat();
        let window = [&[1, 0, 1, 7][..], &numbers(&window), b"bad"].concat();
        assert_eq!(encoded(key, &PieceUpdate::Window(extent, Some("bad".to_owned()))), window);
        let end = [&[1, 1, 1, 0][..], &numbers(&head), &numbers(&[(9, 8)])].concat();
        assert_eq!(encoded(key, &PieceUpdate::End(9, None)), end);
        let failed = [&[1, 2, 1, 1][..], &numbers(&head), b"lost"].concat();
        assert_eq!(encoded(key, &PieceUpdate::Failed("lost".to_owned())), failed);
    }

    #[test]
    fn invalid_fields_are_named() {
        let key = PieceKey { pass: Pass { stream: Stream::Train, epoch: 0 }, lane: 0, number: 0 };
        let extent =
            WindowExtent { rows: 2, split: 0, row: 0, ends_split: false, skipped: 0, first_marked: Some(1) };
        let valid = encoded(key, &PieceUpdate::Window(extent, None));
        let with = |at: usize, byte: u8| {
            let mut bytes = valid.clone();
            bytes[at..(at + 4).min(valid.len())].iter_mut().for_each(|it| *it = byte);
            PieceUpdate::decode(&bytes).unwrap_err().to_string()
        };
        let one = |at: usize, byte: u8| {
            let mut bytes = valid.clone();
            bytes[at] = byte;
            PieceUpdate::decode(&bytes).unwrap_err().to_string()
        };
        assert!(one(0, 2).contains("version 2"), "{}", one(0, 2));
        for (found, field) in [
            (one(1, 3), "kind: 3"),
            (one(2, 2), "stream: 2"),
            (one(3, 8), "flags: 8"),
            (one(19, 255), "number"),
            (one(27, 255), "skipped"),
            (with(32, 255), "split: 4294967295"),
            (one(43, 255), "row"),
            (one(44, 2), "first marked row: 2"),
        ] {
            assert!(found.contains(field), "{found}");
        }
        let failed = encoded(key, &PieceUpdate::Failed(String::new()));
        assert!(PieceUpdate::decode(&failed).is_ok());
        let mut without = failed.clone();
        without[3] = 0;
        assert!(PieceUpdate::decode(&without).is_err(), "a failure has a text");
        let not_text = [&failed[..], &[0xff]].concat();
        assert_eq!(PieceUpdate::decode(&not_text), Err(DecodeUpdateError::Text));
        let long = [&failed[..], &[b'x'; MAX_TEXT_BYTES + 1]].concat();
        assert_eq!(PieceUpdate::decode(&long), Err(DecodeUpdateError::Length(long.len())));
    }
}
