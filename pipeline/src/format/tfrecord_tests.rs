#![allow(clippy::unwrap_used)]

use std::io::{BufReader, Read, Write};

use super::*;
use crate::format::compression::{Compression, Compressor, Decompressed};

/// CRC-32C one bit at a time, from its polynomial.
fn plain_crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

/// A record as the format's description says, by hand.
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

/// All records that read well, and the damage that ended it (or, of a record in between, did not).
fn read_in_pieces(bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<Damage>) {
    let damage = |record: u64, error: io::Error| Damage {
        offset: 0,
        record,
        message: error.to_string(),
        fatal: true,
        cut: error.kind() == io::ErrorKind::UnexpectedEof,
        instead: None,
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
            Err(ReadError::Fetch(error)) => panic!("{error}"),
        }
    }
}

const COMPRESSIONS: [Compression; 4] =
    [Compression::None, Compression::Gzip, Compression::Zlib, Compression::Zstd];

#[test]
fn known_checksums() {
    // RFC 3720, B.4.
    assert_eq!(plain_crc(&[0; 32]), 0x8a91_36aa);
    assert_eq!(plain_crc(b"123456789"), 0xe306_9283);
    for length in 0..300 {
        let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + 3) as u8).collect();
        assert_eq!(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &bytes) as u32, plain_crc(&bytes));
    }
}

#[test]
fn records_read_back_in_any_pieces() {
    for compression in COMPRESSIONS {
        let bytes = compress(&framed(&records()), compression);
        assert_eq!(Compression::of(&bytes), compression);
        for piece in [1, 2, 3, 11, 12, 13, 64, 1 << 16] {
            assert_eq!(read_in_pieces(&bytes, piece), (records(), None), "{compression:?} {piece}");
        }
    }
}

#[test]
fn the_writer_writes_the_format_as_described() {
    let mut writer = RecordWriter::new(Vec::new());
    for record in records() {
        writer.write(&record).unwrap();
    }
    assert_eq!(writer.into_inner(), framed(&records()));
}

#[test]
fn members_and_frames_follow_one_another() {
    let bytes = framed(&records());
    // The border lies within a record.
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
fn a_cut_anywhere_is_damage() {
    let bytes = framed(&records());
    let mut borders = vec![0];
    for record in records() {
        borders.push(borders.last().unwrap() + record.len() + 16);
    }
    for compression in COMPRESSIONS {
        let whole = compress(&bytes, compression);
        for cut in 0..whole.len() {
            let (good, damage) = read_in_pieces(&whole[..cut], 64);
            assert!(records().starts_with(&good));
            // Only between two records of an uncompressed file does a cut leave no trace.
            let traceless = cut == 0 || compression == Compression::None && borders.contains(&cut);
            assert_eq!(damage.is_none(), traceless, "{compression:?} cut at {cut}: {damage:?}");
            if let Some(damage) = damage.filter(|_| compression == Compression::None) {
                assert_eq!(damage.record, good.len() as u64);
                assert_eq!(damage.offset, borders[good.len()] as u64);
                assert!(damage.fatal);
            }
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_damage() {
    let bytes = framed(&records());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let (good, damage) = read_in_pieces(&flipped, 64);
        let damage = damage.unwrap_or_else(|| panic!("bit {bit} went unnoticed"));
        let number = damage.record as usize;
        assert_eq!(good[..number], records()[..number], "bit {bit}");
        let in_data = bit / 8 >= damage.offset as usize + HEADER_BYTES;
        assert_eq!(damage.fatal, !in_data, "bit {bit}");
        if in_data {
            assert_eq!(good[number..], records()[number + 1..], "bit {bit}: the records after it are good");
        }
    }
}

#[test]
fn an_absurd_length_with_a_right_checksum_allocates_nothing() {
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
fn a_length_that_looks_like_a_magic_number_is_a_length() {
    let record = vec![7u8; 0x9c78];
    let bytes = frame(&record);
    assert_eq!(bytes[..2], [0x78, 0x9c], "as zlib streams start");
    assert_eq!(read_in_pieces(&bytes, 4096), (vec![record], None));
}

#[test]
fn another_format_is_told_from_damage() {
    for (bytes, content) in
        [(&b"PAR1 and then some more"[..], Content::Parquet), (b"age,sex\n39,Male\n", Content::Text)]
    {
        assert_eq!(read_in_pieces(bytes, 64).1.unwrap().instead, Some(content));
        assert_eq!(read_in_pieces(&compress(bytes, Compression::Gzip), 5).1.unwrap().instead, Some(content));
    }
    let (_, damage) = read_in_pieces(&[&frame(b"good")[..], b"PAR1 and then some more"].concat(), 64);
    assert_eq!(damage.unwrap().instead, None);
}

#[test]
fn decompressed_streams_read_like_any_other() {
    for compression in COMPRESSIONS {
        let bytes = compress(b"some text", compression);
        let (mut stream, found) = Decompressed::new(&bytes[..]).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), found), ("some text", compression));
    }
}
