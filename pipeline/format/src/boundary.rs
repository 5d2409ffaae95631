//! Finds record boundaries from the middle of a file.
//!
//! A line of text begins after the end of another one. TFRecord has no record marker, but its framing is self-checking:
//! the length and the data each have a checksum. An offset counts as a record start if a length with a valid checksum is
//! there, the data that follow have a valid checksum, and after them the file ends or another length with a valid checksum
//! follows. By chance this happens at one offset in 2^96; it also happens if a record's data are themselves TFRecords.
//! [`Scan::Found`] can then lie within a record. The reader of the preceding part detects this, because its last record
//! does not end there (`parts.rs` of `millstream-pipeline`).
//!
//! Offsets are tried in ascending order, so the result depends only on the file and on the start of the search,
//! not on how the bytes are split.

use crate::record::MAX_RECORD_BYTES;
use crate::tfrecord::{FOOTER_BYTES, HEADER_BYTES, length_of, unframe};

/// The result of scanning some bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// A record starts at this index of the bytes.
    Found(usize),
    /// No record starts in the rest of the file.
    End,
    /// No record starts before `from`; to continue, the scan needs the bytes up to `until`.
    More {
        /// The index to continue from.
        from: usize,
        /// The index after the last byte that is needed.
        until: usize,
    },
}

/// Finds the first record of TFRecord in `bytes`, the first of the `rest` remaining bytes of the file.
pub fn scan_frames(bytes: &[u8], rest: u64) -> Scan {
    let frame_bytes = (HEADER_BYTES + FOOTER_BYTES) as u64;
    let mut at = 0;
    loop {
        if at as u64 + frame_bytes > rest {
            return Scan::End;
        }
        let Some(header) = bytes.get(at..).and_then(<[u8]>::first_chunk::<HEADER_BYTES>) else {
            return Scan::More { from: at, until: at + HEADER_BYTES };
        };
        match frame_end(header, at, rest) {
            None => {}
            Some(end) => {
                let until = if end as u64 == rest { end } else { end + HEADER_BYTES };
                let Some(candidate) = bytes.get(at..until) else { return Scan::More { from: at, until } };
                let (frame, next) = candidate.split_at(end - at);
                let next_fits = next.first_chunk().is_none_or(|header| length_of(header).is_some());
                if next_fits && unframe(frame).is_some() {
                    return Scan::Found(at);
                }
            }
        }
        at += 1;
    }
}

/// Finds the first line that begins after an end of a line in `bytes`, the first of the `rest` remaining bytes of the file.
pub fn scan_lines(bytes: &[u8], rest: u64) -> Scan {
    match bytes.iter().position(|&byte| byte == b'\n') {
        Some(end) => Scan::Found(end + 1),
        None if bytes.len() as u64 >= rest => Scan::End,
        None => Scan::More { from: bytes.len(), until: bytes.len() + 1 },
    }
}

/// The end of the frame at `at`, if `header` is valid and the file is long enough for the frame and, unless it ends
/// there, for another header.
#[inline]
fn frame_end(header: &[u8; HEADER_BYTES], at: usize, rest: u64) -> Option<usize> {
    // The range of the length rejects nearly every offset without computing a checksum.
    let length = u64::from_le_bytes(*header.first_chunk()?);
    if length > MAX_RECORD_BYTES {
        return None;
    }
    let end = at as u64 + (HEADER_BYTES + FOOTER_BYTES) as u64 + length;
    if end != rest && end + HEADER_BYTES as u64 > rest {
        return None;
    }
    length_of(header).map(|_| end as usize)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::tfrecord::RecordWriter;

    fn file(records: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
        let mut writer = RecordWriter::new(Vec::new());
        let mut starts = Vec::new();
        let mut at = 0;
        for record in records {
            starts.push(at);
            at += HEADER_BYTES + record.len() + FOOTER_BYTES;
            writer.write(record).unwrap();
        }
        (writer.into_inner(), starts)
    }

    fn records() -> impl Strategy<Value = Vec<Vec<u8>>> {
        // Zeros are the hardest case: a length of zero differs from other zeros only in its checksum.
        let record = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            (0_usize..60).prop_map(|bytes| vec![0; bytes]),
            Just(Vec::new()),
        ];
        prop::collection::vec(record, 1..12)
    }

    #[test]
    fn the_first_line_behind_any_byte_is_found() {
        let text = b"a\n\nbcd\r\nlast";
        let starts = |at: usize| (at..text.len()).find(|&start| text[start - 1] == b'\n');
        for at in 1..text.len() {
            // More bytes are read until the scan ends.
            let mut end = at - 1;
            let found = loop {
                match scan_lines(&text[at - 1..end], (text.len() - (at - 1)) as u64) {
                    Scan::Found(place) => break Some(at - 1 + place),
                    Scan::End => break None,
                    Scan::More { from, until } => {
                        assert_eq!((from, until), (end - (at - 1), end - (at - 1) + 1));
                        end += 1;
                    }
                }
            };
            assert_eq!(found, starts(at), "from byte {at}");
        }
    }

    proptest! {
        #[test]
        fn finds_the_next_record_from_every_offset(records in records(), extra in 1_usize..50) {
            let (bytes, starts) = file(&records);
            for from in 0..=bytes.len() {
                let rest = &bytes[from..];
                let expected = starts.iter().find(|&&start| start >= from).copied();
                let found = match scan_frames(rest, rest.len() as u64) {
                    Scan::Found(at) => Some(from + at),
                    Scan::End => None,
                    Scan::More { .. } => panic!("all bytes were given"),
                };
                prop_assert_eq!(found, expected, "from {}", from);
                // Again with as many bytes as it requests, and a few more.
                let (mut base, mut held) = (from, 0);
                let found = loop {
                    match scan_frames(&bytes[base..base + held], (bytes.len() - base) as u64) {
                        Scan::Found(at) => break Some(base + at),
                        Scan::End => break None,
                        Scan::More { from, until } => {
                            prop_assert!(until > held || from > 0);
                            base += from;
                            held = (until - from + extra).min(bytes.len() - base);
                        }
                    }
                };
                prop_assert_eq!(found, expected);
            }
        }

        #[test]
        fn damaged_records_are_not_found(records in records(), at in any::<prop::sample::Index>(), bit in 0_u32..8) {
            let (mut bytes, starts) = file(&records);
            let damaged = at.index(bytes.len());
            bytes[damaged] ^= 1 << bit;
            // The damaged record is not found, nor is the preceding one if the damage is in the header.
            let hit = starts.iter().rposition(|&start| start <= damaged).unwrap();
            let header_hit = damaged - starts[hit] < HEADER_BYTES;
            for (i, &start) in starts.iter().enumerate() {
                let whole = i != hit && !(header_hit && i + 1 == hit);
                let found = scan_frames(&bytes[start..], (bytes.len() - start) as u64);
                prop_assert_eq!(found == Scan::Found(0), whole);
            }
        }

        #[test]
        fn arbitrary_bytes_are_scanned(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0)], 0..300), more in 0_u64..100) {
            match scan_frames(&bytes, bytes.len() as u64 + more) {
                Scan::Found(at) => prop_assert!(at < bytes.len()),
                Scan::End => prop_assert_eq!(more.saturating_sub(15), 0),
                Scan::More { from, until } => prop_assert!(from <= until && until > bytes.len()),
            }
        }
    }
}
