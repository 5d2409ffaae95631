#![allow(clippy::unwrap_used)]

use std::io::{BufReader, Read, Write};

use super::*;
use crate::compression::{Compression, Compressor, Decompressed};

/// Bitwise CRC-32C, from its polynomial.
fn plain_crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

/// Frames a record according to the format.
fn frame(data: &[u8]) -> Vec<u8> {
    let masked = |bytes: &[u8]| {
        let crc = plain_crc(bytes);
        crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), data, &masked(data)].concat()
}

fn records() -> Vec<Vec<u8>> {
    (0..7usize).map(|i| (0..i * i * 9).map(|j| (i * 31 + j) as u8).collect()).collect()
}

fn framed(records: &[Vec<u8>]) -> Vec<u8> {
    records.iter().flat_map(|record| frame(record)).collect()
}

fn compress(bytes: &[u8], compression: Compression) -> Vec<u8> {
    let mut writer = Compressor::new(Vec::new(), compression).unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

/// All undamaged records, and the first damage.
fn read_in_pieces(bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<Damage>) {
    let damage = |record: u64, error: io::Error| Damage {
        offset: 0,
        record,
        message: error.to_string(),
        fatal: true,
        truncated: error.kind() == io::ErrorKind::UnexpectedEof,
        too_long: false,
        actual_format: None,
    };
    let input = match Decompressed::new(BufReader::with_capacity(piece, bytes)) {
        Ok((input, _)) => input,
        Err(error) => return (Vec::new(), Some(damage(0, error))),
    };
    let mut reader = RecordReader::new(input);
    let (mut good, mut first) = (Vec::new(), None);
    loop {
        match reader.next_record() {
            Ok(Some(record)) => good.push(record.data.to_vec()),
            Ok(None) => return (good, first),
            Err(ReadError::Damage(damage)) => {
                let fatal = damage.fatal;
                first.get_or_insert(damage);
                if fatal {
                    return (good, first);
                }
            }
            Err(ReadError::Source(error)) => panic!("{error}"),
        }
    }
}

const COMPRESSIONS: [Compression; 4] =
    [Compression::None, Compression::Gzip, Compression::Zlib, Compression::Zstd];

#[test]
fn checksums_match_the_reference() {
    // RFC 3720, B.4.
    assert_eq!(plain_crc(&[0; 32]), 0x8a91_36aa);
    assert_eq!(plain_crc(b"123456789"), 0xe306_9283);
    for length in 0..300 {
        let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + 3) as u8).collect();
        assert_eq!(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &bytes) as u32, plain_crc(&bytes));
    }
}

#[test]
fn records_round_trip_with_any_buffer_size() {
    for compression in COMPRESSIONS {
        let bytes = compress(&framed(&records()), compression);
        assert_eq!(Compression::detect(&bytes), compression);
        for piece in [1, 2, 3, 11, 12, 13, 64, 1 << 16] {
            assert_eq!(read_in_pieces(&bytes, piece), (records(), None), "{compression:?} {piece}");
        }
    }
}

#[test]
fn writer_output_matches_the_format() {
    let mut writer = RecordWriter::new(Vec::new());
    for record in records() {
        writer.write(&record).unwrap();
    }
    assert_eq!(writer.into_inner(), framed(&records()));
}

#[test]
fn concatenated_members_and_frames_are_read() {
    let bytes = framed(&records());
    // The boundary lies within a record.
    let (head, tail) = bytes.split_at(bytes.len() / 2);
    for compression in [Compression::Gzip, Compression::Zlib, Compression::Zstd] {
        let joined = [compress(head, compression), compress(tail, compression)].concat();
        assert_eq!(read_in_pieces(&joined, 64), (records(), None), "{compression:?}");
        for cut in 0..joined.len() {
            let (good, damage) = read_in_pieces(&joined[..cut], 64);
            assert!(damage.is_some() || (cut == 0 && good.is_empty()), "{compression:?} cut at {cut}");
            assert!(records().starts_with(&good));
        }
        let trailing = [&joined[..], b"more"].concat();
        assert!(read_in_pieces(&trailing, 64).1.is_some(), "{compression:?}");
    }
}

#[test]
fn truncation_is_damage() {
    let bytes = framed(&records());
    let mut boundaries = vec![0];
    for record in records() {
        boundaries.push(boundaries.last().unwrap() + record.len() + 16);
    }
    for compression in COMPRESSIONS {
        let whole = compress(&bytes, compression);
        for cut in 0..whole.len() {
            let (good, damage) = read_in_pieces(&whole[..cut], 64);
            assert!(records().starts_with(&good));
            // Only truncation between records of an uncompressed file is undetectable.
            let undetectable = cut == 0 || compression == Compression::None && boundaries.contains(&cut);
            assert_eq!(damage.is_none(), undetectable, "{compression:?} cut at {cut}: {damage:?}");
            if let Some(damage) = damage.filter(|_| compression == Compression::None) {
                assert_eq!(damage.record, good.len() as u64);
                assert_eq!(damage.offset, boundaries[good.len()] as u64);
                assert!(damage.fatal);
            }
        }
    }
}

#[test]
fn every_flipped_bit_is_damage() {
    let bytes = framed(&records());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let (good, damage) = read_in_pieces(&flipped, 64);
        let damage = damage.unwrap_or_else(|| panic!("bit {bit} was not detected"));
        let number = damage.record as usize;
        assert_eq!(good[..number], records()[..number], "bit {bit}");
        let in_data = bit / 8 >= damage.offset as usize + HEADER_BYTES;
        assert_eq!(damage.fatal, !in_data, "bit {bit}");
        if in_data {
            assert_eq!(good[number..], records()[number + 1..], "bit {bit}: later records are read");
        }
    }
}

#[test]
fn huge_lengths_allocate_nothing() {
    for length in [MAX_RECORD_BYTES + 1, u64::MAX] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(&masked_crc(&length.to_le_bytes()).to_le_bytes());
        let (_, damage) = read_in_pieces(&bytes, 64);
        assert!(damage.unwrap().message.contains(&length.to_string()));
    }
    let length = MAX_RECORD_BYTES.to_le_bytes();
    let mut bytes = length.to_vec();
    bytes.extend_from_slice(&masked_crc(&length).to_le_bytes());
    let mut reader = RecordReader::new(&bytes[..]);
    assert!(reader.next_record().is_err());
    assert!(reader.carry.capacity() < 1024);
}

#[test]
fn lengths_take_precedence_over_magic_numbers() {
    let record = vec![7u8; 0x9c78];
    let bytes = frame(&record);
    assert_eq!(bytes[..2], [0x78, 0x9c], "the start of a zlib stream");
    assert_eq!(read_in_pieces(&bytes, 4096), (vec![record], None));
}

#[test]
fn other_formats_are_distinguished_from_damage() {
    for (bytes, content) in
        [(&b"PAR1 and then some more"[..], Content::Parquet), (b"age,sex\n39,Male\n", Content::Text)]
    {
        assert_eq!(read_in_pieces(bytes, 64).1.unwrap().actual_format, Some(content));
        assert_eq!(
            read_in_pieces(&compress(bytes, Compression::Gzip), 5).1.unwrap().actual_format,
            Some(content)
        );
    }
    let (_, damage) = read_in_pieces(&[&frame(b"good")[..], b"PAR1 and then some more"].concat(), 64);
    assert_eq!(damage.unwrap().actual_format, None);
}

#[test]
fn decompressed_streams_implement_read() {
    for compression in COMPRESSIONS {
        let bytes = compress(b"some text", compression);
        let (mut stream, found) = Decompressed::new(&bytes[..]).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), found), ("some text", compression));
    }
}

#[test]
fn a_limit_applies_to_the_length_and_not_to_how_the_input_is_divided() {
    let bytes = framed(&[vec![1; 100], vec![2; 101], vec![3; 5]]);
    for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
        let compressed = compress(&bytes, compression);
        for piece in [1, 30, 1000] {
            let (input, _) = Decompressed::new(BufReader::with_capacity(piece, &compressed[..])).unwrap();
            let mut reader = RecordReader::new(input).at_most(100);
            assert_eq!(reader.next_record().unwrap().unwrap().data.len(), 100);
            let Err(ReadError::Damage(damage)) = reader.next_record() else { panic!("a limit") };
            assert!(damage.too_long && damage.fatal && !damage.truncated);
            assert_eq!((damage.record, damage.offset), (1, 116));
            assert_eq!(damage.message, "a record of 101 bytes exceeds the limit of 100");
        }
    }
}

#[test]
fn a_frame_of_zstd_chooses_a_window_up_to_a_limit() {
    let with_window = |log: u32| {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.set_parameter(zstd::zstd_safe::CParameter::WindowLog(log)).unwrap();
        encoder.write_all(&framed(&[vec![1; 100]])).unwrap();
        encoder.finish().unwrap()
    };
    assert_eq!(read_in_pieces(&with_window(23), 100), (vec![vec![1; 100]], None));
    let (records, damage) = read_in_pieces(&with_window(24), 100);
    assert!(records.is_empty());
    assert!(damage.unwrap().message.contains("too much memory"));
}
