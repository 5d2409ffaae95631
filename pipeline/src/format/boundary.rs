//! Where a record begins, found from the middle of a TFRecord file.
//!
//! Nothing in the format marks a record's start, but its framing checks itself: the length has a checksum, and
//! so has the data. So a place is taken for a start when eight bytes there are a length whose checksum fits,
//! the data that follow have theirs, and behind them the file ends or another length with its checksum
//! stands. By chance that happens once in 2^96 places; it does happen on purpose where a record's data are
//! themselves TFRecords. [`Scan::Found`] may then be within a record, which whoever reads the part of the file
//! before it notices, because its last record does not end there ([`crate::parts`]).
//!
//! Places are looked at one after the other, so what is found depends on the file and on where the search
//! began, and not on how the bytes came.

use crate::format::tfrecord::{FOOTER_BYTES, HEADER_BYTES, MAX_RECORD_BYTES, length_of, unframe};

/// What some bytes of a file say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// A record begins at this place of them.
    Found(usize),
    /// No record begins in the rest of the file.
    End,
    /// None begins before `from`; to say more takes the bytes up to `until`.
    More { from: usize, until: usize },
}

/// Looks for the first start of a record in `bytes`, which are the first of the `rest` bytes that the file has
/// left there.
pub(crate) fn scan(bytes: &[u8], rest: u64) -> Scan {
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

/// Where the frame at `at` would end, if these are its first bytes and the file has room for it, and for a
/// header behind it unless it ends there.
#[inline]
fn frame_end(header: &[u8; HEADER_BYTES], at: usize, rest: u64) -> Option<usize> {
    // The length itself refuses nearly every place, without a checksum.
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
    use crate::format::tfrecord::RecordWriter;

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
        // Zeroes are the hardest: a length of zero is all zeroes but for its checksum.
        let record = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            (0_usize..60).prop_map(|bytes| vec![0; bytes]),
            Just(Vec::new()),
        ];
        prop::collection::vec(record, 1..12)
    }

    proptest! {
        #[test]
        fn finds_the_next_record_from_everywhere(records in records(), pieces in 1_usize..50) {
            let (bytes, starts) = file(&records);
            for from in 0..=bytes.len() {
                let rest = &bytes[from..];
                let expected = starts.iter().find(|&&start| start >= from).copied();
                let found = match scan(rest, rest.len() as u64) {
                    Scan::Found(at) => Some(from + at),
                    Scan::End => None,
                    Scan::More { .. } => panic!("all bytes are there"),
                };
                prop_assert_eq!(found, expected, "from {}", from);
                // As many bytes as it asks for, and a few more.
                let (mut base, mut held) = (from, 0);
                let found = loop {
                    match scan(&bytes[base..base + held], (bytes.len() - base) as u64) {
                        Scan::Found(at) => break Some(base + at),
                        Scan::End => break None,
                        Scan::More { from, until } => {
                            prop_assert!(until > held || from > 0);
                            base += from;
                            held = (until - from + pieces).min(bytes.len() - base);
                        }
                    }
                };
                prop_assert_eq!(found, expected);
            }
        }

        #[test]
        fn damage_is_passed_over(records in records(), at in any::<prop::sample::Index>(), bit in 0_u32..8) {
            let (mut bytes, starts) = file(&records);
            let damaged = at.index(bytes.len());
            bytes[damaged] ^= 1 << bit;
            // The record with the damage is none, and the one before is not if its follower's length is hit.
            let hit = starts.iter().rposition(|&start| start <= damaged).unwrap();
            let header_hit = damaged - starts[hit] < HEADER_BYTES;
            for (i, &start) in starts.iter().enumerate() {
                let whole = i != hit && !(header_hit && i + 1 == hit);
                let found = scan(&bytes[start..], (bytes.len() - start) as u64);
                prop_assert_eq!(found == Scan::Found(0), whole);
            }
        }

        #[test]
        fn any_bytes_are_looked_through(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0)], 0..300), more in 0_u64..100) {
            match scan(&bytes, bytes.len() as u64 + more) {
                Scan::Found(at) => prop_assert!(at < bytes.len()),
                Scan::End => prop_assert_eq!(more.saturating_sub(15), 0),
                Scan::More { from, until } => prop_assert!(from <= until && until > bytes.len()),
            }
        }
    }
}
