//! Compares with zlib-rs as the reference: streams compressed by flate2 round-trip, and both decoders detect the same
//! damage.

#![allow(clippy::unwrap_used)]

use std::io::{BufReader, Read, Write};

use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use flate2::{Compression as Level, Decompress, FlushDecompress, GzBuilder, Status};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn ours(stream: &[u8], kind: Compression, piece: usize) -> (Vec<u8>, io::Result<()>) {
    let mut inflate = Inflate::new(BufReader::with_capacity(piece, stream), kind);
    let mut bytes = Vec::new();
    let end = inflate.read_to_end(&mut bytes).map(drop);
    (bytes, end)
}

/// The output of zlib-rs for one member, and whether it ended without an error.
fn reference(stream: &[u8], kind: Compression) -> (Vec<u8>, bool) {
    let mut state = match kind {
        Compression::Gzip => Decompress::new_gzip(15),
        _ => Decompress::new(true),
    };
    let mut bytes = Vec::with_capacity(1 << 20);
    let status = state.decompress_vec(stream, &mut bytes, FlushDecompress::None);
    let whole = matches!(status, Ok(Status::StreamEnd)) && state.total_in() == stream.len() as u64;
    (bytes, whole)
}

fn compress(bytes: &[u8], kind: Compression, level: u32) -> Vec<u8> {
    let level = Level::new(level);
    match kind {
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), level);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        _ => {
            let mut encoder = ZlibEncoder::new(Vec::new(), level);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
    }
}

/// Varied contents: noise, runs, text of few letters, repeats at short and long distances.
fn contents() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        vec(any::<u8>(), 0..3000),
        (any::<u8>(), 0usize..2000).prop_map(|(byte, count)| vec![byte; count]),
        vec(prop_oneof![Just(b'a'), Just(b'b'), Just(b' ')], 0..3000),
        (vec(any::<u8>(), 1..20), 1usize..200).prop_map(|(bytes, times)| bytes.repeat(times)),
        (vec(any::<u8>(), 30_000..40_000)).prop_map(|bytes| [&bytes[..], &bytes[..5000]].concat()),
    ];
    vec(part, 0..6).prop_map(|parts| parts.concat())
}

fn kinds() -> impl Strategy<Value = Compression> {
    prop_oneof![Just(Compression::Gzip), Just(Compression::Zlib)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn compressed_streams_round_trip(
        members in vec(contents(), 1..3), kind in kinds(), level in 0u32..10,
        piece in prop_oneof![1usize..20, Just(4096), Just(1 << 20)],
    ) {
        let stream: Vec<u8> = members.iter().flat_map(|bytes| compress(bytes, kind, level)).collect();
        let (bytes, end) = ours(&stream, kind, piece);
        prop_assert!(end.is_ok(), "{end:?}");
        prop_assert!(bytes == members.concat());
    }

    #[test]
    fn damage_is_detected_exactly_if_zlib_detects_it(
        contents in contents(), kind in kinds(), level in 0u32..10, piece in prop_oneof![Just(3usize), Just(1 << 20)],
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3), cut in any::<prop::sample::Index>(), cuts in any::<bool>(),
    ) {
        let mut stream = compress(&contents, kind, level);
        for (at, byte) in changes {
            // Headers are tested separately: zlib supports preset dictionaries, this decoder does not.
            let at = at.index(stream.len());
            if at >= 10 {
                stream[at] = byte;
            }
        }
        if cuts {
            stream.truncate(2 + cut.index(stream.len() - 1));
        }
        let (expected, whole) = reference(&stream, kind);
        let (bytes, end) = ours(&stream, kind, piece);
        prop_assert_eq!(end.is_ok(), whole, "{:?}", end);
        if whole {
            prop_assert!(bytes == expected);
        } else {
            let shared = bytes.len().min(expected.len());
            prop_assert!(bytes[..shared] == expected[..shared]);
        }
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..400), kind in kinds()) {
        let start: &[u8] = match kind {
            Compression::Gzip => &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3],
            _ => &[0x78, 0x9c],
        };
        let stream = [start, &noise].concat();
        prop_assert_eq!(ours(&stream, kind, 64).1.is_ok(), reference(&stream, kind).1);
    }
}

#[test]
fn long_streams_slide_through_the_window() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    let mut bytes = b"some bytes to start from".to_vec();
    while bytes.len() < 1 << 20 {
        let back = 1 + next() % bytes.len().min(WINDOW_BYTES);
        let from = bytes.len() - back;
        for at in 0..(3 + next() % 300).min(back) {
            bytes.push(bytes[from + at]);
        }
        bytes.push(next() as u8);
    }
    for level in [1, 6, 9] {
        for piece in [1000, 1 << 20] {
            let (found, end) = ours(&compress(&bytes, Compression::Gzip, level), Compression::Gzip, piece);
            assert!(end.is_ok() && found == bytes, "{level} {piece} {end:?}");
        }
    }
}

#[test]
fn gzip_headers_with_all_their_fields() {
    let mut encoder = GzBuilder::new()
        .extra(vec![7; 300])
        .filename("a name")
        .comment("a comment")
        .mtime(5)
        .write(Vec::new(), Level::default());
    encoder.write_all(b"text").unwrap();
    let stream = encoder.finish().unwrap();
    let (bytes, end) = ours(&stream, Compression::Gzip, 5);
    assert!(end.is_ok() && bytes == b"text");
    for cut in 1..stream.len() {
        assert_eq!(
            ours(&stream[..cut], Compression::Gzip, 64).1.unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
    }
    // Headers with a correct and an incorrect checksum.
    let mut header = vec![0x1f, 0x8b, 8, 2, 0, 0, 0, 0, 0, 3];
    let mut checksum = Checksum::crc32();
    checksum.update(&header);
    header.extend_from_slice(&(checksum.value() as u16).to_le_bytes());
    let body = &compress(b"text", Compression::Gzip, 6)[10..];
    assert!(ours(&[&header[..], body].concat(), Compression::Gzip, 64).1.is_ok());
    header[4] = 1;
    let error = ours(&[&header[..], body].concat(), Compression::Gzip, 64).1.unwrap_err();
    assert!(error.to_string().contains("gzip header"), "{error}");
}

#[test]
fn damage_is_described() {
    let stored = |body: &[u8]| [&[0x78, 0x9c][..], body].concat();
    for (body, expected) in [
        (&[0b111][..], "a block has an unknown type"),
        (&[0b001, 1, 0, 0, 0], "the length of a stored block"),
        // A match before any output: fixed codes, length 3, distance 1.
        (&[0b0000_0011, 0b0000_0010, 0, 0, 0, 0, 0, 0, 0, 0, 0], "a match reaches back"),
        (&[0b001, 0, 0, 0xff, 0xff, 0, 0, 0, 2], "the checksum of the decompressed bytes"),
    ] {
        let error = ours(&stored(body), Compression::Zlib, 64).1.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let dictionary = ours(&[0x78, 0xbb, 0, 0], Compression::Zlib, 64).1.unwrap_err();
    assert!(dictionary.to_string().contains("dictionary"), "{dictionary}");
    let mut raw = DeflateEncoder::new(Vec::new(), Level::default());
    raw.write_all(b"text").unwrap();
    let stream = [&[0x78, 0x9c][..], &raw.finish().unwrap()].concat();
    assert_eq!(ours(&stream, Compression::Zlib, 64).1.unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_failed_stream_stays_failed() {
    let stream = compress(&[5; 1000], Compression::Gzip, 6);
    let mut inflate = Inflate::new(&stream[..stream.len() - 1], Compression::Gzip);
    assert_eq!(inflate.fill_buf().unwrap().len(), 1000, "output before the damage is delivered");
    inflate.consume(1000);
    for _ in 0..2 {
        assert_eq!(inflate.fill_buf().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
